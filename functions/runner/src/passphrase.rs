//! Secrets in a stack's settings file, as Pulumi encrypts them with a passphrase: AES-256-GCM, with
//! a key that PBKDF2 derives from the passphrase and a salt. One derivation serves all secrets of a
//! run; each `config set` of Pulumi needs its own.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    num::NonZeroU32,
    path::Path,
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    pbkdf2,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};

const ITERATIONS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// The decrypted check value of a salt.
const CHECK: &[u8] = b"pulumi";

/// Returns the passphrase that Pulumi finds in its environment when called in this directory.
pub(crate) fn of(environment: &BTreeMap<OsString, OsString>, dir: &Path) -> Option<String> {
    let variable = |name: &str| environment.get(OsStr::new(name));
    if let Some(passphrase) = variable("PULUMI_CONFIG_PASSPHRASE") {
        return passphrase.to_str().map(str::to_owned);
    }
    let file = variable("PULUMI_CONFIG_PASSPHRASE_FILE").filter(|file| !file.is_empty())?;
    Some(fs::read_to_string(dir.join(file)).ok()?.trim().to_owned())
}

/// A key that encrypts secrets.
pub(crate) struct Passphrase(RandomizedNonceKey);

impl Passphrase {
    /// Returns the key for a passphrase and a file's `encryptionsalt`; `None` if the salt belongs
    /// to another passphrase or form.
    pub(crate) fn new(passphrase: &str, salt: &str) -> Option<Self> {
        let (salt, check) = salt.strip_prefix("v1:")?.split_once(':')?;
        let (nonce, check) = check.strip_prefix("v1:")?.split_once(':')?;
        let [salt, nonce, mut check] = [salt, nonce, check].map(|part| STANDARD.decode(part).unwrap_or_default());
        let mut key = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, &salt, passphrase.as_bytes(), &mut key);
        let key = RandomizedNonceKey::new(&AES_256_GCM, &key).ok()?;
        let nonce = Nonce::from(&<[u8; NONCE_LEN]>::try_from(nonce).ok()?);
        let decrypted = key.open_in_place(nonce, Aad::empty(), &mut check).ok()?;
        (decrypted == CHECK).then_some(Self(key))
    }

    /// Returns a secret in the form of the settings file.
    pub(crate) fn encrypt(&self, secret: &str) -> Option<String> {
        let mut text = secret.as_bytes().to_vec();
        let nonce = self.0.seal_in_place_append_tag(Aad::empty(), &mut text).ok()?;
        Some(format!("v1:{}:{}", STANDARD.encode(nonce.as_ref()), STANDARD.encode(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Pulumi 3.259 wrote it for the passphrase "pw".
    const SALT: &str = "v1:EAqe1n0Wkwo=:v1:0n7VeclnEGpRlhE0:aBeMyY8MAudbDgXv/0st1XiBn+FhSQ==";

    #[test]
    fn secret_is_encrypted_with_the_salt_of_its_passphrase_alone() {
        let key = Passphrase::new("pw", SALT).unwrap();
        let [one, other] = ["é\n", "é\n"].map(|secret| key.encrypt(secret).unwrap());
        assert_ne!(one, other, "each has its own nonce");
        let (nonce, text) = one.strip_prefix("v1:").and_then(|rest| rest.split_once(':')).unwrap();
        let (nonce, mut text) = (STANDARD.decode(nonce).unwrap(), STANDARD.decode(text).unwrap());
        let nonce = Nonce::from(&<[u8; NONCE_LEN]>::try_from(nonce).unwrap());
        assert_eq!(key.0.open_in_place(nonce, Aad::empty(), &mut text).unwrap(), "é\n".as_bytes());
    }

    #[test]
    fn other_passphrase_or_other_form_is_left_to_pulumi() {
        assert!(Passphrase::new("other", SALT).is_none());
        for salt in
            ["", "v1:", "v2:EAqe1n0Wkwo=:v1:0n7VeclnEGpRlhE0:aBeMyY8MAudbDgXv/0st1XiBn+FhSQ==", "v1:a:v1:b:c", "v1:EAqe1n0Wkwo="]
        {
            assert!(Passphrase::new("pw", salt).is_none(), "{salt}");
        }
    }
}
