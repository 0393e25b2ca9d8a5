//! The images of runs whose Workspace names none.

use std::collections::BTreeMap;

use driftless_contract::ProjectInfo;

/// The images of an installation.
#[derive(Clone, Debug)]
pub struct Images {
    /// By the runtime of the project, as its `Pulumi.yaml` names it.
    pub by_runtime: BTreeMap<String, String>,
    /// For every other run.
    pub default: String,
}

impl Images {
    /// Reads entries of the form `RUNTIME=IMAGE`.
    ///
    /// # Errors
    ///
    /// An entry has another form.
    pub fn new(entries: &[String], default: String) -> Result<Self, String> {
        let by_runtime = entries.iter().map(|entry| {
            let (runtime, image) = entry.split_once('=').ok_or_else(|| format!("RuntimeImages: {entry} is not RUNTIME=IMAGE"))?;
            Ok((runtime.to_owned(), image.to_owned()))
        });
        Ok(Self { by_runtime: by_runtime.collect::<Result<_, String>>()?, default })
    }

    /// The image for a run of the project; [`Self::default`] if the project is not known.
    #[must_use]
    pub fn of(&self, project: Option<&ProjectInfo>) -> &str {
        project.and_then(|project| self.by_runtime.get(&project.runtime)).unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_that_of_the_runtime_or_the_default() {
        let images = Images::new(&["yaml=base".into(), "nodejs=node:22".into()], "all".into()).unwrap();
        let of = |runtime: &str| images.of(Some(&ProjectInfo { name: "shop".into(), runtime: runtime.into() })).to_owned();
        assert_eq!([of("yaml"), of("nodejs"), of("go")], ["base", "node:22", "all"]);
        assert_eq!(images.of(None), "all");
        let wrong = Images::new(&["yaml".into()], "all".into()).unwrap_err();
        assert_eq!(wrong, "RuntimeImages: yaml is not RUNTIME=IMAGE");
    }
}
