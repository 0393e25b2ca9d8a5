//! Ports with a flaw, which the suites have to detect.

use std::{collections::BTreeMap, fs::File, io::Read as _};

use driftless_aws::{Link, Objects, Queues, Result, Started, TaskPage, TaskState, Tasks};
use driftless_contract::{FetchRequest, Hint, Launch, LaunchHint, ObjectKey, RunHint, TaskHint};
use driftless_core::{TaskEnd, TaskShape};
use driftless_kubernetes::{Cluster, Endpoint, Error, EventMarks, EventReason, EventType, Object, Page, Selector};
use jiff::Timestamp;
use kube::core::DynamicObject;
use secrecy::SecretString;

use super::tests::OfWorld;
use crate::{World, fields::merge};

macro_rules! flaws {
    ($($flaw:ident $guarantee:ident)+) => {
        /// The guarantee that a port breaks.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) enum Flaw {
            $($flaw,)+
        }

        impl Flaw {
            pub(super) const ALL: &[Self] = &[$(Self::$flaw,)+];

            /// The name of the case that must detect it.
            pub(super) fn guarantee(self) -> &'static str {
                match self {
                    $(Self::$flaw => stringify!($guarantee),)+
                }
            }
        }
    };
}

flaws! {
    NewWithoutCondition put_new_keeps_the_object_that_is_there
    NewIsNobodysOwn put_new_of_the_same_content_is_the_writers_own
    FileFromCursor put_file_stores_the_whole_file
    CopyOfNothing missing_object_is_none
    FirstPageOfObjects list_and_size_have_every_object_of_the_prefix
    NoDelay delayed_message_cannot_be_received_yet
    NoDeduplication fetch_with_the_same_deduplication_is_swallowed
    NoClientToken same_launch_is_the_same_task
    NewTasksMissing launched_task_is_alive
    MissingIsStopped forgotten_task_is_missing_and_frees_its_client_token
    StopIsNotShown stop_is_shown_at_once_and_is_requested
    StoppingIsLive live_lists_tasks_until_they_are_asked_to_stop
    CreateOverwrites create_of_an_object_that_is_there_is_a_conflict
    ReplaceAnyVersion replace_over_another_version_is_a_conflict
    ReplaceWithStatus replace_leaves_the_status
    PatchAnyVersion patch_over_another_version_is_a_conflict
    StatusAnyVersion status_over_another_version_is_a_conflict
    ApplyRemovesNothing apply_removes_what_it_applied_before
    DeleteAnyVersion delete_of_another_version_is_a_conflict
    GoneIsAnError delete_of_an_object_that_is_gone_is_harmless
    AnyField field_selector_chooses_objects
    AnyLabel label_selector_chooses_objects
    FirstPageOfCluster list_has_every_object_on_one_page
    TerminatingIsPermanent nothing_is_created_in_a_terminating_namespace
}

/// A world with a flaw.
pub(super) struct Flawed {
    pub(super) world: World,
    pub(super) flaw: Flaw,
}

impl Flawed {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// The object with the version of a fresh read, if the port has the flaw.
    async fn refreshed<K: Object>(&self, flaw: Flaw, object: &K) -> K {
        let (mut object, meta) = (object.clone(), object.meta().clone());
        let current = Cluster::get::<K>(&self.world, &meta.namespace.unwrap_or_default(), &meta.name.unwrap_or_default()).await;
        if let (true, Ok(Some(current))) = (self.has(flaw), current) {
            object.meta_mut().resource_version.clone_from(&current.meta().resource_version);
            object.meta_mut().uid.clone_from(&current.meta().uid);
        }
        object
    }
}

impl OfWorld for Flawed {
    fn world(&self) -> &World {
        &self.world
    }

    fn over(&self, world: World) -> Self {
        Self { world, flaw: self.flaw }
    }
}

impl Objects for Flawed {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Objects::get(&self.world, key).await
    }

    async fn get_range(&self, key: &str, offset: u64, size: u64) -> Result<Option<Vec<u8>>> {
        self.world.get_range(key, offset, size).await
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>> {
        self.world.modified(key).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<(String, Timestamp)>> {
        let is_end = self.has(Flaw::FirstPageOfObjects) && !after.is_empty();
        if is_end { Ok(Vec::new()) } else { self.world.list_after(prefix, after).await }
    }

    async fn size(&self, prefix: &str, least: u64) -> Result<u64> {
        self.world.size(prefix, least).await
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.world.put(key, content).await
    }

    async fn put_sealed(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.world.put_sealed(key, content).await
    }

    async fn put_file(&self, key: &str, mut file: &File) -> Result<()> {
        if self.has(Flaw::FileFromCursor) {
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            return self.world.put(key, content).await;
        }
        self.world.put_file(key, file).await
    }

    async fn put_new(&self, key: &str, content: Vec<u8>) -> Result<bool> {
        if self.has(Flaw::NewWithoutCondition) {
            return self.world.put(key, content).await.map(|()| true);
        }
        if self.has(Flaw::NewIsNobodysOwn) && self.world.exists(key).await? {
            return Ok(false);
        }
        self.world.put_new(key, content).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<bool> {
        Ok(self.world.copy(from, to).await? || self.has(Flaw::CopyOfNothing))
    }

    async fn link(&self, key: &str, now: Timestamp) -> Result<Link> {
        self.world.link(key, now).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        Objects::delete(&self.world, key).await
    }
}

impl Queues for Flawed {
    async fn hint(&self, hint: &Hint, delay_seconds: u16) -> Result<()> {
        self.world.hint(hint, if self.has(Flaw::NoDelay) { 0 } else { delay_seconds }).await
    }

    async fn hints(&self, hints: &[Hint]) -> Result<Vec<usize>> {
        self.world.hints(hints).await
    }

    async fn launch(&self, hint: &LaunchHint, delay_seconds: u16) -> Result<()> {
        self.world.launch(hint, delay_seconds).await
    }

    async fn run(&self, hint: &RunHint, delay_seconds: u16) -> Result<()> {
        Queues::run(&self.world, hint, delay_seconds).await
    }

    async fn task(&self, hint: &TaskHint) -> Result<()> {
        self.world.task(hint).await
    }

    async fn fetch(&self, request: &FetchRequest, deduplication: &str) -> Result<()> {
        let unique = format!("{deduplication} {}", self.world.sent().len());
        self.world.fetch(request, if self.has(Flaw::NoDeduplication) { &unique } else { deduplication }).await
    }
}

impl Tasks for Flawed {
    async fn definition(&self, shape: &TaskShape) -> Result<String> {
        self.world.definition(shape).await
    }

    async fn run(&self, launch: &Launch) -> Result<Started> {
        let unique = u32::try_from(100 + self.world.live_tasks().len()).unwrap();
        let attempt = if self.has(Flaw::NoClientToken) { unique } else { launch.attempt };
        Tasks::run(&self.world, &Launch { attempt, ..launch.clone() }).await
    }

    async fn state(&self, arn: &str) -> Result<TaskState> {
        Ok(match (self.flaw, Tasks::state(&self.world, arn).await?) {
            (Flaw::NewTasksMissing, TaskState::Alive { .. }) => TaskState::Missing,
            (Flaw::MissingIsStopped, TaskState::Missing) => TaskState::Stopped { end: TaskEnd::default() },
            (Flaw::StopIsNotShown, TaskState::Alive { created, .. }) => TaskState::Alive { end: TaskEnd::default(), created },
            (_, state) => state,
        })
    }

    async fn live(&self, from: Option<&str>) -> Result<TaskPage> {
        if self.has(Flaw::StoppingIsLive) {
            return Ok(TaskPage { tasks: self.world.live_tasks().into_iter().map(|task| task.arn).collect(), next: None });
        }
        self.world.live(from).await
    }

    fn log_url(&self, arn: &str) -> String {
        self.world.log_url(arn)
    }

    async fn stop(&self, arn: &str, reason: &str) -> Result<()> {
        self.world.stop(arn, reason).await
    }
}

impl Cluster for Flawed {
    fn endpoint(&self) -> Endpoint {
        self.world.endpoint()
    }

    async fn get<K: Object>(&self, namespace: &str, name: &str) -> driftless_kubernetes::Result<Option<K>> {
        Cluster::get(&self.world, namespace, name).await
    }

    async fn get_dynamic(&self, key: &ObjectKey) -> driftless_kubernetes::Result<Option<DynamicObject>> {
        self.world.get_dynamic(key).await
    }

    async fn of_cluster(&self, api_version: &str, plural: &str) -> driftless_kubernetes::Result<Vec<DynamicObject>> {
        self.world.of_cluster(api_version, plural).await
    }

    async fn page<K: Object>(
        &self,
        namespace: Option<&str>,
        selector: Selector<'_>,
        from: Option<&str>,
    ) -> driftless_kubernetes::Result<Page<K>> {
        let selector = match selector {
            Selector::Fields(_) if self.has(Flaw::AnyField) => Selector::All,
            Selector::Labels(_) if self.has(Flaw::AnyLabel) => Selector::All,
            selector => selector,
        };
        let mut page = self.world.page(namespace, selector, from).await?;
        page.next = page.next.filter(|_| !self.has(Flaw::FirstPageOfCluster));
        Ok(page)
    }

    async fn watch_label(&self, namespace: &str) -> driftless_kubernetes::Result<Option<Option<String>>> {
        self.world.watch_label(namespace).await
    }

    async fn watch_labels(&self) -> driftless_kubernetes::Result<BTreeMap<String, String>> {
        self.world.watch_labels().await
    }

    async fn create<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        match self.world.create(object).await {
            Err(Error::Conflict { .. }) if self.has(Flaw::CreateOverwrites) => {
                self.world.replace(&self.refreshed(Flaw::CreateOverwrites, object).await).await
            }
            Err(Error::NamespaceTerminating { call, message }) if self.has(Flaw::TerminatingIsPermanent) => {
                Err(Error::Permanent { call, message })
            }
            created => created,
        }
    }

    async fn replace<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let replaced = self.world.replace(&self.refreshed(Flaw::ReplaceAnyVersion, object).await).await?;
        if self.has(Flaw::ReplaceWithStatus) {
            return self.world.replace_status(&self.refreshed(Flaw::ReplaceWithStatus, object).await).await;
        }
        Ok(replaced)
    }

    async fn patch_metadata<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        self.world.patch_metadata(&self.refreshed(Flaw::PatchAnyVersion, object).await).await
    }

    async fn replace_status<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        self.world.replace_status(&self.refreshed(Flaw::StatusAnyVersion, object).await).await
    }

    async fn apply<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<K> {
        let meta = object.meta().clone();
        let current = Cluster::get::<K>(&self.world, &meta.namespace.unwrap_or_default(), &meta.name.unwrap_or_default()).await?;
        if let (true, Some(current)) = (self.has(Flaw::ApplyRemovesNothing), current) {
            let [mut merged, applied] = [&current, object].map(|object| object.serialize(serde_json::value::Serializer).unwrap());
            merge(&mut merged, applied);
            return self.world.replace(&serde_json::from_value::<K>(merged).unwrap()).await;
        }
        self.world.apply(object).await
    }

    async fn delete<K: Object>(&self, object: &K) -> driftless_kubernetes::Result<()> {
        let meta = object.meta();
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        if self.has(Flaw::GoneIsAnError) && Cluster::get::<K>(&self.world, namespace, name).await?.is_none() {
            return Err(Error::Conflict { call: "delete".into(), message: "not found".into() });
        }
        Cluster::delete(&self.world, &self.refreshed(Flaw::DeleteAnyVersion, object).await).await
    }

    async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audience: Option<&str>,
        seconds: u32,
    ) -> driftless_kubernetes::Result<(SecretString, Timestamp)> {
        self.world.service_account_token(namespace, name, audience, seconds).await
    }

    async fn event<K: Object>(
        &self,
        regarding: &K,
        event_type: EventType,
        reason: EventReason,
        note: &str,
        marks: EventMarks<'_>,
        at: Timestamp,
    ) {
        self.world.event(regarding, event_type, reason, note, marks, at).await;
    }
}
