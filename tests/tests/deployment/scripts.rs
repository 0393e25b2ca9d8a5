//! The commands of docs/aws.md: `infra/deploy`, the doctor and `infra/undeploy` with moto, in a
//! copy of the tree.
//!
//! Where moto differs from AWS, the test steps in and says so; the scripts have no special cases.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use axum::{Json, Router, extract::Path as UrlPath, http::StatusCode, routing::get};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use driftless_tests::{
    scenario::definition,
    world::{
        account::{REGION, network},
        cluster::{self, Cluster},
        moto::Moto,
        process::{Supervisor, command, output},
        ready,
        tls::Certificates,
    },
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};
use tokio::net::TcpListener;

mod copies;
mod tree;

use tree::Tree;

use super::{ACCOUNT, Aws, STACK, list, project, stage};

/// The Region of the EKS cluster.
const EKS_REGION: &str = "eu-west-1";
const EKS_CLUSTER: &str = "production";
const RUNNER: &str = "driftless/runner";
const FORWARDER_IMAGE: &str = "registry.example/forwarder:1";
/// A fork, and its tag.
const SOURCE: [&str; 2] = ["https://git.example/driftless", "release-7"];
/// The file with the certificates of git servers, and one with a damaged certificate.
const CERTIFICATES: &str = "ca.pem";
const DAMAGED: [&str; 2] = ["damaged.pem", "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"];
/// Longer than a parameter, a secret and a function's environment can be.
const BUNDLE_BYTES: usize = 100 << 10;
/// The tags of everything, and AWS's form of them.
const TAGS: &str = "CostCenter=42 'Team=Infra and more'";
const TAGGED: [(&str, &str); 2] = [("CostCenter", "42"), ("Team", "Infra and more")];
/// A part of every token in the kubeconfig, and the prefix of every key.
const SECRETS: [&str; 2] = ["secret-token", "whsec_"];
const NO_OUTPUTS: &str = "stack driftless has no output ReconcilerRoleArn";
/// The functions that call clusters.
const CALLERS: [&str; 5] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper"];
/// The webhook's keys, by cluster and sender.
type Keys = BTreeMap<String, BTreeMap<String, String>>;
const FUNCTIONS: [&str; 6] = ["reconciler", "fetcher", "launcher", "recorder", "sweeper", "webhook"];

/// The doctor's findings about moto that it does not have about AWS.
const GAPS: [&str; 4] = [
    // moto has no settings of an account of Lambda.
    "warn  Lambda: cannot read its limits",
    // moto's CloudFormation creates the bucket without its notifications.
    "FAIL  bucket driftless-123456789012-eu-central-2: no notifications",
    // moto's Service Quotas do not include Fargate.
    "warn  Fargate: cannot read the quota",
    // moto prints a list of groups in Python's form.
    "warn  security groups of tasks: cannot be read",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_is_deployed_examined_and_removed() -> Result<()> {
    let dirs = stage("scripts")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let tree = Tree::copy(Aws::start(&dirs, &supervisor, &moto, REGION).await?, &serve().await?).await?;
    let aws = &tree.aws;
    let eks = Aws { region: EKS_REGION, ..aws.clone() };
    // The bucket that the script creates only allows TLS. moto ignores conditions of policies, and
    // would refuse everything.
    let artifacts = format!("{STACK}-artifacts-{ACCOUNT}-{REGION}");
    let place = format!("LocationConstraint={REGION}");
    aws.run(&["s3api", "create-bucket", "--bucket", &artifacts, "--create-bucket-configuration", &place]).await?;

    let kubeconfig = tree.root.join("clusters.yaml").to_string_lossy().into_owned();
    let image = format!("{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{RUNNER}:0.1.0");
    // moto only supports this architecture of functions, and accepts no image.
    let mut variables =
        vec![("BUILD", "no"), ("ARCHITECTURE", "x86_64"), ("ARTIFACTS_BUCKET", &artifacts), ("COPY_IMAGES", "no")];
    variables.extend([("KUBECONFIG_FILE", &*kubeconfig), ("CLUSTERS", "prod,lab"), ("FORWARDER_IMAGE", FORWARDER_IMAGE)]);
    let (code, said) = tree.script("deploy", &variables).await?;
    assert_eq!(code, 1, "{said}");
    for missing in ["SUBNETS=", "SECURITY_GROUPS=", "RUNNER_IMAGE="] {
        assert!(said.contains(&format!("\n  {missing}")), "{missing} is missing, and nobody says so: {said}");
    }
    assert_eq!(inventory(aws).await?, json!([[], [artifacts], []]), "nothing is made before everything is known");

    let [subnets, groups] = network(aws.dirs, &aws.cli, &aws.endpoint).await?;
    variables.extend([("SUBNETS", &*subnets), ("SECURITY_GROUPS", &*groups), ("RUNNER_IMAGE", &*image)]);
    let mut parameters = tree.spelled_out()?;
    // The doctor warns of images by tag.
    parameters.retain(|(name, _)| name != "RuntimeImages");
    parameters.push(("RuntimeImages".into(), "yaml=pulumi@sha256:0".into()));
    let words = parameters.iter().filter(|(name, _)| name != "TaskTags");
    let words: Vec<_> = words.map(|(name, value)| format!("{name}={value}")).collect();
    let words = format!("{} DefaultImage=pulumi@sha256:0 GitCaCertificates=@{CERTIFICATES}", words.join(" "));
    variables.push(("PARAMETERS", &words));
    let (code, said) = tree.script("deploy", &[&*variables, &[("TAGS", TAGS)]].concat()).await?;
    assert!(code == 1 && said.contains(NO_OUTPUTS), "moto shows no outputs of a change set: {said}");
    for line in ["stack driftless: deployed\n", "tasks: the subnets are public; chosen: AssignPublicIp=ENABLED\n"] {
        assert!(said.contains(&format!("deploy: {line}")), "{line:?} is not in: {said}");
    }
    tree.given(&artifacts).await?;
    tree.tagged().await?;
    tree.bring_outputs(&parameters, [&subnets, &groups]).await?;
    tree.git(&["init", "--quiet"]).await?;
    tree.git(&["commit", "--quiet", "--allow-empty", "--message", "theirs"]).await?;
    // A change to roll back.
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
        "stack driftless-prod: its first deployment was rolled back",
        "stack driftless-prod: deleting\n",
        "stack driftless-prod: deployed\n",
        "cluster lab: not of EKS, so it has no stack\n",
        concat!("warning: HEAD is not v", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(said.contains(&format!("deploy: {line}")), "{line:?} is not in: {said}");
    }
    for cluster in ["prod", "lab"] {
        tree.rendered(cluster, concat!("v", env!("CARGO_PKG_VERSION"))).await?;
    }

    tree.git(&["tag", SOURCE[1]]).await?;
    // moto has no quotas, which leads to a warning each time.
    variables.extend([("SOURCE_TAG", SOURCE[1]), ("CHECK", "no")]);
    variables.retain(|(name, _)| *name != "CLUSTERS");
    tree.retire(&variables, &kubeconfig, &eks).await?;
    let (code, said) = tree.script("deploy", &variables).await?;
    assert_eq!(code, 0, "{said}");
    for line in ["a new key for other", "stack driftless: deployed", "stack driftless-prod: deployed"] {
        assert!(said.contains(&format!("deploy: {line}\n")), "{line:?} is not in: {said}");
    }
    // No registry tells the digests of the forwarder's and the runner's images.
    let (kept, warnings): (Vec<_>, Vec<_>) =
        said.lines().filter(|line| line.contains("warning: ")).partition(|line| line.contains(": keeps its tag, because "));
    assert_eq!((kept.len(), warnings.len()), (2, 0), "{said}");
    tree.applied(&supervisor, "other", SOURCE[1]).await?;
    let more: Keys = serde_json::from_str(&secret(aws, "webhook-keys").await?)?;
    assert_eq!(more.keys().collect::<Vec<_>>(), ["lab", "other", "prod"]);
    assert!(keys.iter().all(|(cluster, key)| more[cluster] == *key), "the keys of clusters that were there stay");

    tree.examine().await?;
    tree.tagged().await?;
    tree.without_webhook(&variables, &words).await?;

    is_undeployed(&tree, &eks, &kubeconfig).await
}

/// Removes the installation, once no task runs.
async fn is_undeployed(tree: &Tree<'_>, eks: &Aws<'_>, kubeconfig: &str) -> Result<()> {
    let aws = &tree.aws;
    // As AWS would list it during a run.
    let task = start_task(aws).await?;
    let before = [inventory(aws).await?, inventory(eks).await?];
    let look = [("KUBECONFIG_FILE", kubeconfig)];
    let (code, said) = tree.script("undeploy", &look).await?;
    assert_eq!(code, 1, "{said}");
    for line in [
        "  stack driftless: UPDATE_COMPLETE",
        "  stack driftless-prod in eu-west-1: CREATE_COMPLETE",
        "  bucket driftless-123456789012-eu-central-2: with all its objects",
        "  bucket driftless-artifacts-123456789012-eu-central-2: with all its objects",
        "  secrets driftless/kubeconfig and driftless/webhook-keys: kept; SECRETS=1 deletes them",
        "  cluster lab: these Stacks have destroyOnFinalize, but their infrastructure remains:\n    team/kept\n  cluster other: ",
    ] {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
    assert!(!said.contains("cannot list"), "{said}");
    let remove = [("KUBECONFIG_FILE", kubeconfig), ("CONFIRM", STACK), ("SECRETS", "1")];
    let (code, said) = tree.script("undeploy", &remove).await?;
    assert!(code == 1 && said.contains("1 runs are in progress"), "it refuses while a task runs: {said}");
    assert_eq!([inventory(aws).await?, inventory(eks).await?], before, "nothing was removed");

    aws.run(&["ecs", "stop-task", "--cluster", STACK, "--task", &task]).await?;
    let (code, said) = tree.script("undeploy", &remove).await?;
    assert_eq!(code, 0, "{said}");
    assert_eq!([inventory(aws).await?, inventory(eks).await?], [json!([[], [], []]), json!([[], [], []])], "{said}");
    let (code, said) = tree.script("undeploy", &remove).await?;
    assert_eq!(code, 0, "what is gone is not asked for twice: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_value_is_refused_before_anything_is_made() -> Result<()> {
    let dirs = stage("refusals")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let tree = Tree::copy(Aws::start(&dirs, &supervisor, &moto, REGION).await?, "https://127.0.0.1:1/").await?;
    let kubeconfig = tree.root.join("clusters.yaml").to_string_lossy().into_owned();
    let whole = [
        ("BUILD", "no"),
        ("KUBECONFIG_FILE", &*kubeconfig),
        ("SUBNETS", "subnet-1,subnet-2"),
        ("SECURITY_GROUPS", "sg-1"),
        ("RUNNER_IMAGE", RUNNER),
    ];
    for (name, value, words) in [
        ("PARAMETERS", "MaxRuns=20 WatchNamespace=labelled", "PARAMETERS: there is no parameter WatchNamespace\n"),
        ("PARAMETERS", "WatchNamespaces=labelled 'MaxRuns=20", "PARAMETERS: No closing quotation\n"),
        ("PARAMETERS", "AssignPublicIp = ENABLED", "PARAMETERS: AssignPublicIp is not of the form NAME=VALUE\n"),
        ("PARAMETERS", "GitCaCertificates=@nowhere.pem", "No such file or directory: 'nowhere.pem'\n"),
        (
            "PARAMETERS",
            &format!("GitCaCertificates=@{}", DAMAGED[0]),
            "GitCaCertificates is not a PEM bundle of X.509 certificates: ",
        ),
        ("STACK", "driftless-in-production-europe", "would have 66 characters, the maximum is 63\n  use 27 characters at most"),
        ("ARCHITECTURE", "arm", "ARCHITECTURE=arm is not supported"),
        ("TAGS", "CostCenter", "TAGS: CostCenter is not KEY=VALUE"),
        ("TAGS", "Team=a,b", "TAGS: Team=a,b is not KEY=VALUE"),
    ] {
        let (code, said) = tree.script("deploy", &[&whole[..], &[(name, value)]].concat()).await?;
        assert!(code == 1 && said.contains(words), "{name}={value}: {words:?} is not in: {said}");
    }
    assert_eq!(inventory(&tree.aws).await?, json!([[], [], []]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_without_a_public_api_server_is_refused_before_any_change() -> Result<()> {
    let dirs = stage("private-cluster")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let tree = Tree::copy(Aws::start(&dirs, &supervisor, &moto, REGION).await?, "https://127.0.0.1:1/").await?;
    let eks = Aws { region: EKS_REGION, ..tree.aws.clone() };
    let update = ["eks", "update-cluster-config", "--name", EKS_CLUSTER];
    eks.run(&[&update[..], &["--resources-vpc-config", "endpointPublicAccess=false,endpointPrivateAccess=true"]].concat())
        .await?;
    let [subnets, groups] = network(tree.aws.dirs, &tree.aws.cli, &tree.aws.endpoint).await?;
    let kubeconfig = tree.root.join("clusters.yaml").to_string_lossy().into_owned();
    let variables = [
        ("BUILD", "no"),
        ("KUBECONFIG_FILE", &*kubeconfig),
        ("SUBNETS", &*subnets),
        ("SECURITY_GROUPS", &*groups),
        ("RUNNER_IMAGE", RUNNER),
    ];
    let (code, said) = tree.script("deploy", &variables).await?;
    let fact = "deploy: cluster prod: the API server of the EKS cluster production is not public; functions outside a VPC do not reach it\n";
    assert!(code == 1 && said.contains(fact) && said.contains("PARAMETERS='FunctionSubnets="), "{said}");
    assert_eq!(inventory(&tree.aws).await?, json!([[], [], []]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn verified_release_is_deployed_without_a_build() -> Result<()> {
    let dirs = stage("release")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let tree = Tree::copy(Aws::start(&dirs, &supervisor, &moto, REGION).await?, "https://127.0.0.1:1/").await?;
    let artifacts = format!("{STACK}-artifacts-{ACCOUNT}-{REGION}");
    let place = format!("LocationConstraint={REGION}");
    tree.aws.run(&["s3api", "create-bucket", "--bucket", &artifacts, "--create-bucket-configuration", &place]).await?;
    let made = json!([[], [artifacts], []]);
    fs::remove_dir_all(tree.root.join("target/lambda"))?;
    tree.stand_in("cargo", "echo cargo was called; exit 1")?;
    tree.stand_in("gh", "echo \"$@\" >>\"$ASKED\"; exit ${ATTESTED:-0}")?;
    let (folder, release) = (tree.root.join("release"), concat!("v", env!("CARGO_PKG_VERSION")));
    tree.release(&folder).await?;
    let url = files(folder.clone()).await?;

    let [subnets, groups] = network(tree.aws.dirs, &tree.aws.cli, &tree.aws.endpoint).await?;
    let kubeconfig = tree.root.join("clusters.yaml").to_string_lossy().into_owned();
    let asked = tree.root.join("asked").to_string_lossy().into_owned();
    let words: Vec<_> = tree.spelled_out()?.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let words = words.join(" ");
    let mut variables = vec![("ARCHITECTURE", "x86_64"), ("ARTIFACTS_BUCKET", &*artifacts), ("KUBECONFIG_FILE", &*kubeconfig)];
    variables.extend([("CLUSTERS", "prod,lab"), ("SUBNETS", &*subnets), ("SECURITY_GROUPS", &*groups), ("PARAMETERS", &*words)]);
    variables.extend([("RELEASE_URL", &*url), ("RELEASE", release), ("ASKED", &*asked), ("COPY_IMAGES", "no")]);
    for (name, value, words) in [
        ("RELEASE", "v9.9.9", "RELEASE=v9.9.9 is not v"),
        ("RELEASE_URL", "http://127.0.0.1:1", "SHA256SUMS was not downloaded: "),
        ("ATTESTED", "1", "images.env of http://"),
    ] {
        let (code, said) = tree.script("deploy", &[&*variables, &[(name, value)]].concat()).await?;
        assert!(code == 1 && said.contains(words), "{name}={value}: {words:?} is not in: {said}");
    }
    let archive = folder.join("fetcher-x86_64.zip");
    let right = fs::read(&archive)?;
    fs::write(&archive, [&*right, b"."].concat())?;
    let (code, said) = tree.script("deploy", &variables).await?;
    assert_eq!(code, 1, "{said}");
    for line in
        ["does not match its checksums; nothing was changed", "fetcher-x86_64.zip: FAILED", "use another mirror: RELEASE_URL="]
    {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
    assert_eq!(inventory(&tree.aws).await?, made, "nothing is made of files that are not the release's");

    fs::write(&archive, right)?;
    fs::remove_file(&asked)?;
    let (code, said) = tree.script("deploy", &variables).await?;
    assert!(code == 1 && said.contains(NO_OUTPUTS), "moto shows no outputs of a change set: {said}");
    for line in ["checksums and attestations are valid", "stack driftless: deployed\n"] {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
    let asked = fs::read_to_string(&asked)?;
    assert_eq!(asked.matches("--repo driftless-dev/driftless").count(), 1 + FUNCTIONS.len(), "{asked}");
    let parameters = tree.described("Parameters").await?;
    let runner = list(&parameters).iter().find(|one| one["ParameterKey"] == "RunnerImage").context("a parameter")?;
    assert_eq!(runner["ParameterValue"], "ghcr.io/driftless/runner@sha256:1");
    tree.uploaded(&artifacts).await
}

/// Serves the files of a folder. Returns its URL.
async fn files(folder: PathBuf) -> Result<String> {
    let file = async move |UrlPath(name): UrlPath<String>| fs::read(folder.join(name)).map_err(|_| StatusCode::NOT_FOUND);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, Router::new().route("/{name}", get(file))).await });
    Ok(url)
}

#[tokio::test]
async fn pages_on_costs_and_scale_have_what_their_commands_print() -> Result<()> {
    for (file, name, begin) in [("docs/cost.md", "cost", "\nUSD a month "), ("docs/scale.md", "capacity", "\nparameter ")] {
        let page = fs::read_to_string(project()?.join(file))?;
        let commands: Vec<_> = page.split(&format!("`make {name} ")).skip(1).filter_map(|rest| rest.split('`').next()).collect();
        assert_eq!(commands.len(), page.matches(begin).count(), "each output of {file} has its command");
        for words in commands {
            let mut program = tokio::process::Command::new(program(name)?);
            program.envs(words.split(' ').filter_map(|word| word.split_once('=')));
            let printed = output(program).await?;
            assert!(page.contains(&format!("```\n{}\n```", printed.trim_end())), "{file} has not, for {words}:\n{printed}");
        }
    }
    Ok(())
}

/// A program of the doctor.
fn program(name: &str) -> Result<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_world")).with_file_name(name);
    ensure!(program.exists(), "there is no {}: run `make build`", program.display());
    Ok(program)
}

/// The account's stacks, buckets, and secrets that are not scheduled for deletion, by name.
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
    // In moto's default VPC.
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

/// The webhook, which refuses unsigned requests, and the API server of every cluster, with two
/// Stacks.
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
