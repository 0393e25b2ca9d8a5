//! The part of GitHub's API that issues tokens to a GitHub App.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use axum::{
    Json, Router,
    extract::{self, State},
    http::{HeaderMap, StatusCode, header},
    routing::post,
};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    dirs::{Dirs, write_private},
    process::{command, output},
};

const APP: &str = "4711";
const INSTALLATION: &str = "815";
/// Its token: a password of git's user `x-access-token`.
pub(super) const TOKEN: &str = "canary-app-token-c2d8";

/// A running API. Dropping it ends it.
pub struct GitHub {
    /// The port on which it serves `/api/v3/`, in clear.
    pub port: u16,
    _server: JoinSet<()>,
}

impl GitHub {
    /// Starts it with one App that has one installation: `app-id`, `app-key`, `installation-id` in
    /// `credentials`.
    pub async fn start(dirs: &Dirs, credentials: &Path) -> Result<Self> {
        let (private, public) = (credentials.join("app-key"), dirs.create("github")?.join("app.der"));
        let mut openssl = command(dirs, "openssl");
        // In GitHub's form: PKCS #1.
        openssl.args(["genrsa", "-traditional", "-out"]).arg(&private).arg("2048");
        output(openssl).await?;
        let mut openssl = command(dirs, "openssl");
        openssl.args(["rsa", "-RSAPublicKey_out", "-outform", "DER", "-in"]).arg(&private).arg("-out").arg(&public);
        output(openssl).await?;
        write_private(&credentials.join("app-id"), APP)?;
        write_private(&credentials.join("installation-id"), INSTALLATION)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let router = Router::new()
            .route("/api/v3/app/installations/{installation}/access_tokens", post(access_token))
            .with_state(Arc::new(fs::read(public)?));
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the GitHub API ended");
            }
        });
        Ok(Self { port, _server: server })
    }
}

async fn access_token(
    State(key): State<Arc<Vec<u8>>>,
    extract::Path(installation): extract::Path<String>,
    headers: HeaderMap,
) -> (StatusCode, Json<Value>) {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    #[expect(clippy::disallowed_methods, reason = "a server on this machine has this machine's clock")]
    let now = Timestamp::now().as_second();
    if let Err(error) = verify(bearer.unwrap_or_default(), &key, now) {
        tracing::info!(%error, "a GitHub App was refused");
        return (StatusCode::UNAUTHORIZED, Json(json!({ "message": "A JSON web token could not be decoded" })));
    }
    if installation != INSTALLATION {
        return (StatusCode::NOT_FOUND, Json(json!({ "message": "Not Found" })));
    }
    (StatusCode::CREATED, Json(json!({ "token": TOKEN, "expires_at": "2100-01-01T00:00:00Z", "permissions": {} })))
}

/// GitHub's checks of an App's token: RS256, by this App, made in the past, and valid for ten
/// minutes at most.
fn verify(token: &str, key: &[u8], now: i64) -> Result<()> {
    let (signed, signature) = token.rsplit_once('.').context("no token")?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature)?;
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key);
    key.verify(signed.as_bytes(), &signature).ok().context("another key's signature")?;
    let (header, claims) = signed.split_once('.').context("two parts")?;
    let part = |text: &str| -> Result<Value> { Ok(serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text)?)?) };
    let (header, claims) = (part(header)?, part(claims)?);
    ensure!(header["alg"] == "RS256", "{header}");
    let app = claims["iss"].as_str().map_or_else(|| claims["iss"].to_string(), str::to_owned);
    let [made, ends] = ["iat", "exp"].map(|claim| claims[claim].as_i64().unwrap_or_default());
    ensure!(app == APP && made <= now && now < ends && ends <= now + 600, "{claims} at {now}");
    Ok(())
}
