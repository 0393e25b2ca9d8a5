//! A tenant's private key. A crafted key can need any amount of time and memory to decrypt, so only
//! keys of ssh-keygen's form are opened.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use russh::keys::{PrivateKey, decode_secret_key, ssh_key::Kdf};

/// The maximum size of a key's text: an RSA key of 8192 bits has 6.5 KB.
const MAX_BYTES: usize = 8 << 10;
/// The maximum length of an RSA modulus.
const MAX_MODULUS_BYTES: usize = 8192 / 8;
/// The maximum number of bcrypt rounds. ssh-keygen uses 24; 256 take two or three seconds.
const MAX_ROUNDS: u32 = 256;

const OPENSSH: [&str; 2] = ["-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"];

/// Opens a private key in the OpenSSH form or in PEM. May take seconds. The error has the fact and
/// the remedy, and continues a sentence that begins with the key's name.
pub(super) fn open(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("has more than {MAX_BYTES} bytes; use an Ed25519 key"));
    }
    let key = decoded(text, passphrase)?;
    // A longer modulus would block the thread that enforces the time limit.
    match key.public_key().key_data().rsa().and_then(|key| key.n().as_positive_bytes()) {
        Some(modulus) if modulus.len() > MAX_MODULUS_BYTES => {
            Err("is an RSA key of more than 8192 bits; use an Ed25519 key".into())
        }
        _ => Ok(key),
    }
}

fn decoded(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    let passphrase_error = match passphrase {
        Some(_) => "its passphrase is wrong",
        None => "it needs its passphrase (password)",
    };
    // The library cannot read a P-256 key whose private number has fewer than 32 bytes: one of 256.
    let unreadable = || {
        format!(
            "cannot be opened: it is not a private key in PEM form, or {passphrase_error}; if it is an ECDSA key that ssh \
             opens, use an Ed25519 key"
        )
    };
    let lines = text.lines().map(str::trim);
    if lines.clone().any(|line| line == OPENSSH[0]) {
        let body: String = lines.skip_while(|line| *line != OPENSSH[0]).skip(1).take_while(|line| *line != OPENSSH[1]).collect();
        let key = STANDARD.decode(body).ok().and_then(|bytes| PrivateKey::from_bytes(&bytes).ok()).ok_or_else(unreadable)?;
        return match (key.kdf(), passphrase) {
            (Kdf::Bcrypt { rounds, .. }, _) if *rounds > MAX_ROUNDS => Err(format!(
                "has {rounds} rounds of bcrypt, the maximum is {MAX_ROUNDS}; write it again with ssh-keygen -p -a 100"
            )),
            _ if !key.is_encrypted() => Ok(key),
            (_, Some(passphrase)) => key.decrypt(passphrase).map_err(|_| unreadable()),
            (_, None) => Err(unreadable()),
        };
    }
    // The library reads this form too.
    if text.trim_start().starts_with("PuTTY-") {
        return Err(unreadable());
    }
    if text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        return Err(
            "is an encrypted PKCS#8 key, which is not supported; convert it to the OpenSSH format with ssh-keygen -p".into()
        );
    }
    // Of the other forms only that of old RSA keys has a passphrase, with a key derived by one MD5.
    // The library uses the last block's form.
    let is_rsa = text.contains("-----BEGIN RSA PRIVATE KEY-----") && text.matches("-----BEGIN ").count() == 1;
    let passphrase = passphrase.filter(|_| is_rsa);
    decode_secret_key(text, passphrase).map_err(|_| unreadable())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Makes a key with ssh-keygen.
    fn made(more: &[&str], passphrase: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let made = Command::new("ssh-keygen").args(["-q", "-N", passphrase, "-f"]).arg(&path).args(more).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn keys_of_ssh_keygen_are_opened() {
        for (more, passphrase) in [
            (&["-t", "ed25519"][..], ""),
            (&["-t", "ed25519", "-a", "30"], "canary"),
            (&["-t", "rsa", "-b", "2048", "-m", "PEM"], ""),
            (&["-t", "rsa", "-b", "2048", "-m", "PEM"], "canary"),
            (&["-t", "rsa", "-b", "2048", "-m", "PKCS8"], ""),
        ] {
            let key = made(more, passphrase);
            let given = Some(passphrase).filter(|passphrase| !passphrase.is_empty());
            assert!(open(&key, given).is_ok(), "{more:?} {given:?}: {:?}", open(&key, given));
            assert!(given.is_none() || open(&key, None).unwrap_err().contains("needs its passphrase"));
            assert!(given.is_none() || open(&key, Some("other")).unwrap_err().contains("passphrase is wrong"));
            let indented = key.replace('\n', "\r\n");
            assert!(open(&indented, given).is_ok(), "{more:?} with the lines of Windows");
        }
    }

    #[test]
    fn keys_that_are_costly_to_open_are_refused() {
        let costly = made(&["-t", "ed25519", "-a", "257"], "canary");
        assert!(open(&costly, Some("canary")).unwrap_err().contains("has 257 rounds of bcrypt, the maximum is 256"));
        let pkcs8 = made(&["-t", "rsa", "-b", "2048", "-m", "PKCS8"], "canary");
        assert!(open(&pkcs8, Some("canary")).unwrap_err().contains("encrypted PKCS#8"));
        // The same under another name, for which the library would derive a key from the
        // passphrase.
        let renamed = pkcs8.replace("ENCRYPTED PRIVATE KEY", "PRIVATE KEY");
        assert!(open(&renamed, Some("canary")).unwrap_err().contains("cannot be opened"));
        for behind in ["-----BEGIN RSA PRIVATE KEY-----\n", "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-256-CBC,00\n"] {
            assert!(open(&format!("{behind}{renamed}"), Some("canary")).unwrap_err().contains("cannot be opened"));
        }
        let putty = "PuTTY-User-Key-File-3: ssh-ed25519\nKey-Derivation: Argon2id\nArgon2-Memory: 4000000000\n-----BEGIN ";
        assert!(open(putty, Some("canary")).unwrap_err().contains("cannot be opened"));
        assert!(open(&"x".repeat(MAX_BYTES + 1), None).unwrap_err().contains("more than 8192 bytes"));
    }
}
