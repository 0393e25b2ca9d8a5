//! The deployment in `prove`: the order in which it creates and removes things, with scripts in
//! place of the programs that it runs. tests/tests/e2e/prove.rs covers the scenarios, and
//! tests/tests/deployment the real `infra/deploy` and `infra/undeploy`.

#![expect(clippy::unwrap_used, reason = "a helper of these tests fails them")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The time limit of a script, however busy the machine is.
const PATIENCE: Duration = Duration::from_mins(1);

const DEPLOY: &str = r#"#!/bin/sh
echo "deploy $STACK $CLUSTERS $TAGS" >>calls
[ ! -e deploy-leaves ] || touch queue-there
[ ! -e deploy-fails ] || exit 1
touch deploying
while [ -e hold ]; do sleep 0.05; done
"#;

const UNDEPLOY: &str = r#"#!/bin/sh
echo "undeploy $STACK $CONFIRM $SECRETS" >>calls
"#;

const AWS: &str = r#"#!/bin/sh
case "$1 $2" in
'cloudformation describe-stacks')
  output() { printf '{"OutputKey":"%s","OutputValue":"%s"}' "$1" "$2"; }
  echo "{\"Stacks\":[{\"Outputs\":[$(output HintsQueueUrl u),$(output BucketName b),$(output EcsCluster e)]}]}" ;;
'sqs list-queues') [ ! -e queue-there ] && echo '[]' || echo '["http://sqs/1/proof-hints","http://sqs/1/proofs"]' ;;
'ecr describe-repositories') [ ! -e copies-there ] && echo '[]' || echo '["proof/copies/pulumi","team/app"]' ;;
*) echo '[]' ;;
esac
"#;

const KUBECTL: &str = r#"#!/bin/sh
shift 4
case "$1 $2" in
'get namespace' | 'get customresourcedefinition')
  [ ! -e driftless-there ] || { echo '{}'; exit; }
  echo "Error from server (NotFound): $2 \"$3\" not found" >&2; exit 1 ;;
'--namespace proof-runs') echo '{"items":[]}' ;;
*) echo "kubectl $1 $2" >>calls ;;
esac
"#;

struct Project(PathBuf);

impl Drop for Project {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Project {
    /// A folder with the scripts, and files that control them.
    fn new(name: &str, files: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("driftless-prove-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("infra")).unwrap();
        for (script, text) in [("infra/deploy", DEPLOY), ("infra/undeploy", UNDEPLOY), ("aws", AWS), ("kubectl", KUBECTL)] {
            let path = folder.join(script);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for file in files {
            fs::write(folder.join(file), "").unwrap();
        }
        Self(folder)
    }

    fn prove(&self, more: &[(&str, &str)]) -> Command {
        let mut prove = Command::new(env!("CARGO_BIN_EXE_prove"));
        let path = format!("{}:/usr/bin:/bin", self.0.display());
        let variables = [("PATH", path.as_str()), ("PREFIX", "proof"), ("NAMESPACE", "proof-runs"), ("BUDGET_USD", "100")];
        let fixed = [("AWS_REGION", "eu-west-1"), ("CLUSTER", "one"), ("FORWARDER_IMAGE", "image"), ("TAGS", "team=a")];
        prove.env_clear().envs(variables).envs(fixed).envs(more.iter().copied()).current_dir(&self.0);
        prove.stdout(Stdio::piped()).stderr(Stdio::piped());
        prove
    }

    /// Its output, and whether it exited with 0.
    fn run(&self, more: &[(&str, &str)]) -> (bool, String) {
        ended(&self.prove(more).output().unwrap())
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        calls.lines().map(ToOwned::to_owned).collect()
    }

    /// The text of the file that was written.
    fn proof(&self) -> Option<String> {
        let file = fs::read_dir(self.0.join("proof")).ok()?.next()?.unwrap();
        Some(fs::read_to_string(file.path()).unwrap())
    }
}

fn ended(output: &Output) -> (bool, String) {
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), printed)
}

fn until_there(file: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        assert!(Instant::now() < deadline, "no {}", file.display());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn failed_deployment_is_removed_and_recorded() {
    let project = Project::new("failed", &["deploy-fails", "deploy-leaves"]);
    let (passed, printed) = project.run(&[]);
    assert!(!passed, "{printed}");
    assert_eq!(project.calls(), ["deploy proof one team=a driftless-proof=proof", "undeploy proof proof now"]);
    let proof = project.proof().unwrap();
    for words in ["infra/deploy: exit status: 1", "left: queue http://sqs/1/proof-hints\""] {
        assert!(proof.contains(words), "{proof}");
    }
}

#[test]
fn kept_deployment_is_not_removed_and_its_removal_is_shown() {
    let project = Project::new("kept", &["deploy-fails"]);
    let (passed, printed) = project.run(&[("KEEP", "yes")]);
    assert!(!passed && printed.contains("make undeploy STACK=proof CONFIRM=proof SECRETS=now"), "{printed}");
    assert_eq!(project.calls().len(), 1, "{:?}", project.calls());
}

#[test]
fn interrupted_proof_is_removed_and_writes_no_file() {
    let project = Project::new("interrupted", &["hold"]);
    let prove = project.prove(&[]).spawn().unwrap();
    until_there(&project.0.join("deploying"));
    assert!(Command::new("kill").args(["-INT", &prove.id().to_string()]).status().unwrap().success());
    fs::remove_file(project.0.join("hold")).unwrap();
    let (passed, printed) = ended(&prove.wait_with_output().unwrap());
    assert!(!passed && printed.contains("prove: interrupted: no file is written"), "{printed}");
    let calls = project.calls();
    let namespace = calls.iter().position(|call| call == "kubectl delete namespace");
    let undeployed = calls.iter().position(|call| call == "undeploy proof proof now");
    assert!(namespace.is_some() && namespace < undeployed, "{calls:?}");
    assert_eq!(project.proof(), None);
}

#[test]
fn refused_proof_deploys_nothing() {
    for (name, files, more, words) in [
        ("busy", &["driftless-there"][..], ("KEEP", ""), "use a cluster without Driftless"),
        ("prefix", &["queue-there"], ("KEEP", ""), "PREFIX=proof: the account has the queue http://sqs/1/proof-hints"),
        ("copies", &["copies-there"], ("KEEP", ""), "PREFIX=proof: the account has the repository proof/copies/pulumi"),
        ("budget", &[], ("BUDGET_USD", "0.01"), "BUDGET_USD"),
        ("image", &[], ("FORWARDER_IMAGE", ""), "FORWARDER_IMAGE is not set"),
    ] {
        let project = Project::new(name, files);
        let (passed, printed) = project.run(&[more]);
        assert!(!passed && printed.contains(words), "{name}: {printed}");
        assert_eq!(project.calls(), Vec::<String>::new(), "{name}");
    }
}
