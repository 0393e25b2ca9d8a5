//! A Stack of one resource without a provider, from `kubectl` to Ready and back: through the
//! forwarder, every queue, every function and a task.
//!
//! It also tests a behaviour of AWS that is not documented and on which the task role's policy
//! depends: that the credentials of a task are a session with the name of the task. Without it
//! every run fails, closed.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    Finding,
    cluster::SYSTEM,
    tools::{Answer, Aws, Kubectl},
};

/// The name of the Stack, of its Program and of the Pulumi stack.
pub const NAME: &str = "driftless-doctor";
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// The settings of a canary.
#[derive(Debug)]
pub struct Canary<'a> {
    /// A namespace that allows runs.
    pub namespace: &'a str,
    /// A backend that tasks can reach.
    pub backend: &'a str,
    /// A Secret of the namespace that becomes the run's environment: credentials of the backend.
    pub secret: Option<&'a str>,
    /// The time limit of each half.
    pub limit: Duration,
}

impl Canary<'_> {
    /// The Program and the Stack.
    #[must_use]
    pub fn objects(&self) -> Value {
        let Self { namespace, backend, secret, .. } = *self;
        let stack = stack(namespace, NAME, NAME, backend, secret);
        json!({ "apiVersion": "v1", "kind": "List", "items": [program(namespace, NAME), stack] })
    }

    /// Applies them, waits, reports where the Stack is stuck if it is, and deletes them.
    #[must_use]
    pub fn fly(&self, kubectl: &Kubectl, aws: &Aws) -> Vec<Finding> {
        let started = Instant::now();
        if let Err(why) = kubectl.text(&["create", "--filename", "-"], Some(&self.objects().to_string())) {
            let remedy = format!(
                "kubectl -n {0} delete stack,program {NAME} if an earlier one exists; else use another NAMESPACE",
                self.namespace
            );
            return vec![Finding::fail("canary: not created", why, remedy)];
        }
        let up = self.until(|| {
            let stack = self.get(kubectl, "stacks.pulumi.com").unwrap_or_default();
            is_ready(&stack).then_some(())
        });
        let mut findings = vec![match up {
            Some(()) => Finding::ok(format!(
                "canary: Ready after {}s; forwarder, queues, functions and tasks work, and the session of a task has the name \
                 of the task",
                started.elapsed().as_secs()
            )),
            None => self.stuck(kubectl, aws),
        }];
        let started = Instant::now();
        let _ = kubectl.text(&["--namespace", self.namespace, "delete", "stacks.pulumi.com", NAME, "--wait=false"], None);
        let gone = self.until(|| self.get(kubectl, "stacks.pulumi.com").is_err_and(|error| is_absent(&error)).then_some(()));
        findings.push(match gone {
            Some(()) => Finding::ok(format!("canary: destroyed and deleted after {}s", started.elapsed().as_secs())),
            None => {
                Finding { what: format!("canary: not destroyed; {}", self.stuck(kubectl, aws).what), ..self.stuck(kubectl, aws) }
            }
        });
        if gone.is_some() {
            let _ = kubectl.text(&["--namespace", self.namespace, "delete", "programs.pulumi.com", NAME], None);
        }
        findings
    }

    fn get(&self, kubectl: &Kubectl, kind: &str) -> Answer {
        kubectl.json(&["--namespace", self.namespace, "get", kind, NAME])
    }

    fn until<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + self.limit;
        loop {
            let seen = look();
            if seen.is_some() || Instant::now() >= deadline {
                return seen;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn stuck(&self, kubectl: &Kubectl, aws: &Aws) -> Finding {
        let stack = self.get(kubectl, "stacks.pulumi.com").unwrap_or_default();
        let updates = kubectl.json(&["--namespace", self.namespace, "get", "updates.auto.pulumi.com"]).unwrap_or_default();
        let update = latest(&stack, &updates);
        let task = update["status"]["driftless"]["task"].as_str().map(|task| {
            let cluster = task.rsplit('/').nth(1).unwrap_or_default();
            aws.json(&["ecs", "describe-tasks", "--cluster", cluster, "--tasks", task]).unwrap_or_default()["tasks"][0].clone()
        });
        stuck(&stack, update, task.as_ref(), self.limit)
    }
}

/// A Program of one resource that needs no provider.
#[must_use]
pub fn program(namespace: &str, name: &str) -> Value {
    let program = json!({
        "resources": { "canary": { "type": "pulumi:index:Stash", "properties": { "input": NAME } } },
        "outputs": { "canary": "${canary.output}" },
    });
    let metadata = json!({ "name": name, "namespace": namespace });
    json!({ "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": metadata, "program": program })
}

/// A Stack of a Program, destroyed when it is deleted. The passphrase protects nothing: the state
/// has no secret.
#[must_use]
pub fn stack(namespace: &str, name: &str, program: &str, backend: &str, secret: Option<&str>) -> Value {
    let spec = json!({
        "stack": name,
        "backend": backend,
        "programRef": { "name": program },
        "destroyOnFinalize": true,
        "envRefs": { "PULUMI_CONFIG_PASSPHRASE": { "type": "Literal", "literal": { "value": NAME } } },
        "envSecrets": secret.as_slice(),
    });
    let metadata = json!({ "name": name, "namespace": namespace });
    json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec })
}

fn is_absent(error: &str) -> bool {
    error.contains("NotFound")
}

/// Returns whether it is Ready at its present generation.
#[must_use]
pub fn is_ready(stack: &Value) -> bool {
    stack["status"]["observedGeneration"].is_number()
        && stack["status"]["observedGeneration"] == stack["metadata"]["generation"]
        && condition(stack, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// A condition of an object by its type.
#[must_use]
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind)
}

/// The Update that the Stack runs, or ran last; `null` if there is none.
#[must_use]
pub fn latest<'a>(stack: &Value, updates: &'a Value) -> &'a Value {
    let status = &stack["status"];
    let name = [&status["currentUpdate"]["name"], &status["lastUpdate"]["name"]].into_iter().find(|name| name.is_string());
    let mut all = updates["items"].as_array().into_iter().flatten();
    all.find(|update| name == Some(&update["metadata"]["name"])).unwrap_or(&Value::Null)
}

/// Where a Stack that is not Ready in time is stuck, from its own status, its Update's and its
/// task's.
#[must_use]
pub fn stuck(stack: &Value, update: &Value, task: Option<&Value>, limit: Duration) -> Finding {
    let late = |where_: &str| format!("canary: not Ready within {}s: {where_}", limit.as_secs());
    let words = |condition: &Value| {
        format!("{}: {}", condition["reason"].as_str().unwrap_or_default(), condition["message"].as_str().unwrap_or_default())
    };
    if let Some(stalled) = condition(stack, "Stalled").filter(|stalled| stalled["status"] == "True") {
        return Finding::fail(late("Stack is stalled"), words(stalled), "do what the message says");
    }
    let Some(reconciling) = condition(stack, "Reconciling") else {
        return Finding::fail(
            late("Stack was not reconciled"),
            "the forwarder did not hint it, the reconciler did not receive the hint, or it could not write the status",
            format!(
                "see kubectl -n {SYSTEM} logs deployment/driftless-forwarder, the log of the reconciler, and its rights in the \
                 cluster"
            ),
        );
    };
    if update.is_null() {
        return Finding::fail(
            late("its source was not fetched"),
            words(reconciling),
            "see the log of the fetcher, and that of the reconciler if the message names an Update",
        );
    }
    if condition(update, "Failed").is_some_and(|failed| failed["status"] == "True") {
        let why = update["status"]["message"].as_str().unwrap_or_default();
        return Finding::fail(
            late("its run failed"),
            why,
            "set BACKEND_URL to a backend that tasks can reach, and BACKEND_SECRET to its credentials; report it if the task \
             ended without a result and its log has AccessDenied, because AWS then no longer names the session of a task like \
             the task",
        );
    }
    let status = &update["status"]["driftless"];
    if let Some(reason) = status["waitingReason"].as_str() {
        let why = format!("{reason}: {}", status["waitingFor"].as_str().unwrap_or_default());
        return Finding::fail(late("its run waits"), why, "see docs/runs.md, which explains each reason");
    }
    task.map_or_else(
        || Finding::fail(late("no task was started"), words(reconciling), "see the log of the launcher, and its queue"),
        |task| stuck_task(task, late, status),
    )
}

fn stuck_task(task: &Value, late: impl Fn(&str) -> String, status: &Value) -> Finding {
    let text = |field: &str| task[field].as_str().unwrap_or_default();
    match text("lastStatus") {
        "STOPPED" => {
            let containers = task["containers"].as_array().into_iter().flatten();
            let reasons: Vec<_> = containers.filter_map(|container| container["reason"].as_str()).collect();
            Finding::fail(
                late("its task stopped, but its outcome is not recorded"),
                format!("{} {}", text("stoppedReason"), reasons.join("; ")),
                "for CannotPull…, check the image and the route from the subnets to the registry; else see the log of the \
                 recorder, and the rule on stopped tasks",
            )
        }
        "RUNNING" => Finding::fail(
            late("its task still runs"),
            format!("its log: {}", status["log"].as_str().unwrap_or("none yet")),
            "check that the security group and the subnets let the task reach the backend",
        ),
        state => Finding::fail(
            late("its task does not start"),
            format!("state in ECS: {state}"),
            "give the subnets a route to the registry and to ECS: NAT, or public addresses",
        ),
    }
}
