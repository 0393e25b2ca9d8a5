//! The credentials of the task's role, from the endpoint that ECS gives a task.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tokio::sync::Mutex;

/// Credentials with less than this left are fetched again: ECS has new ones by then.
const REFRESH_BEFORE: SignedDuration = SignedDuration::from_mins(5);

/// The endpoint of a task's credentials. Has no `Debug`.
#[derive(Clone)]
pub struct CredentialsEndpoint {
    /// The whole URL.
    pub url: String,
    /// The value of the `Authorization` header, if the endpoint requires one.
    pub authorization: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Timestamp,
}

/// Fetches credentials and caches them until shortly before they expire.
pub(crate) struct Provider {
    client: reqwest::Client,
    endpoint: CredentialsEndpoint,
    kept: Mutex<Option<(Credentials, Timestamp)>>,
}

impl Provider {
    pub(crate) fn new(client: reqwest::Client, endpoint: CredentialsEndpoint) -> Self {
        Self { client, endpoint, kept: Mutex::new(None) }
    }

    pub(crate) async fn get(&self, now: Timestamp) -> reqwest::Result<Credentials> {
        let mut kept = self.kept.lock().await;
        if let Some((credentials, expires)) = &*kept
            && now + REFRESH_BEFORE < *expires
        {
            return Ok(credentials.clone());
        }
        let mut request = self.client.get(&self.endpoint.url);
        if let Some(token) = &self.endpoint.authorization {
            request = request.header(reqwest::header::AUTHORIZATION, token);
        }
        let answer: Answer = request.send().await?.error_for_status()?.json().await?;
        let expires = Some(SystemTime::from(answer.expiration));
        let credentials = Credentials::new(answer.access_key_id, answer.secret_access_key, answer.token, expires, "ecs");
        *kept = Some((credentials.clone(), answer.expiration));
        Ok(credentials)
    }
}
