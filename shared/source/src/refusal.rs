/// Why the content is refused. A path in the message is cut to 200 characters, and the message has
/// nothing else of the content.
///
/// Two paths that differ only in case are two files where runs happen, and repositories with
/// `README` and `readme` exist. They are refused only for Pulumi's project and stack settings
/// (`Pulumi.*`), because a reviewer on a file system that ignores case would see another file than
/// the one that is run. Different Unicode spellings of one name are not compared: names of settings
/// have none, and the runner's file system keeps them apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the message says they are")]
pub enum Refusal {
    #[error("the archive is empty")]
    Empty,
    #[error("not a gzip-compressed archive but {found}; use a source with a tar archive, plain or compressed with gzip")]
    NotGzip { found: &'static str },
    #[error("compressed with gzip, but the content is not a tar archive")]
    NotTar,
    #[error("the archive ends early")]
    Truncated,
    #[error("the archive is damaged: {0}")]
    Damaged(&'static str),
    #[error("the archive has data after its end")]
    TrailingData,
    #[error("the {what} of an entry occurs twice")]
    StatedTwice { what: &'static str },
    #[error("an entry has two different sizes")]
    SizesDiffer,
    #[error("a global header has the {what} of all entries")]
    GlobalHeader { what: &'static str },
    #[error("content is too large, the maximum is {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("archive inflates too much, the maximum is {limit} times its size")]
    TooDense { limit: u64 },
    #[error("extended header is too large, the maximum is {limit} bytes")]
    HeaderTooLarge { limit: u64 },
    #[error("too many files and directories, the maximum is {limit}")]
    TooManyEntries { limit: usize },
    #[error("paths together are too long, the maximum is {limit} bytes")]
    PathsTooLong { limit: usize },
    #[error("path {path:?} is too long, the maximum is {limit} bytes")]
    PathTooLong { path: String, limit: usize },
    #[error("path {path:?} has too many parts, the maximum is {limit}")]
    TooDeep { path: String, limit: usize },
    #[error("the path {path:?} is not UTF-8")]
    NotUtf8 { path: String },
    #[error("the path {path:?} {why}")]
    InvalidPath { path: String, why: &'static str },
    #[error("the path {path:?} is absolute")]
    AbsolutePath { path: String },
    #[error("the path {path:?} contains `..`")]
    ParentPath { path: String },
    #[error("the path {path:?} occurs twice")]
    Duplicate { path: String },
    #[error("the paths {path:?} and {other:?} differ only in case")]
    CaseTwins { path: String, other: String },
    #[error("the path {path:?} is used as a directory but is not one")]
    NotADirectory { path: String },
    #[error("the target of the link {path:?} {why}")]
    InvalidTarget { path: String, why: &'static str },
    #[error("target of the link {path:?} is too long, the maximum is {limit} bytes")]
    TargetTooLong { path: String, limit: usize },
    #[error("the link {path:?} leads outside of the tree")]
    LinkLeavesTree { path: String },
    #[error("the link {path:?} leads through too many links")]
    LinkLoop { path: String },
    #[error("the links take too long to follow")]
    LinkMaze,
    #[error("{path:?} is a hard link")]
    HardLink { path: String },
    #[error("{path:?} is {kind}")]
    NotAFile { path: String, kind: &'static str },
    #[error("{path:?} is a sparse file")]
    Sparse { path: String },
    #[error("{path:?} is not a file but has content")]
    HasContent { path: String },
}
