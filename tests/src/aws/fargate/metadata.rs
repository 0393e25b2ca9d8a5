//! The endpoints of a task on 169.254.170.2: its metadata, and its role's credentials.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use driftless_contract::keys;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::state::{Fargate, SESSION, Task};
use crate::aws::machine::now;

/// How long before their expiry credentials are replaced.
const RENEWAL: SignedDuration = SignedDuration::from_mins(15);

type Answer = Result<Json<Value>, StatusCode>;

pub(super) fn serve(fargate: &Arc<Fargate>, listener: TcpListener) {
    let router = Router::new()
        .route("/v4/{secret}", get(container))
        .route("/v4/{secret}/task", get(task))
        .route("/v2/credentials/{secret}", get(credentials))
        .with_state(Arc::clone(fargate));
    fargate.site.tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the task endpoint ended");
        }
    });
}

impl Fargate {
    /// Passes the live task with this part of a path to `look`.
    fn with_task(&self, secret: &str, look: impl FnOnce(&mut Task) -> Answer) -> Answer {
        let mut state = self.state();
        let task = state.tasks.values_mut().find(|task| task.secret == secret && task.stopped.is_none());
        task.map_or(Err(StatusCode::NOT_FOUND), look)
    }
}

async fn container(State(fargate): State<Arc<Fargate>>, Path(secret): Path<String>) -> Answer {
    fargate.with_task(&secret, |task| {
        Ok(Json(task.wire["containers"].as_array().and_then(|all| all.last().map(container_metadata)).unwrap_or_default()))
    })
}

async fn task(State(fargate): State<Arc<Fargate>>, Path(secret): Path<String>) -> Answer {
    fargate.with_task(&secret, |task| {
        let wire = &task.wire;
        let definition = wire["taskDefinitionArn"].as_str().and_then(|arn| arn.rsplit('/').next()).and_then(|name| name.split_once(':'));
        let (family, revision) = definition.unwrap_or_default();
        Ok(Json(json!({
            "Cluster": wire["clusterArn"], "TaskARN": wire["taskArn"], "Family": family, "Revision": revision, "DesiredStatus": wire["desiredStatus"],
            "KnownStatus": wire["lastStatus"], "AvailabilityZone": wire["availabilityZone"], "LaunchType": "FARGATE",
            "PullStartedAt": time(&wire["pullStartedAt"]), "PullStoppedAt": time(&wire["pullStoppedAt"]),
            "Containers": wire["containers"].as_array().into_iter().flatten().map(container_metadata).collect::<Vec<_>>(),
        })))
    })
}

/// A time of the API as the metadata have it.
fn time(epoch: &Value) -> Option<String> {
    let since = SignedDuration::try_from_secs_f64(epoch.as_f64()?).ok()?;
    Some(Timestamp::UNIX_EPOCH.checked_add(since).ok()?.to_string())
}

fn container_metadata(container: &Value) -> Value {
    let digest = format!("sha256:{}", keys::hash(&[container["image"].as_str().unwrap_or_default()]));
    json!({ "ImageID": digest, "Name": container["name"], "Image": container["image"], "ContainerARN": container["containerArn"], "KnownStatus": container["lastStatus"] })
}

async fn credentials(State(fargate): State<Arc<Fargate>>, Path(secret): Path<String>) -> Answer {
    let template = &fargate.site.template;
    fargate.with_task(&secret, |task| {
        let role = &task.role;
        if task.credentials.1.duration_since(now()) < RENEWAL {
            let (session, expires) = (keys::task_id(task.wire["taskArn"].as_str().unwrap_or_default()), now() + SESSION);
            let renewed = fargate.site.identities.session(template, role, session, Some(expires));
            task.credentials = (renewed.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?, expires);
        }
        let (keys, expires) = &task.credentials;
        Ok(Json(json!({
            "RoleArn": template.roles[role].arn, "AccessKeyId": keys.access_key_id, "SecretAccessKey": keys.secret_access_key,
            "Token": keys.session_token, "Expiration": expires.to_string(),
        })))
    })
}
