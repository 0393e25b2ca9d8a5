//! Unpacks a tar archive, compressed with gzip or plain, as a stream.
//!
//! Tar readers disagree about archives that state something twice, hide content behind the end, or
//! misuse a field: an archive that one reader has checked may be another one to the next. This
//! reader only accepts the form that common tools write, and refuses whatever has more than one
//! meaning.

use std::{
    cell::Cell,
    error::Error as StdError,
    fmt,
    io::{self, BufRead, BufReader, Cursor, Read, Write},
    mem,
    ops::Range,
};

use flate2::bufread::MultiGzDecoder;

use crate::{Builder, Error, Limits, Refusal, Tree, path};

/// The size of a tar header, and the unit to which contents are padded.
const BLOCK: usize = 512;

/// The number of bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// The maximum size of an extended header, which is held in memory.
const HEADER_BYTES: u64 = 1 << 20;

/// The size from which the ratio is checked: a small archive of zeros is no bomb.
const RATIO_FROM_BYTES: u64 = 1 << 20;

const DEFLATE: Refusal = Refusal::Damaged("its compressed data or checksum is invalid");
const NUMBER: Refusal = Refusal::Damaged("a number in a header is malformed");
const EXTENDED: Refusal = Refusal::Damaged("an extended header is malformed");

/// Reads an archive to its end, checks it and appends the files' content to `spool`. Holds a few
/// buffers and the list of entries in memory. Of the modes only the executable bit is kept. A
/// caller with a digest for `archive` verifies it first.
///
/// A Helm chart is an archive like any other: its files are in one directory, which has the name of
/// the chart.
pub fn unpack(archive: impl Read, limits: &Limits, spool: impl Write) -> Result<Tree, Error> {
    let compressed = Cell::new(0);
    let mut archive = Counted { inner: archive, bytes: &compressed };
    let mut head = Vec::with_capacity(BLOCK);
    archive.by_ref().take(BLOCK as u64).read_to_end(&mut head).map_err(|error| cause(Error::Read(error)))?;
    let is_gzip = is_gzip(&head)?;
    let whole = Cursor::new(head).chain(BufReader::with_capacity(BUFFER, archive));
    let content: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
    let mut content = BufReader::with_capacity(BUFFER, Inflated { content, size: 0, compressed: &compressed, limits });
    let mut builder = Builder::new(*limits, spool);
    entries(&mut content, &mut builder).and_then(|()| padding(&mut content)).map_err(cause)?;
    if content.get_ref().size == 0 {
        return Err(Refusal::Empty.into());
    }
    builder.finish()
}

/// Returns whether a file with this beginning is compressed; refuses a file that is no archive. OCI
/// artifacts that are copied unchanged, and the indexes of Helm repositories, have the name of an
/// archive and any content.
fn is_gzip(head: &[u8]) -> Result<bool, Refusal> {
    let known: [(&[u8], &str); 4] =
        [(b"PK", "a zip archive"), (b"\xfd7zXZ", "an xz file"), (b"\x28\xb5\x2f\xfd", "a zstd file"), (b"BZh", "a bzip2 file")];
    if head.starts_with(b"\x1f\x8b") {
        return Ok(true);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Ok(false);
    }
    if head.is_empty() {
        return Err(Refusal::Empty);
    }
    let is_text = || head.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace()) && head.is_ascii();
    let known = known.into_iter().find(|(begin, _)| head.starts_with(begin)).map(|(_, found)| found);
    Err(Refusal::NotGzip { found: known.unwrap_or(if is_text() { "text" } else { "something else" }) })
}

fn entries<S: Write>(content: &mut impl BufRead, builder: &mut Builder<S>) -> Result<(), Error> {
    let mut described = Described::default();
    let mut is_first = true;
    while let Some(header) = Header::read(content, mem::take(&mut is_first))? {
        let size = header.size()?;
        if header.is_extended() {
            if size > HEADER_BYTES {
                return Err(Refusal::HeaderTooLarge { limit: HEADER_BYTES }.into());
            }
            let mut extended = Vec::new();
            if content.take(size).read_to_end(&mut extended).map_err(Error::Read)? as u64 != size {
                return Err(Refusal::Truncated.into());
            }
            described.take_in(header.kind(), &extended)?;
        } else {
            add(&header, size, mem::take(&mut described), content, builder)?;
        }
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        if io::copy(&mut content.take(padding), &mut io::sink()).map_err(Error::Read)? != padding {
            return Err(Refusal::Truncated.into());
        }
    }
    if described == Described::default() {
        Ok(())
    } else {
        Err(Refusal::Damaged("a header describes an entry that does not follow").into())
    }
}

fn add<S: Write>(
    header: &Header,
    size: u64,
    described: Described,
    content: &mut impl BufRead,
    builder: &mut Builder<S>,
) -> Result<(), Error> {
    if described.size.is_some_and(|stated| decimal(&stated) != Some(size)) {
        return Err(Refusal::SizesDiffer.into());
    }
    let name = described.path.unwrap_or_else(|| header.name());
    let shown = || path::shown(&String::from_utf8_lossy(&name));
    if described.is_sparse {
        return Err(Refusal::Sparse { path: shown() }.into());
    }
    let not_a_file = |kind| Err(Refusal::NotAFile { path: shown(), kind }.into());
    match header.kind() {
        // Older tools mark a directory by a name with a trailing slash.
        b'0' | 0 | b'7' if !name.ends_with(b"/") => {
            if size > builder.room() {
                return Err(Refusal::TooLarge { limit: builder.limits().bytes }.into());
            }
            let executable = header.octal(100..108)? & 0o111 != 0;
            if builder.file(&name, executable, &mut content.take(size))? != size {
                return Err(Refusal::Truncated.into());
            }
        }
        b'0' | 0 | b'7' | b'5' | b'2' if size > 0 => return Err(Refusal::HasContent { path: shown() }.into()),
        b'0' | 0 | b'7' | b'5' => builder.directory(&name)?,
        b'2' => builder.link(&name, &described.link.unwrap_or_else(|| header.text(157..257).to_owned()))?,
        b'1' => return Err(Refusal::HardLink { path: shown() }.into()),
        b'S' => return Err(Refusal::Sparse { path: shown() }.into()),
        b'3' => return not_a_file("a character device"),
        b'4' => return not_a_file("a block device"),
        b'6' => return not_a_file("a named pipe"),
        _ => return not_a_file("an entry of an unknown kind"),
    }
    Ok(())
}

/// Checks what follows the last entry: zeros, up to the end of the file and of gzip's own checksum.
fn padding(content: &mut impl BufRead) -> Result<(), Error> {
    loop {
        let piece = match content.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            piece => piece.map_err(Error::Read)?,
        };
        let length = piece.len();
        if length == 0 {
            return Ok(());
        }
        if piece.iter().any(|byte| *byte != 0) {
            return Err(Refusal::TrailingData.into());
        }
        content.consume(length);
    }
}

/// A block that describes the content after it.
struct Header([u8; BLOCK]);

impl Header {
    /// The next header; `None` at the end of the archive.
    fn read(content: &mut impl Read, is_first: bool) -> Result<Option<Self>, Error> {
        let mut header = Self([0; BLOCK]);
        let mut length = 0;
        while length < BLOCK {
            match content.read(&mut header.0[length..]) {
                Ok(0) if length == 0 => return Ok(None),
                Ok(0) => return Err(if is_first { Refusal::NotTar } else { Refusal::Truncated }.into()),
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Read(error)),
            }
        }
        if header.0.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The checksum is computed as if its own field were blank.
        let field: Range<usize> = 148..156;
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let sum = sum(&header.0) - sum(&header.0[field.clone()]) + 8 * u64::from(b' ');
        match header.octal(field) {
            Ok(stated) if stated == sum => Ok(Some(header)),
            _ if is_first => Err(Refusal::NotTar.into()),
            _ => Err(Refusal::Damaged("a header's checksum is wrong").into()),
        }
    }

    fn kind(&self) -> u8 {
        self.0[156]
    }

    fn is_posix(&self) -> bool {
        &self.0[257..265] == b"ustar\x0000"
    }

    /// Returns whether it describes the entry that follows. Older tools do not have these kinds.
    fn is_extended(&self) -> bool {
        matches!(self.kind(), b'x' | b'g' | b'L' | b'K') && (self.is_posix() || &self.0[257..265] == b"ustar  \0")
    }

    /// A field up to its first NUL.
    fn text(&self, field: Range<usize>) -> &[u8] {
        let field = &self.0[field];
        &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
    }

    fn octal(&self, field: Range<usize>) -> Result<u64, Refusal> {
        let digits = self.text(field).trim_ascii();
        if digits.is_empty() || !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
            return Err(NUMBER);
        }
        // At most twelve digits of three bits each.
        Ok(digits.iter().fold(0, |number, digit| number << 3 | u64::from(digit - b'0')))
    }

    /// The size of the content. Some tools write a large size as a number of 96 bits.
    fn size(&self) -> Result<u64, Refusal> {
        let field = 124..136;
        match self.0[field.clone()].split_first_chunk::<4>() {
            Some(([0x80, 0, 0, 0], rest)) => Ok(rest.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))),
            _ => self.octal(field),
        }
    }

    /// The name; POSIX has a second field for a name that does not fit into the first.
    fn name(&self) -> Vec<u8> {
        let (prefix, name) = (self.text(345..500), self.text(0..100));
        if self.is_posix() && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_owned() }
    }
}

/// The extended headers of the next entry.
#[derive(Default, PartialEq, Eq)]
struct Described {
    /// A PAX header was read.
    pax: Option<()>,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<Vec<u8>>,
    is_sparse: bool,
}

impl Described {
    fn take_in(&mut self, kind: u8, content: &[u8]) -> Result<(), Refusal> {
        match kind {
            b'L' => once(&mut self.path, content.strip_suffix(b"\0").unwrap_or(content).to_owned(), "path"),
            b'K' => once(&mut self.link, content.strip_suffix(b"\0").unwrap_or(content).to_owned(), "link"),
            b'g' => self.records(true, content),
            _ => once(&mut self.pax, (), "extended header").and_then(|()| self.records(false, content)),
        }
    }

    /// Reads PAX's records. Those of a global header apply to all entries that follow, which only
    /// some readers honour.
    fn records(&mut self, is_global: bool, mut content: &[u8]) -> Result<(), Refusal> {
        while !content.is_empty() {
            let (key, value, rest) = record(content).ok_or(EXTENDED)?;
            content = rest;
            let (what, place) = match key {
                b"path" => ("path", Some(&mut self.path)),
                b"linkpath" => ("link", Some(&mut self.link)),
                b"size" => ("size", Some(&mut self.size)),
                key if key.starts_with(b"GNU.sparse.") => ("sparse map", None),
                _ => continue,
            };
            match place {
                _ if is_global => return Err(Refusal::GlobalHeader { what }),
                Some(place) => once(place, value.to_owned(), what)?,
                None => self.is_sparse = true,
            }
        }
        Ok(())
    }
}

fn once<T>(place: &mut Option<T>, value: T, what: &'static str) -> Result<(), Refusal> {
    place.replace(value).map_or(Ok(()), |_| Err(Refusal::StatedTwice { what }))
}

/// The first of PAX's records, `<length> <key>=<value>\n` where the length counts all of it, and
/// the rest. A value may have line breaks, but some readers take the text after one for another
/// record.
fn record(content: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = content.iter().position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&content[..space])?).ok()?;
    let (record, rest) = content.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    if record.contains(&b'\n') {
        return None;
    }
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// The caller's archive. Counts bytes, and marks the caller's own errors.
struct Counted<'a, R> {
    inner: R,
    bytes: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ => io::Error::other(Callers(error)),
        })?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

/// The decoder's output, within the limits. A refusal travels as a [`Refusal`] within an
/// [`io::Error`].
struct Inflated<'a> {
    content: Box<dyn Read + 'a>,
    size: u64,
    compressed: &'a Cell<u64>,
    limits: &'a Limits,
}

impl Read for Inflated<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ if error.get_ref().is_some_and(<dyn StdError + Send + Sync>::is::<Callers>) => error,
            io::ErrorKind::UnexpectedEof => io::Error::other(Refusal::Truncated),
            _ => io::Error::other(DEFLATE),
        })?;
        self.size += read as u64;
        if self.size > self.limits.bytes {
            return Err(io::Error::other(Refusal::TooLarge { limit: self.limits.bytes }));
        }
        if self.size > RATIO_FROM_BYTES && self.size > self.compressed.get().saturating_mul(self.limits.ratio) {
            return Err(io::Error::other(Refusal::TooDense { limit: self.limits.ratio }));
        }
        Ok(read)
    }
}

/// An error of the caller's reader.
#[derive(Debug)]
struct Callers(io::Error);

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Callers {}

/// The error of the innermost reader.
fn cause(error: Error) -> Error {
    let Error::Read(error) = error else { return error };
    match error.downcast::<Refusal>().map_err(io::Error::downcast::<Callers>) {
        Ok(refusal) => refusal.into(),
        Err(Ok(Callers(error)) | Err(error)) => Error::Read(error),
    }
}
