/// The limits of an archive, which an installation sets. The defaults suit a large repository and a
/// small function. PKO refuses more than 100 MiB of content and has no other limit.
///
/// Memory is bounded by these limits and by constants beside them: 1 MiB per extended header, and
/// 16 MiB for all paths together, as the manifest has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes after decompression, including the archive's own headers and padding. They need the
    /// same scratch space, and twice as much if the archive is not in the order of its paths.
    /// Default: 256 MiB.
    pub bytes: u64,
    /// Entries: files, links, and directories whether listed or implied. Default: 100,000.
    pub entries: usize,
    /// The length of a path or of a link's target, in bytes. Default: 1,024.
    pub path_length: usize,
    /// Parts of a path. Default: 64.
    pub depth: usize,
    /// Decompressed bytes per compressed byte, checked after the first 1 MiB of output. Source code
    /// has 3 to 20, a bomb 1,000. Default: 200.
    pub ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 256 << 20, entries: 100_000, path_length: 1024, depth: 64, ratio: 200 }
    }
}
