//! The `CustomResourceDefinition`s of Driftless.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::core::crd::{CustomResourceExt, MergeError, merge_crds};

use crate::{PlanPolicy, Program, Stack, Update, Workspace};

/// The version of Stack in older manifests.
const OLD_STACK_VERSION: &str = "v1alpha1";

/// All definitions.
pub fn all() -> Result<Vec<CustomResourceDefinition>, MergeError> {
    let mut crds = vec![stack()?, Program::crd(), Workspace::crd(), Update::crd(), PlanPolicy::crd()];
    let versions = crds.iter_mut().flat_map(|crd| &mut crd.spec.versions);
    for schema in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut()) {
        plain(schema);
    }
    Ok(crds)
}

/// Both versions have one schema, status included: the API server prunes what it reads to the
/// version of the request, so a write through a version without some field would remove that field
/// from the stored object.
fn stack() -> Result<CustomResourceDefinition, MergeError> {
    let (v1, mut old) = (Stack::crd(), Stack::crd());
    for version in &mut old.spec.versions {
        version.name = OLD_STACK_VERSION.into();
    }
    merge_crds(vec![v1, old], "v1")
}

/// An optional field is left out, not null. The derived schemas allow both, PKO's do not. The API
/// server also warns about formats that it does not know.
fn plain(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.format.take_if(|format| format == "uint32");
    for property in schema.properties.iter_mut().flatten() {
        plain(property.1);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        plain(values);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        plain(items);
    }
}
