use std::str::FromStr;

/// The namespace filter: in which namespaces an installation acts, by the label on the Namespace.
/// Driftless touches nothing in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchNamespaces {
    /// In every namespace that is not labelled `false`.
    All,
    /// Only in namespaces labelled `true`.
    Labelled,
}

impl WatchNamespaces {
    /// Returns whether the filter includes a namespace, by the value of its label
    /// `driftless.dev/watch`. A value other than `true` and `false` counts as no label.
    #[must_use]
    pub fn is_ours(self, label: Option<&str>) -> bool {
        match self {
            Self::All => label != Some("false"),
            Self::Labelled => label == Some("true"),
        }
    }
}

impl FromStr for WatchNamespaces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            "labelled" => Ok(Self::Labelled),
            other => Err(format!("it is {other:?}; use all or labelled")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_label_overrides_the_default_of_the_installation() {
        for (watch, ours) in
            [(WatchNamespaces::All, [true, true, false, true]), (WatchNamespaces::Labelled, [false, true, false, false])]
        {
            let labels = [None, Some("true"), Some("false"), Some("yes")];
            assert_eq!(labels.map(|label| watch.is_ours(label)), ours, "{watch:?}");
        }
    }

    #[test]
    fn unknown_namespace_filter_is_refused_with_the_known_ones() {
        assert_eq!("all".parse::<WatchNamespaces>().unwrap(), WatchNamespaces::All);
        assert_eq!("labelled".parse::<WatchNamespaces>().unwrap(), WatchNamespaces::Labelled);
        let error = "ALL".parse::<WatchNamespaces>().unwrap_err();
        assert_eq!(error, r#"it is "ALL"; use all or labelled"#);
    }
}
