//! A git repository that a Stack (`spec.projectRepo`) or a Workspace (`spec.git`) names itself.
//! gitoxide implements git's protocol and reads the pack; this module has the connections to the
//! server, the addresses that may be reached, and the credentials.
//!
//! A fetch without changes costs one ls-refs, and no request at all for a commit id that was
//! fetched before. A commit is always fetched alone, whatever `spec.shallow` says, because a run
//! gets files and never a `.git`.

mod bounds;
mod credentials;
mod error;
mod github;
mod http;
mod key;
mod net;
mod remote;
mod servers;
mod session;
mod settings;
mod ssh;
mod stop;
mod times;
mod tree;

use std::{collections::BTreeSet, fs::File, net::SocketAddr, time::Duration};

use driftless_api::{Stack, WorkspaceGitAuth};
use driftless_aws::{Objects, Queues};
use driftless_contract::{FetchedArtifact, ObjectKey, keys};
use driftless_core::{SourceRef, needed};
use driftless_kubernetes::Cluster;
use driftless_source::{Limits, Tree};
use gix_hash::ObjectId;
use gix_transport::{
    Protocol,
    client::blocking_io::{Transport, file, http::Transport as HttpTransport},
};
use jiff::Timestamp;
use tokio::time::Instant;

pub use self::{
    bounds::Bounds,
    error::{Fields, GitError},
    remote::{Place, Wanted},
    servers::Servers,
    settings::Settings,
};
use self::{
    credentials::{Credentials, Named},
    http::{Login, Web},
    session::Session,
    ssh::Server,
    stop::Stop,
    times::TIME,
};
use crate::{Answer, Error, Fetcher, Refusal, collect::is_stored, store, transport::Artifacts};

/// The time of the last step of a fetch after its time limit: one object of a pack, at the maximum
/// of size and deltas.
const LAST_STEP: Duration = Duration::from_secs(20);

/// The content of a commit.
#[doc(hidden)]
pub struct Found {
    pub commit: ObjectId,
    /// The tree's id, the tree, and its content.
    pub tree: (ObjectId, Tree, File),
}

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Fetcher<'_, C, O, Q, A> {
    /// Fetches the commit that a Stack names. `key` is the Stack's.
    pub(crate) async fn fetch_git(&self, key: &ObjectKey, is_resting: impl Fn(&str) -> bool) -> Result<Option<Answer>, Error> {
        let Some(stack) = self.cluster.get::<Stack>(&key.namespace, &key.name).await? else { return Ok(None) };
        let read = driftless_core::Stack::from(&stack);
        let needed = needed(&read);
        let git = read.spec.sources.into_iter().find_map(|source| match source {
            SourceRef::Git(source) => Some(source),
            SourceRef::Flux { .. } | SourceRef::Program { .. } => None,
        });
        let Some(source) = git.filter(|source| !is_resting(&source.fingerprint)) else { return Ok(None) };
        let wanted = Wanted::parse(&source.branch, &source.commit);
        let named = Named::Stack(&stack);
        let poll = Poll { fetcher: self, key, url: &source.repo, subject: &source.fingerprint, named, needed };
        poll.run(wanted).await
    }

    /// Fetches the commit that a Workspace names by its id, a branch, a tag or a full ref. `key` is
    /// the Workspace's, `subject` the fingerprint of its source.
    pub(crate) async fn fetch_git_of_workspace(
        &self,
        key: &ObjectKey,
        (url, reference, dir, auth): (&str, &str, &str, Option<&WorkspaceGitAuth>),
        subject: &str,
    ) -> Result<Option<Answer>, Error> {
        let needed = [dir.to_owned()].into();
        let poll = Poll { fetcher: self, key, url, subject, named: Named::Workspace(auth), needed };
        poll.run(Wanted::of_reference("spec.git.ref", reference)).await
    }
}

/// One poll of a repository, with a fetch if its commit is new.
struct Poll<'a, C, O, Q, A> {
    fetcher: &'a Fetcher<'a, C, O, Q, A>,
    /// The object that the tree is stored under.
    key: &'a ObjectKey,
    url: &'a str,
    subject: &'a str,
    /// The credentials to use.
    named: Named<'a>,
    /// The directories that a run uses; see [`tree::read`].
    needed: BTreeSet<String>,
}

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Poll<'_, C, O, Q, A> {
    async fn run(&self, wanted: Result<Wanted, GitError>) -> Result<Option<Answer>, Error> {
        let result = match self.artifact(wanted).await {
            Ok(artifact) => Ok(Some(artifact)),
            Err(Stop::Git(error)) => Err(Refusal::Git { error, fields: self.named.fields() }),
            Err(Stop::Refused(refusal)) => Err(refusal),
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Later) => return Ok(None),
        };
        Ok(Some((self.subject.to_owned(), result)))
    }

    async fn artifact(&self, wanted: Result<Wanted, GitError>) -> Result<FetchedArtifact, Stop> {
        let git = &self.fetcher.settings.git;
        let place = Place::parse(self.url, git.allow_local)?;
        let wanted = wanted?;
        let stored = self.stored().await?;
        let known = stored.as_ref().and_then(|stored| ObjectId::from_hex(stored.revision.as_str().as_bytes()).ok());
        if let (Some(stored), Wanted::Commit(commit)) = (&stored, &wanted)
            && known == Some(*commit)
        {
            return Ok(stored.clone());
        }
        let server = place.server();
        let namespace = format!("{}/{}", self.key.cluster, self.key.namespace);
        if server.as_ref().is_some_and(|server| git.servers.is_beyond_share(server, &namespace, self.fetcher.now)) {
            tracing::info!(source = %self.key, "fetch skipped: its git server had half of this instance's time");
            return Err(Stop::Later);
        }
        let began = Instant::now();
        let fetched = self.fetched(place, wanted, known, stored).await;
        if let Some(server) = server {
            git.servers.charge(&server, &namespace, began.elapsed(), self.fetcher.now);
        }
        fetched
    }

    /// Asks the server, and stores a new tree.
    async fn fetched(
        &self,
        place: Place,
        wanted: Wanted,
        known: Option<ObjectId>,
        stored: Option<FetchedArtifact>,
    ) -> Result<FetchedArtifact, Stop> {
        let (git, server) = (&self.fetcher.settings.git, place.server());
        let credentials = Credentials::read(self.fetcher.cluster, &self.key.namespace, &self.named).await?;
        let time = server.as_ref().map_or(TIME, |server| git.servers.time(server, self.fetcher.now));
        let (bounds, began) = (Bounds::new(git.max_pack_bytes, time), Instant::now());
        let found = self.found(place, credentials, wanted, known, &bounds).await;
        if let Some(server) = server {
            git.servers.remember(server, matches!(found, Err(GitError::Silent)), began.elapsed(), self.fetcher.now);
        }
        let found = found.map_err(|error| {
            if !bounds.is_hidden() {
                return error;
            }
            tracing::warn!(source = %self.key, %error, "git server in a private network failed");
            error.hidden()
        })?;
        match (found, stored) {
            (Some(found), _) => self.store(found).await,
            (None, Some(stored)) => Ok(stored),
            (None, None) => Err(GitError::Pack.into()),
        }
    }

    /// The commit on the server; `None` if it is the known one.
    async fn found(
        &self,
        place: Place,
        credentials: Credentials,
        wanted: Wanted,
        known: Option<ObjectId>,
        bounds: &Bounds,
    ) -> Result<Option<Found>, GitError> {
        let git = &self.fetcher.settings.git;
        let transport =
            bounds.within(Box::pin(transport(place, credentials, git, self.named.fields(), bounds, self.fetcher.now))).await??;
        let (limits, needed, of_talk) = (self.fetcher.settings.limits, self.needed.clone(), bounds.clone());
        // gitoxide blocks.
        let mut talk = tokio::task::spawn_blocking(move || talk(transport, &of_talk, &wanted, known, &limits, &needed));
        let talked = bounds.within(&mut talk).await;
        // After the time limit the thread ends with its next step. A thread that continued would
        // use the processor and memory of later requests.
        if talked.is_err() && tokio::time::timeout(LAST_STEP, talk).await.is_err() {
            tracing::error!(source = %self.key, "fetch thread still runs after its time limit");
        }
        talked?.map_err(|_| GitError::Protocol { to: "a request" })?
    }

    /// The result of the last fetch, if it was for the same spec and its tree is still stored.
    async fn stored(&self) -> Result<Option<FetchedArtifact>, Error> {
        let before = self.fetcher.outcome_before(self.key).await?.filter(|before| before.subject == self.subject);
        let Some(artifact) = before.and_then(|before| before.artifact) else { return Ok(None) };
        let folder = keys::tree(self.key, &artifact.digest);
        let is_stored = is_stored(self.fetcher.objects, &folder, self.fetcher.settings.retention, self.fetcher.now).await?;
        Ok(is_stored.then_some(artifact))
    }

    async fn store(&self, found: Found) -> Result<FetchedArtifact, Stop> {
        let Found { commit, tree: (id, tree, mut spool) } = found;
        let artifact = FetchedArtifact { revision: commit.to_string().into(), digest: format!("sha1:{id}").into() };
        let folder = keys::tree(self.key, &artifact.digest);
        if !is_stored(self.fetcher.objects, &folder, self.fetcher.settings.retention, self.fetcher.now).await? {
            store::store(self.fetcher.objects, self.fetcher.settings, self.key, &folder, &tree, &mut spool)
                .await?
                .map_err(Stop::Refused)?;
        }
        Ok(artifact)
    }
}

/// The connection to a repository, with its credentials.
async fn transport(
    place: Place,
    credentials: Credentials,
    settings: &Settings,
    fields: &Fields,
    bounds: &Bounds,
    now: Timestamp,
) -> Result<Box<dyn Transport + Send>, GitError> {
    let server = place.server();
    match place {
        Place::Http(url) => {
            let scheme = if url.scheme() == "http" { "an http URL" } else { "an https URL" };
            let login = match credentials {
                Credentials::None => None,
                Credentials::Login(login) => Some(login),
                Credentials::App(app) => Some(github::token(&app, settings, now).await?),
                Credentials::Key(key) => {
                    let remedy = format!("use {}, or write an ssh URL", fields.login);
                    return Err(GitError::Unfit { scheme, source_name: key.source_name, remedy });
                }
            };
            if let Some(Login { source_name, .. }) = &login
                && url.scheme() == "http"
                && !settings.allow_local
            {
                let (source_name, remedy) = (source_name.clone(), "it would be sent in clear text; use https".into());
                return Err(GitError::Unfit { scheme, source_name, remedy });
            }
            let addresses = addresses(server, settings, bounds, now).await?;
            let client = net::client(addresses, &settings.ca_certificates)?;
            let web = Web::new(client, bounds.clone(), login);
            let url = gix_url::parse(url.as_str()).map_err(|_| GitError::Url("it is not a URL"))?;
            Ok(Box::new(HttpTransport::new_http(web, url, Protocol::V2, false)))
        }
        Place::Ssh { user, host, port, path } => {
            let Credentials::Key(mut key) = credentials else {
                let source_name = match credentials.source_name() {
                    "" => fields.auth.to_owned(),
                    name => name.to_owned(),
                };
                let remedy = format!("set {}, or write an https URL", fields.key);
                return Err(GitError::Unfit { scheme: "an ssh URL", source_name, remedy });
            };
            key.known_hosts = format!("{}\n{}", key.known_hosts, settings.known_hosts);
            let addresses = addresses(server, settings, bounds, now).await?;
            ssh::connect(&Server { user, host, port, path, addresses }, &key, bounds).await
        }
        Place::Local(path) => match file::connect(path, Protocol::V2, false) {
            Ok(transport) => Ok(Box::new(transport)),
        },
    }
}

/// The addresses of a server that may be asked now.
async fn addresses(
    server: Option<(String, u16)>,
    settings: &Settings,
    bounds: &Bounds,
    now: Timestamp,
) -> Result<Vec<SocketAddr>, GitError> {
    let server = server.ok_or(GitError::Url("it has no host"))?;
    let addresses = net::addresses_for_tenant(&server.0, server.1, settings, bounds).await?;
    settings.servers.check(&server, now)?;
    Ok(addresses)
}

/// The requests to a git server. `None` if the commit is the known one.
#[doc(hidden)]
pub fn talk(
    transport: Box<dyn Transport + Send>,
    bounds: &Bounds,
    wanted: &Wanted,
    known: Option<ObjectId>,
    limits: &Limits,
    needed: &BTreeSet<String>,
) -> Result<Option<Found>, GitError> {
    let mut session = Session::open(transport, bounds.clone())?;
    let commit = match wanted {
        Wanted::Commit(commit) => *commit,
        Wanted::Name { field, name } => session.resolve(field, name)?,
    };
    if known == Some(commit) {
        return Ok(None);
    }
    let found = fetch_commit(&mut session, bounds, commit, limits, needed);
    match wanted {
        Wanted::Commit(_) => found.map(Some),
        Wanted::Name { .. } => found.map(Some).map_err(|error| GitError::OfName(Box::new(error))),
    }
}

fn fetch_commit(
    session: &mut Session,
    bounds: &Bounds,
    commit: ObjectId,
    limits: &Limits,
    needed: &BTreeSet<String>,
) -> Result<Found, GitError> {
    let directory = tempfile::tempdir().map_err(GitError::Scratch)?;
    let bundle = session.fetch(commit, directory.path())?;
    let spool = tempfile::tempfile().map_err(GitError::Scratch)?;
    let (id, tree) = tree::read(&bundle, bounds, &commit, limits, needed, &spool)?;
    Ok(Found { commit, tree: (id, tree, spool) })
}
