//! What docs/aws.md tells a user to do on AWS: `infra/deploy`, the doctor and `infra/undeploy` against moto, in a copy of the tree.
//!
//! Where moto is not like AWS, the test steps in, and says so; the scripts know nothing of it.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use axum::{Json, Router, http::StatusCode, routing::get};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use driftless_tests::{
    scenario::definition,
    world::{
        cluster::{self, Cluster},
        moto::Moto,
        process::{Supervisor, command, output},
        ready,
    },
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{ACCOUNT, Aws, STACK, list, project, stage};

/// The AWS CLI 1 calls SQS of older Regions by a name of its own, whatever endpoint is set.
const REGION: &str = "eu-central-2";
/// Of the EKS cluster.
const EKS_REGION: &str = "eu-west-1";
const SUBNETS: &str = "subnet-1,subnet-2";
const SECURITY_GROUPS: &str = "sg-1";
const RUNNER: &str = "driftless/runner";
const FORWARDER_IMAGE: &str = "registry.example/forwarder:1";
/// A fork, and its tag.
const SOURCE: [&str; 2] = ["https://git.example/driftless", "release-7"];
/// A parameter of more than one line, and the file that has it.
const CERTIFICATES: [&str; 2] = ["ca.pem", "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"];
/// A part of every token in the kubeconfig, and the beginning of every key.
const SECRETS: [&str; 2] = ["secret-token", "whsec_"];
const NO_OUTPUTS: &str = "the stack driftless has no output ReconcilerRoleArn";
/// Those that call clusters.
const CALLERS: [&str; 5] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper"];
/// The webhook's keys, by cluster and sender.
type Keys = BTreeMap<String, BTreeMap<String, String>>;
const FUNCTIONS: [&str; 6] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper", "webhook"];

/// What the doctor says of moto that it does not say of AWS.
const GAPS: [&str; 3] = [
    // moto's CloudFormation makes the bucket without its notifications.
    "FAIL  bucket driftless-123456789012-eu-central-2: tells of nothing",
    // moto's Service Quotas know nothing of Fargate.
    "warn  Fargate: the quota is not known",
    // moto has no security group of that name.
    "warn  security groups of tasks: cannot be read",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_is_deployed_examined_and_removed() -> Result<()> {
    let dirs = stage("scripts")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let tree = Tree::copy(Aws::new(&dirs, &moto, REGION), &serve().await?).await?;
    let aws = &tree.aws;
    let eks = Aws::new(&dirs, &moto, EKS_REGION);
    // The one that the script makes takes nothing but TLS; moto does not look at conditions of policies, and would refuse everything.
    let artifacts = format!("{STACK}-artifacts-{ACCOUNT}-{REGION}");
    let place = format!("LocationConstraint={REGION}");
    aws.run(&["s3api", "create-bucket", "--bucket", &artifacts, "--create-bucket-configuration", &place]).await?;

    let kubeconfig = tree.root.join("clusters.yaml").to_string_lossy().into_owned();
    let image = format!("{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{RUNNER}:0.1.0");
    // moto has no architecture of a function but this one.
    let mut variables = vec![("BUILD", "no"), ("ARCHITECTURE", "x86_64"), ("ARTIFACTS_BUCKET", &artifacts)];
    variables.extend([("KUBECONFIG_FILE", &*kubeconfig), ("CLUSTERS", "prod,lab"), ("FORWARDER_IMAGE", FORWARDER_IMAGE)]);
    let (code, said) = tree.script("deploy", &variables).await?;
    assert_eq!(code, 1, "{said}");
    for missing in ["SUBNETS=", "SECURITY_GROUPS=", "RUNNER_IMAGE="] {
        assert!(said.contains(&format!("\n  {missing}")), "{missing} is missing, and nobody says so: {said}");
    }
    assert_eq!(inventory(aws).await?, json!([[], [artifacts], []]), "nothing is made before everything is known");

    variables.extend([("SUBNETS", SUBNETS), ("SECURITY_GROUPS", SECURITY_GROUPS), ("RUNNER_IMAGE", &image)]);
    let parameters = tree.spelled_out()?;
    let words: Vec<_> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let words = format!("{} DefaultImage=pulumi@sha256:0 GitCaCertificates=@{}", words.join(" "), CERTIFICATES[0]);
    variables.push(("PARAMETERS", &words));
    let (code, said) = tree.script("deploy", &variables).await?;
    assert!(code == 1 && said.contains(NO_OUTPUTS), "moto shows no outputs of a change set: {said}");
    assert!(said.contains("stack driftless: deployed"), "{said}");
    tree.given(&artifacts).await?;
    tree.bring_outputs(&parameters).await?;
    tree.git(&["init", "--quiet"]).await?;
    tree.git(&["commit", "--quiet", "--allow-empty", "--message", "theirs"]).await?;
    // Something to roll back.
    let topic = r#"{"Resources":{"Topic":{"Type":"AWS::SNS::Topic"}}}"#;
    eks.run(&["cloudformation", "create-stack", "--stack-name", "driftless-prod", "--template-body", topic]).await?;

    let keys: Keys = serde_json::from_str(&secret(aws, "webhook-keys").await?)?;
    assert_eq!(keys.keys().collect::<Vec<_>>(), ["lab", "prod"]);
    for senders in keys.values() {
        let key = senders["flux"].strip_prefix("whsec_").context("a key as the webhook takes it")?;
        assert_eq!(STANDARD.decode(key)?.len(), 32);
    }

    variables.retain(|(name, _)| *name != "ARCHITECTURE");
    variables.push(("SOURCE_URL", SOURCE[0]));
    let (code, said) = tree.script("deploy", &[&*variables, &[("ROLLED_BACK", "driftless-prod")]].concat()).await?;
    assert_eq!(code, 0, "{said}");
    for line in [
        "secret driftless/kubeconfig: unchanged\n",
        "secret driftless/webhook-keys: unchanged\n",
        "stack driftless: unchanged\n",
        "stack driftless-prod: its first deployment was taken back",
        "stack driftless-prod: deleting\n",
        "stack driftless-prod: deployed\n",
        "cluster lab: not of EKS, so that it has no stack\n",
        concat!("warning: HEAD is not v", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(said.contains(&format!("deploy: {line}")), "{line:?} is not in: {said}");
    }
    for cluster in ["prod", "lab"] {
        tree.rendered(cluster, concat!("v", env!("CARGO_PKG_VERSION"))).await?;
    }

    tree.git(&["tag", SOURCE[1]]).await?;
    variables.push(("SOURCE_TAG", SOURCE[1]));
    variables.retain(|(name, _)| *name != "CLUSTERS");
    tree.retire(&variables, &kubeconfig, &eks).await?;
    let (code, said) = tree.script("deploy", &variables).await?;
    assert_eq!(code, 0, "{said}");
    for line in ["a new key for other", "stack driftless: deployed", "stack driftless-prod: deployed"] {
        assert!(said.contains(&format!("deploy: {line}\n")), "{line:?} is not in: {said}");
    }
    assert!(!said.contains("warning: "), "{said}");
    tree.applied(&supervisor, "other", SOURCE[1]).await?;
    let more: Keys = serde_json::from_str(&secret(aws, "webhook-keys").await?)?;
    assert_eq!(more.keys().collect::<Vec<_>>(), ["lab", "other", "prod"]);
    assert!(keys.iter().all(|(cluster, key)| more[cluster] == *key), "the keys of clusters that were there stay");

    tree.examine().await?;

    // As AWS would have it of a run.
    let task = start_task(aws).await?;
    let before = [inventory(aws).await?, inventory(&eks).await?];
    let look = [("KUBECONFIG_FILE", &*kubeconfig)];
    let (code, said) = tree.script("undeploy", &look).await?;
    assert_eq!(code, 1, "{said}");
    for line in [
        "  stack driftless: UPDATE_COMPLETE",
        "  stack driftless-prod in eu-west-1: CREATE_COMPLETE",
        "  bucket driftless-123456789012-eu-central-2: with all that is in it",
        "  bucket driftless-artifacts-123456789012-eu-central-2: with all that is in it",
        "  secrets driftless/kubeconfig and driftless/webhook-keys: kept; SECRETS=1 deletes them",
        "  cluster lab: these Stacks have destroyOnFinalize, and their infrastructure stays:\n    team/kept\n  cluster other: ",
    ] {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
    assert!(!said.contains("cannot list"), "{said}");
    let remove = [("KUBECONFIG_FILE", &*kubeconfig), ("CONFIRM", STACK), ("SECRETS", "1")];
    let (code, said) = tree.script("undeploy", &remove).await?;
    assert!(code == 1 && said.contains("1 runs go on"), "it refuses while a task runs: {said}");
    assert_eq!([inventory(aws).await?, inventory(&eks).await?], before, "nothing was removed");

    aws.run(&["ecs", "stop-task", "--cluster", STACK, "--task", &task]).await?;
    let (code, said) = tree.script("undeploy", &remove).await?;
    assert_eq!(code, 0, "{said}");
    assert_eq!([inventory(aws).await?, inventory(&eks).await?], [json!([[], [], []]), json!([[], [], []])], "{said}");
    let (code, said) = tree.script("undeploy", &remove).await?;
    assert_eq!(code, 0, "what is gone is not asked for twice: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_value_is_refused_before_anything_is_made() -> Result<()> {
    let dirs = stage("refusals")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let tree = Tree::copy(Aws::new(&dirs, &moto, REGION), "https://127.0.0.1:1/").await?;
    let kubeconfig = tree.root.join("clusters.yaml").to_string_lossy().into_owned();
    let whole = [
        ("BUILD", "no"),
        ("KUBECONFIG_FILE", &*kubeconfig),
        ("SUBNETS", SUBNETS),
        ("SECURITY_GROUPS", SECURITY_GROUPS),
        ("RUNNER_IMAGE", RUNNER),
    ];
    for (name, value, words) in [
        ("PARAMETERS", "MaxRuns=20 WatchNamespace=labelled", "PARAMETERS: there is no parameter WatchNamespace\n"),
        ("PARAMETERS", "WatchNamespaces=labelled 'MaxRuns=20", "PARAMETERS: No closing quotation\n"),
        ("PARAMETERS", "AssignPublicIp = ENABLED", "PARAMETERS: AssignPublicIp is not of the form NAME=VALUE\n"),
        ("PARAMETERS", "GitCaCertificates=@nowhere.pem", "No such file or directory: 'nowhere.pem'\n"),
        ("STACK", "driftless-in-production-europe", "would have 66 characters, and S3 takes 63\n  use 27 characters at most"),
        ("ARCHITECTURE", "arm", "ARCHITECTURE=arm is none of"),
    ] {
        let (code, said) = tree.script("deploy", &[&whole[..], &[(name, value)]].concat()).await?;
        assert!(code == 1 && said.contains(words), "{name}={value}: {words:?} is not in: {said}");
    }
    assert_eq!(inventory(&tree.aws).await?, json!([[], [], []]));
    Ok(())
}

/// The first line of the page has the command, and the page what it prints.
#[tokio::test]
async fn the_page_on_costs_has_what_its_command_prints() -> Result<()> {
    let page = fs::read_to_string(project()?.join("docs/cost.md"))?;
    let words = page.split("`make cost ").nth(1).and_then(|rest| rest.split('`').next()).context("a command")?;
    let mut cost = tokio::process::Command::new(program("cost")?);
    cost.envs(words.split(' ').filter_map(|word| word.split_once('=')));
    let printed = output(cost).await?;
    assert!(page.contains(&format!("```\n{}\n```", printed.trim_end())), "docs/cost.md has not:\n{printed}");
    Ok(())
}

/// A program of the doctor.
fn program(name: &str) -> Result<PathBuf> {
    let program = project()?.join("target/debug").join(name);
    ensure!(program.exists(), "there is no {}: run `make build`", program.display());
    Ok(program)
}

/// Its stacks, buckets, and secrets that are not marked for deletion, by their names.
async fn inventory(aws: &Aws<'_>) -> Result<Value> {
    let mut all = Vec::new();
    for (words, names) in [
        ("cloudformation describe-stacks", "Stacks[].StackName"),
        ("s3api list-buckets", "Buckets[].Name"),
        ("secretsmanager list-secrets", "SecretList[].Name"),
    ] {
        let words: Vec<_> = words.split(' ').chain(["--query", names]).collect();
        let mut names: Vec<String> = serde_json::from_str(&aws.run(&words).await?)?;
        names.sort_unstable();
        all.push(names);
    }
    Ok(json!(all))
}

async fn secret(aws: &Aws<'_>, name: &str) -> Result<String> {
    let name = format!("{STACK}/{name}");
    let words = ["secretsmanager", "get-secret-value", "--secret-id", &name, "--query", "SecretString"];
    Ok(serde_json::from_str(&aws.run(&words).await?)?)
}

async fn start_task(aws: &Aws<'_>) -> Result<String> {
    let containers = r#"[{"name":"pulumi","image":"pulumi","cpu":256,"memory":512}]"#;
    let mut define = vec!["ecs", "register-task-definition", "--family", "run", "--container-definitions", containers];
    define.extend(["--requires-compatibilities", "FARGATE", "--network-mode", "awsvpc", "--cpu", "256", "--memory", "512"]);
    aws.run(&define).await?;
    // Of the VPC that moto has from its start.
    let mut network = json!({ "awsvpcConfiguration": {} });
    for (list, words, names) in [
        ("subnets", ["ec2", "describe-subnets"], "Subnets[:1].SubnetId"),
        ("securityGroups", ["ec2", "describe-security-groups"], "SecurityGroups[:1].GroupId"),
    ] {
        let answer = aws.run(&[words[0], words[1], "--query", names]).await?;
        network["awsvpcConfiguration"][list] = serde_json::from_str(&answer)?;
    }
    let network = network.to_string();
    let mut run = vec!["ecs", "run-task", "--cluster", STACK, "--task-definition", "run", "--launch-type", "FARGATE"];
    run.extend(["--network-configuration", &network, "--query", "tasks[0].taskArn"]);
    Ok(serde_json::from_str(&aws.run(&run).await?)?)
}

/// The webhook, which refuses what is not signed, and the API server of every cluster, with two Stacks.
async fn serve() -> Result<String> {
    let stack = |name: &str, destroy: bool| {
        json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": { "name": name, "namespace": "team" },
            "spec": { "stack": name, "destroyOnFinalize": destroy },
        })
    };
    let group = json!({
        "name": "pulumi.com", "versions": [{ "groupVersion": "pulumi.com/v1", "version": "v1" }],
        "preferredVersion": { "groupVersion": "pulumi.com/v1", "version": "v1" },
    });
    let resource =
        json!({ "name": "stacks", "singularName": "stack", "kind": "Stack", "namespaced": true, "verbs": ["get", "list"] });
    let pages = [
        ("/api", json!({ "kind": "APIVersions", "versions": ["v1"] })),
        ("/apis", json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group] })),
        (
            "/apis/pulumi.com/v1",
            json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "pulumi.com/v1", "resources": [resource] }),
        ),
        (
            "/apis/pulumi.com/v1/stacks",
            json!({
                "apiVersion": "pulumi.com/v1", "kind": "StackList", "metadata": {},
                "items": [stack("kept", true), stack("gone", false)],
            }),
        ),
    ];
    let router = pages.into_iter().fold(Router::new(), |router, (path, page)| router.route(path, get(async || Json(page))));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, router.fallback(async || StatusCode::UNAUTHORIZED)).await });
    Ok(url)
}

/// The scripts and what they deploy, where they may write.
struct Tree<'a> {
    aws: Aws<'a>,
    root: PathBuf,
    webhook: String,
}

impl<'a> Tree<'a> {
    async fn copy(aws: Aws<'a>, server: &str) -> Result<Self> {
        let (project, root) = (project()?, aws.dirs.create("tree")?);
        let mut copy = command(aws.dirs, "cp");
        copy.arg("-r").args(["infra", "Cargo.toml"].map(|name| project.join(name))).arg(&root);
        output(copy).await?;
        for name in FUNCTIONS {
            let bootstrap = root.join("target/lambda").join(name).join("bootstrap");
            fs::create_dir_all(bootstrap.parent().context("a folder")?)?;
            fs::write(&bootstrap, name)?;
            // As a build leaves it where files are their owner's alone.
            fs::set_permissions(&bootstrap, fs::Permissions::from_mode(0o700))?;
        }
        fs::write(root.join(CERTIFICATES[0]), CERTIFICATES[1])?;
        // No stack of moto's fails: whoever looks at the one that ROLLED_BACK names is told so, once.
        let (aws_cli, told) = (root.join("bin/aws"), root.join("told"));
        fs::create_dir(root.join("bin"))?;
        let text = format!(
            "#!/bin/sh\ncase \"$*\" in *\"describe-stacks --stack-name $ROLLED_BACK --query Stacks[0].StackStatus\"*)\n\
             mkdir {} 2>/dev/null && echo ROLLBACK_COMPLETE && exit;; esac\nexec {} \"$@\"\n",
            told.display(),
            aws.dirs.tool("aws")?.display()
        );
        fs::write(&aws_cli, text)?;
        fs::set_permissions(&aws_cli, fs::Permissions::from_mode(0o755))?;
        // moto makes no function URL, and so has no attribute of one.
        let template = root.join("infra/template.yaml");
        let text = fs::read_to_string(&template)?;
        let (url, ours) = ("Fn::GetAtt: [WebhookUrl, FunctionUrl]", format!("Fn::Sub: \"{server}\""));
        ensure!(text.matches(url).count() == 1, "the template has not {url:?}");
        fs::write(&template, text.replace(url, &ours))?;

        let user = |name: &str| json!({ "name": name, "user": { "token": format!("{name}-secret-token") } });
        let context = |name: &str| json!({ "name": name, "context": { "cluster": name, "user": name } });
        let cluster = |name: &str| json!({ "name": name, "cluster": { "server": server } });
        // As `aws eks update-kubeconfig` writes it.
        let eks = json!({ "name": "prod", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws",
            "args": ["--region", EKS_REGION, "eks", "get-token", "--cluster-name", "production", "--output", "json"],
        } } });
        let names = ["prod", "lab", "other"];
        let mut kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "contexts": names.map(context), "clusters": names.map(cluster),
            "users": [eks, user("lab"), user("other")],
        });
        // As docs/clusters.md writes them, beside the administrator's.
        for (cluster, function) in ["lab", "other"].iter().flat_map(|cluster| CALLERS.map(|function| (cluster, function))) {
            let name = format!("{cluster}.{function}");
            let context = json!({ "name": name, "context": { "cluster": cluster, "user": name } });
            for (part, entry) in [("users", user(&name)), ("contexts", context)] {
                kubeconfig[part].as_array_mut().context("a list")?.push(entry);
            }
        }
        fs::write(root.join("clusters.yaml"), kubeconfig.to_string())?;
        Ok(Self { aws, root, webhook: server.to_owned() })
    }

    /// Runs a script of `infra`, as `make` does: its exit status, and all that it says, in which no secret is.
    async fn script(&self, name: &str, variables: &[(&str, &str)]) -> Result<(i32, String)> {
        self.run(self.root.join("infra").join(name), variables).await
    }

    async fn run(&self, program: PathBuf, variables: &[(&str, &str)]) -> Result<(i32, String)> {
        let words = format!("{} {variables:?}", program.display());
        let mut command = self.aws.command(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let (ours, tools) = (self.root.join("bin"), self.aws.dirs.tools());
        command.env("PATH", format!("{}:{}:{}", ours.display(), tools.display(), path.display())).env("AWS_REGION", REGION);
        command.envs(variables.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.context(words)?;
        let said = [output.stderr, output.stdout].concat();
        let said = String::from_utf8(said)?;
        assert!(SECRETS.iter().all(|secret| !said.contains(secret)), "a secret is shown: {said}");
        Ok((output.status.code().context("a signal")?, said))
    }

    async fn git(&self, words: &[&str]) -> Result<String> {
        let mut git = command(self.aws.dirs, "git");
        git.arg("-C").arg(&self.root).args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(words);
        output(git).await
    }

    /// What AWS was given: bootstraps that another user than their owner may run, the text of a file, and the clusters that are served.
    async fn given(&self, bucket: &str) -> Result<()> {
        const LIST: &str = "import sys, zipfile\n\
            for path in filter(zipfile.is_zipfile, sys.argv[1:]):\n  \
            for entry in zipfile.ZipFile(path).infolist(): print(entry.filename, oct(entry.external_attr >> 16))";
        let folder = self.aws.dirs.create("packages")?;
        let from = format!("s3://{bucket}/{STACK}");
        self.aws.run(&["s3", "cp", "--recursive", &from, &folder.to_string_lossy()]).await?;
        let files: Vec<_> = fs::read_dir(&folder)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        let mut python = command(self.aws.dirs, "python3");
        python.args(["-c", LIST]).args(files);
        assert_eq!(output(python).await?, "bootstrap 0o100755\n".repeat(FUNCTIONS.len()));
        let parameters = self.described("Parameters").await?;
        let given = list(&parameters).iter().find(|one| one["ParameterKey"] == "GitCaCertificates").context("a parameter")?;
        assert_eq!(given["ParameterValue"], CERTIFICATES[1]);
        for function in CALLERS {
            let uploaded: Value = serde_saphyr::from_str(&secret(&self.aws, &format!("kubeconfig/{function}")).await?)?;
            let own = format!("lab.{function}");
            for (part, expected) in [("contexts", "lab"), ("clusters", "lab"), ("users", &own)] {
                let mut names: Vec<_> = list(&uploaded[part]).iter().filter_map(|one| one["name"].as_str()).collect();
                names.sort_unstable();
                assert_eq!(names, [expected, "prod"], "only what CLUSTERS names and is the {function}'s is uploaded: {part}");
            }
        }
        let whole = secret(&self.aws, "kubeconfig").await?;
        assert!(!whole.contains("lab-secret-token"), "the administrator's token is used by no function");
        Ok(())
    }

    /// The parameters that moto takes for something else if a later deployment leaves them as they are: numbers and lists.
    fn spelled_out(&self) -> Result<Vec<(String, String)>> {
        let template: Value = serde_saphyr::from_str(&fs::read_to_string(self.root.join("infra/template.yaml"))?)?;
        let all = template["Parameters"].as_object().into_iter().flatten();
        let wanted = all.filter(|(_, parameter)| {
            let kind = parameter["Type"].as_str().unwrap_or_default();
            !parameter["Default"].is_null() && (kind == "Number" || kind.contains("List"))
        });
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        Ok(wanted.map(|(name, parameter)| (name.clone(), text(&parameter["Default"]))).collect())
    }

    /// Deploys the same once more, in the way after which moto shows the outputs.
    async fn bring_outputs(&self, parameters: &[(String, String)]) -> Result<()> {
        let lists = [("ClusterNames", "prod,lab"), ("Subnets", SUBNETS), ("SecurityGroups", SECURITY_GROUPS)];
        let lists = lists.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given: BTreeMap<_, _> = parameters.iter().cloned().chain(lists).collect();
        let mut all = self.described("Parameters").await?;
        for parameter in all.as_array_mut().context("parameters")? {
            if let Some(value) = parameter["ParameterKey"].as_str().and_then(|name| given.get(name)) {
                parameter["ParameterValue"] = value.as_str().into();
            }
        }
        let file = self.root.join("parameters.json");
        fs::write(&file, all.to_string())?;
        let template = format!("file://{}/target/deploy/{STACK}/template.yaml", self.root.display());
        let parameters = format!("file://{}", file.display());
        let mut update = vec!["cloudformation", "update-stack", "--stack-name", STACK, "--capabilities", "CAPABILITY_NAMED_IAM"];
        update.extend(["--template-body", &template, "--parameters", &parameters]);
        self.aws.run(&update).await.map(drop)
    }

    async fn described(&self, part: &str) -> Result<Value> {
        let query = format!("Stacks[0].{part}");
        let words = ["cloudformation", "describe-stacks", "--stack-name", STACK, "--query", &query];
        Ok(serde_json::from_str(&self.aws.run(&words).await?)?)
    }

    /// A cluster that is named no more gives its access back, and is not dropped by mistake.
    async fn retire(&self, variables: &[(&str, &str)], kubeconfig: &str, eks: &Aws<'_>) -> Result<()> {
        let renamed = self.root.join("renamed.yaml").to_string_lossy().into_owned();
        fs::write(&renamed, fs::read_to_string(kubeconfig)?.replace("\"prod\"", "\"renamed\""))?;
        let (code, said) = self.script("deploy", &[variables, &[("KUBECONFIG_FILE", &*renamed)]].concat()).await?;
        ensure!(code == 1 && said.contains("has no context prod, which is served now"), "{said}");
        let (code, said) = self.script("deploy", &[variables, &[("CLUSTERS", "lab")]].concat()).await?;
        ensure!(code == 0, "{said}");
        for line in [
            "cluster prod: served no more; in it, delete",
            "stack driftless-prod: deleting",
            "secret driftless/kubeconfig: changed",
        ] {
            ensure!(said.contains(&format!("deploy: {line}")), "{line:?} is not in: {said}");
        }
        assert_eq!(inventory(eks).await?[0], json!([]), "nothing is left of the cluster that is served no more");
        Ok(())
    }

    /// What is applied to a cluster has the outputs' values, and the script of its key has no key.
    async fn rendered(&self, cluster: &str, tag: &str) -> Result<()> {
        let outputs = self.described("Outputs").await?;
        let queue = list(&outputs).iter().find(|output| output["OutputKey"] == "HintsQueueUrl").context("an output")?;
        let folder = self.root.join("target/deploy").join(STACK).join(cluster);
        let text = fs::read_to_string(folder.join("driftless.yaml"))?;
        assert!(!text.contains("${"), "a placeholder is left: {text}");
        let documents: Vec<Value> = text.split("\n---\n").map(serde_saphyr::from_str).collect::<Result<_, _>>()?;
        assert_eq!([&documents[0]["spec"]["url"], &documents[0]["spec"]["ref"]["tag"]], [SOURCE[0], tag]);
        let commit = documents[0]["spec"]["ref"]["commit"].as_str().unwrap_or_default().len();
        assert_eq!(commit, if tag == SOURCE[1] { 40 } else { 0 }, "the commit of a tag that is there");
        let patch = documents[1]["spec"]["patches"][0]["patch"].as_str().context("a patch")?;
        let values: Value = serde_saphyr::from_str(patch)?;
        let expected = json!({
            "CLUSTER": cluster, "AWS_REGION": REGION, "HINTS_QUEUE_URL": queue["OutputValue"], "WEBHOOK_URL": self.webhook,
            "FORWARDER_IMAGE": FORWARDER_IMAGE,
        });
        assert_eq!(values["data"], expected);

        let script = folder.join("webhook-secret");
        let mode = fs::metadata(&script)?.permissions().mode();
        assert_eq!(mode & 0o100, 0o100, "it can be run");
        let text = fs::read_to_string(&script)?;
        assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{text}");
        Ok(())
    }

    /// What a deployment ends with, done to a real API server. Of kustomize-controller it knows the kind alone.
    async fn applied(&self, supervisor: &Supervisor, context: &str, tag: &str) -> Result<()> {
        self.rendered(context, tag).await?;
        let dirs = self.aws.dirs;
        let etcd = cluster::start_etcd(dirs, supervisor).await?;
        let cluster = Cluster::start(dirs, supervisor, &project()?, &etcd, None).await?;
        let admin = cluster.client("admin").await?;
        cluster::apply_yaml(&admin, &definition("kustomize.toolkit.fluxcd.io", "Kustomization")).await?;
        let kubectl = async |words: &[&str]| {
            let mut kubectl = command(dirs, dirs.tool("kubectl")?);
            kubectl.arg("--kubeconfig").arg(&cluster.admin_kubeconfig).args(words);
            output(kubectl).await
        };
        kubectl(&["config", "rename-context", cluster::NAME, context]).await?;

        let folder = self.root.join("target/deploy").join(STACK).join(context);
        let kubeconfig = cluster.admin_kubeconfig.to_string_lossy();
        let (code, said) = self.run(folder.join("webhook-secret"), &[("KUBECONFIG", &*kubeconfig)]).await?;
        ensure!(code == 0, "{said}");
        let keys: Keys = serde_json::from_str(&secret(&self.aws, "webhook-keys").await?)?;
        let made = Api::<Secret>::namespaced(admin, "flux-system").get("driftless").await?.data.context("data")?;
        assert!(made["token"].0 == keys[context]["flux"].as_bytes(), "it is the key of {context}");

        let path = folder.join("driftless.yaml").to_string_lossy().into_owned();
        ready::until("the file is applied", ready::START, async || {
            kubectl(&["--context", context, "apply", "-f", &path]).await.map(drop)
        })
        .await
    }

    /// The doctor's part of AWS finds what moto lacks, and nothing else.
    async fn examine(&self) -> Result<()> {
        self.aws.run(&["ecr", "create-repository", "--repository-name", RUNNER]).await?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": [],
            "config": { "mediaType": "application/vnd.docker.container.image.v1+json", "size": 1, "digest": "sha256:0" },
        });
        let manifest = manifest.to_string();
        let push = ["ecr", "put-image", "--repository-name", RUNNER, "--image-tag", "0.1.0", "--image-manifest", &manifest];
        self.aws.run(&push).await?;
        let (code, said) = self.run(program("doctor")?, &[("ONLY", "aws"), ("STACK", STACK)]).await?;
        assert_eq!(code, 1, "{said}");
        let bad: Vec<_> = said.lines().filter(|line| line.starts_with("FAIL") || line.starts_with("warn")).collect();
        assert_eq!(bad, GAPS, "{said}");
        for name in FUNCTIONS {
            assert!(said.contains(&format!("ok    function {STACK}-{name}: Active, x86_64\n")), "{name}: {said}");
        }
        for line in [
            "queue driftless-hints: feeds driftless-reconciler",
            "queue driftless-sources.fifo: feeds driftless-fetcher",
            "queue driftless-launches: feeds driftless-launcher",
            "queue driftless-runs: feeds driftless-recorder",
            "queue driftless-hints-dead-letters: empty",
            "secret driftless/kubeconfig/reconciler: cluster prod is the EKS cluster production",
            "secret driftless/kubeconfig/reconciler: cluster lab has a user of its own",
            "secret driftless/kubeconfig/sweeper: cluster other has a user of its own",
            "secret driftless/webhook-keys: a key for each cluster",
            &format!("webhook {}: answers, and refuses what is not signed", self.webhook),
        ] {
            assert!(said.contains(&format!("ok    {line}\n")), "{line:?} is not in: {said}");
        }
        Ok(())
    }
}
