/// What an archive may cost. The defaults fit a large repository and a small function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes after decompression, the archive's own headers and padding included. Default: 256 MiB.
    pub bytes: u64,
    /// Entries: files, links, and directories whether listed or implied. Default: 20,000.
    pub entries: usize,
    /// Bytes of a path or of a link's target. Default: 1,024.
    pub path_length: usize,
    /// Parts of a path. Default: 64.
    pub depth: usize,
    /// Decompressed bytes per compressed byte, looked at once more than 1 MiB came out. Source code is at 3 to 20, a bomb at
    /// 1,000. Default: 200.
    pub ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 256 << 20, entries: 20_000, path_length: 1024, depth: 64, ratio: 200 }
    }
}
