//! One sweep of a cluster.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashSet},
};

use driftless_api::{Stack, Update, Workspace, uid_of};
use driftless_aws::Queues;
use driftless_contract::{Hint, ObjectKey};
use driftless_core::{Stack as CoreStack, due, its_turn, run::UpdateFacts};
use driftless_kubernetes::{Cluster, Object, Pages, Selector};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    Error, Settings, claims,
    pass::{Cursor, Pass, Stage},
    send,
};

/// The Updates of runs that have not ended, and the others.
const UNFINISHED: Selector<'_> = Selector::Fields("status.endTime=");
const ENDED: Selector<'_> = Selector::Fields("status.endTime!=");

/// What a sweep found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The Stacks in the namespaces of the filter, if this sweep read the last of them.
    pub stacks: Option<usize>,
    /// Driftless's Updates that are not complete and have no task, by their status.
    pub waiting: usize,
    /// Driftless's Updates that are not complete and have a task.
    pub running: usize,
    /// The number of hints sent.
    pub hints: usize,
}

/// Hints what is due in a cluster, in the namespaces of the filter. In other namespaces only
/// Driftless's own Updates: a run that started before its namespace left the filter is supervised
/// to its end.
///
/// Each sweep reads the unfinished Updates and the claims. Then it reads what may rest: Stacks,
/// Workspaces and ended Updates. This pass takes as many sweeps as it needs: `is_late` is asked
/// after each page, and the next sweep continues at `cursor`. So no sweep has to read a whole
/// cluster, and no run waits for idle Stacks.
///
/// Memory is bounded by a page of objects and the uids of unfinished Updates. What is due on a page
/// is hinted before the next page is read. A failed list of a kind, or failed hints of a page, stop
/// no other hints, and are the sweep's error at the end; the next pass reads the kind again. A hint
/// that is sent twice does no harm.
pub async fn sweep<C: Cluster, Q: Queues>(
    name: &str,
    cluster: &C,
    queues: &Q,
    settings: Settings<'_>,
    cursor: &RefCell<Cursor>,
    is_late: impl Fn() -> bool,
    now: Timestamp,
) -> Result<Swept, Error> {
    let labels = cluster.watch_labels().await?;
    let sweep = Sweep { name, cluster, queues, settings, labels, now, swept: Cell::default(), failed: RefCell::default() };
    sweep.hint_unfinished().await;
    sweep.hint_rest(cursor, is_late).await;
    sweep.failed.into_inner().map_or(Ok(sweep.swept.get()), Err)
}

struct Sweep<'a, C, Q> {
    name: &'a str,
    cluster: &'a C,
    queues: &'a Q,
    settings: Settings<'a>,
    /// The namespaces with a label of the filter.
    labels: BTreeMap<String, String>,
    now: Timestamp,
    swept: Cell<Swept>,
    /// The first error.
    failed: RefCell<Option<Error>>,
}

impl<C: Cluster, Q: Queues> Sweep<'_, C, Q> {
    /// Hints the unfinished Updates that are due, and the claims without an Update.
    async fn hint_unfinished(&self) {
        let mut unfinished = HashSet::new();
        let mut pages = Pages::<_, Update>::new(self.cluster, None, UNFINISHED);
        let is_whole = loop {
            match pages.next().await {
                Ok(None) => break true,
                Ok(Some(page)) => {
                    unfinished.extend(page.iter().map(uid_of));
                    self.count(&page);
                    self.hint(page.iter().filter(|update| self.is_due_update(update, 1, self.now))).await;
                }
                Err(error) => {
                    self.fail(error.into());
                    break false;
                }
            }
        };
        // The claim of an Update that was not listed would seem lost.
        if !is_whole {
            return;
        }
        let system = self.settings.watch.system_namespace;
        match claims::hint_lost(self.name, self.cluster, self.queues, system, &unfinished, self.now).await {
            Ok(hints) => self.add(hints),
            // Not an error of the sweep, because the next Update that wants such a claim hints its
            // holder too.
            Err(error) => tracing::warn!(cluster = self.name, %error, "cannot check the claims"),
        }
    }

    /// Continues the pass until it has ended or this sweep is late.
    async fn hint_rest(&self, cursor: &RefCell<Cursor>, is_late: impl Fn() -> bool) {
        loop {
            let pass = cursor.borrow_mut().continue_pass(self.settings.tick_seconds, self.now);
            let read = match pass.stage {
                Stage::Stacks => self.read(cursor, Selector::All, |stack| self.is_due_stack(stack, pass)).await,
                Stage::Workspaces => {
                    let is_due = |workspace: &Workspace| self.is_ours(workspace) && workspace.needs_check();
                    self.read(cursor, Selector::All, is_due).await
                }
                Stage::EndedUpdates => {
                    self.read(cursor, ENDED, |update| self.is_due_update(update, pass.ticks, pass.began)).await
                }
            };
            let is_read = read.unwrap_or_else(|error| {
                self.fail(error);
                None
            });
            if pass.stage == Stage::Stacks && is_read.is_some() {
                self.swept.set(Swept { stacks: is_read, ..self.swept.get() });
            }
            if cursor.borrow().is_over() || is_late() {
                return;
            }
        }
    }

    /// Reads the next page of a stage, and hints what is due on it. After the last one, returns how
    /// many objects of the stage are in the namespaces of the filter.
    async fn read<K: Object>(
        &self,
        cursor: &RefCell<Cursor>,
        selector: Selector<'_>,
        is_due: impl Fn(&K) -> bool,
    ) -> Result<Option<usize>, Error> {
        let from = cursor.borrow().from();
        let page = match self.cluster.page::<K>(None, selector, from.as_deref()).await {
            Ok(page) => page,
            Err(error) => {
                cursor.borrow_mut().end_stage();
                return Err(error.into());
            }
        };
        self.hint(page.objects.iter().filter(|object| is_due(object))).await;
        let ours = page.objects.iter().filter(|object| self.is_ours(*object)).count();
        Ok(cursor.borrow_mut().turn_page(&K::plural(&()), page.next, ours)?)
    }

    fn is_due_stack(&self, stack: &Stack, pass: Pass) -> bool {
        let is_turn = || {
            let Settings { period_seconds, tick_seconds, .. } = self.settings;
            its_turn(uid(stack), period_seconds, tick_seconds, pass.ticks, pass.began)
        };
        self.is_ours(stack) && due(&CoreStack::from(stack), is_turn(), self.now)
    }

    /// Its turns are those of `ticks` ticks up to `tick`.
    fn is_due_update(&self, update: &Update, ticks: i64, tick: Timestamp) -> bool {
        let is_turn = its_turn(uid(update), self.settings.live_seconds(), self.settings.tick_seconds, ticks, tick);
        self.is_supervised(update) && self.facts(update).is_due(is_turn, self.now)
    }

    /// Returns whether Driftless acts on an Update: a run that started before its namespace left
    /// the filter ends as usual.
    fn is_supervised(&self, update: &Update) -> bool {
        self.is_ours(update) || update.spec.driftless.is_some()
    }

    fn facts(&self, update: &Update) -> UpdateFacts {
        update.facts(self.settings.watch.system_namespace, self.now)
    }

    /// Counts the unfinished Updates of a page, for the metrics.
    fn count(&self, page: &[Update]) {
        let mut swept = self.swept.get();
        for facts in page.iter().filter(|update| self.is_supervised(update)).map(|update| self.facts(update)) {
            swept.running += usize::from(facts.is_live());
            swept.waiting += usize::from(!facts.is_live() && !facts.is_complete());
        }
        self.swept.set(swept);
    }

    fn is_ours<K: Object>(&self, object: &K) -> bool {
        object.meta().namespace.as_ref().is_some_and(|name| self.settings.watch.is_ours_by(&self.labels, name))
    }

    /// Sends a hint for each object.
    async fn hint<'o, K: Object>(&self, objects: impl Iterator<Item = &'o K>) {
        let hints: Vec<_> = objects.map(|object| Hint::new(key(self.name, object))).collect();
        match send(self.queues, &hints).await {
            Ok(()) => self.add(hints.len()),
            Err(error) => self.fail(error),
        }
    }

    fn add(&self, hints: usize) {
        let swept = self.swept.get();
        self.swept.set(Swept { hints: swept.hints + hints, ..swept });
    }

    fn fail(&self, error: Error) {
        tracing::warn!(cluster = self.name, %error, "a part of the sweep failed");
        self.failed.borrow_mut().get_or_insert(error);
    }
}

fn uid<K: Object>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

fn key<K: Object>(cluster: &str, object: &K) -> ObjectKey {
    ObjectKey {
        cluster: cluster.to_owned(),
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}
