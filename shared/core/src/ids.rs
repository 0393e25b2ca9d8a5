use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares an identifier: a text that is stored as it is and compared as a whole. `Debug` shows
/// the text alone, because messages quote it. No identifier dereferences to `str`, so the compiler
/// refuses one identifier in the place of another.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns whether the text is empty.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl<T: Into<String>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, text: &str) -> bool {
                self.0 == text
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, text: &&str) -> bool {
                self.0 == *text
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

identifier! {
    /// The claim of a Pulumi stack: the name of its Lease, which also names the documents about the
    /// stack. Empty for an Update that was never launched.
    Claim
}

identifier! {
    /// The UID of a Kubernetes object. A later object of the same name has another one.
    Uid
}

identifier! {
    /// The digest of a source artifact as the source states it, such as `sha256:…`. The tree of the
    /// source is stored under it.
    ArtifactDigest
}

identifier! {
    /// The revision of a source as Flux or git reports it: `main@sha1:…`, a commit, or the
    /// generation of a Program. Empty for a run from the state alone.
    Revision
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_is_stored_and_quoted_as_its_text() {
        let uid = Uid::from("0a-1");
        assert_eq!(serde_json::to_string(&uid).unwrap(), r#""0a-1""#);
        assert_eq!(serde_json::from_str::<Uid>(r#""0a-1""#).unwrap(), uid);
        assert_eq!(format!("{uid} {uid:?}"), r#"0a-1 "0a-1""#);
    }
}
