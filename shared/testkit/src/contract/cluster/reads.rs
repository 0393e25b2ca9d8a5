//! Cases of reads of single objects.

use anyhow::{Context as _, Result, ensure};
use driftless_contract::ObjectKey;
use driftless_kubernetes::{Cluster as _, Error, Selector};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;

use super::fixture::{Fixture, Immutable, NAMESPACE, config_map, find, is_permanent, key, update};

suite! {
    missing_object_is_none
    name_that_is_a_path_names_nothing
    object_that_cannot_be_read_is_unreadable
    object_that_may_not_be_read_is_a_permanent_error
    object_of_a_kind_known_at_run_time_is_read
    kind_that_is_not_served_is_a_permanent_error
}

async fn missing_object_is_none<F: Fixture>(fixture: &F) -> Result<()> {
    ensure!(find(fixture, &config_map(NAMESPACE, "missing", "")).await?.is_none());
    ensure!(fixture.port().get_dynamic(&key("v1", "ConfigMap", "missing")).await?.is_none());
    Ok(())
}

/// Names come from tenants.
async fn name_that_is_a_path_names_nothing<F: Fixture>(fixture: &F) -> Result<()> {
    let cluster = fixture.port();
    let created = cluster.create(&config_map(NAMESPACE, "path", "")).await?.name_any();
    for (namespace, name) in [("..", created.as_str()), (NAMESPACE, &format!("../configmaps/{created}")), (NAMESPACE, "")] {
        ensure!(cluster.get::<ConfigMap>(namespace, name).await?.is_none(), "{namespace}/{name}");
        let key = ObjectKey { namespace: namespace.into(), name: name.into(), ..key("v1", "ConfigMap", "") };
        ensure!(cluster.get_dynamic(&key).await?.is_none(), "{key:?}");
        is_permanent(&cluster.service_account_token(namespace, name, None, 600).await)?;
    }
    Ok(())
}

async fn object_that_cannot_be_read_is_unreadable<F: Fixture>(fixture: &F) -> Result<()> {
    let created = fixture.port().create(&config_map(NAMESPACE, "unreadable", "")).await?;
    let read = fixture.port().get::<Immutable>(NAMESPACE, &created.name_any()).await;
    ensure!(matches!(read, Err(Error::Unreadable { .. })), "{read:?}");
    Ok(())
}

async fn object_that_may_not_be_read_is_a_permanent_error<F: Fixture>(fixture: &F) -> Result<()> {
    let denied = fixture.denied().await?;
    is_permanent(&denied.get::<Secret>(NAMESPACE, "contract").await)?;
    is_permanent(&denied.page::<Secret>(Some(NAMESPACE), Selector::All, None).await)?;
    is_permanent(&denied.get_dynamic(&key("v1", "Secret", "")).await)
}

async fn object_of_a_kind_known_at_run_time_is_read<F: Fixture>(fixture: &F) -> Result<()> {
    fixture.port().create(&update("dynamic", "found")).await?;
    let found = fixture.port().get_dynamic(&key("auto.pulumi.com/v1alpha1", "Update", "dynamic")).await?.context("an object")?;
    ensure!(found.types.as_ref().is_some_and(|types| types.kind == "Update"), "{:?}", found.types);
    ensure!(found.data["spec"]["message"] == "found", "{}", found.data);
    Ok(())
}

async fn kind_that_is_not_served_is_a_permanent_error<F: Fixture>(fixture: &F) -> Result<()> {
    is_permanent(&fixture.port().get_dynamic(&key("example.com/v1", "Widget", "w")).await)
}
