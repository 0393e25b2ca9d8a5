//! A Workspace is checked when it is made, not when it is first run: its status says whether runs can take place in it.

use driftless_api::Workspace;
use driftless_aws::{Queues, Tasks};
use driftless_contract::LaunchHint;
use driftless_kubernetes::Cluster;
use jiff::Timestamp;

use crate::{Error, Ports, Settings, Stop, WAIT_HOPS, definition, identity, look_later, spec};

/// Looks at a Workspace. What passes by itself is looked at again.
pub(crate) async fn look<C: Cluster, O, Q: Queues, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    hint: &LaunchHint,
    now: Timestamp,
) -> Result<(), Error> {
    let key = &hint.update;
    let workspace = ports.cluster.get::<Workspace>(&key.namespace, &key.name).await?;
    let Some(mut workspace) = workspace.filter(|workspace| workspace.metadata.deletion_timestamp.is_none()) else {
        return Ok(());
    };
    let (changed, passes) = match check(ports, settings, &key.namespace, &workspace).await {
        Ok(definition) => (workspace.set_ready(Ok(&definition), false, now), false),
        Err(Stop::Wait(reason, message)) => {
            let passes = matches!(reason, "ServiceAccountNotFound" | "ServiceAccountForbidden");
            (workspace.set_ready(Err((reason, &message)), passes, now), passes)
        }
        Err(Stop::Fail(error)) => return Err(error),
    };
    if changed {
        ports.cluster.replace_status(&workspace).await?;
    }
    if passes && hint.hops < WAIT_HOPS { look_later(ports, hint).await } else { Ok(()) }
}

/// The task definition of its runs, or why there can be none.
async fn check<C: Cluster, O, Q, T: Tasks>(
    ports: &Ports<'_, C, O, Q, T>,
    settings: &Settings,
    namespace: &str,
    workspace: &Workspace,
) -> Result<String, Stop> {
    let is_stacks = spec::is_stacks(workspace);
    let (spec, tree) = spec::runnable(workspace.clone());
    if !is_stacks && tree.is_none() && spec.project_info.is_none() {
        return Err(Stop::wait("SourceUnsupported", format!("nothing can be run: {}", spec::SOURCES)));
    }
    let shape = spec.shape("spec").map_err(|words| Stop::Wait("InvalidSpec", words))?;
    identity::account(ports.cluster, namespace, &spec).await?;
    Ok(definition(ports.tasks, settings, shape).await?)
}

#[cfg(test)]
mod tests {
    use driftless_contract::{ObjectKey, VERSION};
    use driftless_testkit::CLUSTER;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{looked, quiet};

    /// What is said of a Workspace with that spec: the conditions with their reasons and words, and its task definition.
    fn status(spec: &Value, owner: &str) -> (Vec<[String; 4]>, Option<String>) {
        let world = quiet();
        let owner = json!({ "apiVersion": "pulumi.com/v1", "kind": owner, "name": "s", "uid": "uid" });
        let metadata = json!({ "namespace": "n", "name": "w", "ownerReferences": [owner] });
        let object = json!({ "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "metadata": metadata, "spec": spec });
        world.insert(object);
        let [api_version, kind, namespace, name] = ["auto.pulumi.com/v1alpha1", "Workspace", "n", "w"].map(String::from);
        let key = ObjectKey { cluster: CLUSTER.into(), api_version, kind, namespace, name };
        let hint = LaunchHint { version: VERSION, update: key.clone(), hops: 0 };
        looked(&world, &hint);
        let found = world.object(&key).unwrap();
        looked(&world, &hint);
        assert_eq!(world.object(&key).unwrap(), found, "it is written once");
        let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let conditions = found["status"]["conditions"].as_array().unwrap().iter();
        let conditions = conditions.map(|condition| ["type", "status", "reason", "message"].map(|field| text(condition, field)));
        (conditions.collect(), found["status"]["driftless"]["taskDefinition"].as_str().map(Into::into))
    }

    #[test]
    fn a_workspace_says_what_its_runs_are_started_from() {
        let project = json!({ "name": "shop", "runtime": "yaml" });
        let tree = json!({ "tree": { "digest": "sha256:1" } });
        for (spec, owner) in [
            (json!({ "projectInfo": project }), "Other"),
            (json!({ "driftless": tree, "git": { "url": "u" } }), "Other"),
            (json!({ "flux": { "url": "u" } }), "Stack"),
        ] {
            let (conditions, definition) = status(&spec, owner);
            assert_eq!(conditions, [["Ready", "True", "Succeeded", ""].map(String::from)], "{spec}");
            assert!(definition.unwrap().contains("task-definition/driftless-"));
        }
    }

    #[test]
    fn a_workspace_that_cannot_be_run_in_says_why() {
        let project = json!({ "name": "shop", "runtime": "yaml" });
        let with = |fields: Value| driftless_api::merge(json!({ "projectInfo": project }), &fields);
        for (spec, reason, words, stalled) in [
            (json!({}), "SourceUnsupported", "set projectInfo", true),
            (json!({ "git": { "url": "u" } }), "SourceUnsupported", "set projectInfo", true),
            (with(json!({ "securityProfile": "none" })), "InvalidSpec", "spec.securityProfile is \"none\"", true),
            (with(json!({ "resources": { "limits": { "cpu": "99" } } })), "InvalidSpec", "spec.resources", true),
            (with(json!({ "serviceAccountName": "gone" })), "ServiceAccountNotFound", "\"gone\" is not there", false),
        ] {
            let (conditions, definition) = status(&spec, "Other");
            assert_eq!(definition, None);
            let types: Vec<_> = conditions.iter().map(|[kind, is, ..]| (kind.as_str(), is.as_str())).collect();
            let expected = if stalled { &[("Ready", "False"), ("Stalled", "True")][..] } else { &[("Ready", "False")] };
            assert_eq!(types, expected);
            assert!(conditions.iter().all(|[_, _, is, said]| is == reason && said.contains(words)), "{conditions:?}");
        }
    }
}
