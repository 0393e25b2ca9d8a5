use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::ObjectReference;

/// The stored tree of a source.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tree {
    /// Digest from the source.
    pub digest: Option<String>,
    /// Directory of the project within the tree; the root if it is not set.
    pub dir: Option<String>,
    /// Directories and files of the tree that the run receives; the whole tree if the list is
    /// empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Branch, tag or ref of a git repository, as in the spec of the source.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// Name of a git repository: `host/owner/name`.
    pub repository: Option<String>,
    /// Digest of `paths`.
    pub scope: Option<String>,
    /// The source of the tree.
    pub source: Option<ObjectReference>,
}
