//! Checks of a cluster, and of EKS's access settings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    Finding,
    credentials::Access,
    installation::Installation,
    tools::{Answer, Aws, Kubectl},
};

/// The namespace of Driftless's own objects in a cluster.
pub const SYSTEM: &str = "driftless-system";
const FLUX: &str = "flux-system";
/// The remedy for most findings.
const APPLY: &str = "apply the driftless.yaml of the cluster (make deploy writes it), or check its Kustomization: kubectl -n \
     flux-system get kustomizations";
/// The functions that act in clusters, by their outputs.
const FUNCTIONS: [(&str, &str); 5] = [
    ("ReconcilerRoleArn", "driftless:reconciler"),
    ("FetcherRoleArn", "driftless:fetcher"),
    ("LauncherRoleArn", "driftless:launcher"),
    ("RecorderRoleArn", "driftless:recorder"),
    ("SweeperRoleArn", "driftless:sweeper"),
];
/// The rights that each part requires, as arguments of `kubectl auth can-i`.
const RIGHTS: [(&str, &[&str]); 12] = [
    ("driftless:reconciler", &["update", "stacks.pulumi.com", "--subresource=status", "--all-namespaces"]),
    ("driftless:reconciler", &["delete", "stacks.pulumi.com", "--all-namespaces"]),
    ("driftless:reconciler", &["create", "updates.auto.pulumi.com", "--all-namespaces"]),
    ("driftless:reconciler", &["get", "gitrepositories.source.toolkit.fluxcd.io", "--all-namespaces"]),
    ("driftless:fetcher", &["list", "stacks.pulumi.com", "--all-namespaces"]),
    ("driftless:fetcher", &["get", "services/http:source-controller:80", "--subresource=proxy", "--namespace", FLUX]),
    ("driftless:launcher", &["update", "updates.auto.pulumi.com", "--subresource=status", "--all-namespaces"]),
    ("driftless:launcher", &["create", "leases.coordination.k8s.io", "--namespace", SYSTEM]),
    ("driftless:recorder", &["update", "updates.auto.pulumi.com", "--subresource=status", "--all-namespaces"]),
    ("driftless:recorder", &["delete", "leases.coordination.k8s.io", "--namespace", SYSTEM]),
    ("driftless:sweeper", &["list", "stacks.pulumi.com", "--all-namespaces"]),
    ("driftless:sweeper", &["list", "updates.auto.pulumi.com", "--all-namespaces"]),
];
/// The same in each namespace with Stacks.
const RUN_RIGHTS: [(&str, &[&str]); 3] = [
    ("driftless:launcher", &["get", "secrets"]),
    ("driftless:launcher", &["create", "serviceaccounts", "--subresource=token"]),
    ("driftless:recorder", &["create", "secrets"]),
];

/// Runs every check of one cluster. `aws` is the result of the installation's checks.
#[must_use]
pub fn examine(kubectl: &Kubectl, aws: &Aws, cluster: &str, found: &Installation) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(Access::Eks { name, region }) = found.access.get(cluster) {
        findings.extend(examine_eks(&Aws { region: region.clone().or_else(|| aws.region.clone()) }, name, &found.outputs));
    }
    let listed = kubectl.json(&["get", "customresourcedefinitions"]);
    let unreachable = listed.as_ref().err().cloned();
    findings.extend(crds(&listed));
    if let Some(why) = unreachable {
        let what = format!("cluster {cluster}: kubectl cannot reach it");
        findings = vec![Finding::fail(
            what,
            why,
            "add a context of that name to KUBECONFIG, with an administrator of the \
             cluster as its user",
        )];
        return findings;
    }
    findings.extend(rights(RIGHTS.map(|(group, what)| (group, what.join(" "), kubectl.may(group, what)))));
    for Service { name, namespace, port } in artifact_services(&found.parameters) {
        let path = format!("/api/v1/namespaces/{namespace}/services/http:{name}:{port}/proxy/");
        findings.push(reached(name, namespace, kubectl.text(&["get", "--raw", &path], None)));
    }
    let path = "jsonpath={range .items[*]}{.metadata.namespace}{\"\\n\"}{end}";
    let namespaces = kubectl.text(&["get", "stacks.pulumi.com", "--all-namespaces", "--output", path], None).unwrap_or_default();
    for namespace in namespaces.lines().collect::<BTreeSet<_>>() {
        let may = RUN_RIGHTS.map(|(group, what)| {
            let what: Vec<_> = what.iter().copied().chain(["--namespace", namespace]).collect();
            (group, what.join(" "), kubectl.may(group, &what))
        });
        findings.push(opened(namespace, &may.map(|(_, what, may)| (what, may))));
    }
    findings.push(forwarder(&kubectl.json(&["--namespace", SYSTEM, "get", "deployment", "driftless-forwarder"])));
    let Some(address) = found.outputs.get("WebhookUrl").map(|url| format!("{url}{cluster}")) else { return findings };
    let got = |kind: &str| kubectl.json(&["--namespace", FLUX, "get", kind, "driftless"]);
    findings.push(provider(&got("providers.notification.toolkit.fluxcd.io"), Some(&address)));
    findings.push(alert(&got("alerts.notification.toolkit.fluxcd.io")));
    let path = "go-template={{ index .data \"token\" | base64decode }}";
    let token = kubectl.text(&["--namespace", FLUX, "get", "secret", "driftless", "--output", path], None);
    findings.push(webhook_secret(cluster, token.map(|token| found.keys.is(cluster, &token))));
    findings
}

/// A Service that serves artifacts.
#[derive(Debug, PartialEq, Eq)]
pub struct Service<'a> {
    /// `metadata.name`
    pub name: &'a str,
    /// `metadata.namespace`
    pub namespace: &'a str,
    /// One of its ports.
    pub port: &'a str,
}

impl<'a> Service<'a> {
    /// `None` for any other host.
    fn parse(text: &'a str) -> Option<Self> {
        let (host, port) = text.split_once(':').unwrap_or((text, "80"));
        let mut labels = host.split('.');
        let (name, namespace) = (labels.next()?, labels.next()?);
        matches!(labels.next(), None | Some("svc")).then_some(Self { name, namespace, port })
    }
}

/// The Services that the fetcher reaches through the API server; the template's defaults if the
/// installation's parameters are unknown.
#[must_use]
pub fn artifact_services(parameters: &BTreeMap<String, String>) -> Vec<Service<'_>> {
    let of = |name, default| parameters.get(name).map_or(default, String::as_str);
    if of("ArtifactTransport", "proxy") != "proxy" {
        return vec![];
    }
    of("ArtifactServices", "source-controller.flux-system").split(',').map(str::trim).filter_map(Service::parse).collect()
}

/// Checks that the API server reaches a Service that serves artifacts, whatever the Service answers
/// for a path that need not exist.
#[must_use]
pub fn reached(name: &str, namespace: &str, answer: Result<String, String>) -> Finding {
    let what = format!("Service {namespace}/{name}");
    match answer {
        Ok(_) => {}
        // The Service's own 404; that of the API server would name the Service.
        Err(why) if why.contains("could not find the requested resource") => {}
        Err(why) if why.contains("(Forbidden)") => {
            let what = format!("{what}: cannot check whether the API server reaches it");
            return Finding::warn(what, why, "run it as a user with the right to get services/proxy");
        }
        Err(why) => {
            return Finding::fail(
                format!("{what}: the API server cannot reach it; no artifact is fetched"),
                why,
                "allow traffic from the API server (docs/installation.md, Network policies of Flux); on EKS also in the \
                 security group of the nodes, on the port of the Pod",
            );
        }
    }
    Finding::ok(format!("{what}: the API server reaches it"))
}

/// Checks that Driftless's CRDs exist, and belong to this release.
#[must_use]
pub fn crds(listed: &Answer) -> Vec<Finding> {
    let (Ok(listed), Ok(ours)) = (listed, driftless_api::crds::all()) else { return vec![] };
    let listed = listed["items"].as_array().cloned().unwrap_or_default();
    let ours = ours.iter().filter_map(|crd| serde_json::to_value(crd).ok());
    ours.map(|ours| {
        let name = ours["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match listed.iter().find(|crd| crd["metadata"]["name"] == ours["metadata"]["name"]) {
            None => Finding::fail(format!("CRD {name}: not found"), "the cluster accepts no objects of that kind", APPLY),
            Some(crd) if schemas(crd) == schemas(&ours) => Finding::ok(format!("CRD {name}: of this release")),
            Some(_) => Finding::warn(
                format!("CRD {name}: of another release"),
                "the API server drops fields that it does not know, without an error",
                "kubectl apply --server-side -f infra/kubernetes/crds, of the release that is deployed",
            ),
        }
    })
    .collect()
}

/// The schema of each version.
fn schemas(crd: &Value) -> BTreeMap<String, Value> {
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let name = |version: &Value| version["name"].as_str().unwrap_or_default().to_owned();
    versions.map(|version| (name(version), comparable(&version["schema"]["openAPIV3Schema"]))).collect()
}

/// Removes differences without a meaning: whole numbers with and without a point, and fields that
/// are null or false.
fn comparable(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !matches!(value, Value::Null | Value::Bool(false)));
            Value::Object(fields.map(|(name, value)| (name.clone(), comparable(value))).collect())
        }
        Value::Array(items) => items.iter().map(comparable).collect(),
        Value::Number(number) => json!(number.as_f64()),
        other => other.clone(),
    }
}

/// Checks the functions' rights in the whole cluster. The first entry is the group, the second the
/// right.
pub fn rights<'a>(answers: impl IntoIterator<Item = (&'a str, String, Result<bool, String>)>) -> Vec<Finding> {
    let answers = answers.into_iter();
    let mut findings: Vec<_> = answers
        .filter_map(|(group, what, may)| match may {
            Ok(true) => None,
            Ok(false) => {
                Some(Finding::fail(format!("rights: {group} may not {what}"), "its ClusterRole or the binding is missing", APPLY))
            }
            Err(why) => Some(Finding::warn(
                format!("rights: cannot check whether {group} may {what}"),
                why,
                "run it as a user with the right to impersonate",
            )),
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok("rights: each function has its rights"));
    }
    findings
}

/// Checks that a namespace with Stacks allows runs.
#[must_use]
pub fn opened(namespace: &str, answers: &[(String, Result<bool, String>)]) -> Finding {
    let missing: Vec<_> = answers.iter().filter(|(_, may)| *may == Ok(false)).map(|(what, _)| what.as_str()).collect();
    if missing.is_empty() {
        return Finding::ok(format!("namespace {namespace}: allows runs"));
    }
    Finding::fail(
        format!("namespace {namespace}: has Stacks but does not allow runs"),
        format!("not allowed: {}", missing.join("; ")),
        "apply infra/kubernetes/runs there if its runs may read its Secrets (docs/installation.md)",
    )
}

/// Checks that the forwarder runs.
#[must_use]
pub fn forwarder(deployment: &Answer) -> Finding {
    match deployment {
        Err(why) => Finding::fail("forwarder: not found", why, APPLY),
        Ok(deployment) if deployment["status"]["availableReplicas"].as_u64().unwrap_or(0) > 0 => Finding::ok("forwarder: runs"),
        Ok(deployment) => {
            let conditions = deployment["status"]["conditions"].as_array().into_iter().flatten();
            let mut words =
                conditions.filter(|condition| condition["status"] == "False").filter_map(|one| one["message"].as_str());
            Finding::fail(
                "forwarder: not running; only the sweep finds changes, within minutes",
                words.next().unwrap_or("no Pod is ready"),
                format!("kubectl -n {SYSTEM} describe pods; kubectl -n {SYSTEM} logs deployment/driftless-forwarder"),
            )
        }
    }
}

/// Checks that Flux's Provider posts to the webhook of this cluster.
#[must_use]
pub fn provider(provider: &Answer, address: Option<&str>) -> Finding {
    match provider {
        Err(why) => Finding::warn("Provider driftless of Flux: not found", why, APPLY),
        Ok(provider) if address.is_some_and(|address| provider["spec"]["address"] != address) => Finding::fail(
            "Provider driftless of Flux: wrong address",
            format!(
                "it posts to {}; the address of this cluster is {}",
                provider["spec"]["address"],
                address.unwrap_or_default()
            ),
            "run make deploy, which writes driftless.yaml, and apply that",
        ),
        Ok(provider) if provider["spec"]["suspend"] == true => Finding::warn(
            "Provider driftless of Flux: suspended",
            "Flux sends no notifications",
            "flux resume alert-provider driftless",
        ),
        Ok(_) => Finding::ok("Provider driftless of Flux: found"),
    }
}

/// Checks that Flux's Alert selects events.
#[must_use]
pub fn alert(alert: &Answer) -> Finding {
    match alert {
        Err(why) => Finding::warn("Alert driftless of Flux: not found", why, APPLY),
        Ok(alert) if alert["spec"]["suspend"] == true => {
            Finding::warn("Alert driftless of Flux: suspended", "Flux sends no notifications", "flux resume alert driftless")
        }
        Ok(_) => Finding::ok("Alert driftless of Flux: found"),
    }
}

/// Checks that the cluster's key is the webhook's.
#[must_use]
pub fn webhook_secret(cluster: &str, same: Result<bool, String>) -> Finding {
    let remedy = format!("run target/deploy/STACK/{cluster}/webhook-secret, which make deploy writes");
    match same {
        Ok(true) => Finding::ok("Secret flux-system/driftless: has the key of the webhook"),
        Ok(false) => Finding::fail(
            "Secret flux-system/driftless: its key differs from that of the webhook",
            "the webhook refuses the notifications of Flux; only the sweep finds changes",
            remedy,
        ),
        Err(why) => Finding::fail("Secret flux-system/driftless: no key", why, remedy),
    }
}

fn examine_eks(aws: &Aws, name: &str, outputs: &BTreeMap<String, String>) -> Vec<Finding> {
    let mode = aws.json(&[
        "eks",
        "describe-cluster",
        "--name",
        name,
        "--query",
        "cluster.{Status: status, Mode: accessConfig.authenticationMode}",
    ]);
    let mut findings = vec![eks(name, &mode)];
    for (output, group) in FUNCTIONS {
        if let Some(role) = outputs.get(output) {
            let entry = aws.json(&["eks", "describe-access-entry", "--cluster-name", name, "--principal-arn", role]);
            findings.push(access_entry(group, role, &entry));
        }
    }
    let arguments = ["eks", "list-pod-identity-associations", "--cluster-name", name, "--namespace", SYSTEM];
    findings.push(pod_identity(&aws.json(&arguments)));
    findings
}

/// Checks that the EKS cluster supports access entries.
#[must_use]
pub fn eks(name: &str, described: &Answer) -> Finding {
    let what = format!("EKS cluster {name}");
    match described.as_ref().map(|described| (&described["Status"], described["Mode"].as_str().unwrap_or_default())) {
        Ok((_, "CONFIG_MAP")) => Finding::fail(
            format!("{what}: supports no access entries"),
            "its authentication mode is CONFIG_MAP",
            format!("aws eks update-cluster-config --name {name} --access-config authenticationMode=API_AND_CONFIG_MAP"),
        ),
        Ok((status, _)) if status != "ACTIVE" => Finding::warn(format!("{what}: {status}"), "it is being changed", "wait"),
        Ok((_, mode)) => Finding::ok(format!("{what}: {mode}")),
        Err(why) => Finding::warn(
            format!("{what}: cannot be read"),
            why,
            "allow eks:DescribeCluster, and check that the \
             cluster is in this account",
        ),
    }
}

/// Checks that a function's role has its group in the cluster.
#[must_use]
pub fn access_entry(group: &str, role: &str, entry: &Answer) -> Finding {
    let remedy = "run make deploy, which deploys infra/cluster.yaml for each EKS cluster of the kubeconfig";
    match entry {
        Err(why) => Finding::fail(format!("access entry of {group}: cannot be read"), why, remedy),
        Ok(entry) if entry["accessEntry"]["kubernetesGroups"].as_array().is_some_and(|groups| groups.contains(&group.into())) => {
            Finding::ok(format!("access entry of {group}: {role}"))
        }
        Ok(_) => Finding::fail(
            format!("access entry of {group}: the group is missing"),
            "the function has no rights in the cluster",
            remedy,
        ),
    }
}

/// Checks that the forwarder's ServiceAccount has a role.
#[must_use]
pub fn pod_identity(listed: &Answer) -> Finding {
    match listed.as_ref().map(|listed| listed["associations"].as_array().is_some_and(|all| !all.is_empty())) {
        Ok(true) => Finding::ok("Pod Identity of the forwarder: found"),
        Ok(false) => Finding::fail(
            "Pod Identity of the forwarder: not found",
            "it cannot send hints",
            "run make deploy, and install the add-on eks-pod-identity-agent in the cluster",
        ),
        Err(why) => Finding::warn("Pod Identity of the forwarder: cannot be read", why, "allow eks:ListPodIdentityAssociations"),
    }
}
