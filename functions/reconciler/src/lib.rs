//! Reconciles a Stack: [`load`] reads the facts, `driftless_core::decide` makes a plan from them,
//! and [`carry_out`] is the only part that changes anything.
//!
//! A hint may name a Stack or an object that Stacks depend on. A field selector finds those Stacks
//! in the namespace of the object. [`dependents`] wakes the Stacks that depend on one that
//! succeeded. [`fan_out`] handles what applied Stacks, and pushes to repositories.
//!
//! The reconciler reads no Secrets and does not call ECS.

mod carry_out;
mod dependents;
mod fan_out;
mod load;

use std::mem;

use driftless_api::{Source, Stack, StackReference, Update, uid_of};
use driftless_aws::{Objects, Queues};
use driftless_contract::{Hint, MAX_HOPS, ObjectKey, PREFIX, REVISION_RETRY_SECONDS, keys};
use driftless_core::{
    PodFields, Retention, WatchNamespaces, decide,
    run::{Need, RunFacts, UpdateEffect, plan_update},
    violations,
};
pub use driftless_kubernetes::CallError as Error;
use driftless_kubernetes::{Cluster, Pages, Selector, Watch, term};
use driftless_telemetry::metrics::{self, Metric};
use jiff::Timestamp;
use kube::ResourceExt as _;

/// The settings of an installation.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The system namespace, which has the Updates of terminating namespaces.
    pub system_namespace: &'a str,
    /// The namespace filter.
    pub namespaces: WatchNamespaces,
    /// How old a tree may be when a run starts to use it.
    pub retention: Retention,
    /// The period in which a Stack is run again, or its inputs are compared, unless the Stack sets
    /// one, in seconds.
    pub resync_seconds: i64,
    /// The shortest resync period, whatever the Stack sets, in seconds.
    pub min_resync_seconds: i64,
    /// How fields that only concern the pod are treated.
    pub pod_fields: PodFields,
}

impl<'a> Settings<'a> {
    fn watch(&self) -> Watch<'a> {
        Watch { namespaces: self.namespaces, system_namespace: self.system_namespace }
    }
}

/// The reconciler, for one message of a cluster.
#[derive(Debug)]
pub struct Reconciler<'a, C, O, Q> {
    /// The cluster that the hint names.
    pub cluster: &'a C,
    /// The bucket with trees, fetches and outcomes.
    pub objects: &'a O,
    /// The queues for hints, launches and fetch requests.
    pub queues: &'a Q,
    /// The settings of an installation.
    pub settings: Settings<'a>,
    /// When the invocation began to handle the message.
    pub now: Timestamp,
}

/// The requeue delay after a transient error, such as a throttle or an unavailable API server, in
/// seconds.
const PASSING_SECONDS: u16 = 15;

impl<C: Cluster, O: Objects, Q: Queues> Reconciler<'_, C, O, Q> {
    /// Does what a hint asks for. A transient error leads to a requeue; any other is returned.
    pub async fn handle(&self, hint: &Hint) -> Result<(), Error> {
        if hint.hops >= MAX_HOPS {
            metrics::count_one(Metric::HopsExhausted, "reconciler", &hint.object.cluster, &hint.object, self.now);
        }
        match self.dispatch(hint).await {
            Err(error) => failed(self.queues, hint, error, self.now).await,
            done => done,
        }
    }

    async fn dispatch(&self, hint: &Hint) -> Result<(), Error> {
        match (hint.object.group(), hint.object.kind.as_str()) {
            // Their Stacks may be in any namespace, or the namespace filter that counts is not that
            // of the object.
            ("kustomize.toolkit.fluxcd.io" | "helm.toolkit.fluxcd.io", _) => self.hint_applied(hint).await,
            (PREFIX, "Repository") => self.fetch_pushed(hint).await,
            ("auto.pulumi.com", "Update") => self.reconcile_update(hint).await,
            _ if !self.settings.watch().is_ours(self.cluster, &hint.object.namespace).await? => Ok(()),
            ("pulumi.com", "Stack") => self.reconcile_stack(hint).await,
            ("pulumi.com", "Program") => self.reconcile_of_source(hint, &term("spec.programRef.name", &hint.object.name)).await,
            ("auto.pulumi.com", "Workspace") => self.launch(hint, hint.object.clone()).await,
            _ => self.hint_of_source(hint).await,
        }
    }

    /// Reconciles a Stack, and requeues after a conflict.
    async fn reconcile_stack(&self, hint: &Hint) -> Result<(), Error> {
        match self.cluster.get::<Stack>(&hint.object.namespace, &hint.object.name).await? {
            Some(stack) => self.reconcile(hint, stack).await,
            None => Ok(()),
        }
    }

    /// Reconciles the Stack of the hint.
    async fn reconcile(&self, hint: &Hint, stack: Stack) -> Result<(), Error> {
        // Kubernetes stores whole seconds, so the time is rounded to what will be read back.
        let now = Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
        let reconciler = Reconciler { now, ..*self };
        let (snapshot, updates) = reconciler.load(&hint.object.cluster, &stack).await?;
        let plan = decide(&snapshot, now);
        debug_assert_eq!(violations(&snapshot, &plan, now), Vec::<String>::new(), "{}", hint.object);
        tracing::info!(
            stack = %hint.object,
            readiness = ?plan.status.readiness,
            effects = plan.effects.len(),
            requeue_at = ?plan.requeue_at.map(|at| at.to_string()),
            "reconciled"
        );
        reconciler.carry_out(hint, stack, (&snapshot, updates), plan).await
    }

    /// Reconciles the single Stack that a field selector finds for a source. Several Stacks get a
    /// hint each, so that none waits for another.
    async fn reconcile_of_source(&self, hint: &Hint, field_selector: &str) -> Result<(), Error> {
        let mut pages = Pages::new(self.cluster, Some(&hint.object.namespace), Selector::Fields(field_selector));
        let Some(mut first) = pages.next().await? else { return Ok(()) };
        if first.len() > 1 || pages.has_next() {
            return self.hint_pages(hint, first, pages).await;
        }
        let Some(stack) = first.pop() else { return Ok(()) };
        match hint.next(stack_key(&hint.object, &stack.name_any())) {
            Some(hint) => self.reconcile(&hint, stack).await,
            None => Ok(()),
        }
    }

    /// Hints the Stacks of a page and of those that follow. Only one page is in memory.
    async fn hint_pages(&self, hint: &Hint, first: Vec<Stack>, mut pages: Pages<'_, C, Stack>) -> Result<(), Error> {
        let mut page = first;
        loop {
            for stack in mem::take(&mut page) {
                if let Some(next) = hint.next(stack_key(&hint.object, &stack.name_any())) {
                    self.queues.hint(&next, 0).await?;
                }
            }
            match pages.next().await? {
                Some(next) => page = next,
                None => return Ok(()),
            }
        }
    }

    /// Hints the Stacks of a Flux source, once it shows the revision in the hint: a notification
    /// arrives before the status is written.
    async fn hint_of_source(&self, hint: &Hint) -> Result<(), Error> {
        if let Some(revision) = &hint.revision {
            let source = match self.cluster.get_dynamic(&hint.object).await {
                // The kind is not served or cannot be read: the Stack's own reconciliation reports
                // that.
                Err(driftless_kubernetes::Error::Permanent { .. } | driftless_kubernetes::Error::Unreadable { .. }) => None,
                source => source?,
            };
            let shown = source.as_ref().and_then(|object| Source::from_object(object).artifact).map(|artifact| artifact.revision);
            if shown.as_ref() != Some(revision)
                && let Some(delay) = REVISION_RETRY_SECONDS.get(usize::from(hint.looks))
            {
                self.queues.hint(&Hint { looks: hint.looks + 1, ..hint.clone() }, *delay).await?;
                return Ok(());
            }
        }
        self.reconcile_of_source(hint, &term("spec.fluxSource.sourceRef.name", &hint.object.name)).await
    }

    /// Handles an Update that changed or is due.
    async fn reconcile_update(&self, hint: &Hint) -> Result<(), Error> {
        let Some(update) = self.cluster.get::<Update>(&hint.object.namespace, &hint.object.name).await? else {
            return Ok(());
        };
        let known = update.facts(self.settings.system_namespace, self.now);
        let stack = update.stack(self.settings.system_namespace);
        let mut facts = RunFacts::default();
        let effects = loop {
            match plan_update(&known, &facts, self.now) {
                Ok(effects) => break effects,
                Err(Need::Watched) => {
                    // The namespace of its Stack, if that is terminating.
                    let namespace = stack.as_ref().map_or(&hint.object.namespace, |stack| &stack.namespace);
                    facts.watched = Some(self.settings.watch().is_ours(self.cluster, namespace).await?);
                }
                Err(Need::Named) => {
                    let Some(StackReference { name, namespace, .. }) = &stack else { return Ok(()) };
                    let stack = self.cluster.get::<Stack>(namespace, name).await?;
                    facts.named = Some(stack.is_some_and(|stack| stack.names(&hint.object.name)));
                }
                Err(_) => {
                    let outcome = keys::run(&hint.object.cluster, &uid_of(&update)).outcome();
                    facts.outcome = Some(self.objects.exists(&outcome).await?);
                }
            }
        };
        for effect in effects {
            let of_stack = || {
                let StackReference { name, namespace, .. } = stack.clone()?;
                Some(ObjectKey { namespace, ..stack_key(&hint.object, &name) })
            };
            match effect {
                UpdateEffect::Launch => self.launch(hint, hint.object.clone()).await?,
                UpdateEffect::HintStack => {
                    if let Some(next) = of_stack().and_then(|stack| hint.next(stack)) {
                        self.queues.hint(&next, 0).await?;
                    }
                }
                UpdateEffect::HintDependents => {
                    if let Some(object) = of_stack() {
                        let outputs = update.spec.driftless.as_ref().map_or(&[][..], |ours| &ours.outputs);
                        self.wake_dependents(&Hint { object, ..hint.clone() }, outputs).await?;
                    }
                }
                UpdateEffect::Release => self.remove_finalizer(update.clone()).await?,
                UpdateEffect::Delete => {
                    tracing::info!(update = %hint.object, "ttlAfterCompleted has elapsed; deleting it");
                    self.cluster.delete(&update).await?;
                }
            }
        }
        Ok(())
    }
}

/// Requeues after a transient error, such as a cluster that cannot be reached. An object that this
/// release cannot read fails no message, because a tenant wrote it. Any other error is returned.
pub async fn failed<Q: Queues>(queues: &Q, hint: &Hint, error: Error, now: Timestamp) -> Result<(), Error> {
    if let Error::Kubernetes(driftless_kubernetes::Error::Unreadable { .. }) = error {
        // Only a change of the object ends this, and that sends an event.
        tracing::warn!(object = %hint.object, %error, "reconciliation skipped: cannot read an object");
        metrics::count_one(Metric::UnreadableObjects, "reconciler", &hint.object.cluster, &hint.object, now);
        return Ok(());
    }
    if !error.is_transient() {
        return Err(error);
    }
    tracing::warn!(object = %hint.object, %error, "requeued after a transient error");
    metrics::count_one(Metric::TransientFailures, "reconciler", &hint.object.cluster, &hint.object, now);
    if let Some(next) = hint.next(hint.object.clone()) {
        queues.hint(&Hint { revision: hint.revision.clone(), looks: hint.looks, ..next }, PASSING_SECONDS).await?;
    }
    Ok(())
}

fn stack_key(beside: &ObjectKey, name: &str) -> ObjectKey {
    beside.sibling("pulumi.com/v1", "Stack", name)
}

#[cfg(test)]
mod tests;
