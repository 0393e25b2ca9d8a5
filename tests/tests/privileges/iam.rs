//! The calls of AWS, and the rights of the template's roles.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result};
use driftless_tests::aws::{
    ACCOUNT, GIT_FILES, REGION, STACK,
    policy::{self, Demand, Effect, OneOrMany, Principal, Statement, Who},
    template::{Settings, Template},
};
use serde_json::Value;

use crate::{
    PROJECT,
    Used::{self, Never, Sometimes},
    fits,
};

/// Unused rights, by role, action and resource, with the reason to keep them.
const UNUSED: [(&str, &str, &str, Used, &str); 25] = [
    ("*", "logs:*", "*", Never, "Lambda and Fargate write logs themselves; the world's are files."),
    ("*", "sqs:ReceiveMessage", "*", Never, POLLER),
    ("*", "sqs:DeleteMessage", "*", Never, POLLER),
    ("*", "sqs:GetQueueAttributes", "*", Never, POLLER),
    ("*", "sqs:SendMessage", "driftless-*-dead-letters*", Sometimes, "A message failed until its last try."),
    ("*", "s3:PutObject", "attempts/*", Sometimes, "A message failed, or Lambda throttled its first delivery."),
    ("ExecutionRole", "ecr:*", "*", Never, "Fargate pulls images from ECR; the world pulls none."),
    (
        "ExecutionRole",
        "secretsmanager:GetSecretValue",
        "*",
        Never,
        "Fargate logs in to registries; the world asks the policy alone.",
    ),
    ("LauncherRole", "s3:PutObject", "caches/*", Sometimes, "An entry that is used again is written again after a day."),
    ("RecorderRole", "s3:DeleteObject", "caches/*", Sometimes, CACHE),
    ("RecorderRole", "s3:GetObject", "audit/*", Sometimes, "A record that exists is compared with the one to write."),
    ("ReconcilerRole", "s3:GetObject", "plans/*", Sometimes, "Only the plan of a Stack under a policy of its cluster is read."),
    ("RecorderRole", "s3:PutObject", "plans/*", Sometimes, "Only a run of a Stack with an approval makes a plan."),
    ("RecorderRole", "s3:GetObject", "plans/*", Sometimes, "A plan that is recorded is compared with the one to write."),
    ("TaskRole", "s3:PutObject", "tasks/*/out/cache/build", Sometimes, LANGUAGES),
    ("TaskRole", "s3:PutObject", "tasks/*/out/cache/dependencies", Sometimes, LANGUAGES),
    ("FetcherRole", "s3:DeleteObject", "*", Never, COLLECTION),
    ("SweeperRole", "s3:ListBucket", "*", Sometimes, "Old trees are looked for in one minute of every hour."),
    ("SweeperRole", "sqs:SendMessage", "driftless-sources.fifo", Never, COLLECTION),
    ("LauncherRole", "s3:DeleteObject", "tasks/*/in/spec", Sometimes, TAKEN_BACK),
    ("LauncherRole", "s3:DeleteObject", "tasks/*/in/identity", Sometimes, TAKEN_BACK),
    ("RecorderRole", "s3:PutObject", "runs/*/owner", Sometimes, "The Update was deleted before its run began."),
    ("RecorderRole", "sqs:SendMessage", "driftless-runs", Sometimes, "Looks again after a fault that passes."),
    ("LauncherRole", "ecs:DescribeTasks", "task/driftless/*", Sometimes, "Tokens are renewed for a task that lives."),
    (
        "LauncherRole",
        "sqs:SendMessage",
        "driftless-runs",
        Sometimes,
        "Tells the recorder of a run that it closed, which is a race.",
    ),
];
const POLLER: &str =
    "Lambda's pollers call it in the role's name; the world's are past the gate. Without it the template is refused.";
const COLLECTION: &str = "Trees are collected after TreeRetentionDays; tests/src/aws/tests/calls.rs and the sweeper's and the fetcher's own tests do it.";
const CACHE: &str =
    "A full namespace makes room, and a run that fails by its packages drops them; the recorder's own tests do both.";
const LANGUAGES: &str = "The tests of languages, which need Pulumi's hosts for them, store packages in a world of their own.";
const TAKEN_BACK: &str =
    "The run was recorded while its task's folder was filled, which is a race; the launcher's own tests do it.";

/// Refused calls, by role, action and resource, with the test that provokes them.
const REFUSED: [(&str, &str, &str, &str); 5] = [
    ("TaskRole", "s3:ListBucket", "*", "A task asks for what is not there yet; who may not list is told 403."),
    (
        "TaskRole",
        "s3:GetObject",
        "*",
        "tickets.rs: another task's folder, another folder than its own `in/`; compat/mod.rs: sealed inputs.",
    ),
    (
        "TaskRole",
        "s3:PutObject",
        "*",
        "tickets.rs: another task's folder, other keys than its own, a result and a part of a log without a condition.",
    ),
    ("*", "s3:GetObject", "sealed/*", "compat/mod.rs: only the launcher reads sealed inputs."),
    ("*", "secretsmanager:GetSecretValue", "*", "clusters.rs: each function reads its own kubeconfig alone."),
];

/// Sessions of tests that try out a role's rights, which do not count as a use.
const TRIALS: [&str; 4] = ["other", "somebody", "compromised", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"];

/// One action on one resource that a statement allows a role.
struct Right {
    role: String,
    sid: String,
    action: String,
    /// As in the lists: the part after the bucket in an ARN of S3, else its last part.
    resource: String,
    /// The statement with this action and this resource only.
    statement: Statement,
}

/// The violations, as texts.
pub fn findings(calls: &[Value]) -> Result<BTreeSet<String>> {
    let template = template()?;
    let rights = rights(&template);
    let (mut findings, mut used, mut refused) = (BTreeSet::new(), vec![false; rights.len()], BTreeSet::new());
    for call in calls {
        let Some((role, session)) = call["caller"].as_str().and_then(|arn| caller(&template, arn)) else { continue };
        let demands: Vec<Demand> = serde_json::from_value(call["demands"].clone()).unwrap_or_default();
        let asked = !demands.is_empty();
        let userid = format!("{}:{session}", template.roles[role].id);
        let mut denied = None;
        for demand in demands.iter().map(|demand| template.asked_by(role, &userid, demand)) {
            if !template.allows(role, &demand) {
                denied = denied.or(Some(demand));
            } else if !TRIALS.contains(&session) {
                let own = rights.iter().zip(&mut used).filter(|(right, _)| right.role == role);
                own.for_each(|(right, used)| *used |= policy::allows([&right.statement], Who::Role, &demand));
            }
        }
        // An expired link is refused before the policies are asked.
        let was_denied = asked && call["refused"] == "AccessDenied";
        match denied {
            Some(Demand { action, resource, .. }) if was_denied => drop(refused.insert((role.to_owned(), action, short(&resource)))),
            None if !was_denied => {}
            denied => drop(findings.insert(format!(
                "{role}: the world {} this, and the template {}.\n  {call}\n  Is the world older than infra/template.yaml? Run `make e2e`.",
                if was_denied { "refused" } else { "allowed" },
                denied.map_or_else(|| "allows it".into(), |demand| format!("does not allow {}", demand.action)),
            ))),
        }
    }
    findings.extend(refusals(&refused));
    findings.extend(reasons(&rights, &used));
    Ok(findings)
}

/// The messages without a group, by which SQS keeps those of one namespace from delaying those of
/// others, by role and queue. A dead letter has the group of its message, and no function receives
/// it.
pub fn messages_without_group(calls: &[Value]) -> Result<BTreeSet<String>> {
    let template = template()?;
    let mut findings = BTreeSet::new();
    for call in calls.iter().filter(|call| call["service"] == "sqs") {
        let Some((role, session)) = call["caller"].as_str().and_then(|arn| caller(&template, arn)) else { continue };
        let (Some(url), false) = (call["input"]["QueueUrl"].as_str(), TRIALS.contains(&session)) else { continue };
        if url.contains("-dead-letters") {
            continue;
        }
        let one = std::slice::from_ref(&call["input"]);
        let messages = call["input"]["Entries"].as_array().map_or(one, Vec::as_slice);
        if messages.iter().any(|message| !message["MessageGroupId"].is_string()) {
            findings.insert(format!("{role} sends to {url} without MessageGroupId."));
        }
    }
    Ok(findings)
}

/// The template as the world reads it. Of the world's parameters only [`GIT_FILES`] change rights.
fn template() -> Result<Template> {
    let path = Path::new(PROJECT).join("infra/template.yaml");
    let raw: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
    let parameters = raw["Parameters"].as_object().context("parameters")?;
    let without_default = parameters.iter().filter(|(_, declaration)| declaration["Default"].is_null());
    let parameters = without_default.map(|(name, _)| (name.as_str(), "any"));
    let parameters: BTreeMap<_, _> =
        parameters.chain(GIT_FILES).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let [account, region, stack] = [ACCOUNT, REGION, STACK].map(str::to_owned);
    Ok(Template::read(&path, &Settings { account, region, stack, parameters, ..Settings::default() })?)
}

/// The role, by its logical id, and the name of a session of it.
fn caller<'a>(template: &'a Template, arn: &'a str) -> Option<(&'a str, &'a str)> {
    let (role, session) = arn.split_once(":assumed-role/")?.1.rsplit_once('/')?;
    let mut roles = template.roles.iter().filter(|(_, known)| known.arn.rsplit('/').next() == Some(role));
    Some((roles.next()?.0, session))
}

fn rights(template: &Template) -> Vec<Right> {
    let own =
        template.roles.iter().flat_map(|(role, rules)| rules.policies.iter().map(move |statement| (role, statement.clone())));
    // Rights that a resource's own policy grants a role: they apply to its resource, whatever the
    // statement names.
    let given = template.resource_policies.iter().flat_map(|(arn, statements)| {
        let statements = statements.iter().flat_map(|statement| match &statement.principal {
            Some(Principal::Aws { aws }) => aws.as_slice().iter().map(|role| (role, statement)).collect(),
            _ => Vec::new(),
        });
        statements.filter_map(|(role, statement)| {
            let (role, _) = template.roles.iter().find(|(_, known)| known.arn == *role)?;
            Some((role, Statement { resource: Some(OneOrMany::One(arn.clone())), ..statement.clone() }))
        })
    });
    let statements = own.chain(given).filter(|(_, statement)| statement.effect == Effect::Allow);
    let rights = statements.flat_map(|(role, statement)| {
        let resources = statement.resource.as_ref().map_or(&[][..], OneOrMany::as_slice);
        let pairs =
            statement.action.as_slice().iter().flat_map(|action| resources.iter().map(move |resource| (action, resource)));
        let rights = pairs.map(|(action, resource)| Right {
            role: role.clone(),
            sid: statement.sid.clone().unwrap_or_else(|| "(none)".into()),
            action: action.clone(),
            resource: short(resource),
            statement: Statement {
                action: OneOrMany::One(action.clone()),
                resource: Some(OneOrMany::One(resource.clone())),
                ..statement.clone()
            },
        });
        rights.collect::<Vec<_>>()
    });
    rights.collect()
}

/// The part of an ARN that distinguishes resources of one service.
fn short(arn: &str) -> String {
    let Some(rest) = arn.splitn(6, ':').nth(5) else { return arn.into() };
    match rest.split_once('/') {
        Some((_, key)) if arn.starts_with("arn:aws:s3:") => key.into(),
        _ => rest.into(),
    }
}

fn refusals(refused: &BTreeSet<(String, String, String)>) -> Vec<String> {
    let is = |entry: &(&str, &str, &str, &str), call: &(String, String, String)| {
        fits(entry.0, &call.0) && fits(entry.1, &call.1) && fits(entry.2, &call.2)
    };
    let unexpected = refused.iter().filter(|call| !REFUSED.iter().any(|entry| is(entry, call))).map(|call| {
        let (role, action, resource) = call;
        format!(
            "{role}: {action} on {resource} was refused.\n  If the system needs it, allow it in infra/template.yaml. If a test provokes it, add it \
             with the test's name to REFUSED in tests/tests/privileges/iam.rs."
        )
    });
    let stale = REFUSED.iter().filter(|entry| !refused.iter().any(|call| is(entry, call))).map(|(role, action, resource, _)| {
        format!("{role}: {action} on {resource} is in REFUSED of tests/tests/privileges/iam.rs, and was not refused.\n  Remove the entry.")
    });
    unexpected.chain(stale).collect()
}

fn reasons(rights: &[Right], used: &[bool]) -> Vec<String> {
    let is = |entry: &(&str, &str, &str, Used, &str), right: &Right| {
        fits(entry.0, &right.role) && fits(entry.1, &right.action) && fits(entry.2, &right.resource)
    };
    let words = |Right { role, sid, action, resource, .. }: &Right| format!("{role}, statement {sid}: {action} on {resource}");
    let mut findings = Vec::new();
    for (right, used) in rights.iter().zip(used) {
        match (UNUSED.iter().find(|entry| is(entry, right)), used) {
            (None, false) => findings.push(format!(
                "{} is granted and nothing used it.\n  Remove it from infra/template.yaml. If AWS needs it and no test can, add it with the \
                 reason to UNUSED in tests/tests/privileges/iam.rs.",
                words(right)
            )),
            (Some((.., Never, why)), true) => findings.push(format!(
                "{} is used, and UNUSED in tests/tests/privileges/iam.rs says that it is not: {why:?}\n  Remove or narrow the entry.",
                words(right)
            )),
            _ => {}
        }
    }
    let stale = UNUSED.iter().filter(|entry| !rights.iter().any(|right| is(entry, right)));
    findings.extend(stale.map(|(role, action, resource, ..)| {
        format!(
            "{role}: {action} on {resource} is in UNUSED of tests/tests/privileges/iam.rs, and no role of infra/template.yaml has it.\n  Remove \
             the entry."
        )
    }));
    findings
}
