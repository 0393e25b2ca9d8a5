//! Unpacking: a gzip-compressed tar, read as it comes.

use std::{
    cell::{Cell, RefCell},
    io::{self, Read, Write},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use crate::{Builder, Error, Limits, Refusal, Tree, path};

/// Long names and extended attributes of one entry, which the tar reader holds in memory.
const HEADER_BYTES: u64 = 1 << 20;

/// From here on the ratio is looked at: a small archive of zeros is no bomb.
const RATIO_FROM_BYTES: u64 = 1 << 20;

/// Reads a gzip-compressed tar archive to its end, checks it and appends the files' content to `spool`. Holds one buffer and the
/// list of entries in memory. Of modes only the executable bit is kept. Whoever has a digest for `archive` verifies it first.
pub fn unpack(archive: impl Read, limits: &Limits, spool: impl Write) -> Result<Tree, Error> {
    let meter = Meter::default();
    let mut inflated =
        Inflated { decoder: MultiGzDecoder::new(Compressed { inner: archive, meter: &meter }), meter: &meter, limits };
    let mut builder = Builder::new(*limits, spool);
    entries(&mut inflated, &meter, &mut builder).map_err(|error| meter.explain(error))?;
    // The rest of the stream holds gzip's own checksum, or more than an archive ought to have.
    io::copy(&mut inflated, &mut io::sink()).map_err(|error| meter.explain(Error::Read(error)))?;
    if meter.inflated.get() == 0 {
        return Err(Refusal::NotGzip.into());
    }
    builder.finish()
}

fn entries<S: Write>(inflated: &mut impl Read, meter: &Meter, builder: &mut Builder<S>) -> Result<(), Error> {
    let mut archive = Archive::new(inflated);
    let mut entries = archive.entries().map_err(Error::Read)?;
    loop {
        meter.headers.set(Some(0));
        let Some(entry) = entries.next() else { break };
        meter.headers.set(None);
        add(entry.map_err(Error::Read)?, builder)?;
    }
    meter.headers.set(None);
    Ok(())
}

fn add<S: Write>(mut entry: Entry<'_, impl Read>, builder: &mut Builder<S>) -> Result<(), Error> {
    let name = entry.path_bytes().into_owned();
    let shown = || path::shown(&String::from_utf8_lossy(&name));
    let kind = entry.header().entry_type();
    match kind {
        EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => builder.directory(&name)?,
        EntryType::Regular | EntryType::Continuous => {
            check_extensions(&mut entry, &shown)?;
            let executable = entry.header().mode().map_err(Error::Read)? & 0o111 != 0;
            let stated = entry.size();
            if builder.file(&name, executable, &mut entry)? != stated {
                return Err(Refusal::Truncated.into());
            }
        }
        EntryType::Directory => builder.directory(&name)?,
        EntryType::Symlink => {
            let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
            builder.link(&name, &target)?;
        }
        EntryType::Link => return Err(Refusal::HardLink { path: shown() }.into()),
        EntryType::GNUSparse => return Err(Refusal::Sparse { path: shown() }.into()),
        EntryType::XGlobalHeader => {}
        _ => return Err(Refusal::NotAFile { path: shown() }.into()),
    }
    // The headers that follow are measured from here.
    io::copy(&mut entry, &mut io::sink()).map_err(Error::Read)?;
    Ok(())
}

/// What one reader of tar takes for the content, another takes for a map of holes: refused, and so is what cannot be parsed.
fn check_extensions(entry: &mut Entry<'_, impl Read>, shown: &dyn Fn() -> String) -> Result<(), Error> {
    for extension in entry.pax_extensions().map_err(Error::Read)?.into_iter().flatten() {
        if extension.map_err(Error::Read)?.key_bytes().starts_with(b"GNU.sparse.") {
            return Err(Refusal::Sparse { path: shown() }.into());
        }
    }
    Ok(())
}

/// What went through, and what really went wrong: the tar reader puts its own words over errors from below.
#[derive(Default)]
struct Meter {
    compressed: Cell<u64>,
    inflated: Cell<u64>,
    /// Bytes since the last entry, while headers are read.
    headers: Cell<Option<u64>>,
    failed: RefCell<Option<io::Error>>,
    refused: RefCell<Option<Refusal>>,
}

impl Meter {
    fn refuse(&self, refusal: Refusal) -> io::Error {
        self.refused.replace(Some(refusal));
        io::ErrorKind::InvalidData.into()
    }

    fn explain(&self, error: Error) -> Error {
        let Error::Read(error) = error else { return error };
        if let Some(failed) = self.failed.take() {
            return Error::Read(failed);
        }
        self.refused.take().unwrap_or_else(|| Refusal::Damaged(error.to_string())).into()
    }
}

/// The archive as the caller gives it; counts, and keeps the caller's own error apart from what it leads to.
struct Compressed<'a, R> {
    inner: R,
    meter: &'a Meter,
}

impl<R: Read> Read for Compressed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(read) => {
                self.meter.compressed.set(self.meter.compressed.get() + read as u64);
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let kind = error.kind();
                self.meter.failed.replace(Some(error));
                Err(kind.into())
            }
        }
    }
}

/// What comes out of the decoder, within the limits.
struct Inflated<'a, R> {
    decoder: MultiGzDecoder<Compressed<'a, R>>,
    meter: &'a Meter,
    limits: &'a Limits,
}

impl<R: Read> Read for Inflated<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let meter = self.meter;
        let read = self.decoder.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            io::ErrorKind::UnexpectedEof if meter.inflated.get() > 0 => meter.refuse(Refusal::Truncated),
            _ if meter.inflated.get() == 0 => meter.refuse(Refusal::NotGzip),
            _ => meter.refuse(Refusal::Damaged("its compressed data or their checksum is wrong".into())),
        })?;
        let inflated = meter.inflated.get() + read as u64;
        meter.inflated.set(inflated);
        if inflated > self.limits.bytes {
            return Err(meter.refuse(Refusal::TooLarge { limit: self.limits.bytes }));
        }
        if inflated > RATIO_FROM_BYTES && inflated / self.limits.ratio > meter.compressed.get() {
            return Err(meter.refuse(Refusal::TooDense { limit: self.limits.ratio }));
        }
        if let Some(headers) = meter.headers.get() {
            meter.headers.set(Some(headers + read as u64));
            if headers + read as u64 > HEADER_BYTES {
                return Err(meter.refuse(Refusal::HeaderTooLarge { limit: HEADER_BYTES }));
            }
        }
        Ok(read)
    }
}
