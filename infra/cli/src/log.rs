//! `logs`: the masked log of a run, by the link in the status of its Update, or from the ConfigMap
//! with its last part.

use std::{collections::BTreeMap, time::Duration};

use driftless_api::{LogLink, Stack, Update, names};
use http::{Request, StatusCode, Uri, header::RANGE, uri::PathAndQuery};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, Config, ResourceExt as _, client::Body};
use serde_json::json;

use crate::{Error, Result, cluster::Cluster, render::clean, view};

/// The time between two reads of a log that is followed.
const PERIOD: Duration = Duration::from_millis(500);

/// The maximum number of bytes that are read at once.
const PIECE: usize = 1 << 20;

/// A read of a link that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The Update whose log is meant by a Stack: the current one, else the last one.
#[must_use]
pub fn of_stack(stack: &Stack) -> Option<String> {
    let status = stack.status.as_ref()?;
    let current = status.current_update.as_ref().and_then(|current| current.name.clone());
    current.or_else(|| status.last_update.as_ref()?.name.clone())
}

/// The parts that follow the one with the key `after`, and the key of the last part.
#[must_use]
pub fn parts_after(data: &BTreeMap<String, String>, after: Option<&str>) -> (String, Option<String>) {
    let parts = data.iter().filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let text = parts.map(|(_, part)| part.as_str()).collect();
    (text, data.last_key_value().map(|(key, _)| key.clone()).or_else(|| after.map(ToOwned::to_owned)))
}

/// Why an Update has no log.
#[must_use]
pub fn absent(update: &Update) -> String {
    let name = update.name_any();
    match view::phase(update) {
        view::Phase::Waiting(reason, message) if !reason.is_empty() => {
            format!("Update {name} has no log yet: it waits: {reason}: {message}")
        }
        view::Phase::Waiting(..) => format!("Update {name} has no log yet: its task has not started"),
        view::Phase::Running => format!("Update {name} has no log yet: the first lines appear within a minute"),
        view::Phase::Succeeded | view::Phase::Failed(_) => match view::ours(update).log {
            Some(address) => format!("Update {name} has no log in the cluster; the whole log is at {address}"),
            None => format!("Update {name} has no log: it ended without a task"),
        },
    }
}

fn config_map(update: &Update) -> String {
    view::ours(update).log_config_map.unwrap_or_else(|| format!("{}{}", update.name_any(), names::LOG_SUFFIX))
}

/// A log as far as it can be read now.
#[derive(Default)]
pub struct Log {
    /// All of it.
    pub whole: String,
    /// What follows the position that was given.
    pub text: String,
    /// The position of its end: a byte of the whole log, or the key of the last part.
    pub last: Option<String>,
}

/// What a position in the whole log starts with. It sorts after the keys of all parts.
const BYTE: char = 'b';

/// The log of an Update by its link, else from its ConfigMap, and what follows a position that an
/// earlier call returned. `None` if it has no log.
pub async fn read(cluster: &Cluster, update: &Update, after: Option<&str>) -> Result<Option<Log>> {
    if let Some(link) = link(update).filter(|_| after.is_none_or(|after| after.starts_with(BYTE))) {
        let (mut whole, mut log) = (String::new(), Whole::default());
        if let Ok(true) = log.print(&link, &mut |text| whole.push_str(text)).await {
            let from = after.and_then(|after| after.strip_prefix(BYTE)?.parse().ok()).unwrap_or(0);
            let text = whole.get(from..).unwrap_or_default().to_owned();
            let last = Some(format!("{BYTE}{}", whole.len()));
            return Ok(Some(Log { whole, text, last }));
        }
    }
    let namespace = update.namespace().unwrap_or_default();
    let Some(found) = cluster.find::<ConfigMap>(&namespace, &config_map(update)).await? else { return Ok(None) };
    let parts = found.data.unwrap_or_default();
    let (text, last) = parts_after(&parts, after);
    Ok(Some(Log { whole: parts_after(&parts, None).0, text, last }))
}

/// The link to the whole log of an Update.
fn link(update: &Update) -> Option<LogLink> {
    update.status.as_ref()?.driftless.as_ref()?.log_link.clone()
}

/// How long a new link is awaited.
const RENEWAL: SignedDuration = SignedDuration::from_secs(30);

/// Whether the link of an ended run has expired. A live run renews its link by itself.
fn has_expired(update: &Update, now: Timestamp) -> bool {
    let works = |link: LogLink| link.expires.is_some_and(|expires| expires.0 > now);
    update.is_complete() && link(update).is_some_and(|link| !works(link))
}

/// What became of a request for a new link, for a person.
#[derive(Debug)]
pub enum Renewal {
    /// The link works, or there is none.
    None,
    /// It was requested at this time, and is awaited.
    Awaited(Timestamp, String),
    /// There will be none.
    Refused(String),
}

/// Requests a new link in place of the expired one of an ended run, which needs the right to patch
/// the Update. A request that was made at the time `requested` is awaited, and not repeated.
pub async fn renewal(cluster: &Cluster, update: &Update, requested: Option<Timestamp>, now: Timestamp) -> Renewal {
    if !has_expired(update, now) {
        return Renewal::None;
    }
    let at = requested.unwrap_or(now);
    if now.duration_since(at) >= RENEWAL {
        return Renewal::Refused(format!("no new link after {}s; the last 512 KiB are shown", RENEWAL.as_secs()));
    }
    if requested.is_none() {
        let [namespace, name] = [update.namespace().unwrap_or_default(), update.name_any()];
        let patch = json!({ "metadata": { "annotations": { names::LOG_REQUESTED_AT: now.to_string() } } });
        if let Err(error) = cluster.patch::<Update>(&namespace, &name, &patch).await {
            let refused = "link to the log has expired; no new one can be requested, and the last 512 KiB are shown";
            return Renewal::Refused(format!("{refused}: {error}"));
        }
    }
    let told = format!("link to the log has expired; requested a new one by the annotation {}", names::LOG_REQUESTED_AT);
    Renewal::Awaited(at, told)
}

/// The Updates with links that work, as far as new ones can be had. See [`renewal`]; a note says
/// what was done.
pub async fn renewed(
    cluster: &Cluster,
    mut updates: Vec<Update>,
    now: fn() -> Timestamp,
    mut note: impl FnMut(&str),
) -> Result<Vec<Update>> {
    let mut requests: Vec<Option<Timestamp>> = vec![None; updates.len()];
    let mut told: Vec<String> = Vec::new();
    loop {
        let mut is_awaited = false;
        for (update, requested) in updates.iter_mut().zip(&mut requests) {
            let text = match renewal(cluster, update, *requested, now()).await {
                Renewal::None => continue,
                Renewal::Awaited(at, text) => {
                    (*requested, is_awaited) = (Some(at), true);
                    text
                }
                Renewal::Refused(text) => text,
            };
            // One note for several runs.
            if !told.contains(&text) {
                note(&text);
                told.push(text);
            }
        }
        if !is_awaited {
            return Ok(updates);
        }
        tokio::time::sleep(PERIOD).await;
        for (update, _) in updates.iter_mut().zip(&requests).filter(|(_, requested)| requested.is_some()) {
            let [namespace, name] = [update.namespace().unwrap_or_default(), update.name_any()];
            if let Some(found) = cluster.find(&namespace, &name).await? {
                *update = found;
            }
        }
    }
}

/// The next whole lines of the log behind a link, from this byte on; empty if there is no more. The
/// link is the only credential.
async fn piece(link: &LogLink, from: usize) -> Result<Vec<u8>> {
    let unusable = |why: &dyn std::fmt::Display| Error::failed(format!("cannot read the log by its link: {why}"));
    let uri: Uri = link.url.parse().map_err(|error| unusable(&error))?;
    // An emulator on this machine has no certificate.
    let is_local = matches!(uri.host(), Some("127.0.0.1" | "localhost"));
    if uri.scheme_str() != Some("https") && !is_local {
        return Err(unusable(&"its scheme is not https"));
    }
    let mut server = uri.clone().into_parts();
    server.path_and_query = Some(PathAndQuery::from_static("/"));
    let server = Uri::from_parts(server).map_err(|error| unusable(&error))?;
    let request = Request::get(uri).header(RANGE, format!("bytes={from}-{}", from + PIECE - 1));
    let request = request.body(Body::empty()).map_err(|error| unusable(&error))?;
    let mut config = Config::new(server);
    config.read_timeout = Some(TIMEOUT);
    let response = Client::try_from(config).map_err(|error| unusable(&error))?.send(request).await;
    let response = response.map_err(|error| unusable(&error))?;
    match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            let mut bytes = response.into_body().collect_bytes().await.map_err(|error| unusable(&error))?.to_vec();
            if bytes.len() >= PIECE {
                bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(PIECE, |end| end + 1));
            }
            Ok(bytes)
        }
        // The end of the log, or no line yet.
        StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::NOT_FOUND => Ok(Vec::new()),
        status => Err(unusable(&status)),
    }
}

/// The log behind the links of an Update, read up to a byte.
#[derive(Default)]
struct Whole {
    read: usize,
}

impl Whole {
    /// Prints what follows. Returns whether the log has any line.
    async fn print(&mut self, link: &LogLink, out: &mut impl FnMut(&str)) -> Result<bool> {
        loop {
            let bytes = piece(link, self.read).await?;
            if bytes.is_empty() {
                return Ok(self.read > 0);
            }
            self.read += bytes.len();
            out(&clean(&String::from_utf8_lossy(&bytes)));
        }
    }
}

/// Prints the log of an Update; if it is followed, until the run has ended.
pub async fn print(
    cluster: &Cluster,
    update: Update,
    follow: bool,
    mut out: impl FnMut(&str),
    mut note: impl FnMut(&str),
) -> Result<()> {
    let name = update.name_any();
    let config_map = config_map(&update);
    let mut update = Some(update);
    let mut last = None;
    let mut told = String::new();
    let mut whole = Whole::default();
    loop {
        // The whole log is stored before the Update is complete.
        let is_over = update.as_ref().is_none_or(Update::is_complete);
        let by_link = match update.as_ref().and_then(link).filter(|_| last.is_none()) {
            Some(link) => Some(whole.print(&link, &mut out).await),
            None => None,
        };
        let is_last = is_over || !follow;
        match by_link {
            Some(Ok(true)) if is_last => return Ok(()),
            // The link of an Update that was deleted is gone, and so is its ConfigMap.
            None if whole.read > 0 && is_last => return Ok(()),
            Some(Err(error)) if whole.read > 0 && is_last => return Err(error),
            // A live run replaces a link that no longer works.
            _ if whole.read > 0 => {
                tokio::time::sleep(PERIOD).await;
                update = cluster.find(&cluster.namespace, &name).await?;
                continue;
            }
            // No line yet, or the link no longer works: the ConfigMap has the last part.
            _ => {}
        }
        match cluster.find::<ConfigMap>(&cluster.namespace, &config_map).await? {
            Some(found) => {
                let (text, end) = parts_after(&found.data.unwrap_or_default(), last.as_deref());
                out(&clean(&text));
                last = end;
            }
            None if last.is_some() => {}
            None => {
                let why = update.as_ref().map_or_else(|| format!("Update {name} was deleted"), absent);
                if is_last {
                    return Err(Error::failed(why));
                }
                if why != told {
                    note(&why);
                    told = why;
                }
            }
        }
        if is_last {
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
        update = cluster.find(&cluster.namespace, &name).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn link_without_tls_is_read_from_this_machine_only() {
        for url in ["http://s3.example/log", "http://127.0.0.1.example/log", "ftp://s3.example/log"] {
            let refused = piece(&LogLink { url: url.into(), expires: None }, 0).await.unwrap_err();
            assert_eq!(refused.to_string(), "cannot read the log by its link: its scheme is not https");
        }
    }
}
