//! The version of Pulumi in an image, as far as its tag states it.

use crate::{ConfigItem, ConfigSource, DefaultSize, TaskFields, Workspace};

/// The first version whose `config set-all` accepts JSON.
const JSON_CONFIG: [u64; 3] = [3, 202, 0];
/// The first version that supports `PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER`
/// (pulumi/pulumi#17236). A run has no `Pulumi.STACK.yaml` from the last run, so an older version
/// uses the backend's own provider from the second run on.
const STATE_SECRETS: [u64; 3] = [3, 134, 0];

/// Why the Pulumi in the image of a Stack's runs is too old for what the Stack configures; `None`
/// if it is not, or is unknown.
#[must_use]
pub fn old_pulumi(task: &TaskFields<'_>, workspace: &Workspace, deleting: bool) -> Option<String> {
    let image = task.shape(DefaultSize::default()).ok()?.image?;
    let backend =
        task.environment().ok().and_then(|(_, env)| env.into_iter().rfind(|var| var.name == "PULUMI_BACKEND_URL")?.value);
    // A user can still destroy a stack that an older Pulumi created.
    let secrets_provider = workspace.secrets_provider.as_deref().filter(|_| !deleting);
    too_low(&format!("{}.image", task.at), &image, &workspace.config, secrets_provider, backend.as_deref())
}

/// Returns why an image of Pulumi with a tag such as `3.197.0-nonroot` cannot run a stack. `at` is
/// the image's field, `backend` the URL of the backend if the spec has it in clear.
fn too_low(
    at: &str,
    image: &str,
    config: &[ConfigItem],
    secrets_provider: Option<&str>,
    backend: Option<&str>,
) -> Option<String> {
    let found = version(image)?;
    let words = |needed: [u64; 3], why: &str, remedy: &str| {
        let [major, minor, patch] = needed;
        format!("{at} is {image:?}, whose pulumi {why}; use an image with pulumi {major}.{minor}.{patch} or newer{remedy}")
    };
    if let Some(item) = config.iter().find(|item| is_json(item)).filter(|_| found < JSON_CONFIG) {
        let why = format!("does not support JSON configuration, which config key {:?} uses", item.key);
        return Some(words(JSON_CONFIG, &why, ""));
    }
    secrets_provider.filter(|provider| found < STATE_SECRETS && is_lost(provider, backend)).map(|_| {
        let why = "does not read the secrets provider from the state, which spec.secretsProvider requires from the second run on";
        // With the file, the provider is not read from the state.
        let remedy = ", or remove the field if the stack exists and Pulumi.STACK.yaml of the source names the provider";
        words(STATE_SECRETS, why, remedy)
    })
}

/// Returns whether the second run of an old Pulumi uses another secrets provider: it has no
/// `Pulumi.STACK.yaml` and does not read the state's.
fn is_lost(provider: &str, backend: Option<&str>) -> bool {
    match provider {
        "" | "default" => false,
        // The default of every backend but Pulumi Cloud.
        "passphrase" => backend.is_some_and(|url| url.starts_with("http")),
        _ => true,
    }
}

fn is_json(item: &ConfigItem) -> bool {
    match &item.source {
        ConfigSource::Value(value) => !value.is_string(),
        ConfigSource::ConfigMap(_, json) => *json,
        ConfigSource::Secret(_) => false,
    }
}

/// The version of an image `…pulumi/pulumi…:<version>[-<variant>]`; the tag of any other image does
/// not state its Pulumi's version.
fn version(image: &str) -> Option<[u64; 3]> {
    let (repository, tag) = image.split('@').next()?.rsplit_once(':')?;
    let mut names = repository.rsplit('/');
    let is_pulumis = names.next()?.starts_with("pulumi") && names.next()? == "pulumi";
    let numbers: Option<Vec<u64>> = tag.split('-').next()?.split('.').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok().filter(|_| is_pulumis)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::KeyRef;

    #[test]
    fn only_tags_of_pulumis_own_images_name_a_version() {
        for (image, expected) in [
            ("pulumi/pulumi:3.197.0-nonroot", Some([3, 197, 0])),
            ("public.ecr.aws/pulumi/pulumi-nodejs:3.202.0", Some([3, 202, 0])),
            ("localhost:5000/pulumi/pulumi-python-3.12:3.9.1-debian@sha256:00", Some([3, 9, 1])),
            ("pulumi/pulumi:latest", None),
            ("pulumi/pulumi:3.197", None),
            ("pulumi/pulumi", None),
            ("localhost:5000/pulumi/pulumi", None),
            ("acme/pulumi:3.197.0", None),
            ("pulumi/nosuchimage:3.197.0", None),
        ] {
            assert_eq!(version(image), expected, "{image}");
        }
    }

    #[test]
    fn old_pulumi_is_refused_for_json_alone() {
        let told = |image: &str, source: ConfigSource| {
            too_low("spec.image", image, &[ConfigItem { key: "k".into(), source, secret: false }], None, None)
        };
        let old = "pulumi/pulumi:3.201.9-nonroot";
        let file = |json: bool| ConfigSource::ConfigMap(KeyRef { name: "a".into(), key: "k".into() }, json);
        for item in [ConfigSource::Value(json!(1)), ConfigSource::Value(json!([])), file(true)] {
            let words = "spec.image is \"pulumi/pulumi:3.201.9-nonroot\", whose pulumi does not support JSON configuration, which config key \
                         \"k\" uses; use an image with pulumi 3.202.0 or newer";
            assert_eq!(told(old, item.clone()).as_deref(), Some(words));
            assert_eq!(told("pulumi/pulumi:3.202.0-nonroot", item), None);
        }
        for item in [ConfigSource::Value(json!("1")), file(false)] {
            assert_eq!(told(old, item), None);
        }
    }

    #[test]
    fn old_pulumi_is_refused_for_a_secrets_provider_it_loses() {
        let told =
            |image: &str, provider: &str, backend: Option<&str>| too_low("spec.image", image, &[], Some(provider), backend);
        let (old, new, key) = ("pulumi/pulumi:3.133.0-nonroot", "pulumi/pulumi:3.134.0-nonroot", "awskms://alias/a");
        let words = "spec.image is \"pulumi/pulumi:3.133.0-nonroot\", whose pulumi does not read the secrets provider from the state, which \
                     spec.secretsProvider requires from the second run on; use an image with pulumi 3.134.0 or newer, or remove the field \
                     if the stack exists and Pulumi.STACK.yaml of the source names the provider";
        assert_eq!(told(old, key, Some("s3://state")).as_deref(), Some(words));
        assert_eq!(told(old, key, None).as_deref(), Some(words));
        assert_eq!(told(old, "passphrase", Some("https://api.pulumi.com")).as_deref(), Some(words));
        for (image, provider, backend) in [
            (new, key, Some("s3://state")),
            ("pulumi/pulumi:latest", key, Some("s3://state")),
            (old, "", None),
            (old, "default", None),
            (old, "passphrase", Some("s3://state")),
            (old, "passphrase", None),
        ] {
            assert_eq!(told(image, provider, backend), None, "{image} {provider} {backend:?}");
        }
    }
}
