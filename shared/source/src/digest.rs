//! Digests in the form of Flux and OCI, and the check of streamed content against them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// A hash function that a source may state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// `sha256`
    Sha256,
    /// `sha384`
    Sha384,
    /// `sha512`
    Sha512,
    /// `blake3`, with its usual 32 bytes.
    Blake3,
}

impl Algorithm {
    const ALL: [(Self, &'static str, usize); 4] =
        [(Self::Sha256, "sha256", 64), (Self::Sha384, "sha384", 96), (Self::Sha512, "sha512", 128), (Self::Blake3, "blake3", 64)];
}

/// The digest of some content: `<algorithm>:<lower-case hex>`. Its text contains only letters,
/// digits and one colon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    text: String,
}

/// A text that is not an accepted digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    /// The text is empty.
    #[error("the digest is empty")]
    Empty,
    /// The text has no `<algorithm>:` prefix.
    #[error("the digest does not name its algorithm")]
    NoAlgorithm,
    /// An algorithm that is weak or unknown, such as `sha1`.
    #[error("the digest's algorithm is not one of sha256, sha384, sha512, blake3")]
    Algorithm,
    /// The part after the colon is not hex of the algorithm's length.
    #[error("the digest is not {expected} hex digits long")]
    Hex {
        /// The number of hex digits of the algorithm.
        expected: usize,
    },
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        if text.is_empty() {
            return Err(InvalidDigest::Empty);
        }
        let (name, hex) = text.split_once(':').ok_or(InvalidDigest::NoAlgorithm)?;
        let (algorithm, _, expected) =
            Algorithm::ALL.into_iter().find(|(_, known, _)| *known == name).ok_or(InvalidDigest::Algorithm)?;
        if hex.len() != expected || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidDigest::Hex { expected });
        }
        Ok(Self { algorithm, text: text.to_ascii_lowercase() })
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.text
    }
}

impl Digest {
    /// The SHA-256 of `content`.
    #[must_use]
    pub fn sha256(content: &[u8]) -> Self {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(content);
        hasher.finish()
    }

    pub(crate) fn of_sha256(sha256: &[u8; 32]) -> Self {
        Self { algorithm: Algorithm::Sha256, text: format!("sha256:{}", hex(sha256)) }
    }

    /// The hash function.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The whole text, `<algorithm>:<hex>`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part after the colon.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.text.split_once(':').map_or("", |(_, hex)| hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Computes the digest of streamed content.
pub struct Hasher(State);

enum State {
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    /// Starts with no content.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => State::Sha256(sha2::Sha256::new()),
            Algorithm::Sha384 => State::Sha384(sha2::Sha384::new()),
            Algorithm::Sha512 => State::Sha512(sha2::Sha512::new()),
            Algorithm::Blake3 => State::Blake3(Box::default()),
        })
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::Sha256(hasher) => hasher.update(piece),
            State::Sha384(hasher) => hasher.update(piece),
            State::Sha512(hasher) => hasher.update(piece),
            State::Blake3(hasher) => {
                hasher.update(piece);
            }
        }
    }

    /// The digest of all pieces.
    #[must_use]
    pub fn finish(self) -> Digest {
        let (algorithm, name, hex) = match self.0 {
            State::Sha256(hasher) => (Algorithm::Sha256, "sha256", hex(&hasher.finalize())),
            State::Sha384(hasher) => (Algorithm::Sha384, "sha384", hex(&hasher.finalize())),
            State::Sha512(hasher) => (Algorithm::Sha512, "sha512", hex(&hasher.finalize())),
            State::Blake3(hasher) => (Algorithm::Blake3, "blake3", hex(hasher.finalize().as_bytes())),
        };
        Digest { algorithm, text: format!("{name}:{hex}") }
    }
}

fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}

/// The content does not match. The error does not contain the actual digest, which would be an
/// oracle for the content of others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content does not match its digest {expected}")]
pub struct DigestMismatch {
    /// The stated digest.
    pub expected: Digest,
}

/// Checks streamed content against its stated digest.
pub struct Verifier {
    expected: Digest,
    hasher: Hasher,
}

impl Verifier {
    /// Starts with no content.
    #[must_use]
    pub fn new(expected: Digest) -> Self {
        Self { hasher: Hasher::new(expected.algorithm), expected }
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.hasher.update(piece);
    }

    /// Returns an error if the whole content does not match the stated digest.
    pub fn finish(self) -> Result<(), DigestMismatch> {
        if self.hasher.finish() == self.expected { Ok(()) } else { Err(DigestMismatch { expected: self.expected }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accepted_algorithm_verifies_its_own_content_and_no_other() {
        for (algorithm, name, length) in Algorithm::ALL {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"con");
            hasher.update(b"tent");
            let digest = hasher.finish();
            assert_eq!((digest.as_str().parse(), digest.hex().len()), (Ok(digest.clone()), length), "{name}");
            let verify = |content: &[u8]| {
                let mut verifier = Verifier::new(digest.clone());
                verifier.update(content);
                verifier.finish()
            };
            assert_eq!(verify(b"content"), Ok(()), "{name}");
            assert_eq!(verify(b"another"), Err(DigestMismatch { expected: digest.clone() }), "{name}");
        }
    }

    #[test]
    fn digest_of_empty_content_matches_the_published_value() {
        let sha256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let blake3 = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Hasher::new(Algorithm::Sha256).finish().as_str(), sha256);
        assert_eq!(Hasher::new(Algorithm::Blake3).finish().as_str(), blake3);
        assert_eq!(sha256.to_uppercase().replace("SHA", "sha").parse::<Digest>().map(String::from), Ok(sha256.into()));
    }

    #[test]
    fn invalid_digest_is_refused_by_name() {
        let parse = |text: &str| text.parse::<Digest>().map(String::from);
        assert_eq!(parse(""), Err(InvalidDigest::Empty));
        assert_eq!(parse(&"0".repeat(64)), Err(InvalidDigest::NoAlgorithm));
        assert_eq!(parse(&format!("sha1:{}", "0".repeat(40))), Err(InvalidDigest::Algorithm));
        assert_eq!(parse("sha256:"), Err(InvalidDigest::Hex { expected: 64 }));
        assert_eq!(parse(&format!("sha512:{}", "0".repeat(64))), Err(InvalidDigest::Hex { expected: 128 }));
        assert_eq!(parse(&format!("sha256:{}", "/".repeat(64))), Err(InvalidDigest::Hex { expected: 64 }));
    }
}
