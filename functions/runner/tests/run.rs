//! Whole runs, with a script in place of Pulumi and a small bucket in place of AWS: whenever a run
//! is stopped, it reports how it ended.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::{fs, path::Path};

use driftless_contract::{
    ClusterAccess, Config, ConfigValue, Drift, DriftedResource, EXIT_REFUSED, Env, File, Identity, Lock, Operation, Phase,
    Progress, RunLimits, RunSource, VERSION, Verdict, WebIdentity, to_json,
};
use driftless_source::{Digest, Manifest};
use futures::future::join_all;
use jiff::Timestamp;
use runner::Error;

use self::aws::{Aws, REFUSED, Served, TASK, UNAVAILABLE, now, stored};

mod aws;
mod cache;
mod plan;
mod stops;

#[tokio::test]
async fn up_runs_all_steps_and_reports_outputs() {
    let aws = Aws::new("up");
    aws.launch(|_| {});
    aws.run().await.unwrap();
    let result = aws.result();
    assert_eq!(result.verdict, Verdict::Succeeded {});
    assert_eq!(result.outputs.unwrap()["n"].value, 1);
    let steps = ["install", "stack select", "config set-all", "up", "stack output", "stack output"];
    assert_eq!(aws.calls(), steps);
}

/// The environment of a run whose backend is a bucket.
fn bucket() -> Env {
    Env { name: "PULUMI_BACKEND_URL".into(), value: "s3://state".into(), secret: false, below_identity: false }
}

#[tokio::test]
async fn stack_that_an_earlier_run_left_is_updated_by_one_process() {
    let aws = Aws::new("known");
    fs::write(aws.dir.join("events"), stack_outputs(r#"{"n":2}"#)).unwrap();
    aws.launch(|spec| (spec.resources, spec.env) = (Some(3), vec![bucket()]));
    aws.run().await.unwrap();
    assert_eq!(aws.result().verdict, Verdict::Succeeded {});
    assert_eq!(aws.calls(), ["install", "up"]);
    assert_eq!(fs::read_to_string(aws.dir.join("share/source/Pulumi.dev.yaml")).unwrap(), "config:\n  \"p:k\": \"v\"\n");
    let workspaces = fs::read_dir(aws.dir.join("home/workspaces")).unwrap();
    let selected: Vec<String> = workspaces.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    assert_eq!(selected, [r#"{"stack":"dev"}"#]);
}

#[tokio::test]
async fn nothing_is_installed_that_the_operation_does_not_need() {
    let state = |kind: &str| format!(r#"{{"deployment":{{"resources":[{{"type":"{kind}"}}]}}}}"#);
    let (node, python) = ("name: p\nruntime: nodejs\n", "name: p\nruntime:\n  name: python\n  options: { virtualenv: venv }\n");
    let (pet, dynamic) = (state("random:index/randomPet:RandomPet"), state("pulumi-nodejs:dynamic:Resource"));
    for (name, project, operation, state, run_program, calls) in [
        ("yaml", "name: p\nruntime: yaml\n", Operation::Up, "", false, &["up"][..]),
        ("up", node, Operation::Up, "", false, &["install", "up"]),
        ("destroy", node, Operation::Destroy, &*pet, false, &["stack export", "destroy"]),
        ("refresh", python, Operation::Refresh, &pet, false, &["stack export", "refresh"]),
        ("dynamic", node, Operation::Refresh, &dynamic, false, &["stack export", "install", "refresh"]),
        ("program", node, Operation::Destroy, &pet, true, &["install", "destroy"]),
    ] {
        let aws = Aws::new(&format!("needs-{name}"));
        for (file, text) in [("project", project), ("state", state), ("events", &stack_outputs("{}"))] {
            fs::write(aws.dir.join(file), text).unwrap();
        }
        aws.launch(|spec| {
            (spec.operation, spec.run_program, spec.resources) = (operation, run_program, Some(3));
            spec.env = vec![bucket()];
        });
        aws.run().await.unwrap();
        assert_eq!(aws.result().verdict, Verdict::Succeeded {}, "{name}");
        assert_eq!(aws.calls(), calls, "{name}");
        let is_left = fs::read_to_string(aws.dir.join("share/source/Pulumi.yaml")).unwrap() == project;
        assert_eq!(is_left, name != "refresh", "{name}");
    }
}

#[tokio::test]
async fn stack_that_was_removed_since_the_last_run_is_created_or_missed() {
    let (create, missing) =
        (&["install", "up", "stack select", "up"][..], &["stack export", "install", "destroy", "stack select"][..]);
    for (operation, calls) in [(Operation::Up, create), (Operation::Destroy, missing)] {
        let aws = Aws::new(&format!("removed-{}", operation.as_str()));
        fs::write(aws.dir.join("gone"), "").unwrap();
        fs::write(aws.dir.join("outputs"), "{}").unwrap();
        aws.launch(|spec| {
            (spec.operation, spec.create, spec.resources) = (operation, operation == Operation::Up, Some(3));
            spec.env = vec![bucket()];
        });
        aws.run().await.unwrap();
        let found: Vec<String> = aws.calls().into_iter().filter(|call| call != "stack output").collect();
        assert_eq!(found, calls);
        if operation == Operation::Up {
            assert_eq!(aws.result().verdict, Verdict::Succeeded {});
        } else {
            let (phase, _, message) = aws.failure();
            assert!(
                phase == Phase::Init && message.starts_with("the backend has no stack \"dev\"; nothing was destroyed"),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn login_names_what_is_wrong_with_the_backend() {
    for (resources, call) in [(None, "stack select"), (Some(3), "up")] {
        let aws = Aws::new(&format!("denied-{}", call.replace(' ', "-")));
        fs::write(aws.dir.join("denied"), "").unwrap();
        aws.launch(|spec| (spec.resources, spec.env) = (resources, vec![bucket()]));
        aws.run().await.unwrap();
        let failure = (Phase::Init, "InvalidAccessToken".to_owned(), "error: could not log in: invalid access token".to_owned());
        assert_eq!(aws.failure(), failure);
        assert_eq!(aws.calls(), ["install", call, "login"]);
    }
    // If the backend works, the message is the operation's.
    let aws = Aws::new("not-denied");
    fs::write(aws.dir.join("starves"), "up").unwrap();
    aws.launch(|spec| (spec.resources, spec.env) = (Some(3), vec![bucket()]));
    aws.run().await.unwrap();
    let (phase, _, message) = aws.failure();
    assert!(phase == Phase::Run && message.contains("error: the plugin is gone"), "{message}");
    assert_eq!(aws.calls(), ["install", "up", "login"]);
}

#[tokio::test]
async fn outputs_that_cannot_be_kept_are_left_out_of_the_result() {
    let aws = Aws::new("left-out");
    fs::write(aws.dir.join("outputs"), format!(r#"{{"huge":"{}","n":1}}"#, "x".repeat(5 << 20))).unwrap();
    aws.launch(|_| {});
    aws.run().await.unwrap();
    let result = aws.result();
    assert_eq!((result.verdict, result.left_out), (Verdict::Succeeded {}, vec!["huge".to_owned()]));
    assert_eq!(result.outputs.unwrap().into_keys().collect::<Vec<_>>(), ["n"]);
}

/// The event of a stack with these outputs.
fn stack_outputs(outputs: &str) -> String {
    format!(r#"{{"resOutputsEvent":{{"metadata":{{"type":"pulumi:pulumi:Stack","new":{{"outputs":{outputs}}}}}}}}}"#) + "\n"
}

#[tokio::test]
async fn outputs_without_a_secret_are_those_of_the_events() {
    let secret = r#"{"n":{"4dabf18193072939515e22adb298388d":"1b47061264138c4ac30d75fd1eb44270","ciphertext":"[secret]"}}"#;
    for (name, outputs, asked, expected) in [("outputs-plain", r#"{"n":2}"#, 0, 2), ("outputs-secret", secret, 1, 1)] {
        let aws = Aws::new(name);
        fs::write(aws.dir.join("events"), stack_outputs(outputs)).unwrap();
        aws.launch(|_| {});
        aws.run().await.unwrap();
        assert_eq!(aws.calls().iter().filter(|call| *call == "stack output").count(), asked, "{name}");
        let output = aws.result().outputs.unwrap().remove("n").unwrap();
        assert_eq!((output.value, output.secret), (expected.into(), asked > 0), "{name}");
    }
}

#[tokio::test]
async fn log_in_the_folder_is_what_was_printed_with_secrets_masked() {
    let aws = Aws::new("log");
    fs::write(aws.dir.join("says"), "the token is canary-value!\nno newline").unwrap();
    aws.launch(|spec| {
        let value = ConfigValue::String("canary-value".into());
        spec.config.push(Config { key: "token".into(), path: false, value, secret: true });
    });
    aws.run().await.unwrap();
    let Served { objects, requests } = &*aws.served.lock().unwrap();
    let log = String::from_utf8_lossy(&objects[&format!("{TASK}out/log/0001")]);
    assert_eq!(log, "the token is [secret]!\nno newline\n");
    assert_eq!(String::from_utf8_lossy(&objects[&format!("{TASK}out/live-log")]), log);
    let mut last = requests[requests.len() - 3..].to_vec();
    last[..2].sort();
    let expected = ["PUT out/live-log 200", "PUT out/log/0001 200", "PUT out/result 200"];
    assert_eq!(last, expected, "the whole log is stored before the result");
}

/// Pulumi removes one newline from the end of its input.
#[tokio::test]
async fn secret_values_reach_pulumi_with_one_newline_more() {
    let aws = Aws::new("newlines");
    aws.launch(|spec| {
        spec.config = ["canary-1", "canary-2\n", "canary-3\n\n"]
            .map(|value| Config { key: "k".into(), path: false, value: ConfigValue::String(value.into()), secret: true })
            .to_vec();
    });
    aws.run().await.unwrap();
    assert_eq!(aws.result().verdict, Verdict::Succeeded {});
    assert_eq!(fs::read(aws.dir.join("input")).unwrap(), b"canary-1\ncanary-2\n\ncanary-3\n\n\n");
}

#[tokio::test]
async fn run_succeeds_if_its_log_is_refused() {
    let aws = Aws::new("no-log");
    fs::write(aws.dir.join("says"), "a line").unwrap();
    aws.launch(|_| {});
    aws.put("out/log/0001", UNAVAILABLE.into());
    aws.run().await.unwrap();
    assert_eq!(aws.result().verdict, Verdict::Succeeded {});
}

#[tokio::test]
async fn spec_that_s3_refuses_for_good_ends_the_task_at_once() {
    for code in ["SignatureDoesNotMatch", "RequestTimeTooSkewed", "ExpiredToken"] {
        let aws = Aws::new(code);
        aws.put("in/spec", [REFUSED, code.as_bytes()].concat());
        let ended = aws.run().await.unwrap_err();
        assert_eq!(ended.exit_code(), EXIT_REFUSED);
        let Error::Store(error) = ended else { panic!("{ended:?}") };
        let words = format!("GET of in/spec answered 403 Forbidden {code}; ");
        assert!(error.to_string().starts_with(&words), "{error}");
        let (phase, reason, message) = aws.failure();
        assert_eq!((phase, reason.as_str()), (Phase::Fetch, "PlatformFailure"));
        assert_eq!(message, error.to_string());
        assert_eq!(aws.served.lock().unwrap().requests.iter().filter(|request| request.starts_with("GET in/spec")).count(), 1);
    }
}

#[tokio::test]
async fn spec_that_is_denied_is_waited_for() {
    let aws = Aws::new("denied");
    aws.put("in/spec", [REFUSED, b"AccessDenied"].concat());
    let giving = async {
        aws.answered("GET in/spec 403", 3).await;
        aws.launch(|_| {});
    };
    let (ended, ()) = tokio::join!(aws.run(), giving);
    ended.unwrap();
    assert_eq!(aws.result().verdict, Verdict::Succeeded {});
}

#[tokio::test]
async fn bucket_that_fails_the_runner_is_no_failure_of_the_program() {
    for name in ["in/manifest", "in/identity"] {
        let aws = Aws::new(&name.replace('/', "-"));
        aws.launch(|spec| spec.identity = name == "in/identity");
        aws.put(name, [REFUSED, b"RequestTimeTooSkewed"].concat());
        aws.run().await.unwrap();
        let (phase, told, message) = aws.failure();
        assert_eq!((phase, told.as_str()), (Phase::Fetch, "PlatformFailure"), "{message}");
        assert!(message.contains("RequestTimeTooSkewed; the task's clock differs"), "{message}");
        assert!(aws.calls().is_empty());
    }
    // Its content does not matter here.
    let aws = Aws::new("other-tree");
    aws.launch(|_| {});
    aws.put("in/manifest", b"other".to_vec());
    aws.run().await.unwrap();
    assert_eq!(aws.failure().1, "Unknown");
}

#[tokio::test]
async fn pulumi_sees_no_tree_but_the_one_of_its_run() {
    let (manifest, pack) = stored(&[("Pulumi.yaml", "name: q\nruntime: nodejs\n")]);
    for (name, manifest, words) in [
        ("other-manifest", Some(manifest.to_bytes()), "tree has another manifest than the run names"),
        ("other-pack", None, "file \"Pulumi.yaml\": "),
    ] {
        let aws = Aws::new(name);
        aws.launch(|_| {});
        aws.put("in/pack", pack.clone());
        if let Some(manifest) = manifest {
            aws.put("in/manifest", manifest);
        }
        aws.run().await.unwrap();
        let (phase, _, message) = aws.failure();
        assert!(phase == Phase::Fetch && message.starts_with(words), "{message}");
        assert!(aws.calls().is_empty());
    }
}

#[tokio::test]
async fn no_file_of_a_tree_is_written_through_a_link() {
    let (tree, pack) = stored(&[("Pulumi.yaml", "name: p\nruntime: yaml\n"), ("link/file", ""), ("target/other", "")]);
    // A tree from the fetcher never has a link in place of a directory.
    let manifest = Manifest { links: [("link".to_owned(), "target".to_owned())].into(), ..tree }.to_bytes();
    let aws = Aws::new("link");
    aws.launch(|spec| {
        let manifest_sha256 = Digest::sha256(&manifest).hex().into();
        spec.source = RunSource::Tree { dir: String::new(), paths: vec![], manifest_sha256 };
    });
    aws.put("in/manifest", manifest);
    aws.put("in/pack", pack);
    aws.run().await.unwrap();
    let (.., message) = aws.failure();
    assert!(message.starts_with("cannot write \"link\": "), "{message}");
    assert!(!aws.dir.join("share/source/target/file").exists());
}

#[tokio::test]
async fn output_with_a_value_from_a_secret_is_secret_without_a_mark() {
    for (name, not_secret, expected) in
        [("passed-on", &[][..], &["own", "pin", "url"][..]), ("allowed", &["pin", "own", "plain"], &["own", "url"])]
    {
        passed_on(name, not_secret, expected).await;
    }
}

/// Outputs that repeat secrets: `expected` are the secret ones, where some are listed as not
/// secret.
async fn passed_on(name: &str, not_secret: &[&str], expected: &[&str]) {
    let aws = Aws::new(name);
    let outputs =
        |own: &str| format!(r#"{{"url":{{"of":["https://user:canary-1@db"]}},"pin":123456,"plain":"public","own":"{own}"}}"#);
    fs::write(aws.dir.join("outputs"), outputs("canary-1")).unwrap();
    // Pulumi marks this one as secret.
    fs::write(aws.dir.join("masked"), outputs("[secret]")).unwrap();
    let env =
        |name: &str, value: &str, secret: bool| Env { name: name.into(), value: value.into(), secret, below_identity: false };
    aws.launch(|spec| {
        spec.env = vec![env("A", "canary-1", true), env("C", "public", false), env("D", "publ", true)];
        spec.files = vec![file(&aws.dir.join("etc/pin"), b"123456", true), file(&aws.dir.join("etc/name"), b"public", false)];
        spec.not_secret = not_secret.iter().map(|key| (*key).to_owned()).collect();
    });
    aws.run().await.unwrap();
    let outputs = aws.result().outputs.unwrap();
    let secret: Vec<_> = outputs.iter().filter(|(_, output)| output.secret).map(|(name, _)| name.as_str()).collect();
    assert_eq!((secret.as_slice(), &outputs["plain"].value), (expected, &"public".into()));
}

fn file(path: &Path, content: &[u8], secret: bool) -> File {
    File { path: path.to_str().unwrap().into(), mode: 0o640, content: content.into(), secret }
}

#[tokio::test]
async fn files_of_volumes_are_there_before_pulumi_or_the_run_fails() {
    let aws = Aws::new("files");
    let (path, beyond) = (aws.dir.join("etc/pin"), aws.dir.join("etc/pin/beyond"));
    aws.launch(|spec| spec.files = vec![file(&path, b"\xff", true), file(&beyond, b"", false)]);
    aws.run().await.unwrap();
    assert_eq!(fs::read(path).unwrap(), b"\xff");
    let (phase, _, message) = aws.failure();
    assert!(phase == Phase::Fetch && message.starts_with(&format!("cannot write {}: ", beyond.display())), "{message}");
    assert!(message.ends_with("mount the volume at another directory, or use an image whose user may write there"), "{message}");
    assert!(aws.calls().is_empty());
}

#[tokio::test]
async fn destroy_of_a_missing_stack_succeeds_only_where_it_may_be_missing() {
    for (name, may_be_missing) in [("no-stack", false), ("no-stack-yet", true)] {
        let aws = Aws::new(name);
        fs::write(aws.dir.join("gone"), "").unwrap();
        aws.launch(|spec| (spec.operation, spec.create) = (Operation::Destroy, may_be_missing));
        aws.run().await.unwrap();
        let verdict = aws.result().verdict;
        match verdict {
            Verdict::Succeeded {} => assert!(may_be_missing),
            Verdict::Failed { phase, ref message, .. } => {
                assert!(!may_be_missing && phase == Phase::Init && message.contains("nothing was destroyed"), "{verdict:?}");
            }
            Verdict::Aborted { .. } => panic!("{verdict:?}"),
        }
        assert_eq!(aws.calls(), ["install", "stack select"]);
    }
}

/// Without this, a try whose answer is lost would turn a successful run into a failed task.
#[tokio::test]
async fn a_result_that_is_stored_already_is_success() {
    let aws = Aws::new("stored");
    aws.launch(|_| {});
    aws.put("out/result", UNAVAILABLE.into());
    let storing = async {
        aws.answered("PUT out/result 503", 1).await;
        aws.put("out/result", b"first".to_vec());
    };
    let (ended, ()) = tokio::join!(aws.run(), storing);
    ended.unwrap();
    aws.answered("PUT out/result 412", 1).await;
    assert_eq!(aws.served.lock().unwrap().objects[&format!("{TASK}out/result")], b"first");
}

#[tokio::test]
async fn possibly_left_lock_is_reported_with_its_end() {
    for dies in [false, true] {
        let aws = Aws::new(&format!("lock-{dies}"));
        aws.launch(|_| {});
        if dies {
            fs::write(aws.dir.join("dies"), "up").unwrap();
        }
        aws.run().await.unwrap();
        assert_eq!(aws.result().verdict != Verdict::Succeeded {}, dies);
        if dies {
            let (.., message) = aws.failure();
            let words = "pulumi was killed, probably because the task ran out of memory; give it more memory with spec.";
            assert!(message.starts_with(words), "{message}");
        }
        let Lock { not_before, not_after, .. } = aws.document("out/lock").unwrap();
        assert_eq!(not_after.is_some(), dies);
        assert!(not_after.is_none_or(|end| end >= not_before));
    }
}

#[tokio::test]
async fn destroy_of_a_missing_stack_succeeds_if_a_dead_run_was_removing_it() {
    let left = |removes| Lock { removes, ..dead_lock() };
    let after_another = Lock { earlier: vec![left(true)], ..left(false) };
    for (name, remove, stale_lock, succeeds) in [
        ("removed", true, Some(left(true)), true),
        ("removed-before", true, Some(after_another), true),
        ("kept", false, Some(left(true)), false),
        ("other-operation", true, Some(left(false)), false),
        ("never-begun", true, None, false),
    ] {
        let aws = Aws::new(name);
        fs::write(aws.dir.join("gone"), "").unwrap();
        aws.launch(|spec| {
            (spec.operation, spec.create, spec.remove) = (Operation::Destroy, false, remove);
            spec.stale_lock = stale_lock;
        });
        aws.run().await.unwrap();
        assert_eq!(aws.calls(), ["install", "stack select"], "{name}: no stack is created");
        if succeeds {
            assert_eq!(aws.result().verdict, Verdict::Succeeded {}, "{name}");
        } else {
            let (.., message) = aws.failure();
            assert!(message.starts_with("the backend has no stack \"dev\"; nothing was destroyed; "), "{name}: {message}");
        }
    }
}

#[tokio::test]
async fn lock_says_whether_the_stack_is_being_removed() {
    for (operation, remove, removes) in
        [(Operation::Destroy, true, true), (Operation::Destroy, false, false), (Operation::Up, true, false)]
    {
        let aws = Aws::new(&format!("removes-{}-{remove}", operation.as_str()));
        aws.launch(|spec| (spec.operation, spec.remove) = (operation, remove));
        aws.run().await.unwrap();
        assert_eq!(aws.document::<Lock>("out/lock").unwrap().removes, removes, "{} {remove}", operation.as_str());
    }
}

#[tokio::test]
async fn failed_run_names_the_memory_if_the_kernel_killed_a_process() {
    for (starves, words) in [("up", "the task ran out of memory and a process was killed; give it more memory with"), ("", "")] {
        let aws = Aws::new(&format!("memory-{starves}"));
        fs::write(aws.dir.join("vmstat"), "pgfault 7\noom_kill 3\n").unwrap();
        fs::write(aws.dir.join("starves"), starves).unwrap();
        aws.launch(|_| {});
        aws.run().await.unwrap();
        if starves.is_empty() {
            assert_eq!(aws.result().verdict, Verdict::Succeeded {}, "earlier kills are not this run's");
        } else {
            let (.., message) = aws.failure();
            assert!(message.starts_with(words) && message.contains("error: the plugin is gone"), "{message}");
        }
    }
}

#[tokio::test]
async fn failed_run_names_the_image_if_it_lacks_a_program() {
    let aws = Aws::new("lacks");
    fs::write(aws.dir.join("lacks"), "").unwrap();
    aws.launch(|_| {});
    aws.run().await.unwrap();
    let (.., message) = aws.failure();
    let words = "a program was not found; if the run's image lacks it, name one that has it in spec.workspaceTemplate.spec.image of the Stack";
    assert!(message.starts_with(words) && message.contains("kubectl-missing: "), "{message}");
}

#[tokio::test]
async fn successful_drift_check_reports_its_drift() {
    let drifted = r#"{"resOutputsEvent":{"metadata":{"op":"update","urn":"urn:a","type":"t","old":{"custom":true},"new":{"custom":true,"outputs":{"content":"canary"}},"diffs":["content"],"detailedDiff":{"content":{"diffKind":"update","inputDiff":false}}},"planning":true}}
{"summaryEvent":{"resourceChanges":{"same":2,"update":1}}}"#;
    for (name, preview_only, dies) in [("drift", true, ""), ("refresh", false, ""), ("drift-dies", true, "refresh")] {
        let aws = Aws::new(name);
        fs::write(aws.dir.join("events"), format!("{drifted}\n")).unwrap();
        fs::write(aws.dir.join("dies"), dies).unwrap();
        aws.launch(|spec| (spec.operation, spec.preview_only) = (Operation::Refresh, preview_only));
        aws.run().await.unwrap();
        let result = aws.result();
        let resource = DriftedResource { urn: "urn:a".into(), change: "update".into(), properties: vec!["content".into()] };
        let found = Drift { count: 1, resources: vec![resource] };
        assert_eq!(result.drift, (preview_only && dies.is_empty()).then_some(found), "{name}");
        assert!(result.outputs.is_none() && result.changes["update"] == 1, "{name}");
        let stored: Vec<u8> = aws.served.lock().unwrap().objects.values().flatten().copied().collect();
        let stored = String::from_utf8_lossy(&stored).into_owned();
        assert!(!stored.contains("canary"), "{stored}");
    }
}

/// The lock of a dead run.
fn dead_lock() -> Lock {
    let (host, at) = ("h".into(), now());
    Lock { version: VERSION, host, pid: 1, not_before: at, not_after: Some(at), removes: false, earlier: Vec::new() }
}

#[tokio::test]
async fn each_run_records_its_own_lock() {
    let left = dead_lock();
    for (name, preview_only, left) in [("new", true, None), ("left", true, Some(left.clone())), ("change", false, Some(left))] {
        let aws = Aws::new(&format!("own-lock-{name}"));
        aws.launch(|spec| {
            (spec.operation, spec.preview_only, spec.stale_lock) = (Operation::Refresh, preview_only, left.clone());
        });
        aws.run().await.unwrap();
        let own: Lock = aws.document("out/lock").unwrap();
        assert!(own.earlier.is_empty() && left.is_none_or(|left| left.pid != own.pid), "{name}");
    }
}

#[tokio::test]
async fn program_uses_its_service_account_and_failures_name_resources() {
    let aws = Aws::new("account");
    let error = r#"{"diagnosticEvent":{"urn":"urn:a","message":"canary-token is refused","severity":"error"}}"#;
    fs::write(aws.dir.join("events"), format!("{error}\n")).unwrap();
    let identity = Identity {
        version: VERSION,
        cluster: ClusterAccess {
            server: "https://cluster".into(),
            certificate_authority: None,
            namespace: "n".into(),
            token: "canary-token".into(),
        },
        web_identity: Some(WebIdentity { role_arn: "arn:ours".into(), token: "canary-aws".into() }),
        projected: vec![],
        expires_at: Timestamp::MAX,
    };
    aws.put("in/identity", to_json(&identity).into_bytes());
    aws.launch(|spec| {
        spec.identity = true;
        spec.env = vec![Env { name: "AWS_ROLE_ARN".into(), value: "arn:own".into(), secret: false, below_identity: false }];
    });
    aws.run().await.unwrap();
    let env = fs::read_to_string(aws.dir.join("env")).unwrap();
    let token = aws.dir.join("secrets/eks.amazonaws.com/serviceaccount/token");
    for line in [
        "KUBERNETES_SERVICE_HOST=cluster".into(),
        format!("AWS_WEB_IDENTITY_TOKEN_FILE={}", token.display()),
        format!("PWD={}", aws.dir.join("share/source").display()),
        "AWS_ROLE_SESSION_NAME=driftless-n.dev".into(),
        "AWS_ROLE_ARN=arn:own".into(),
    ] {
        assert!(env.lines().any(|found| found == line), "{line} in\n{env}");
    }
    assert_eq!(fs::read_link(aws.dir.join("share/workspace")).unwrap(), aws.dir.join("share/source/"));
    let failures = aws.result().failures;
    assert_eq!((failures[0].urn.as_str(), failures[0].message.as_str()), ("urn:a", "[secret] is refused"));
}
