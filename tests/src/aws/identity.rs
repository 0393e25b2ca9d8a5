//! The callers: every role session has its own key pair.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use anyhow::{Result, anyhow};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{machine::random_hex, template::Template};

/// A key pair with its session's token. Has no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    /// `AWS_ACCESS_KEY_ID`
    pub access_key_id: String,
    /// `AWS_SECRET_ACCESS_KEY`
    pub secret_access_key: String,
    /// `AWS_SESSION_TOKEN`; `None` for long-lived keys.
    pub session_token: Option<String>,
}

/// The holder of a key pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// `arn:aws:sts::…:assumed-role/<role>/<session>`, or the administrator's.
    pub arn: String,
    /// `aws:userid`: `<role id>:<session>`.
    pub userid: String,
    /// The logical id of the role; `None` for the administrator, who has all permissions.
    pub role: Option<String>,
    /// When the keys stop working.
    pub expires: Option<Timestamp>,
}

/// All issued key pairs.
#[derive(Default)]
pub struct Identities(RwLock<HashMap<String, (Arc<Caller>, Credentials)>>);

impl Credentials {
    /// New long-lived keys, which no policy allows anything yet.
    pub fn random() -> Result<Self> {
        Ok(Self { access_key_id: access_key_id("AKIA")?, secret_access_key: random_hex(20)?, session_token: None })
    }
}

fn access_key_id(prefix: &str) -> Result<String> {
    Ok(format!("{prefix}{}", random_hex(8)?.to_uppercase()))
}

impl Identities {
    /// Makes the keys those of the administrator, who has all permissions.
    pub fn administrator(&self, account: &str, keys: Credentials) -> Result<()> {
        let caller = Caller {
            arn: format!("arn:aws:iam::{account}:user/administrator"),
            userid: "AIDAADMINISTRATOR".into(),
            role: None,
            expires: None,
        };
        self.give(caller, keys)
    }

    /// Keys of a session of the role with that logical id.
    pub fn session(&self, template: &Template, role: &str, session: &str, expires: Option<Timestamp>) -> Result<Credentials> {
        let details = template.roles.get(role).ok_or_else(|| anyhow!("the template has no role {role}"))?;
        let name = details.arn.rsplit('/').next().unwrap_or_default();
        let arn = format!("arn:aws:sts::{}:assumed-role/{name}/{session}", template.account);
        let caller = Caller { arn, userid: format!("{}:{session}", details.id), role: Some(role.into()), expires };
        let session_token = Some(random_hex(64)?);
        let keys = Credentials { access_key_id: access_key_id("ASIA")?, secret_access_key: random_hex(20)?, session_token };
        self.give(caller, keys.clone())?;
        Ok(keys)
    }

    fn give(&self, caller: Caller, keys: Credentials) -> Result<()> {
        let mut known = self.0.write().map_err(|_| anyhow!("the identities are poisoned"))?;
        known.insert(keys.access_key_id.clone(), (Arc::new(caller), keys));
        Ok(())
    }

    /// The holder of the key pair, and the whole pair, if it has not expired.
    pub fn holder(&self, access_key_id: &str, now: Timestamp) -> Option<(Arc<Caller>, Credentials)> {
        let known = self.0.read().ok()?.get(access_key_id).cloned()?;
        known.0.expires.is_none_or(|expires| now < expires).then_some(known)
    }
}
