//! The calls of the API server, and the rights of the roles in `infra/kubernetes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::{PolicyRule, Subject};
use serde_json::Value;

use crate::{
    PROJECT,
    Used::{self, Never, Sometimes},
    fits,
};

/// Unused rights, by role, API group with resource, and verb, with the reason to keep them.
const UNUSED: [(&str, &str, &str, Used, &str); 7] = [
    ("driftless:reconciler", "pulumi.com/stacks/status", "approve", Never, POLICY),
    ("driftless:reconciler", "pulumi.com/stacks/finalizers", "update", Never, OPENSHIFT),
    ("driftless:reconciler", "auto.pulumi.com/workspaces/finalizers", "update", Never, OPENSHIFT),
    ("driftless:recorder", "auto.pulumi.com/updates/finalizers", "update", Never, OPENSHIFT),
    ("driftless:fetcher", "pulumi.com/stacks", "list", Never, COLLECTION),
    ("driftless:fetcher", "auto.pulumi.com/updates", "list", Never, COLLECTION),
    (
        "driftless:launcher",
        "events.k8s.io/events",
        "create",
        Sometimes,
        "In a terminating namespace whose ServiceAccount went first.",
    ),
];
const OPENSHIFT: &str = "Clusters that guard blockOwnerDeletion ask for it, such as OpenShift; the world's does not.";
const POLICY: &str = "The admission policy asks the authorizer for it, which the audit log does not show.";
const COLLECTION: &str = "Trees are collected after TreeRetentionDays; the fetcher's own tests and the simulation do it.";

/// Refused calls, by part, API group with resource, and verb, with the test that provokes them.
const REFUSED: [(&str, &str, &str, &str); 11] = [
    ("launcher", "/secrets", "get", "failures.rs: a namespace whose Secrets runs may not read."),
    ("launcher", "/serviceaccounts", "get", "failures.rs: a namespace whose ServiceAccounts runs may not use."),
    ("fetcher", "/secrets", "get", "git.rs: a namespace whose Secrets may not be read."),
    ("fetcher", "coordination.k8s.io/leases", "list", "clusters.rs: its token reads no claims."),
    ("driftless-fetcher", "*", "*", "clusters.rs: its token tries what it may do by itself and as the launcher."),
    ("fetcher", "apps/deployments", "get", "fairness.rs: a kind that no installation allows."),
    ("fetcher", "unserved.example.com/gadgets", "get", "fairness.rs: a kind that is not served."),
    ("reconciler", "unserved.example.com/gadgets", "get", "clusters.rs: a hint about a kind that is not served."),
    ("recorder", "pulumi.com/stacks", "list", "clusters.rs: a session of a role with an access entry tries it."),
    ("reconciler", "/gitrepositories", "get", "compat: a sourceRef that names no group."),
    ("reconciler", "world.example/widgets", "get", "readiness.rs: a kind of SourceKinds, before an administrator allows it."),
];

/// Calls that a test's own rules allow, by part, API group with resource, and verb.
const ADDED: [(&str, &str, &str, &str); 3] = [
    ("reconciler", "world.example/widgets", "get", "readiness.rs: a kind of SourceKinds."),
    ("fetcher", "world.example/widgets", "get", "readiness.rs: a kind of SourceKinds."),
    (
        "*",
        "authorization.k8s.io/selfsubjectaccessreviews",
        "create",
        "doctor.rs: the doctor asks what a part may do, as anybody may.",
    ),
];

/// A rule with its binding.
struct Grant {
    role: String,
    /// The namespace in which it applies; everywhere if absent.
    namespace: Option<String>,
    subjects: Vec<Subject>,
    rules: Vec<PolicyRule>,
}

/// The caller.
struct Identity {
    user: String,
    groups: Vec<String>,
}

/// The request.
struct Request {
    verb: String,
    group: String,
    /// The resource, with its subresource.
    resource: String,
    name: String,
    namespace: String,
}

/// One verb on one resource of a role.
type Right = (String, String, String);

/// The violations, as texts.
pub fn findings(calls: &[Value]) -> Result<BTreeSet<String>> {
    let grants = grants()?;
    let rights: BTreeSet<Right> = grants
        .iter()
        .flat_map(|grant| {
            grant.rules.iter().flat_map(|rule| rights(rule).map(|(resource, verb)| (grant.role.clone(), resource, verb)))
        })
        .collect();
    let (mut findings, mut used, mut added) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    // Whether a rule covers the refused call: a starting API server refuses all until it has read
    // its rules (capacity.rs).
    let mut refused = BTreeMap::new();
    for call in calls {
        for (identity, request) in requests(call) {
            let Some(part) = identity.part(&grants) else { continue };
            let decision = &call["annotations"]["authorization.k8s.io/decision"];
            // A caller without the right to impersonate is refused before there is a decision about
            // the call.
            let is_undecided = decision.is_null() && call["responseStatus"]["code"] == 403;
            let was_refused = decision == "forbid" || is_undecided;
            // A starting API server also refuses a ServiceAccount that has the right to
            // impersonate.
            let impersonates = is_undecided
                && grants.iter().filter(|grant| grant.is_of(&identity)).any(|grant| {
                    let mut verbs = grant.rules.iter().flat_map(|rule| &rule.verbs);
                    verbs.any(|verb| verb == "impersonate")
                });
            let covering: Vec<_> = grants.iter().filter(|grant| grant.is_of(&identity) && grant.covers(&request)).collect();
            let what = (part.to_owned(), request.what(), request.verb.clone());
            if was_refused {
                let is_covered = refused.entry(what).or_insert(true);
                *is_covered &= impersonates || !covering.is_empty();
            } else if covering.is_empty() {
                let is_added = ADDED.iter().any(|entry| is(entry, &what));
                added.insert(what);
                if !is_added {
                    findings.insert(format!(
                        "{part}: {} {}{} in {:?} was allowed, by no rule of infra/kubernetes.\n  If the system needs it, add a rule. If a test gives \
                         it more rights, add it with the test's name to ADDED in tests/tests/privileges/rbac.rs.\n  Allowed by: {}",
                        request.verb,
                        request.what(),
                        if request.name.is_empty() { String::new() } else { format!(" {:?}", request.name) },
                        request.namespace,
                        call["annotations"]["authorization.k8s.io/reason"]
                    ));
                }
            } else {
                used.extend(covering.iter().map(|grant| (grant.role.clone(), request.what(), request.verb.clone())));
            }
        }
    }
    findings.extend(refusals(&refused));
    let stale = ADDED.iter().filter(|entry| !added.iter().any(|what| is(entry, what)));
    findings.extend(stale.map(|entry| stale_entry("ADDED", entry)));
    findings.extend(reasons(&rights, &used));
    Ok(findings)
}

fn is(entry: &(&str, &str, &str, &str), (part, what, verb): &Right) -> bool {
    fits(entry.0, part) && fits(entry.1, what) && fits(entry.2, verb)
}

fn stale_entry(list: &str, (part, what, verb, _): &(&str, &str, &str, &str)) -> String {
    format!("{part}: {verb} {what} is in {list} of tests/tests/privileges/rbac.rs, and did not happen.\n  Remove the entry.")
}

fn refusals(refused: &BTreeMap<Right, bool>) -> Vec<String> {
    let uncovered = refused.iter().filter_map(|(what, is_covered)| (!is_covered).then_some(what));
    let unexpected = uncovered.filter(|what| !REFUSED.iter().any(|entry| is(entry, what))).map(|(part, what, verb)| {
        format!(
            "{part}: {verb} {what} was refused.\n  If the system needs it, add a rule to infra/kubernetes. If a test provokes it, add it with the \
             test's name to REFUSED in tests/tests/privileges/rbac.rs."
        )
    });
    let stale = REFUSED.iter().filter(|entry| !refused.keys().any(|what| is(entry, what)));
    unexpected.chain(stale.map(|entry| stale_entry("REFUSED", entry))).collect()
}

fn reasons(rights: &BTreeSet<Right>, used: &BTreeSet<Right>) -> Vec<String> {
    let is = |entry: &(&str, &str, &str, Used, &str), (role, what, verb): &Right| {
        fits(entry.0, role) && fits(entry.1, what) && fits(entry.2, verb)
    };
    let mut findings = Vec::new();
    for right in rights {
        let (role, what, verb) = right;
        match (UNUSED.iter().find(|entry| is(entry, right)), used.contains(right)) {
            (None, false) => findings.push(format!(
                "{role}: {verb} {what} is granted and nothing used it.\n  Remove it from infra/kubernetes. If a cluster needs it and no test can, \
                 add it with the reason to UNUSED in tests/tests/privileges/rbac.rs."
            )),
            (Some((.., Never, why)), true) => findings.push(format!(
                "{role}: {verb} {what} is used, and UNUSED in tests/tests/privileges/rbac.rs says that it is not: {why:?}\n  Remove or narrow the \
                 entry."
            )),
            _ => {}
        }
    }
    let stale = UNUSED.iter().filter(|entry| !rights.iter().any(|right| is(entry, right)));
    findings.extend(stale.map(|(role, what, verb, ..)| {
        format!("{role}: {verb} {what} is in UNUSED of tests/tests/privileges/rbac.rs, and no role has it.\n  Remove the entry.")
    }));
    findings
}

/// The requests in an entry of the audit log: the call, a creation if it was one, and the
/// impersonation.
fn requests(call: &Value) -> Vec<(Identity, Request)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &call["objectRef"];
    let request = |verb: &str| Request {
        verb: verb.into(),
        group: text(&object["apiGroup"]),
        resource: object["subresource"].as_str().map_or_else(
            || text(&object["resource"]),
            |subresource| format!("{}/{subresource}", object["resource"].as_str().unwrap_or_default()),
        ),
        name: text(&object["name"]),
        namespace: text(&object["namespace"]),
    };
    let (real, acting) = (&call["user"], &call["impersonatedUser"]);
    let mut requests = Vec::new();
    if acting.is_object() {
        let whole = [("users", &acting["username"])].into_iter();
        let groups = acting["groups"].as_array().into_iter().flatten().map(|group| ("groups", group));
        // The API server adds this one itself.
        for (resource, name) in whole.chain(groups).filter(|(_, name)| *name != "system:authenticated") {
            let (verb, resource) = ("impersonate".into(), resource.into());
            let request = Request { verb, group: String::new(), resource, name: text(name), namespace: String::new() };
            requests.push((Identity::of(real), request));
        }
    }
    let identity = || Identity::of(if acting.is_object() { acting } else { real });
    let verb = call["verb"].as_str().unwrap_or_default();
    requests.push((identity(), request(verb)));
    // An apply or an update of a missing object is authorized as a creation, too.
    if call["responseStatus"]["code"] == 201 && verb != "create" {
        requests.push((identity(), request("create")));
    }
    requests
}

impl Identity {
    fn of(user: &Value) -> Self {
        let groups = user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into);
        Self { user: user["username"].as_str().unwrap_or_default().into(), groups: groups.collect() }
    }

    /// The part of the system with this identity; `None` for a stranger.
    fn part(&self, grants: &[Grant]) -> Option<&str> {
        let is_ours = || grants.iter().any(|grant| grant.is_of(self));
        let part = self.groups.iter().find_map(|group| group.strip_prefix("driftless:"));
        part.or_else(|| is_ours().then(|| self.user.rsplit(':').next().unwrap_or_default()))
    }
}

impl Request {
    fn what(&self) -> String {
        format!("{}/{}", self.group, self.resource)
    }
}

impl Grant {
    fn is_of(&self, identity: &Identity) -> bool {
        self.subjects.iter().any(|subject| match subject.kind.as_str() {
            "Group" => identity.groups.contains(&subject.name),
            "User" => identity.user == subject.name,
            _ => {
                let namespace = subject.namespace.as_deref().unwrap_or_default();
                identity.user == format!("system:serviceaccount:{namespace}:{}", subject.name)
            }
        })
    }

    fn covers(&self, request: &Request) -> bool {
        let has = |list: &Option<Vec<String>>, item: &String| list.iter().flatten().any(|other| other == item);
        self.namespace.as_ref().is_none_or(|namespace| *namespace == request.namespace)
            && self.rules.iter().any(|rule| {
                rule.verbs.contains(&request.verb)
                    && has(&rule.api_groups, &request.group)
                    && has(&rule.resources, &request.resource)
                    && (rule.resource_names.as_ref().is_none_or(Vec::is_empty) || has(&rule.resource_names, &request.name))
            })
    }
}

/// Every resource, with its API group, and verb of a rule.
fn rights(rule: &PolicyRule) -> impl Iterator<Item = (String, String)> {
    let resources = rule.resources.iter().flatten();
    resources.flat_map(move |resource| {
        let groups = rule.api_groups.iter().flatten();
        groups.flat_map(move |group| rule.verbs.iter().map(move |verb| (format!("{group}/{resource}"), verb.clone())))
    })
}

/// The grants of the roles of `infra/kubernetes`.
fn grants() -> Result<Vec<Grant>> {
    let mut objects = Vec::new();
    for file in manifests(&Path::new(PROJECT).join("infra/kubernetes"))? {
        let text = fs::read_to_string(&file)?;
        if text.contains("rbac.authorization.k8s.io") {
            objects.extend(serde_saphyr::from_multiple::<Value>(&text).with_context(|| file.display().to_string())?);
        }
    }
    let is_binding =
        |object: &&Value| ["ClusterRoleBinding", "RoleBinding"].contains(&object["kind"].as_str().unwrap_or_default());
    let grants = objects.iter().filter(is_binding).map(|binding| {
        let (kind, name, namespace) =
            (&binding["roleRef"]["kind"], &binding["roleRef"]["name"], &binding["metadata"]["namespace"]);
        let role = objects.iter().find(|role| {
            role["kind"] == *kind
                && role["metadata"]["name"] == *name
                && (kind == "ClusterRole" || role["metadata"]["namespace"] == *namespace)
        });
        let role = role.with_context(|| format!("infra/kubernetes binds {kind} {name}, which is not there"))?;
        Ok(Grant {
            role: name.as_str().unwrap_or_default().into(),
            // A binding in `default` stands for one in every namespace that runs come from.
            namespace: namespace.as_str().filter(|namespace| *namespace != "default").map(Into::into),
            subjects: serde_json::from_value(binding["subjects"].clone())?,
            rules: serde_json::from_value(role["rules"].clone())?,
        })
    });
    grants.collect()
}

/// The YAML files below a folder.
fn manifests(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(manifests(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    Ok(files)
}
