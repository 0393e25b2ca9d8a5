//! Plans of the real Pulumi: which changes make another plan, and that only the approved one is
//! applied. Needs `pulumi`, `pulumi-language-yaml`, `pulumi-analyzer-policy-world` and
//! `pulumi-resource-world` in `target/tools`, so that only `make unit` runs it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use driftless_contract::{
    ChangeKind, Config, ConfigValue, Env, Operation, PlanHash, PlanRequest, PlannedChanges, RunResult, RunSpec, Verdict,
};

use self::aws::Aws;

#[allow(dead_code, reason = "the tests of run.rs use more of it")]
mod aws;

const HEAD: &str = "name: p\nruntime: yaml\nconfig:\n  word: { type: string, secret: true }\nresources:\n";

/// A run of Pulumi with a state in a folder.
struct Stack {
    aws: Aws,
    secret: String,
}

impl Stack {
    fn new(name: &str) -> Self {
        let aws = Aws::new(&format!("plans-{name}"));
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
        let plugin = aws.dir.join("home/plugins/resource-world-v1.0.0");
        fs::create_dir_all(&plugin).unwrap();
        let bin = aws.dir.join("bin");
        let analyzer = "pulumi-analyzer-policy-world";
        for (tool, dir) in
            [("pulumi", &bin), ("pulumi-language-yaml", &bin), (analyzer, &bin), ("pulumi-resource-world", &plugin)]
        {
            let (found, link) = (tools.join(tool), dir.join(tool));
            assert!(found.exists(), "{found:?} is missing; run tests/tools/install pulumi provider");
            let _: std::io::Result<()> = fs::remove_file(&link);
            symlink(found.canonicalize().unwrap(), link).unwrap();
        }
        fs::create_dir_all(aws.dir.join("backend")).unwrap();
        Self { aws, secret: "canary-old".into() }
    }

    /// Runs a script before each call of Pulumi.
    fn before_each_call(&self, script: &str) {
        self.wrap(|pulumi| format!("{script}\nexec {pulumi} \"$@\""));
    }

    /// Runs a script after each call of Pulumi.
    fn after_each_call(&self, script: &str) {
        self.wrap(|pulumi| format!("{pulumi} \"$@\"\ncode=$?\n{script}\nexit $code"));
    }

    fn wrap(&self, script: impl Fn(&str) -> String) {
        let pulumi = self.aws.dir.join("bin/pulumi");
        let real = pulumi.canonicalize().unwrap();
        fs::remove_file(&pulumi).unwrap();
        fs::write(&pulumi, format!("#!/bin/sh\n{}\n", script(&real.display().to_string()))).unwrap();
        fs::set_permissions(&pulumi, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.aws.dir.join("files").join(name)
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("PULUMI_BACKEND_URL", format!("file://{}", self.aws.dir.join("backend").display())),
            ("PULUMI_CONFIG_PASSPHRASE", "passphrase".into()),
        ]
    }

    /// Runs a program in a new task.
    async fn run(&self, program: &str, change: impl FnOnce(&mut RunSpec)) -> RunResult {
        let _: std::io::Result<()> = fs::remove_dir_all(self.aws.dir.join("share"));
        self.aws.served.lock().unwrap().objects.clear();
        let program = program.replace("FILES", &self.aws.dir.join("files").display().to_string());
        fs::write(self.aws.dir.join("project"), program).unwrap();
        self.aws.launch(|spec| {
            let variable = |(name, value): (&str, String)| Env { name: name.into(), value, secret: false, below_identity: false };
            spec.env = self.env().into_iter().map(variable).collect();
            let value = ConfigValue::String(self.secret.clone());
            spec.config = vec![Config { key: "word".into(), path: false, value, secret: true }];
            change(spec);
        });
        self.aws.run().await.unwrap();
        let result = self.aws.result();
        // The secrets of the run, and those that only the state or the program has.
        let stored = self.stored();
        assert!(!stored.contains("canary"), "{stored}");
        result
    }

    /// All that the task stored, without the values of outputs.
    fn stored(&self) -> String {
        let served = self.aws.served.lock().unwrap();
        let outbox = served.objects.iter().filter(|(key, _)| key.contains("/out/"));
        outbox.map(|(_, content)| String::from_utf8_lossy(content).into_owned()).collect()
    }

    async fn up(&self, program: &str) {
        assert_eq!(self.run(program, |_| {}).await.verdict, Verdict::Succeeded {});
    }

    async fn propose_with(&self, program: &str, change: impl FnOnce(&mut RunSpec)) -> PlannedChanges {
        let result = self
            .run(program, |spec| {
                (spec.operation, spec.plan) = (Operation::Preview, Some(request(None)));
                change(spec);
            })
            .await;
        assert_eq!(result.verdict, Verdict::Succeeded {}, "{program}");
        result.plan.unwrap()
    }

    async fn propose(&self, program: &str) -> PlannedChanges {
        self.propose_with(program, |_| {}).await
    }

    async fn apply(&self, program: &str, approved: &PlanHash) -> RunResult {
        self.run(program, |spec| spec.plan = Some(request(Some(approved)))).await
    }

    /// Calls Pulumi as a user of the same stack.
    fn pulumi(&self, arguments: &[&str]) -> String {
        let dir = self.aws.dir.join("user");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("Pulumi.yaml"), "name: p\nruntime: yaml\n").unwrap();
        let path = format!("{}:/usr/bin:/bin", self.aws.dir.join("bin").display());
        let output = Command::new(self.aws.dir.join("bin/pulumi"))
            .args(arguments)
            .args(["--stack=dev", "--non-interactive"])
            .envs(self.env())
            .env("PATH", path)
            .env("PULUMI_HOME", self.aws.dir.join("home"))
            .env("PULUMI_SKIP_UPDATE_CHECK", "true")
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Changes the state as a user can.
    fn edit_state(&self, edit: impl FnOnce(&mut serde_json::Value)) {
        let mut state = serde_json::from_str(&self.pulumi(&["stack", "export"])).unwrap();
        edit(&mut state);
        let file = self.aws.dir.join("edited.json");
        fs::write(&file, state.to_string()).unwrap();
        self.pulumi(&["stack", "import", "--force", &format!("--file={}", file.display())]);
    }
}

fn request(approved: Option<&PlanHash>) -> PlanRequest {
    let binding = PlanHash::parse(&"b".repeat(64)).unwrap();
    PlanRequest { key: "5".repeat(64), binding, tree: Some("tree".into()), approved: approved.cloned(), packs: Vec::new() }
}

/// A program with these objects: name, content, and the rest of the resource.
fn program(objects: &[(&str, &str, &str)], rest: &str) -> String {
    let mut text = HEAD.to_owned();
    for (name, content, more) in objects {
        writeln!(text, "  {name}:\n    type: world:Object\n    properties: {{ path: FILES/{name}, content: {content} }}{more}")
            .unwrap();
    }
    text + rest
}

fn reason(result: &RunResult) -> (&str, &str) {
    match &result.verdict {
        Verdict::Failed { reason, message, .. } => (reason.as_str(), message),
        verdict => panic!("{verdict:?}"),
    }
}

const SECRET: &str =
    "\n  s:\n    type: world:Object\n    properties: { path: FILES/s, content: c, secretContent: \"${word}\" }\n";

#[tokio::test]
async fn equal_previews_have_one_hash_and_each_change_another() {
    let mut stack = Stack::new("table");
    let applied = program(&[("b", "v1", ""), ("a", "v1", "")], SECRET);
    stack.up(&applied).await;
    let base = program(&[("b", "v1", ""), ("a", "v2", "")], SECRET);
    let hash = stack.propose(&base).await.hash;
    for parallel in [None, Some(1), Some(8), None] {
        assert_eq!(stack.propose_with(&base, |spec| spec.parallel = parallel).await.hash, hash, "{parallel:?}");
    }
    assert_eq!(stack.propose(&format!("# A comment.\n{base}")).await.hash, hash);
    // An idle update rewrites the state, and encrypts everything anew.
    stack.up(&applied).await;
    assert_eq!(stack.propose(&base).await.hash, hash, "an idle update");

    let options = |options: &str| program(&[("b", "v1", ""), ("a", "v2", options)], SECRET);
    let with = |options_: &str| options(&format!("\n    options: {options_}"));
    let programs: Vec<(&str, String)> = vec![
        ("nothing", applied.clone()),
        ("input", program(&[("b", "v1", ""), ("a", "v3", "")], SECRET)),
        ("resource added", program(&[("b", "v1", ""), ("a", "v2", ""), ("c", "v1", "")], SECRET)),
        ("resource removed", program(&[("a", "v2", "")], SECRET)),
        ("replace for update", base.replace("FILES/a,", "FILES/other,")),
        ("secret to plain", base.replace("secretContent: \"${word}\"", "secretContent: plain")),
        ("protect", with("{ protect: true }")),
        ("retainOnDelete", with("{ retainOnDelete: true }")),
        ("dependsOn", with("{ dependsOn: [\"${b}\"] }")),
        ("deleteBeforeReplace", with("{ deleteBeforeReplace: true }")),
        ("ignoreChanges", with("{ ignoreChanges: [useMiB] }")),
        ("customTimeouts", with("{ customTimeouts: { create: 5m } }")),
        ("additionalSecretOutputs", with("{ additionalSecretOutputs: [size] }")),
        ("aliases", with("{ aliases: [{ name: z }] }")),
        ("replaceOnChanges", with("{ replaceOnChanges: [useMiB] }")),
        ("replaceOnChanges that replaces", with("{ replaceOnChanges: [content] }")),
        ("deletedWith", with("{ deletedWith: \"${b}\" }")),
        ("parent", with("{ parent: \"${b}\" }")),
        ("hideDiffs", with("{ hideDiffs: [content] }")),
        (
            "rename by alias",
            base.replace("  b:\n", "  d:\n")
                .replace("FILES/b, content: v1 }", "FILES/b, content: v1 }\n    options: { aliases: [{ name: b }] }"),
        ),
        ("rename", base.replace("  b:\n", "  d:\n")),
        ("output", format!("{base}outputs: {{ o: x }}\n")),
        ("value of an output", format!("{base}outputs: {{ o: y }}\n")),
        ("name of an output", format!("{base}outputs: {{ p: x }}\n")),
    ];
    let mut seen = BTreeMap::from([(hash.clone(), "base")]);
    let mut unlike = |plan: PlannedChanges, what: &'static str| {
        let other = seen.insert(plan.hash, what);
        assert_eq!(other, None, "{what}");
    };
    for (what, program) in programs {
        unlike(stack.propose(&program).await, what);
    }
    let urn = |name: &str| format!("urn:pulumi:dev::p::world:index:Object::{name}");
    // With this target, nothing changes, as with the program that was applied. The binding has the
    // flags.
    assert_ne!(stack.propose_with(&base, |spec| spec.targets = vec![urn("b")]).await.hash, hash, "--target");
    unlike(stack.propose_with(&base, |spec| spec.replace = vec![urn("b")]).await, "--replace");
    unlike(stack.propose_with(&base, |spec| spec.refresh = true).await, "--refresh");
    fs::write(stack.path("a"), "v8").unwrap();
    assert_eq!(stack.propose(&base).await.hash, hash, "drift without a refresh");
    unlike(stack.propose_with(&base, |spec| spec.refresh = true).await, "--refresh with drift");
    fs::write(stack.path("a"), "v9").unwrap();
    unlike(stack.propose_with(&base, |spec| spec.refresh = true).await, "--refresh with other drift");
    fs::write(stack.path("a"), "v1").unwrap();
    stack.secret = "canary-new".into();
    unlike(stack.propose(&base).await, "secret");
    stack.secret = "canary-old".into();
    // The state, there and back.
    let resource = |state: &mut serde_json::Value, edit: &dyn Fn(&mut serde_json::Value)| {
        let resources = state["deployment"]["resources"].as_array_mut().unwrap();
        edit(resources.iter_mut().find(|resource| resource["urn"] == urn("b")).unwrap());
    };
    for (what, field) in [("state: protect", "protect"), ("state: taint", "taint"), ("state: retainOnDelete", "retainOnDelete")] {
        stack.edit_state(|state| resource(state, &|resource| resource[field] = true.into()));
        unlike(stack.propose(&base).await, what);
        stack.edit_state(|state| resource(state, &|resource| drop(resource.as_object_mut().unwrap().remove(field))));
    }
    stack.edit_state(|state| {
        let resources = state["deployment"]["resources"].as_array_mut().unwrap();
        let mut copy = resources.iter().find(|resource| resource["urn"] == urn("b")).unwrap().clone();
        (copy["delete"], copy["id"]) = (true.into(), "old".into());
        resources.push(copy);
    });
    unlike(stack.propose(&base).await, "state: pending delete");
    stack.edit_state(|state| drop(state["deployment"]["resources"].as_array_mut().unwrap().pop()));
    assert_eq!(stack.propose(&base).await.hash, hash, "there and back");
}

#[tokio::test]
async fn approved_plan_is_applied_exactly_and_once() {
    let stack = Stack::new("exact");
    let first = program(&[("a", "v1", ""), ("keep", "v1", "")], &format!("{SECRET}outputs: {{ size: \"${{a.size}}\" }}\n"));
    let plan = stack.propose(&first).await;
    assert_eq!((plan.count(ChangeKind::Create), plan.unknown.count), (4, 1));
    let unknown = &plan.unknown.first[0];
    assert!(unknown.urn.contains("pulumi:pulumi:Stack") && unknown.path == "size", "{unknown:?}");
    assert_eq!((stack.file("a"), plan.parts.tree.as_deref()), (None, Some("tree")));
    let result = stack.apply(&first, &plan.hash).await;
    assert_eq!(result.verdict, Verdict::Succeeded {});
    assert_eq!((stack.file("a").as_deref(), result.outputs.unwrap()["size"].value.as_u64()), (Some("v1"), Some(2)));
    let steps: Vec<&str> = result.steps.iter().map(|step| step.operation.as_str()).collect();
    assert!(steps.len() == 4 && steps.iter().all(|step| *step == "create"), "{steps:?}");

    let nothing = stack.propose(&first).await;
    assert!(nothing.is_empty(), "{:?}", nothing.changes);
    assert_eq!(reason(&stack.apply(&first, &plan.hash).await).0, "PlanStale");

    let second = program(&[("a", "v2", ""), ("c", "v1", "")], SECRET).replace("FILES/s,", "FILES/t,");
    let plan = stack.propose(&second).await;
    let counts = [
        (ChangeKind::Replace, 1),
        (ChangeKind::Delete, 1),
        (ChangeKind::Create, 1),
        (ChangeKind::Update, 1),
        (ChangeKind::Outputs, 1),
    ];
    assert_eq!(plan.counts, counts.into());
    let replaced = &plan.changes.first[0];
    assert!(
        replaced.kind == ChangeKind::Replace && replaced.urn.ends_with("::s") && replaced.replaced_by == ["path"],
        "{replaced:?}"
    );
    assert_eq!(stack.apply(&second, &plan.hash).await.verdict, Verdict::Succeeded {});
    assert_eq!((stack.file("a").as_deref(), stack.file("keep"), stack.file("s")), (Some("v2"), None, None));
}

#[tokio::test]
async fn stale_plan_touches_nothing() {
    let mut stack = Stack::new("stale");
    stack.up(&program(&[("a", "v1", "")], SECRET)).await;
    let base = program(&[("a", "v2", "")], SECRET);
    let hash = stack.propose(&base).await.hash;
    let refuse = async |stack: &Stack, program: &str, what: &str| {
        let result = stack.apply(program, &hash).await;
        assert_eq!(reason(&result).0, "PlanStale", "{what}");
        assert_ne!(result.plan.unwrap().hash, hash, "{what}");
        assert_eq!((stack.file("a").as_deref(), stack.file("b")), (Some("v1"), None), "{what}");
    };
    refuse(&stack, &program(&[("a", "v3", "")], SECRET), "program").await;
    refuse(&stack, &program(&[("b", "v1", ""), ("a", "v2", "")], SECRET), "added resource").await;
    stack.secret = "canary-new".into();
    refuse(&stack, &base, "secret").await;
    stack.secret = "canary-old".into();
    stack.pulumi(&["state", "protect", "--all", "--yes"]);
    refuse(&stack, &base, "state").await;
    stack.pulumi(&["state", "unprotect", "--all", "--yes"]);
    assert_eq!(stack.apply(&base, &hash).await.verdict, Verdict::Succeeded {});
    assert_eq!(stack.file("a").as_deref(), Some("v2"));
}

#[tokio::test]
async fn program_that_differs_when_it_is_applied_changes_nothing_and_tells_no_secret() {
    let stack = Stack::new("differs");
    let read = "\n  f:\n    type: world:Object\n    properties: { path: FILES/f, content: c, secretContent: { fn::secret: { fn::readFile: FILES/input } } }\n";
    let base = program(&[("a", "v1", "")], read);
    fs::create_dir_all(stack.path("")).unwrap();
    fs::write(stack.path("input"), "canary-one\ncanary-two").unwrap();
    stack.up(&base).await;
    let next = base.replace("content: v1", "content: v2");
    let hash = stack.propose(&next).await.hash;
    stack.before_each_call(&format!(
        "[ \"$1\" != up ] || printf 'canary-three\\ncanary-four' > {}",
        stack.path("input").display()
    ));
    let result = stack.apply(&next, &hash).await;
    let (why, message) = reason(&result);
    assert!(why == "PlanViolated" && message.contains("::f violates plan: properties changed: secretContent"), "{message}");
    assert!(message.contains("nothing was changed") && result.steps.is_empty(), "{message} {:?}", result.steps);
    assert_eq!(stack.file("a").as_deref(), Some("v1"));
}

#[tokio::test]
async fn generated_value_is_named_and_its_update_is_refused() {
    let stack = Stack::new("generated");
    let read = "\n  f:\n    type: world:Object\n    properties: { path: FILES/f, content: { fn::readFile: FILES/input } }\n";
    let base = program(&[], read);
    fs::create_dir_all(stack.path("")).unwrap();
    stack.before_each_call(&format!("[ \"$1\" != preview ] || date +%s%N > {}", stack.path("input").display()));
    let plan = stack.propose(&base).await;
    let [leaf] = &plan.unstable.first[..] else { panic!("{:?}", plan.unstable) };
    assert!(leaf.urn.ends_with("::f") && leaf.path == "content", "{leaf:?}");
    assert_eq!(stack.propose(&base).await.hash, plan.hash);
    let result = stack.apply(&base, &plan.hash).await;
    assert_eq!(reason(&result).0, "PlanViolated");
    assert_eq!(stack.file("f"), None);
}

#[tokio::test]
async fn destroy_and_refresh_are_bound_by_the_state() {
    let stack = Stack::new("destroy");
    let base = program(&[("a", "v1", ""), ("kept", "v1", "\n    options: { retainOnDelete: true }")], "");
    stack.up(&base).await;
    let of = async |operation: Operation, approved: Option<&PlanHash>| {
        stack
            .run(&base, |spec| {
                (spec.operation, spec.preview_only) = (operation, approved.is_none());
                spec.plan = Some(request(approved));
            })
            .await
    };
    fs::write(stack.path("a"), "v9").unwrap();
    let refresh = of(Operation::Refresh, None).await.plan.unwrap();
    assert_eq!((refresh.operation, refresh.counts.clone()), (Operation::Refresh, [(ChangeKind::Refresh, 1)].into()));
    let destroy = of(Operation::Destroy, None).await.plan.unwrap();
    assert_eq!((destroy.count(ChangeKind::Delete), destroy.count(ChangeKind::Forget)), (2, 1));
    assert_eq!(of(Operation::Refresh, Some(&refresh.hash)).await.verdict, Verdict::Succeeded {});
    assert_eq!(reason(&of(Operation::Destroy, Some(&destroy.hash)).await).0, "PlanStale");
    assert_eq!(stack.file("a").as_deref(), Some("v9"));
    let destroy = of(Operation::Destroy, None).await.plan.unwrap();
    assert_eq!(of(Operation::Destroy, Some(&destroy.hash)).await.verdict, Verdict::Succeeded {});
    assert_eq!((stack.file("a"), stack.file("kept").as_deref()), (None, Some("v1")));
}

/// The rules of a policy pack of the tests' own analyzer, by level, name, and the word that a
/// resource must not have.
const RULES: &str = r#"[
  { "level": "mandatory", "name": "no-open", "word": "\"content\":\"open\"" },
  { "level": "mandatory", "name": "no-size", "word": "\"content\":\"2x\"" },
  { "level": "advisory", "name": "no-old", "word": "\"content\":\"old\"" }
]"#;

const PACK: [(&str, &str); 2] = [("world/PulumiPolicy.yaml", "runtime: world\nversion: 1.0.0\n"), ("world/rules.json", RULES)];

impl Stack {
    /// A request that holds the run to [`PACK`].
    fn held(&self, approved: Option<&PlanHash>) -> PlanRequest {
        PlanRequest { packs: vec![self.aws.put_policy_pack(&PACK)], ..request(approved) }
    }

    /// A proposal of a program that is held to [`RULES`].
    async fn propose_held(&self, program: &str) -> RunResult {
        self.run(program, |spec| (spec.operation, spec.plan) = (Operation::Preview, Some(self.held(None)))).await
    }
}

#[tokio::test]
async fn policy_pack_fails_the_preview_and_the_update_and_advises() {
    let stack = Stack::new("packs");
    let secret = "\n  b:\n    type: world:Object\n    properties: { path: FILES/b, content: open, secretContent: \"${word}\" }\n";
    let denied = stack.propose_held(&program(&[("a", "old", "")], secret)).await;
    let (why, message) = reason(&denied);
    let urn = "urn:pulumi:dev::p::world:index:Object::";
    let words = format!("mandatory policy \"no-open\" of pack \"world\": {urn}b; nothing was changed; ");
    assert!(why == "PolicyViolation" && message.starts_with(&words), "{why} {message}");
    assert!(!message.contains("inputs are") && denied.plan.is_none(), "{message}");
    assert!(stack.stored().contains(&format!("mandatory policy \"no-open\" of pack \"world\": {urn}b: the inputs are")));

    let base = program(&[("a", "old", "")], "");
    let plan = stack.propose_held(&base).await.plan.unwrap();
    assert_eq!(plan.advice, [format!("policy \"no-old\" of pack \"world\": {urn}a")]);
    let applied = stack.run(&base, |spec| spec.plan = Some(stack.held(Some(&plan.hash)))).await;
    assert_eq!((&applied.verdict, stack.file("a").as_deref()), (&Verdict::Succeeded {}, Some("old")));

    // A value that only the update knows. The size of the first object is 2.
    let late = program(
        &[("a", "v2", "")],
        "\n  c:\n    type: world:Object\n    properties: { path: FILES/c, content: \"${a.size}x\" }\n",
    );
    let plan = stack.propose_held(&late).await.plan.unwrap();
    assert_eq!(plan.advice, [""; 0]);
    // A program that empties the pack while it is previewed, and so before the update.
    stack.after_each_call(
        "for rules in \"$PULUMI_HOME\"/../share/.driftless/policies/*/*/rules.json; do echo '[]' > \"$rules\"; done",
    );
    let stopped = stack.run(&late, |spec| spec.plan = Some(stack.held(Some(&plan.hash)))).await;
    let (why, message) = reason(&stopped);
    let words =
        format!("mandatory policy \"no-size\" of pack \"world\": {urn}c; the update stopped there, and earlier steps remain; ");
    assert!(why == "PolicyViolation" && message.starts_with(&words), "{why} {message}");
    assert_eq!((stack.file("a").as_deref(), stack.file("c")), (Some("v2"), None));
}

#[tokio::test]
async fn pending_operations_make_no_plan() {
    let stack = Stack::new("pending");
    let base = program(&[("a", "v1", "")], "");
    stack.up(&base).await;
    // An import leaves them out.
    let file = stack.aws.dir.join("backend/.pulumi/stacks/p/dev.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let latest = &mut state["checkpoint"]["latest"];
    let resource = latest["resources"].as_array().unwrap().last().unwrap().clone();
    latest["pending_operations"] = serde_json::json!([{ "resource": resource, "type": "updating" }]);
    fs::write(file, state.to_string()).unwrap();
    let result = stack.run(&base, |spec| (spec.operation, spec.plan) = (Operation::Preview, Some(request(None)))).await;
    assert_eq!((reason(&result).0, &result.plan), ("PendingOperations", &None));
    assert!(reason(&result).1.contains("1 operation(s) pending (updating urn:pulumi:dev::p::world:index:Object::a)"));
}
