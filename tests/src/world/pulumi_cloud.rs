//! The part of Pulumi Cloud's API that `pulumi` calls in runs with ESC environments: the user,
//! stacks with their state and secrets, updates, and environments that are opened.

use std::{
    collections::BTreeMap,
    io::Read as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, task::JoinSet};

/// The only accepted access token.
pub const TOKEN: &str = "pul-canary-cloud-token-6c1e";
/// The user, whose organization has all stacks.
pub const USER: &str = "team";
/// The token of an update, in place of the access token.
const LEASE: &str = "lease";

/// A running API. Dropping it ends it.
pub struct PulumiCloud {
    /// The backend's URL.
    pub url: String,
    cloud: Arc<Mutex<Cloud>>,
    _server: JoinSet<()>,
}

#[derive(Default)]
struct Cloud {
    /// By `PROJECT/ENVIRONMENT`.
    environments: BTreeMap<String, Value>,
    /// The environments that were opened.
    opened: Vec<Value>,
    /// The deployments, by `ORGANIZATION/PROJECT/STACK`.
    stacks: BTreeMap<String, Value>,
    updates: u32,
}

impl PulumiCloud {
    /// Starts it without stacks and environments.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let cloud = Arc::<Mutex<Cloud>>::default();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&cloud));
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "Pulumi Cloud's API ended");
            }
        });
        Ok(Self { url, cloud, _server: server })
    }

    /// Writes an environment. A secret value is `{ "fn::secret": … }`.
    pub fn set_environment(&self, name: &str, values: &Value) {
        lock(&self.cloud).environments.insert(name.into(), opened(values));
    }

    /// The deployments of the stacks, by `ORGANIZATION/PROJECT/STACK`.
    #[must_use]
    pub fn stacks(&self) -> BTreeMap<String, Value> {
        lock(&self.cloud).stacks.clone()
    }
}

fn lock(cloud: &Mutex<Cloud>) -> MutexGuard<'_, Cloud> {
    cloud.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The values of an environment in ESC's form.
fn opened(value: &Value) -> Value {
    if let Some(secret) = value.get("fn::secret") {
        return json!({ "value": secret, "secret": true, "trace": {} });
    }
    let fields = value.as_object().map(|fields| fields.iter().map(|(name, value)| (name.clone(), opened(value))).collect());
    json!({ "value": fields.map_or_else(|| value.clone(), Value::Object), "trace": {} })
}

/// Merges the values of one environment over those of another.
fn merge(under: &mut Value, over: &Value) {
    match (under["value"].as_object_mut(), over["value"].as_object()) {
        (Some(under), Some(over)) => {
            for (name, value) in over {
                merge(under.entry(name.clone()).or_insert_with(|| json!({})), value);
            }
        }
        _ => *under = over.clone(),
    }
}

async fn serve(
    State(cloud): State<Arc<Mutex<Cloud>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Json<Value>) {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let answer = if shown == format!("token {TOKEN}") || shown == format!("update-token {LEASE}") {
        let path: Vec<_> = uri.path().trim_start_matches("/api/").split('/').collect();
        read(&headers, &body).and_then(|body| lock(&cloud).answer(&method, &path, &body))
    } else {
        Ok(Err((StatusCode::UNAUTHORIZED, "Unauthorized: No credentials provided or are invalid.".into())))
    };
    let failed = |status: StatusCode, message: String| {
        tracing::info!(%method, %uri, %status, message, "Pulumi Cloud refused a call");
        let diagnostics = json!([{ "summary": message }]);
        (status, Json(json!({ "code": status.as_u16(), "message": message, "diagnostics": diagnostics })))
    };
    match answer {
        Ok(Ok(answer)) => (StatusCode::OK, Json(answer)),
        Ok(Err((status, message))) => failed(status, message),
        Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
    }
}

/// A body, which may be compressed or absent.
fn read(headers: &HeaderMap, body: &[u8]) -> Result<Value> {
    let mut text = Vec::new();
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding == "gzip") {
        GzDecoder::new(body).read_to_end(&mut text)?;
    } else {
        text.extend_from_slice(body);
    }
    if text.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_slice(&text)?) }
}

impl Cloud {
    fn answer(&mut self, method: &Method, path: &[&str], body: &Value) -> Result<Result<Value, (StatusCode, String)>> {
        Ok(Ok(match (method.as_str(), path) {
            ("GET", ["user"]) => json!({ "githubLogin": USER, "organizations": [{ "githubLogin": USER }] }),
            ("POST", ["esc", "environments", _, "yaml", call @ ("check" | "open")]) => {
                let mut merged = json!({ "value": {} });
                for name in body["imports"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let Some(environment) = self.environments.get(name) else {
                        return Ok(Err((StatusCode::BAD_REQUEST, format!("unknown environment {name:?}"))));
                    };
                    merge(&mut merged, environment);
                }
                let environment = json!({ "properties": merged["value"] });
                if *call == "check" {
                    return Ok(Ok(environment));
                }
                self.opened.push(environment);
                json!({ "id": (self.opened.len() - 1).to_string() })
            }
            ("GET", ["esc", "environments", _, "yaml", "open", id]) => {
                self.opened.get(id.parse::<usize>()?).context("no such session")?.clone()
            }
            ("POST", ["stacks", organization, project]) => {
                let stack = body["stackName"].as_str().context("stackName")?;
                let none = json!({ "version": 3, "deployment": null });
                self.stacks.insert(format!("{organization}/{project}/{stack}"), none);
                json!({})
            }
            (method, ["stacks", organization, project, stack, call @ ..]) => {
                let name = format!("{organization}/{project}/{stack}");
                if (method, call) == ("DELETE", &[]) {
                    self.stacks.remove(&name);
                    return Ok(Ok(json!({})));
                }
                let Some(deployment) = self.stacks.get_mut(&name) else { return Ok(not_found()) };
                match (method, call) {
                    ("GET", []) => {
                        json!({ "orgName": organization, "projectName": project, "stackName": stack, "tags": {}, "version": self.updates })
                    }
                    ("GET", ["export"]) => deployment.clone(),
                    ("POST", ["encrypt"]) => json!({ "ciphertext": flip(&body["plaintext"])? }),
                    ("POST", ["decrypt"]) => json!({ "plaintext": flip(&body["ciphertext"])? }),
                    ("POST", ["batch-decrypt"]) => {
                        let texts = body["ciphertexts"].as_array().into_iter().flatten();
                        let plain = |text: &Value| Ok((text.as_str().context("a text")?.to_owned(), flip(text)?.into()));
                        json!({ "plaintexts": texts.map(plain).collect::<Result<Map<_, _>>>()? })
                    }
                    ("POST", ["update" | "refresh" | "destroy" | "preview"]) => json!({ "updateID": "an-update" }),
                    ("POST", [_, "an-update"]) => {
                        self.updates += 1;
                        json!({ "version": self.updates, "token": LEASE })
                    }
                    ("PATCH", [_, "an-update", "checkpoint"]) => {
                        deployment.clone_from(body);
                        json!({})
                    }
                    ("POST", [_, "an-update", "renew_lease"]) => json!({ "token": LEASE }),
                    ("POST", [_, "an-update", "complete"] | [_, "an-update", "events", "batch"] | ["decrypt", _]) => json!({}),
                    _ => return Ok(not_found()),
                }
            }
            _ => return Ok(not_found()),
        }))
    }
}

/// The answer for a call that this version does not have, or for a stack that does not exist.
fn not_found() -> Result<Value, (StatusCode, String)> {
    Err((StatusCode::NOT_FOUND, "Not Found".into()))
}

/// Encrypts a text in base64, enough to recognise that it is encrypted; the same call decrypts it.
fn flip(text: &Value) -> Result<String> {
    let bytes = BASE64_STANDARD.decode(text.as_str().context("a text in base64")?)?;
    Ok(BASE64_STANDARD.encode(bytes.iter().map(|byte| byte ^ 0x5a).collect::<Vec<_>>()))
}
