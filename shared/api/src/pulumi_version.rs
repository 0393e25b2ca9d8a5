//! The version of pulumi in an image, as far as its tag names it.

use crate::ConfigItem;

/// The first version whose `config set-all` takes JSON.
const JSON_CONFIG: [u64; 3] = [3, 202, 0];

/// Returns why a run cannot set this configuration, for an image of Pulumi with a tag such as `3.197.0-nonroot`. `at` is the image's field.
pub(crate) fn too_low(at: &str, image: Option<&str>, config: &[ConfigItem]) -> Option<String> {
    let image = image?;
    let item = config.iter().find(|item| is_json(item)).filter(|_| version(image).is_some_and(|found| found < JSON_CONFIG))?;
    let [major, minor, patch] = JSON_CONFIG;
    Some(format!(
        "{at} is {image:?}, whose pulumi takes no JSON configuration, which the config key {:?} has; use an image with pulumi \
         {major}.{minor}.{patch} or newer",
        item.key
    ))
}

fn is_json(item: &ConfigItem) -> bool {
    let of_file = item.value_from.as_ref().and_then(|from| from.json).unwrap_or(false);
    of_file || item.value.as_ref().is_some_and(|value| !value.is_string())
}

/// The version of an image `…pulumi/pulumi…:<version>[-<variant>]`; another image's tag says nothing of its pulumi.
fn version(image: &str) -> Option<[u64; 3]> {
    let (repository, tag) = image.split('@').next()?.rsplit_once(':')?;
    let mut names = repository.rsplit('/');
    let is_pulumis = names.next()?.starts_with("pulumi") && names.next()? == "pulumi";
    let numbers: Option<Vec<u64>> = tag.split('-').next()?.split('.').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok().filter(|_| is_pulumis)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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
        let told = |image: &str, item: Value| too_low("spec.image", Some(image), &[serde_json::from_value(item).unwrap()]);
        let old = "pulumi/pulumi:3.201.9-nonroot";
        let file = |json: bool| json!({ "key": "k", "valueFrom": { "path": "/a", "json": json } });
        for item in [json!({ "key": "k", "value": 1 }), json!({ "key": "k", "value": [] }), file(true)] {
            let words = "spec.image is \"pulumi/pulumi:3.201.9-nonroot\", whose pulumi takes no JSON configuration, which the config key \
                         \"k\" has; use an image with pulumi 3.202.0 or newer";
            assert_eq!(told(old, item.clone()).as_deref(), Some(words));
            assert_eq!(told("pulumi/pulumi:3.202.0-nonroot", item), None);
        }
        for item in [json!({ "key": "k", "value": "1" }), file(false)] {
            assert_eq!(told(old, item), None);
        }
    }
}
