//! An installation for a proof: created by `infra/deploy`, applied to the cluster, and removed by
//! `infra/undeploy`. Both run in the current folder, which must be the project's.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use driftless_core::DefaultSize;
use serde_json::Value;

use crate::{
    cluster::SYSTEM,
    credentials::{self, Access},
    tools::{Aws, Kubectl},
};

/// The tag of everything that is created for a proof; its value is the prefix.
pub const TAG: &str = "driftless-proof";
/// The kinds of resources that may be left under a prefix: the call, and the names in its answer.
const KINDS: [(&str, &[&str], &str); 8] = [
    ("stack", &["cloudformation", "list-stacks"], "StackSummaries[?StackStatus!='DELETE_COMPLETE'].StackName"),
    ("bucket", &["s3api", "list-buckets"], "Buckets[].Name"),
    ("queue", &["sqs", "list-queues"], "QueueUrls[]"),
    ("function", &["lambda", "list-functions"], "Functions[].FunctionName"),
    ("role", &["iam", "list-roles"], "Roles[].RoleName"),
    ("log group", &["logs", "describe-log-groups"], "logGroups[].logGroupName"),
    ("repository", &["ecr", "describe-repositories"], "repositories[].repositoryName"),
    // A secret that is scheduled for deletion is only listed on request.
    ("secret", &["secretsmanager", "list-secrets"], "SecretList[].Name"),
];

/// An installation to create and remove.
pub struct Installation<'a> {
    /// The prefix of every name.
    pub prefix: &'a str,
    /// The context of the one cluster.
    pub cluster: &'a str,
    /// The file with that context, for `KUBECONFIG_FILE`.
    pub kubeconfig: &'a str,
    /// The forwarder's image.
    pub forwarder_image: &'a str,
    /// `TAGS` of `make deploy`.
    pub tags: &'a str,
}

impl Installation<'_> {
    /// Refuses a prefix that is in use, because everything under it is deleted at the end; and a
    /// cluster with Driftless or the Pulumi Kubernetes Operator, because both would act on the same
    /// Stacks.
    pub fn check(&self, aws: &Aws, kubectl: &Kubectl) -> Result<(), String> {
        if let Some(found) = self.left(aws)?.first() {
            return Err(format!(
                "PREFIX={}: the account has the {found}, and a proof deletes everything under its prefix; use another prefix, or prove \
                 the installation that is there: INSTALLATION=NAME",
                self.prefix
            ));
        }
        for (kind, name) in [("namespace", SYSTEM), ("customresourcedefinition", "stacks.pulumi.com")] {
            match kubectl.json(&["get", kind, name]) {
                Ok(_) => {
                    return Err(format!(
                        "cluster {}: has the {kind} {name}; use a cluster without Driftless and the Pulumi Kubernetes Operator, or prove \
                         the installation that is there: INSTALLATION=NAME",
                        self.cluster
                    ));
                }
                Err(why) if why.contains("NotFound") => {}
                Err(why) => return Err(format!("cluster {}: {why}", self.cluster)),
            }
        }
        Ok(())
    }

    /// Deploys it, and applies it to the cluster.
    pub fn make(&self, aws: &Aws, kubectl: &Kubectl) -> Result<(), String> {
        let mut deploy = Command::new("infra/deploy");
        deploy.env("CLUSTERS", self.cluster).env("KUBECONFIG_FILE", self.kubeconfig);
        // The webhook receives Flux's notifications and pushes, which no scenario sends.
        let tags = format!("{} {TAG}={}", self.tags, self.prefix);
        self.run(deploy.env("TAGS", tags.trim()))?;
        let outputs = outputs(aws, self.prefix)?;
        let overlay = self.overlay(aws, &outputs)?;
        let overlay = overlay.display().to_string();
        kubectl.text(&["apply", "--server-side", "--kustomize", &overlay], None)?;
        let rollout = ["--namespace", SYSTEM, "rollout", "status", "deployment/driftless-forwarder", "--timeout", "300s"];
        // Its own time limit is longer than that of a request.
        kubectl.text(&rollout, None).map(drop)
    }

    /// The applied manifests: `infra/kubernetes` with the values of this installation.
    fn overlay(&self, aws: &Aws, outputs: &Value) -> Result<PathBuf, String> {
        let region = aws.region.as_deref().unwrap_or_default();
        let hints = output(outputs, "HintsQueueUrl")?;
        let folder = self.folder();
        let text = format!(
            "resources: [../../../../../infra/kubernetes]\nconfigMapGenerator:\n- name: driftless-values\n  namespace: {SYSTEM}\n  behavior: \
             merge\n  literals:\n  - CLUSTER={}\n  - AWS_REGION={region}\n  - HINTS_QUEUE_URL={hints}\n  - FORWARDER_IMAGE={}\ncomponents: \
             [../../../../../infra/kubernetes/no-webhook, ../../../../../infra/kubernetes/values]\n",
            self.cluster, self.forwarder_image
        );
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("kustomization.yaml"), text))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    fn folder(&self) -> PathBuf {
        Path::new("target/deploy").join(self.prefix).join(self.cluster).join("proof")
    }

    /// Removes it from the cluster and from AWS, even if it is incomplete.
    pub fn remove(&self, kubectl: &Kubectl) -> Result<(), String> {
        let folder = self.folder();
        let unapplied = if folder.exists() {
            let folder = folder.display().to_string();
            kubectl.text(&["delete", "--ignore-not-found", "--wait=false", "--kustomize", &folder], None).map(drop)
        } else {
            Ok(())
        };
        let mut undeploy = Command::new("infra/undeploy");
        // A second Ctrl-C in the terminal does not end it.
        undeploy.env("CONFIRM", self.prefix).env("SECRETS", "now").process_group(0);
        self.run(&mut undeploy).and(unapplied)
    }

    fn run(&self, command: &mut Command) -> Result<(), String> {
        let program = command.get_program().display().to_string();
        let status = command.env("STACK", self.prefix).status().map_err(|error| format!("{program}: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
    }

    /// The resources that still exist under the prefix.
    pub fn left(&self, aws: &Aws) -> Result<Vec<String>, String> {
        let mut left = Vec::new();
        for (kind, call, query) in KINDS {
            let names = aws.json(&[call, &["--query", query]].concat())?;
            left.extend(named(self.prefix, &names).map(|name| format!("{kind} {name}")));
        }
        Ok(left)
    }

    /// How a person removes it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let Self { prefix, cluster, .. } = self;
        let folder = self.folder();
        format!(
            "kubectl --context {cluster} delete --kustomize {}; make undeploy STACK={prefix} CONFIRM={prefix} SECRETS=now",
            folder.display()
        )
    }
}

/// The names with the prefix, after any path or URL.
pub(super) fn named<'a>(prefix: &'a str, names: &'a Value) -> impl Iterator<Item = &'a str> {
    let names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter(move |name| {
        let mut parts = name.split('/');
        parts.any(|part| part.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
    })
}

/// The outputs of a stack, as described by AWS.
pub fn outputs(aws: &Aws, stack: &str) -> Result<Value, String> {
    let described = aws.json(&["cloudformation", "describe-stacks", "--stack-name", stack])?;
    Ok(described["Stacks"][0]["Outputs"].clone())
}

/// The settings of a launcher that a proof reads.
pub struct Launcher {
    /// The image for runs in Python; `None` if it has none.
    pub python: Option<String>,
    /// The size of a task.
    pub size: DefaultSize,
    /// The maximum of concurrent runs of a namespace, by `MaxRuns` and `MaxRunsPerNamespace`.
    pub max_runs: Option<u32>,
}

/// The settings of the launcher of a stack.
pub fn launcher(aws: &Aws, stack: &str) -> Result<Launcher, String> {
    let query = format!(
        "Functions[?FunctionName=='{stack}-launcher'].Environment.Variables.{{images: RUNTIME_IMAGES, cpu: TASK_CPU, \
         memory: TASK_MEMORY_MIB, runs: MAX_RUNS, own: MAX_RUNS_PER_NAMESPACE}} | [0]"
    );
    let found = aws.json(&["lambda", "list-functions", "--query", &query])?;
    let number = |name: &str| found[name].as_str().and_then(|text| text.parse::<u32>().ok()).filter(|number| *number > 0);
    let mut images = found["images"].as_str().unwrap_or_default().split(',');
    Ok(Launcher {
        python: images.find_map(|entry| entry.strip_prefix("python=")).map(ToOwned::to_owned),
        size: size(number("cpu"), number("memory")),
        max_runs: [number("runs"), number("own")].into_iter().flatten().min(),
    })
}

/// The size of a task of an installation that is deployed with these `PARAMETERS` of `make deploy`.
#[must_use]
pub fn size_of(parameters: &str) -> DefaultSize {
    let number = |name: &str| {
        let mut words = parameters.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.trim_matches(['\'', '"']).parse().ok())
    };
    size(number("TaskCpu"), number("TaskMemory"))
}

fn size(cpu: Option<u32>, memory_mib: Option<u32>) -> DefaultSize {
    let usual = DefaultSize::default();
    DefaultSize { cpu: cpu.unwrap_or(usual.cpu), memory_mib: memory_mib.unwrap_or(usual.memory_mib) }
}

/// How the functions of a stack reach a cluster, by the kubeconfig of its reconciler.
pub fn access(aws: &Aws, stack: &str, cluster: &str) -> Result<Access, String> {
    let name = format!("{stack}/kubeconfig/reconciler");
    let value = aws.json(&["secretsmanager", "get-secret-value", "--secret-id", &name, "--query", "SecretString"])?;
    let kubeconfig =
        serde_saphyr::from_str(value.as_str().unwrap_or_default()).map_err(|_| format!("the secret {name} is no YAML"));
    let (_, mut access) = credentials::kubeconfig(&name, &kubeconfig, &[cluster.to_owned()]);
    access.remove(cluster).ok_or_else(|| format!("the secret {name} has no usable context {cluster}"))
}

/// One of the outputs.
pub fn output(outputs: &Value, key: &str) -> Result<String, String> {
    let mut all = outputs.as_array().into_iter().flatten();
    let found = all.find(|output| output["OutputKey"] == key).and_then(|output| output["OutputValue"].as_str());
    found.map(ToOwned::to_owned).ok_or_else(|| format!("stack has no output {key}; it was deployed from another release"))
}
