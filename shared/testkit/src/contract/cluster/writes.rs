//! Writes: the cases of create, replace, patch, apply and delete.

use anyhow::{Context as _, Result, ensure};
use driftless_api::{Update, Workspace, WorkspaceSpec};
use driftless_core::EnvVar;
use driftless_kubernetes::Cluster as _;
use kube::{ResourceExt as _, core::ObjectMeta};

use super::fixture::{
    Fixture, NAMESPACE, again, config_map, conflicts, find, is_permanent, labelled, lease, meta, update, with_status,
};

suite! {
    created_object_has_uid_version_generation_and_time
    create_of_an_object_that_is_there_is_a_conflict
    create_with_a_version_is_refused
    create_leaves_the_status_out
    replace_over_another_version_is_a_conflict
    replace_without_a_version_is_refused
    replace_of_an_object_that_is_gone_is_a_conflict
    replace_leaves_the_status
    replace_counts_generations_of_the_spec
    replace_without_a_change_keeps_the_version
    patch_writes_finalizers_and_annotations_alone
    patch_over_another_version_is_a_conflict
    status_is_written_alone
    status_over_another_version_is_a_conflict
    apply_creates_the_object_without_its_status
    apply_removes_what_it_applied_before
    apply_keeps_what_others_wrote
    apply_takes_fields_from_others
    apply_without_a_change_keeps_the_version
    apply_removes_items_of_lists
    delete_of_another_version_is_a_conflict
    delete_of_an_object_that_is_gone_is_harmless
    finalizer_keeps_a_deleted_object
    deleted_object_gets_no_new_finalizer
}

async fn created_object_has_uid_version_generation_and_time<F: Fixture>(fixture: &F) -> Result<()> {
    let (before, mut wanted) = (fixture.now(), labelled(update("create", "a"), "l"));
    wanted.metadata.uid = Some("chosen".into());
    wanted.metadata.generation = Some(7);
    let created = fixture.port().create(&wanted).await?;
    ensure!(again(fixture, &created).await? == created);
    ensure!(created.spec == wanted.spec && created.metadata.labels == wanted.metadata.labels);
    let ObjectMeta { uid, generation, creation_timestamp, resource_version, .. } = created.metadata;
    ensure!(uid.is_some_and(|uid| uid != "chosen") && resource_version.is_some() && generation == Some(1), "{generation:?}");
    let at = creation_timestamp.context("a time")?.0;
    ensure!((before.as_second()..=fixture.now().as_second()).contains(&at.as_second()), "{at} is not from {before} on");
    Ok(())
}

async fn create_of_an_object_that_is_there_is_a_conflict<F: Fixture>(fixture: &F) -> Result<()> {
    let first = fixture.port().create(&config_map(NAMESPACE, "twice", "first")).await?;
    conflicts(&fixture.port().create(&config_map(NAMESPACE, "twice", "second")).await)?;
    ensure!(again(fixture, &first).await? == first);
    Ok(())
}

async fn create_with_a_version_is_refused<F: Fixture>(fixture: &F) -> Result<()> {
    let mut read = lease("versioned");
    read.metadata.resource_version = Some("1".into());
    ensure!(fixture.port().create(&read).await.is_err());
    ensure!(find(fixture, &read).await?.is_none());
    Ok(())
}

async fn create_leaves_the_status_out<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&with_status(update("no-status", "a"), "status")).await?;
    ensure!(created.status.is_none() && again(fixture, &created).await?.status.is_none());
    Ok(())
}

async fn replace_over_another_version_is_a_conflict<F: Fixture>(fixture: &F) -> Result<()> {
    let first = fixture.port().create(&update("replace", "first")).await?;
    let mut second = first.clone();
    second.spec.message = Some("second".into());
    let second = fixture.port().replace(&second).await?;
    conflicts(&fixture.port().replace(&first).await)?;
    let mut other = second.clone();
    other.metadata.uid = Some("00000000-0000-0000-0000-00000000ffff".into());
    conflicts(&fixture.port().replace(&other).await)?;
    ensure!(again(fixture, &second).await? == second);
    Ok(())
}

/// The API server allows it for Secrets and ConfigMaps.
async fn replace_without_a_version_is_refused<F: Fixture>(fixture: &F) -> Result<()> {
    let mut update = fixture.port().create(&update("unread", "a")).await?;
    update.metadata.resource_version = None;
    is_permanent(&fixture.port().replace(&update).await)?;
    is_permanent(&fixture.port().replace_status(&update).await)?;
    let mut lease = fixture.port().create(&lease("unread")).await?;
    lease.metadata.resource_version = None;
    is_permanent(&fixture.port().replace(&lease).await)
}

/// Without a version, the API server would create the Lease.
async fn replace_of_an_object_that_is_gone_is_a_conflict<F: Fixture>(fixture: &F) -> Result<()> {
    let cluster = fixture.port();
    let lease = cluster.create(&lease("gone")).await?;
    let config_map = cluster.create(&config_map(NAMESPACE, "gone", "a")).await?;
    let update = cluster.create(&update("gone", "a")).await?;
    cluster.delete(&lease).await?;
    cluster.delete(&config_map).await?;
    cluster.delete(&update).await?;
    conflicts(&cluster.replace(&lease).await)?;
    conflicts(&cluster.replace(&config_map).await)?;
    conflicts(&cluster.replace(&update).await)?;
    conflicts(&cluster.replace_status(&update).await)?;
    conflicts(&cluster.patch_metadata(&update).await)?;
    ensure!(find(fixture, &lease).await?.is_none() && find(fixture, &config_map).await?.is_none());
    Ok(())
}

async fn replace_leaves_the_status<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&update("spec", "a")).await?;
    let told = fixture.port().replace_status(&with_status(created, "told")).await?;
    let replaced = fixture.port().replace(&labelled(with_status(told.clone(), "other"), "l")).await?;
    ensure!(replaced.status == told.status && replaced.labels().contains_key("l"), "{replaced:?}");
    ensure!(again(fixture, &told).await? == replaced);
    Ok(())
}

async fn replace_counts_generations_of_the_spec<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&update("generation", "a")).await?;
    let mut labelled = fixture.port().replace(&labelled(created, "l")).await?;
    ensure!(labelled.metadata.generation == Some(1), "a label is no spec");
    labelled.spec.message = Some("b".into());
    let replaced = fixture.port().replace(&labelled).await?;
    ensure!(replaced.metadata.generation == Some(2), "{:?}", replaced.metadata.generation);
    Ok(())
}

async fn replace_without_a_change_keeps_the_version<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&update("same", "a")).await?;
    let told = fixture.port().replace_status(&with_status(created, "a")).await?;
    let replaced = fixture.port().replace(&told).await?;
    let patched = fixture.port().patch_metadata(&replaced).await?;
    let again = fixture.port().replace_status(&patched).await?;
    ensure!(again.resource_version() == told.resource_version());
    Ok(())
}

async fn patch_writes_finalizers_and_annotations_alone<F: Fixture>(fixture: &F) -> Result<()> {
    let mut object = update("patch", "a");
    object.metadata.finalizers = Some(vec!["driftless.dev/a".into(), "driftless.dev/b".into()]);
    object.annotations_mut().extend([("kept".to_owned(), "1".to_owned()), ("changed".to_owned(), "1".to_owned())]);
    let created = fixture.port().create(&object).await?;

    let mut changed = labelled(with_status(created.clone(), "status"), "l");
    changed.spec.message = Some("other".into());
    changed.metadata.finalizers = Some(vec!["driftless.dev/b".into()]);
    changed.metadata.annotations = Some([("changed", "2"), ("new", "1")].map(|(name, value)| (name.into(), value.into())).into());
    let patched = fixture.port().patch_metadata(&changed).await?;
    ensure!(again(fixture, &created).await? == patched);
    ensure!(patched.spec == created.spec && patched.status.is_none() && patched.labels().is_empty(), "{patched:?}");
    ensure!(patched.finalizers() == ["driftless.dev/b"], "{:?}", patched.finalizers());
    let annotations: Vec<_> = patched.annotations().iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    ensure!(annotations == [("changed", "2"), ("kept", "1"), ("new", "1")], "{annotations:?}");

    let freed = Update { metadata: ObjectMeta { finalizers: None, ..patched.metadata.clone() }, ..patched };
    ensure!(fixture.port().patch_metadata(&freed).await?.finalizers().is_empty());
    Ok(())
}

async fn patch_over_another_version_is_a_conflict<F: Fixture>(fixture: &F) -> Result<()> {
    let mut first = fixture.port().create(&update("stale-patch", "a")).await?;
    let second = fixture.port().replace(&labelled(first.clone(), "l")).await?;
    first.annotations_mut().insert("a".into(), "1".into());
    conflicts(&fixture.port().patch_metadata(&first).await)?;
    ensure!(again(fixture, &second).await? == second);
    Ok(())
}

async fn status_is_written_alone<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&update("status", "a")).await?;
    let mut changed = labelled(with_status(created.clone(), "told"), "l");
    changed.spec.message = Some("other".into());
    changed.metadata.finalizers = Some(vec!["driftless.dev/a".into()]);
    let told = fixture.port().replace_status(&changed).await?;
    ensure!(again(fixture, &created).await? == told);
    ensure!(told.status == changed.status && told.spec == created.spec, "{told:?}");
    ensure!(told.labels().is_empty() && told.finalizers().is_empty() && told.metadata.generation == Some(1), "{told:?}");
    ensure!(told.resource_version() != created.resource_version());
    Ok(())
}

async fn status_over_another_version_is_a_conflict<F: Fixture>(fixture: &F) -> Result<()> {
    let first = fixture.port().create(&update("stale-status", "a")).await?;
    let second = fixture.port().replace(&labelled(first.clone(), "l")).await?;
    conflicts(&fixture.port().replace_status(&with_status(first, "told")).await)?;
    ensure!(again(fixture, &second).await? == second);
    Ok(())
}

async fn apply_creates_the_object_without_its_status<F: Fixture>(fixture: &F) -> Result<()> {
    let applied = fixture.port().apply(&with_status(update("apply", "a"), "status")).await?;
    ensure!(again(fixture, &applied).await? == applied);
    ensure!(applied.metadata.uid.is_some() && applied.metadata.generation == Some(1) && applied.status.is_none());
    Ok(())
}

async fn apply_removes_what_it_applied_before<F: Fixture>(fixture: &F) -> Result<()> {
    let mut object = labelled(labelled(update("apply-less", "a"), "one"), "two");
    object.annotations_mut().insert("note".into(), "1".into());
    object.spec.parallel = Some(1);
    fixture.port().apply(&object).await?;
    let applied = fixture.port().apply(&labelled(update("apply-less", "a"), "two")).await?;
    ensure!(applied.spec.parallel.is_none() && applied.spec.message.as_deref() == Some("a"), "{:?}", applied.spec);
    ensure!(applied.labels().keys().eq(["two"]) && applied.annotations().is_empty(), "{:?}", applied.metadata);
    ensure!(applied.metadata.generation == Some(2), "{:?}", applied.metadata.generation);
    Ok(())
}

async fn apply_keeps_what_others_wrote<F: Fixture>(fixture: &F) -> Result<()> {
    let applied = fixture.port().apply(&labelled(update("apply-beside", "a"), "one")).await?;
    // A replace owns its fields separately from an apply, even with the same field manager.
    let mut object = labelled(applied, "two");
    object.spec.parallel = Some(1);
    let object = fixture.port().replace(&object).await?;
    let object = fixture.port().replace_status(&with_status(object, "told")).await?;
    let applied = fixture.port().apply(&update("apply-beside", "b")).await?;
    ensure!(applied.labels().keys().eq(["two"]), "{:?}", applied.labels());
    ensure!(applied.spec.parallel == Some(1) && applied.status == object.status, "{applied:?}");
    Ok(())
}

async fn apply_takes_fields_from_others<F: Fixture>(fixture: &F) -> Result<()> {
    let mut object = fixture.port().apply(&update("apply-over", "a")).await?;
    object.spec.message = Some("theirs".into());
    fixture.port().replace(&object).await?;
    let applied = fixture.port().apply(&update("apply-over", "ours")).await?;
    ensure!(applied.spec.message.as_deref() == Some("ours"), "{:?}", applied.spec);
    Ok(())
}

async fn apply_without_a_change_keeps_the_version<F: Fixture>(fixture: &F) -> Result<()> {
    let first = fixture.port().apply(&labelled(update("apply-same", "a"), "l")).await?;
    let second = fixture.port().apply(&labelled(update("apply-same", "a"), "l")).await?;
    ensure!(first == second);
    Ok(())
}

async fn apply_removes_items_of_lists<F: Fixture>(fixture: &F) -> Result<()> {
    let workspace = |names: &[&str]| {
        let env = names.iter().map(|name| EnvVar { name: (*name).into(), ..EnvVar::default() }).collect();
        Workspace { metadata: meta(NAMESPACE, "lists"), spec: WorkspaceSpec { env, ..WorkspaceSpec::default() }, status: None }
    };
    for names in [&["A", "B"][..], &["B", "C"], &[]] {
        let applied = fixture.port().apply(&workspace(names)).await?;
        let found: Vec<_> = applied.spec.env.iter().map(|env| env.name.as_str()).collect();
        ensure!(found == names, "{found:?}, expected {names:?}");
    }
    Ok(())
}

async fn delete_of_another_version_is_a_conflict<F: Fixture>(fixture: &F) -> Result<()> {
    let cluster = fixture.port();
    let first = cluster.create(&lease("delete")).await?;
    let second = cluster.replace(&labelled(first.clone(), "l")).await?;
    conflicts(&cluster.delete(&first).await)?;
    ensure!(again(fixture, &second).await? == second);
    cluster.delete(&second).await?;
    let other = cluster.create(&lease("delete")).await?;
    conflicts(&cluster.delete(&second).await)?;
    // With the uid alone, any version of the object matches.
    let mut unversioned = second;
    unversioned.metadata.resource_version = None;
    conflicts(&cluster.delete(&unversioned).await)?;
    unversioned.metadata.uid = other.metadata.uid;
    cluster.delete(&unversioned).await?;
    ensure!(find(fixture, &unversioned).await?.is_none());
    Ok(())
}

async fn delete_of_an_object_that_is_gone_is_harmless<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&lease("deleted")).await?;
    fixture.port().delete(&created).await?;
    Ok(fixture.port().delete(&created).await?)
}

/// An object that is deleted and waits for this finalizer.
async fn deleted<F: Fixture>(fixture: &F, name: &str, finalizer: &str) -> Result<Update> {
    let mut object = update(name, "a");
    object.metadata.finalizers = Some(vec![finalizer.into()]);
    let created = fixture.port().create(&object).await?;
    fixture.port().delete(&created).await?;
    again(fixture, &created).await
}

async fn finalizer_keeps_a_deleted_object<F: Fixture>(fixture: &F) -> Result<()> {
    let cluster = fixture.port();
    let deleted = deleted(fixture, "finalizer", "driftless.dev/a").await?;
    let at = deleted.metadata.deletion_timestamp.clone();
    ensure!(at.is_some() && deleted.metadata.generation == Some(2), "{:?}", deleted.metadata);
    cluster.delete(&deleted).await?;
    ensure!(again(fixture, &deleted).await? == deleted, "a second delete changes nothing");

    let mut revived = labelled(deleted.clone(), "l");
    revived.metadata.deletion_timestamp = None;
    let mut replaced = cluster.replace(&revived).await?;
    ensure!(replaced.metadata.deletion_timestamp == at, "no write undoes a deletion");
    replaced.metadata.finalizers = None;
    cluster.patch_metadata(&replaced).await?;
    ensure!(find(fixture, &deleted).await?.is_none());
    Ok(())
}

async fn deleted_object_gets_no_new_finalizer<F: Fixture>(fixture: &F) -> Result<()> {
    let mut deleted = deleted(fixture, "no-finalizer", "driftless.dev/a").await?;
    let before = deleted.clone();
    deleted.metadata.finalizers = Some(vec!["driftless.dev/a".into(), "driftless.dev/b".into()]);
    is_permanent(&fixture.port().patch_metadata(&deleted).await)?;
    is_permanent(&fixture.port().replace(&deleted).await)?;
    ensure!(again(fixture, &before).await? == before);
    // A remaining finalizer would block the deletion of the CRD.
    deleted.metadata.finalizers = None;
    fixture.port().patch_metadata(&deleted).await?;
    Ok(())
}
