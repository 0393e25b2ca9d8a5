//! The cases of lists.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use driftless_api::{DriftlessUpdateStatus, Update, UpdateStatus};
use driftless_kubernetes::{Cluster as _, Object, Page, Pages, Selector, term};
use futures::future::try_join_all;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;

use super::fixture::{Fixture, Immutable, NAMESPACE, config_map, is_permanent, meta, update};

/// More objects than one page of the client.
const MANY: usize = 502;
/// The number of concurrent calls.
const AT_ONCE: usize = 25;

suite! {
    list_has_every_object_on_one_page
    list_leaves_out_what_cannot_be_read
    list_has_what_stays_while_others_come_and_go
    list_is_of_a_namespace_or_of_all
    field_selector_chooses_objects
    label_selector_chooses_objects
    field_that_is_not_selectable_is_refused
}

/// A namespace with many objects, and their names in order.
async fn many<F: Fixture>(fixture: &F, namespace: &str) -> Result<Vec<String>> {
    fixture.namespace(namespace, None).await?;
    let all: Vec<_> = (0..MANY).map(|n| config_map(namespace, &format!("{n:04}"), "")).collect();
    for some in all.chunks(AT_ONCE) {
        try_join_all(some.iter().map(|object| fixture.port().create(object))).await?;
    }
    Ok(all.iter().map(ResourceExt::name_any).collect())
}

/// The names of the objects of this suite. Kubernetes adds objects of its own to each namespace.
fn names<K: Object>(objects: &[K]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("contract-")).collect()
}

/// The names of the objects of a kind that match a selector.
async fn list<F: Fixture, K: Object>(fixture: &F, namespace: Option<&str>, selector: Selector<'_>) -> Result<Vec<String>> {
    let (mut found, mut pages) = (Vec::new(), Pages::<_, K>::new(fixture.port(), namespace, selector));
    while let Some(page) = pages.next().await? {
        found.extend(names(&page));
    }
    Ok(found)
}

async fn list_has_every_object_on_one_page<F: Fixture>(fixture: &F) -> Result<()> {
    let expected = many(fixture, "contract-pages").await?;
    let first: Page<ConfigMap> = fixture.port().page(Some("contract-pages"), Selector::All, None).await?;
    ensure!(first.next.is_some() && first.objects.len() < MANY, "one page has {} objects", first.objects.len());
    let found = list::<_, ConfigMap>(fixture, Some("contract-pages"), Selector::All).await?;
    ensure!(found == expected, "{} of {MANY} objects", found.len());
    Ok(())
}

async fn list_leaves_out_what_cannot_be_read<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.namespace("contract-odd", None).await?;
    for (name, immutable) in [("a", Some(true)), ("b", None), ("c", Some(false))] {
        let object = ConfigMap { immutable, ..config_map("contract-odd", name, "") };
        fixture.port().create(&object).await?;
    }
    let found = list::<_, Immutable>(fixture, Some("contract-odd"), Selector::All).await?;
    ensure!(found == ["contract-a", "contract-c"], "{found:?}");
    Ok(())
}

async fn list_has_what_stays_while_others_come_and_go<F: Fixture>(fixture: &F) -> Result<()> {
    let (namespace, cluster) = ("contract-changes", fixture.port());
    let all = many(fixture, namespace).await?;
    let first: Page<ConfigMap> = cluster.page(Some(namespace), Selector::All, None).await?;
    let (mut found, mut next) = (names(&first.objects), first.next);
    // One on this page, one on the next, and one between two others.
    let gone = [&found[0], all.last().context("objects")?].map(Clone::clone);
    for name in &gone {
        let object: ConfigMap = cluster.get(namespace, name).await?.context("it is there")?;
        cluster.delete(&object).await?;
    }
    cluster.create(&config_map(namespace, "0000-new", "")).await?;
    while let Some(from) = next {
        let page: Page<ConfigMap> = cluster.page(Some(namespace), Selector::All, Some(&from)).await?;
        found.extend(names(&page.objects));
        next = page.next;
    }
    ensure!(found.iter().collect::<BTreeSet<_>>().len() == found.len(), "an object is listed twice");
    let missing: Vec<_> = all.iter().filter(|name| !gone.contains(name) && !found.contains(name)).collect();
    ensure!(missing.is_empty(), "{missing:?}");
    Ok(())
}

async fn list_is_of_a_namespace_or_of_all<F: Fixture>(fixture: &F) -> Result<()> {
    let namespaces = ["contract-list-a", "contract-list-b"];
    for namespace in namespaces {
        fixture.namespace(namespace, None).await?;
        fixture.port().create(&Lease { metadata: meta(namespace, namespace), spec: None }).await?;
    }
    let of = async |namespace| list::<_, Lease>(fixture, namespace, Selector::All).await;
    ensure!(of(Some("contract-list-a")).await? == ["contract-contract-list-a"]);
    let all = of(None).await?;
    ensure!(namespaces.iter().all(|namespace| all.contains(&format!("contract-{namespace}"))), "{all:?}");
    Ok(())
}

async fn field_selector_chooses_objects<F: Fixture>(fixture: &F) -> Result<()> {
    let namespace = "contract-select";
    fixture.namespace(namespace, None).await?;
    let end_time = Time("2026-01-02T03:04:05Z".parse()?);
    for (name, workspace, reason) in
        [("a", Some("one"), Some("Capacity")), ("b", Some("t,w=o\\"), None), ("c", Some("one"), None), ("d", None, None)]
    {
        let mut object = update(name, "a");
        object.metadata.namespace = Some(namespace.into());
        object.spec.workspace_name = workspace.map(Into::into);
        let created = fixture.port().create(&object).await?;
        let driftless = DriftlessUpdateStatus { waiting_reason: reason.map(Into::into), ..DriftlessUpdateStatus::default() };
        let end_time = Some(end_time.clone()).filter(|_| name == "c");
        let status = UpdateStatus { driftless: Some(driftless), end_time, ..UpdateStatus::default() };
        fixture.port().replace_status(&Update { status: Some(status), ..created }).await?;
    }
    for (selector, expected) in [
        ("spec.workspaceName=one", &["contract-a", "contract-c"][..]),
        ("spec.workspaceName=one,metadata.name!=contract-a", &["contract-c"]),
        ("spec.workspaceName!=one", &["contract-b", "contract-d"]),
        ("spec.workspaceName=", &["contract-d"]),
        ("status.driftless.waitingReason=Capacity", &["contract-a"]),
        ("spec.workspaceName=three", &[]),
        (&term("spec.workspaceName", "t,w=o\\"), &["contract-b"]),
        ("status.endTime=", &["contract-a", "contract-b", "contract-d"]),
        ("status.endTime!=", &["contract-c"]),
    ] {
        let found = list::<_, Update>(fixture, Some(namespace), Selector::Fields(selector)).await?;
        ensure!(found == expected, "{selector}: {found:?}");
    }
    Ok(())
}

async fn label_selector_chooses_objects<F: Fixture>(fixture: &F) -> Result<()> {
    let namespace = "contract-labels";
    fixture.namespace(namespace, None).await?;
    for (name, labels) in [("a", &[("x.dev/a", "1"), ("b", "2")][..]), ("b", &[("x.dev/a", "1")]), ("c", &[])] {
        let mut object = config_map(namespace, name, "");
        object.metadata.labels = Some(labels.iter().map(|(label, value)| ((*label).into(), (*value).into())).collect());
        fixture.port().create(&object).await?;
    }
    for (selector, expected) in
        [("x.dev/a=1", &["contract-a", "contract-b"][..]), ("x.dev/a=1,b=2", &["contract-a"]), ("x.dev/a=2", &[]), ("b=1", &[])]
    {
        let found = list::<_, ConfigMap>(fixture, Some(namespace), Selector::Labels(selector)).await?;
        ensure!(found == expected, "{selector}: {found:?}");
    }
    Ok(())
}

async fn field_that_is_not_selectable_is_refused<F: Fixture>(fixture: &F) -> Result<()> {
    let cluster = fixture.port();
    is_permanent(&cluster.page::<Update>(Some(NAMESPACE), Selector::Fields("spec.message=a"), None).await)?;
    is_permanent(&cluster.page::<ConfigMap>(Some(NAMESPACE), Selector::Fields("data.k=a"), None).await)
}
