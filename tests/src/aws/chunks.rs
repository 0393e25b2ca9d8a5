//! A body in chunks with a checksum behind them (`aws-chunked`), which the SDK sends for a file:
//! `SIZE\r\nDATA\r\n` for each chunk, the size 0, and the trailer `NAME:CHECKSUM\r\n\r\n`. Without
//! TLS, which the world has not, the SDK signs chunks and trailer as well; these signatures are not
//! verified.

use aws_smithy_checksums::{ChecksumAlgorithm, http::HttpChecksum};
use axum::http::HeaderMap;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// The values of `x-amz-content-sha256` for such a body.
pub const TRAILED: [&str; 2] = ["STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"];
/// The maximum length of a line: a size, or a trailer.
const MAX_LINE: usize = 256;

/// A body while it passes.
pub struct Chunks {
    place: Place,
    line: Vec<u8>,
    /// How many bytes of content are still to come.
    missing: Option<u64>,
    trailer: String,
    checksum: Option<Box<dyn HttpChecksum>>,
}

#[derive(Debug, PartialEq)]
enum Place {
    Size,
    Data(u64),
    /// Behind the data of a chunk.
    Break,
    Trailer,
    /// The checksum was right.
    Verified,
    End,
    Broken,
}

impl Chunks {
    /// The body of a request with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let trailer = text("x-amz-trailer").unwrap_or_default().to_owned();
        let algorithm: Option<ChecksumAlgorithm> =
            trailer.strip_prefix("x-amz-checksum-").and_then(|algorithm| algorithm.parse().ok());
        let missing = text("x-amz-decoded-content-length").and_then(|length| length.parse().ok());
        Self { place: Place::Size, line: Vec::new(), missing, trailer, checksum: algorithm.map(ChecksumAlgorithm::into_impl) }
    }

    /// The next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Place::Data(left) = self.place {
                let (data, rest) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                let taken = data.len() as u64;
                self.missing = self.missing.and_then(|missing| missing.checked_sub(taken));
                if let Some(checksum) = &mut self.checksum {
                    checksum.update(data);
                }
                self.place = if taken == left { Place::Break } else { Place::Data(left - taken) };
                bytes = rest;
            } else {
                self.line.push(byte);
                bytes = rest;
                if self.line.ends_with(b"\r\n") {
                    let line = std::mem::take(&mut self.line);
                    self.place = self.after(&line[..line.len() - 2]);
                } else if self.line.len() > MAX_LINE {
                    self.place = Place::Broken;
                }
            }
        }
    }

    /// The place after a line.
    fn after(&mut self, line: &[u8]) -> Place {
        let line = str::from_utf8(line).unwrap_or("?");
        match self.place {
            Place::Size => match u64::from_str_radix(line.split(';').next().unwrap_or_default(), 16) {
                Ok(0) => Place::Trailer,
                Ok(size) => Place::Data(size),
                Err(_) => Place::Broken,
            },
            Place::Break if line.is_empty() => Place::Size,
            Place::Trailer => {
                let declared = line.split_once(':').filter(|(name, _)| *name == self.trailer).map(|(_, value)| value.trim());
                let declared = declared.and_then(|value| BASE64_STANDARD.decode(value).ok());
                let real = self.checksum.take().map(<dyn HttpChecksum>::finalize);
                if real.is_some() && declared.as_deref() == real.as_deref() { Place::Verified } else { Place::Broken }
            }
            Place::Verified if line.is_empty() => Place::End,
            Place::Verified if line.starts_with("x-amz-trailer-signature:") => Place::Verified,
            _ => Place::Broken,
        }
    }

    /// Returns whether the body is complete and has the checksum that it ends with.
    pub fn verify(&self) -> bool {
        self.place == Place::End && self.missing == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "6\r\nhello \r\n5\r\nworld\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n";

    fn is_right(body: &str, piece: usize) -> bool {
        let headers = [("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-decoded-content-length", "11")];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let mut chunks = Chunks::of(&HeaderMap::from_iter(headers));
        body.as_bytes().chunks(piece).for_each(|piece| chunks.update(piece));
        chunks.verify()
    }

    #[test]
    fn checksum_behind_the_chunks_is_that_of_their_data() {
        for piece in 1..=WHOLE.len() {
            assert!(is_right(WHOLE, piece), "{piece}");
        }
        let signed = WHOLE.replace("6\r\n", "6;chunk-signature=0\r\n").replace("==\r\n", "==\r\nx-amz-trailer-signature:0\r\n");
        assert!(is_right(&signed, 7), "{signed}");
        let broken = [
            WHOLE.replace("world", "World"),
            WHOLE.replace("DUoRhQ==", "DUoRhA=="),
            WHOLE.replace("DUoRhQ==", "?"),
            WHOLE.replace("crc32:", "crc32c:"),
            WHOLE.replace("5\r\nworld", "4\r\nworl"),
            WHOLE.replace("6\r\n", "g\r\n"),
            WHOLE.replace("x-amz-checksum-crc32:DUoRhQ==\r\n", ""),
            WHOLE[..WHOLE.len() - 2].to_owned(),
            format!("{WHOLE}5\r\n"),
            String::new(),
            "1".repeat(MAX_LINE + 2),
        ];
        for body in broken {
            assert!(!is_right(&body, 7), "{body}");
        }
    }
}
