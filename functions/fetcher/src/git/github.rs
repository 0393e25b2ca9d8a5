//! Exchanges the key of a GitHub App for a token of its installation.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use reqwest::{
    StatusCode, Url,
    header::{ACCEPT, USER_AGENT},
};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;

use super::{GitError, Settings, http::Login, net};

const WHO: &str = "the GitHub API";
/// A token is some tens of bytes; the rest of the answer a few thousand.
const MAX_ANSWER: usize = 1 << 20;

/// The answer of the API.
#[derive(Deserialize)]
struct Token {
    token: SecretString,
}

/// An installation of a GitHub App.
pub(super) struct App {
    pub id: String,
    pub installation: String,
    pub key: SecretString,
    pub source_name: String,
    /// The field of the spec that names it.
    pub field: &'static str,
}

/// Requests a token of the installation, which serves as a password for git.
pub(super) async fn token(app: &App, settings: &Settings, now: Timestamp) -> Result<Login, GitError> {
    if app.installation.is_empty() || !app.installation.bytes().all(|c| c.is_ascii_digit()) {
        return Err(wrong(app, &format!("is of an App without an installation: {}.installationID is not a number", app.field)));
    }
    let bad_setting = |why: &str| GitError::Setting { setting: "GITHUB_API_URL", why: why.to_owned() };
    let base = settings.github_api_url.trim_end_matches('/');
    let url: Url = format!("{base}/app/installations/{}/access_tokens", app.installation)
        .parse()
        .map_err(|_| bad_setting("it is not a URL"))?;
    let host = url.host_str().ok_or_else(|| bad_setting("it has no host"))?;
    let port = url.port_or_known_default().ok_or_else(|| bad_setting("it is neither https nor http"))?;
    let addresses = net::addresses(host, port, settings.allow_local).await?;
    let client = net::client(addresses, &settings.ca_certificates)?;
    let request = client.post(url).bearer_auth(jwt(app, now)?);
    // Some servers require the length of a POST, which a request without a body does not have.
    let request = request.header(ACCEPT, "application/vnd.github+json").header(USER_AGENT, "driftless").body("{}");
    let unreachable = |error| GitError::Unreachable { who: WHO, why: net::words(error) };
    let mut response = request.send().await.map_err(unreachable)?;
    match response.status() {
        StatusCode::CREATED => {}
        StatusCode::UNAUTHORIZED => {
            return Err(wrong(app, &format!("is not accepted by GitHub as the key of the App in {}.appID", app.field)));
        }
        StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            return Err(wrong(app, &format!("is of an App that has no installation {}.installationID", app.field)));
        }
        status => return Err(GitError::Status { who: WHO, status: status.as_u16() }),
    }
    let mut answer = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(unreachable)? {
        answer.extend_from_slice(&piece);
        if answer.len() > MAX_ANSWER {
            return Err(GitError::Unreachable { who: WHO, why: "its answer is too long".into() });
        }
    }
    let Token { token } =
        serde_json::from_slice(&answer).map_err(|_| GitError::Unreachable { who: WHO, why: "its answer is invalid".into() })?;
    Ok(Login { user: "x-access-token".into(), password: token, source_name: app.source_name.clone() })
}

/// The App's signed claims. GitHub accepts ten minutes at most; the past minute allows for clock
/// differences.
fn jwt(app: &App, now: Timestamp) -> Result<String, GitError> {
    let unusable = || wrong(app, "cannot be used: it is not an RSA private key in PEM form");
    let key = match PrivateKeyDer::from_pem_slice(app.key.expose_secret().as_bytes()) {
        Ok(PrivateKeyDer::Pkcs1(key)) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
        Ok(PrivateKeyDer::Pkcs8(key)) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
        _ => return Err(unusable()),
    };
    let key = key.map_err(|_| unusable())?;
    let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let now = now.as_second();
    let claims = json!({ "iat": now - 60, "exp": now + 540, "iss": app.id });
    let signed = format!("{}.{}", part(json!({ "alg": "RS256", "typ": "JWT" })), part(claims));
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).map_err(|_| unusable())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn wrong(app: &App, why: &str) -> GitError {
    GitError::Credential { source_name: app.source_name.clone(), why: why.into() }
}
