use serde::{Deserialize, Serialize};

/// Pulumi's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// `pulumi up`
    Up,
    /// `pulumi preview`
    Preview,
    /// `pulumi refresh`
    Refresh,
    /// `pulumi destroy`
    Destroy,
}

impl Operation {
    /// The value in an Update's `spec.type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Preview => "preview",
            Self::Refresh => "refresh",
            Self::Destroy => "destroy",
        }
    }

    /// Parses an Update's `spec.type`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Up, Self::Preview, Self::Refresh, Self::Destroy].into_iter().find(|operation| operation.as_str() == word)
    }
}
