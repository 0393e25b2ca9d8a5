//! The arguments of Pulumi's calls. A secret is never an argument, because other processes can see
//! those.

use std::path::{Path, PathBuf};

use driftless_contract::{Config, ConfigValue, Lock, Operation, RunSpec};
use serde_json::{Value, json};

/// A longer value goes to standard input: Linux accepts 128 KiB for one argument, and JSON in JSON
/// may be three times as long.
pub(crate) const MAX_ARGUMENT_BYTES: usize = 32 << 10;

/// The maximum length of the shorter values of one call: together they may be one argument, and
/// Linux limits all arguments of a call too.
const MAX_CALL_BYTES: usize = 100 << 10;

/// A call of Pulumi: its arguments and its standard input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub arguments: Vec<String>,
    /// May be secret.
    pub input: String,
}

impl Call {
    pub(crate) fn new<S: Into<String>>(arguments: impl IntoIterator<Item = S>, stack: Option<&str>) -> Self {
        let mut arguments: Vec<String> = arguments.into_iter().map(Into::into).collect();
        arguments.push("--non-interactive".into());
        arguments.extend(stack.map(|stack| format!("--stack={stack}")));
        Self { arguments, input: String::new() }
    }
}

/// The flag of a destroy that removes the stack at its end.
pub(crate) const REMOVE: &str = "--remove";

/// Why a destroy may find no stack although the name and the backend are right.
pub(crate) fn may_be_missing(spec: &RunSpec) -> Option<&'static str> {
    let dead = || spec.stale_lock.iter().flat_map(Lock::all);
    if spec.create {
        Some("no run has created it")
    } else {
        (spec.remove && dead().any(|dead| dead.removes)).then_some("an earlier run that was removing it ended without a report")
    }
}

/// Selects the stack, and creates it if requested. Neither a drift check nor a destroy creates one.
pub(crate) fn select(spec: &RunSpec) -> Call {
    let mut arguments = vec!["stack".to_owned(), "select".into()];
    if spec.create && !spec.preview_only && spec.operation != Operation::Destroy {
        arguments.push("--create".into());
        arguments.extend(spec.secrets_provider.as_ref().map(|provider| format!("--secrets-provider={provider}")));
    }
    Call::new(arguments, Some(&spec.stack))
}

/// Sets the stack's configuration: plain values in as few calls as possible, each secret in its own
/// call, through standard input. A path overwrites what was set before it.
pub(crate) fn config(config: &[&Config], stack: &str) -> Vec<Call> {
    let stack = Some(stack);
    let on_input = |config: &Config| config.secret || text(config).len() > MAX_ARGUMENT_BYTES;
    let (single, together): (Vec<&Config>, Vec<&Config>) = config.iter().partition(|config| on_input(config));
    let plain = |path: bool| {
        let chosen = together.iter().filter(move |config| config.path == path && structured(config).is_none());
        chosen.map(|config| format!("--plaintext={}={}", config.key, text(config))).collect::<Vec<_>>()
    };
    let mut calls = Vec::new();
    let mut set_all = |flags: &[&str], values: Vec<String>| {
        let start = ["config", "set-all"].iter().chain(flags).map(|part| (*part).to_owned());
        calls.push(Call::new(start.chain(values), stack));
    };
    for values in parts(plain(false)) {
        set_all(&[], values);
    }
    let entry = |config: &Config| {
        let value = json!({ "value": text(config), "objectValue": structured(config)? });
        Some(format!("{}:{value}", Value::from(config.key.as_str())))
    };
    // Of several `--json` arguments Pulumi uses the last.
    for entries in parts(together.iter().filter_map(|config| entry(config)).collect()) {
        set_all(&[], vec![format!("--json={{{}}}", entries.join(","))]);
    }
    for values in parts(plain(true)) {
        set_all(&["--path"], values);
    }
    for config in single {
        let kind = if config.secret { "--secret" } else { "--plaintext" };
        let path = config.path.then_some("--path");
        let arguments = ["config", "set", kind].into_iter().chain(path);
        let mut call = Call::new(arguments, stack);
        call.arguments.extend(["--".into(), config.key.clone()]);
        // Pulumi removes one newline from the end of its input. Only versions since June 2026 have
        // `--raw`, which keeps it.
        call.input = text(config) + "\n";
        calls.push(call);
    }
    calls
}

/// The values in order, in parts that each fit into one call.
fn parts(values: Vec<String>) -> Vec<Vec<String>> {
    let mut parts: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for value in values {
        bytes += value.len() + 1;
        match parts.last_mut() {
            Some(part) if bytes <= MAX_CALL_BYTES => part.push(value),
            _ => {
                bytes = value.len() + 1;
                parts.push(vec![value]);
            }
        }
    }
    parts
}

/// The key of a value that Pulumi does not accept.
pub(crate) fn unusable(spec: &RunSpec) -> Option<&str> {
    spec.config.iter().find(|config| config.path && structured(config).is_some()).map(|config| config.key.as_str())
}

/// A value that is not a string, which Pulumi sets in other ways.
pub(crate) fn structured(config: &Config) -> Option<&Value> {
    match &config.value {
        ConfigValue::Json(Value::String(_)) | ConfigValue::String(_) | ConfigValue::Token(_) => None,
        ConfigValue::Json(value) => Some(value),
    }
}

pub(crate) fn text(config: &Config) -> String {
    match &config.value {
        ConfigValue::String(text) | ConfigValue::Json(Value::String(text)) | ConfigValue::Token(text) => text.clone(),
        ConfigValue::Json(value) => value.to_string(),
    }
}

/// Imports the Pulumi ESC environments, if there are any.
pub(crate) fn environments(spec: &RunSpec) -> Option<Call> {
    (!spec.environments.is_empty()).then(|| {
        let mut call = Call::new(["config", "env", "add", "--yes"], Some(&spec.stack));
        call.arguments.push("--".into());
        call.arguments.extend(spec.environments.iter().cloned());
        call
    })
}

/// The operation. A setting for which the operation has no flag is left out, as in PKO.
pub(crate) fn operation(spec: &RunSpec, event_log: &Path) -> Call {
    use Operation::{Destroy, Preview, Refresh, Up};
    let of = |operations: &[Operation]| operations.contains(&spec.operation);
    let mut arguments = vec![spec.operation.as_str().to_owned(), "--suppress-progress".into()];
    arguments.push(format!("--event-log={}", event_log.display()));
    let mut flag = |set: bool, operations: &[Operation], flag: &str| {
        if set && of(operations) {
            arguments.push(flag.to_owned());
        }
    };
    // Without --diff, which shows values that a provider read and that are not marked as secret.
    flag(spec.preview_only, &[Refresh], "--preview-only");
    flag(!spec.preview_only, &[Up, Refresh, Destroy], "--yes");
    flag(!spec.preview_only, &[Up, Refresh, Destroy], "--skip-preview");
    flag(true, &[Up, Preview], "--diff");
    flag(spec.expect_no_changes, &[Up, Preview, Refresh], "--expect-no-changes");
    // The refresh before found no changes, so there is nothing to refresh.
    flag(spec.refresh && !refreshes_before(spec), &[Up, Preview, Destroy], "--refresh");
    flag(spec.target_dependents, &[Up, Preview, Destroy], "--target-dependents");
    flag(spec.continue_on_error, &[Up, Destroy], "--continue-on-error");
    flag(spec.run_program, &[Refresh, Destroy], "--run-program");
    flag(spec.remove, &[Destroy], REMOVE);
    arguments.extend(spec.message.as_ref().map(|message| format!("--message={message}")));
    arguments.extend(spec.parallel.map(|parallel| format!("--parallel={parallel}")));
    arguments.extend(spec.targets.iter().map(|urn| format!("--target={urn}")));
    if of(&[Up, Preview]) {
        arguments.extend(spec.replace.iter().map(|urn| format!("--replace={urn}")));
    }
    Call::new(arguments, Some(&spec.stack))
}

/// Returns whether [`refresh_before`] precedes the operation.
pub(crate) fn refreshes_before(spec: &RunSpec) -> bool {
    spec.expect_no_refresh_changes && matches!(spec.operation, Operation::Up | Operation::Preview)
}

/// The refresh that must find no changes. It writes nothing, because the next run would then count
/// its findings as expected.
pub(crate) fn refresh_before(spec: &RunSpec, event_log: &Path) -> Call {
    let mut arguments =
        ["refresh", "--suppress-progress", "--preview-only", "--diff", "--expect-no-changes"].map(str::to_owned).to_vec();
    arguments.push(format!("--event-log={}", event_log.display()));
    arguments.extend(spec.parallel.map(|parallel| format!("--parallel={parallel}")));
    arguments.extend(spec.targets.iter().map(|urn| format!("--target={urn}")));
    Call::new(arguments, Some(&spec.stack))
}

/// Returns whether [`destroy_before`] precedes the operation. `destroy` has no
/// `--expect-no-changes`.
pub(crate) fn looks_before(spec: &RunSpec) -> bool {
    spec.expect_no_changes && spec.operation == Operation::Destroy
}

/// The preview of a destroy.
pub(crate) fn destroy_before(spec: &RunSpec, event_log: &Path) -> Call {
    let mut arguments = ["destroy", "--suppress-progress", "--preview-only"].map(str::to_owned).to_vec();
    arguments.push(format!("--event-log={}", event_log.display()));
    arguments.extend(spec.target_dependents.then(|| "--target-dependents".to_owned()));
    arguments.extend(spec.targets.iter().map(|urn| format!("--target={urn}")));
    Call::new(arguments, Some(&spec.stack))
}

/// The preview from which the plan of an operation is made. Without `--expect-no-changes`, because
/// a preview that fails writes no plan. Its standard output has no secrets, and is not shown.
pub(crate) fn plan(spec: &RunSpec, event_log: &Path, plan: &Path, packs: &[PathBuf]) -> Call {
    use Operation::{Destroy, Preview, Refresh, Up};
    let mut arguments: Vec<String> = match spec.operation {
        Up | Preview => vec!["preview".into(), "--json".into(), "--show-sames".into(), "--show-reads".into()],
        Refresh | Destroy => {
            vec![spec.operation.as_str().into(), "--suppress-progress".into(), "--preview-only".into()]
        }
    };
    if matches!(spec.operation, Up | Preview) {
        // In the plan only: standard output and the event log show no secrets.
        arguments.extend(["--show-secrets".into(), format!("--save-plan={}", plan.display())]);
        arguments.extend(spec.replace.iter().map(|urn| format!("--replace={urn}")));
    }
    arguments.push(format!("--event-log={}", event_log.display()));
    let mut flag = |set: bool, operations: &[Operation], flag: &str| {
        if set && operations.contains(&spec.operation) {
            arguments.push(flag.to_owned());
        }
    };
    flag(spec.refresh && !refreshes_before(spec), &[Up, Preview, Destroy], "--refresh");
    flag(spec.target_dependents, &[Up, Preview, Destroy], "--target-dependents");
    flag(spec.run_program, &[Refresh, Destroy], "--run-program");
    arguments.extend(spec.parallel.map(|parallel| format!("--parallel={parallel}")));
    arguments.extend(spec.targets.iter().map(|urn| format!("--target={urn}")));
    arguments.extend(policy_packs(packs));
    Call::new(arguments, Some(&spec.stack))
}

/// The operation that applies a plan. Never with `--skip-preview`: without a preview, Pulumi finds
/// a difference only after it has changed other resources.
pub(crate) fn apply(spec: &RunSpec, event_log: &Path, plan: &Path, packs: &[PathBuf]) -> Call {
    let mut call = operation(spec, event_log);
    if spec.operation == Operation::Up {
        call.arguments.retain(|argument| argument != "--skip-preview");
        call.arguments.push(format!("--plan={}", plan.display()));
    }
    call.arguments.extend(policy_packs(packs));
    call
}

/// Holds a preview or an update to policy packs, by their directories.
fn policy_packs(packs: &[PathBuf]) -> impl Iterator<Item = String> {
    packs.iter().map(|dir| format!("--policy-pack={}", dir.display()))
}

/// The flags for Pulumi's log on standard error, with which every call starts.
pub(crate) fn log(spec: &RunSpec) -> Vec<String> {
    let level = spec.log_level.filter(|level| *level > 0);
    level.map_or_else(Vec::new, |level| vec![format!("-v={level}"), "--logtostderr".into()])
}

#[cfg(test)]
mod tests {
    use driftless_contract::{ObjectKey, ProjectInfo, RunId, RunLimits, RunSource};

    use super::*;

    fn config(spec: &RunSpec) -> Vec<Call> {
        super::config(&spec.config.iter().collect::<Vec<_>>(), &spec.stack)
    }

    fn spec(operation: Operation) -> RunSpec {
        let key = |kind: &str| ObjectKey {
            cluster: "c".into(),
            api_version: "auto.pulumi.com/v1alpha1".into(),
            kind: kind.into(),
            namespace: "n".into(),
            name: "u".into(),
        };
        RunSpec {
            version: 1,
            run: RunId { update: key("Update"), uid: "uid".into(), claim: "claim-1".into() },
            operation,
            stack: "dev".into(),
            create: true,
            secrets_provider: Some("passphrase".into()),
            source: RunSource::Project(ProjectInfo { name: "p".into(), runtime: "yaml".into() }),
            env: vec![],
            config: vec![],
            environments: vec![],
            identity: false,
            limits: RunLimits::default(),
            message: Some("-m is for message".into()),
            parallel: Some(3),
            expect_no_changes: true,
            refresh: true,
            expect_no_refresh_changes: false,
            targets: vec!["urn:a".into()],
            target_dependents: true,
            replace: vec!["urn:b".into()],
            continue_on_error: true,
            remove: true,
            run_program: true,
            preview_only: false,
            log_level: None,
            inputs: None,
            stale_lock: None,
            resources: None,
            files: vec![],
            cache: None,
            not_secret: vec![],
            plan: None,
        }
    }

    #[test]
    fn each_operation_gets_the_flags_that_it_has() {
        let all = |operation| operation_line(&spec(operation));
        let head = |op: &str| format!("{op} --suppress-progress --event-log=/e");
        let tail = "--message=-m is for message --parallel=3 --target=urn:a";
        assert_eq!(
            all(Operation::Up),
            format!(
                "{} --yes --skip-preview --diff --expect-no-changes --refresh --target-dependents --continue-on-error {tail} \
                 --replace=urn:b --non-interactive --stack=dev",
                head("up")
            )
        );
        assert_eq!(
            all(Operation::Preview),
            format!(
                "{} --diff --expect-no-changes --refresh --target-dependents {tail} --replace=urn:b --non-interactive --stack=dev",
                head("preview")
            )
        );
        assert_eq!(
            all(Operation::Refresh),
            format!(
                "{} --yes --skip-preview --expect-no-changes --run-program {tail} --non-interactive --stack=dev",
                head("refresh")
            )
        );
        assert_eq!(
            all(Operation::Destroy),
            format!(
                "{} --yes --skip-preview --refresh --target-dependents --continue-on-error --run-program --remove {tail} \
                 --non-interactive --stack=dev",
                head("destroy")
            )
        );
    }

    #[test]
    fn drift_check_changes_nothing_and_shows_no_values() {
        let spec = RunSpec { preview_only: true, ..spec(Operation::Refresh) };
        assert_eq!(
            operation_line(&spec),
            "refresh --suppress-progress --event-log=/e --preview-only --expect-no-changes --run-program \
             --message=-m is for message --parallel=3 --target=urn:a --non-interactive --stack=dev"
        );
        assert_eq!(select(&spec).arguments.join(" "), "stack select --non-interactive --stack=dev");
    }

    fn operation_line(spec: &RunSpec) -> String {
        operation(spec, Path::new("/e")).arguments.join(" ")
    }

    #[test]
    fn stack_is_created_only_on_request() {
        let mut spec = spec(Operation::Up);
        assert_eq!(
            select(&spec).arguments.join(" "),
            "stack select --create --secrets-provider=passphrase --non-interactive --stack=dev"
        );
        spec.operation = Operation::Destroy;
        assert_eq!(select(&spec).arguments.join(" "), "stack select --non-interactive --stack=dev");
        (spec.operation, spec.create) = (Operation::Up, false);
        assert_eq!(select(&spec).arguments.join(" "), "stack select --non-interactive --stack=dev");
    }

    #[test]
    fn no_secret_value_is_an_argument() {
        let entry = |key: &str, value: ConfigValue, secret: bool, path: bool| Config { key: key.into(), path, value, secret };
        let string = |text: &str| ConfigValue::String(text.to_owned());
        let long = "x".repeat(MAX_ARGUMENT_BYTES + 1);
        let mut spec = spec(Operation::Up);
        spec.config = vec![
            entry("a", string("1"), false, false),
            entry("aws:region", string("eu=1"), false, false),
            entry("list[0]", string("x"), false, true),
            entry("deep", ConfigValue::Json(json!({ "n": 1 })), false, false),
            entry("token", string("canary\n"), true, false),
            entry("tree.leaf", string("canary"), true, true),
            entry("all", ConfigValue::Json(json!({ "k": "canary" })), true, false),
            entry("long", string(&long), false, false),
        ];
        let calls: Vec<(String, String)> = config(&spec).into_iter().map(|call| (call.arguments.join(" "), call.input)).collect();
        let calls: Vec<(&str, &str)> = calls.iter().map(|(line, input)| (line.as_str(), input.as_str())).collect();
        let end = "--non-interactive --stack=dev";
        assert_eq!(
            calls,
            [
                (&*format!("config set-all --plaintext=a=1 --plaintext=aws:region=eu=1 {end}"), ""),
                (&*format!(r#"config set-all --json={{"deep":{{"objectValue":{{"n":1}},"value":"{{\"n\":1}}"}}}} {end}"#), ""),
                (&*format!("config set-all --path --plaintext=list[0]=x {end}"), ""),
                (&*format!("config set --secret {end} -- token"), "canary\n\n"),
                (&*format!("config set --secret --path {end} -- tree.leaf"), "canary\n"),
                (&*format!("config set --secret {end} -- all"), "{\"k\":\"canary\"}\n"),
                (&*format!("config set --plaintext {end} -- long"), &*format!("{long}\n")),
            ]
        );
    }

    /// Every version of Pulumi removes the newline; older ones do not know the flag that keeps it.
    #[test]
    fn value_on_standard_input_has_one_newline_more() {
        let mut spec = spec(Operation::Up);
        for value in ["", "canary", "canary\n", "canary\n\n", "\n", "canary\r\n"] {
            for (value, secret) in [(value.to_owned(), true), ("x".repeat(MAX_ARGUMENT_BYTES + 1) + value, false)] {
                let key = "key".to_owned();
                spec.config = vec![Config { key, path: false, value: ConfigValue::String(value.clone()), secret }];
                let calls = config(&spec);
                assert_eq!(calls.len(), 1);
                assert_eq!(calls[0].input.strip_suffix('\n'), Some(&*value), "{value:?}");
                assert!(!calls[0].arguments.contains(&"--raw".to_owned()));
            }
        }
        assert_eq!(select(&spec).input, "", "a call without a value has no input");
    }

    #[test]
    fn a_value_that_looks_like_an_option_stays_a_value() {
        let mut spec = spec(Operation::Destroy);
        spec.stack = "--remove".into();
        spec.targets = vec!["--exclude-protected".into()];
        spec.environments = vec!["--stack=other".into(), "acme/prod".into()];
        let key = "--path".to_owned();
        spec.config = vec![Config { key, path: false, value: ConfigValue::String("x".into()), secret: true }];
        let arguments = |call: &Call| call.arguments.join(" ");
        let stack = "--non-interactive --stack=--remove";
        assert_eq!(arguments(&environments(&spec).unwrap()), format!("config env add --yes {stack} -- --stack=other acme/prod"));
        assert_eq!(arguments(&config(&spec)[0]), format!("config set --secret {stack} -- --path"));
        assert!(operation_line(&spec).contains(" --target=--exclude-protected "));
    }

    #[test]
    fn no_argument_and_no_call_is_longer_than_linux_takes() {
        let entry = |key: String, value: ConfigValue, path: bool| Config { key, path, value, secret: false };
        // JSON that doubles in length within JSON, and much of each.
        let structured = json!({ "n": "\"".repeat(MAX_ARGUMENT_BYTES / 2 - 8) });
        let mut spec = spec(Operation::Up);
        for n in 0..9 {
            spec.config.push(entry(format!("json{n}"), ConfigValue::Json(structured.clone()), false));
            for path in [false, true] {
                let text = "x".repeat(MAX_ARGUMENT_BYTES);
                spec.config.push(entry(format!("text{n}{path}"), ConfigValue::String(text), path));
            }
        }
        let calls = config(&spec);
        let longest = calls.iter().flat_map(|call| &call.arguments).map(String::len).max();
        assert!((64 << 10..128 << 10).contains(&longest.unwrap()), "{longest:?}");
        let bytes = |call: &Call| call.arguments.iter().map(String::len).sum::<usize>();
        assert!(calls.iter().all(|call| bytes(call) < 128 << 10));
        let set: Vec<String> = calls.iter().map(|call| call.arguments.join(" ")).collect();
        for Config { key, .. } in &spec.config {
            let named =
                set.iter().filter(|line| line.contains(&format!("{key}=")) || line.contains(&format!("{key:?}:"))).count();
            assert_eq!(named, 1, "{key}");
        }
        assert!(set.iter().all(|line| line.starts_with("config set-all ")));
    }

    #[test]
    fn expected_empty_refresh_runs_first_and_once() {
        let line = |call: Call| call.arguments.join(" ");
        let mut spec = spec(Operation::Up);
        assert!(!refreshes_before(&spec));
        spec.expect_no_refresh_changes = true;
        for (operation, first) in
            [(Operation::Up, true), (Operation::Preview, true), (Operation::Refresh, false), (Operation::Destroy, false)]
        {
            spec.operation = operation;
            assert_eq!(refreshes_before(&spec), first, "{operation:?}");
            let refreshes = super::operation(&spec, Path::new("/e")).arguments.contains(&"--refresh".to_owned());
            assert_eq!(refreshes, operation == Operation::Destroy, "{operation:?}");
        }
        assert_eq!(
            line(destroy_before(&spec, Path::new("/e"))),
            "destroy --suppress-progress --preview-only --event-log=/e --target-dependents --target=urn:a --non-interactive \
             --stack=dev"
        );
        let looks = |operation| looks_before(&RunSpec { operation, ..spec.clone() });
        assert!(looks(Operation::Destroy) && !looks(Operation::Up));
        assert_eq!(
            line(refresh_before(&spec, Path::new("/e"))),
            "refresh --suppress-progress --preview-only --diff --expect-no-changes --event-log=/e --parallel=3 --target=urn:a \
             --non-interactive --stack=dev"
        );
    }

    #[test]
    fn the_log_has_a_level() {
        let log_of = |level| log(&RunSpec { log_level: level, ..spec(Operation::Up) });
        assert_eq!(log_of(Some(9)), ["-v=9", "--logtostderr"]);
        assert!(log_of(None).is_empty() && log_of(Some(0)).is_empty());
    }
}
