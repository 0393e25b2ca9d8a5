//! A session with a git server: resolves a name to a commit, and fetches the pack of one commit.

use std::{ops::ControlFlow, path::Path};

use driftless_core::git_refs;
use gix_error::Error;
use gix_hash::ObjectId;
use gix_pack::{Bundle, bundle::write::Options};
use gix_protocol::{
    Command, Handshake, LsRefsCommand,
    fetch::{Arguments, Response},
    handshake::{Ref, refs::from_v1_refs_received_as_part_of_handshake_and_capabilities},
    ls_refs::RefPrefixes,
};
use gix_transport::{
    Service,
    client::blocking_io::{SetServiceResponse, Transport},
};
use gix_utils::progress::Discard;

use super::{GitError, bounds::Bounds, remote::is_short_id};

/// The largest object: GitHub's limit for a file is 100 MB. A few may be in memory at once.
const MAX_OBJECT_BYTES: usize = 128 << 20;
/// The maximum memory for reading an object: two objects of a chain of deltas, and the deltas.
const MAX_READ_BYTES: usize = 3 * MAX_OBJECT_BYTES;

pub(super) struct Session {
    transport: Box<dyn Transport + Send>,
    handshake: Handshake,
    bounds: Bounds,
}

impl Session {
    pub(super) fn open(mut transport: Box<dyn Transport + Send>, bounds: Bounds) -> Result<Self, GitError> {
        // The first request has the credentials, so no prompt is answered later.
        let broken = |bounds: &Bounds| bounds.reason(GitError::Protocol { to: "the first request" });
        let SetServiceResponse { actual_protocol, capabilities, refs } =
            transport.handshake(Service::UploadPack, &[]).map_err(|_| broken(&bounds))?;
        // gitoxide panics at a symbolic ref that is announced but not listed. Its target is not
        // needed, because each ref is listed with its commit.
        let announced = || capabilities.iter().filter(|capability| capability.name() != "symref");
        let refs = refs.map(|mut refs| from_v1_refs_received_as_part_of_handshake_and_capabilities(&mut refs, announced()));
        let (refs, v1_shallow_updates) = refs.transpose().map_err(|_| broken(&bounds))?.unzip();
        let handshake = Handshake { server_protocol_version: actual_protocol, refs, v1_shallow_updates, capabilities };
        let format = handshake.capabilities.capability("object-format");
        if format.and_then(|format| format.value().map(|format| format != "sha1")).unwrap_or_default() {
            return Err(GitError::Sha256);
        }
        Ok(Self { transport, handshake, bounds })
    }

    /// Resolves a name to a commit with one ls-refs that has the possible refs as prefixes.
    pub(super) fn resolve(&mut self, field: &'static str, name: &str) -> Result<ObjectId, GitError> {
        let candidates = git_refs(name);
        // Older servers list all refs at the start and have done so by now.
        let refs = if let Some(refs) = self.handshake.refs.take() {
            refs
        } else {
            let mut prefixes = RefPrefixes::new();
            prefixes.extend(candidates.iter().map(|name| name.as_str().into()));
            LsRefsCommand::new(Some(prefixes), &self.handshake.capabilities, agent())
                .invoke_blocking(&mut self.transport, &mut Discard, false)
                .map_err(|_| self.bounds.reason(GitError::Protocol { to: "ls-refs" }))?
        };
        let found = candidates.iter().find_map(|candidate| refs.iter().find_map(|found| target(found, candidate)));
        found.ok_or_else(|| {
            let value = name.to_owned();
            if is_short_id(name) {
                let why = "no branch or tag has that name; name a commit by all 40 digits of its id";
                return GitError::Reference { field, value, why };
            }
            GitError::NoRef { field, value }
        })
    }

    /// Fetches one commit with its tree, without history, into a directory, because a run only gets
    /// the files. Servers that cannot leave the history out send it too, within the limits.
    pub(super) fn fetch(&mut self, commit: ObjectId, directory: &Path) -> Result<Bundle, GitError> {
        let version = self.handshake.server_protocol_version;
        let mut features = Command::Fetch.default_features(version, &self.handshake.capabilities);
        features.push(agent());
        let broken = || GitError::Protocol { to: "fetch" };
        Response::check_required_features(version, &features).map_err(|_| broken())?;
        let mut arguments = Arguments::new(version, features, false);
        arguments.want(commit);
        if arguments.can_use_shallow() {
            arguments.deepen(1);
        }
        let mut reader = arguments.send(&mut self.transport, true).map_err(|_| self.bounds.reason(broken()))?;
        let response = Response::from_line_reader(version, &mut reader, true, false);
        let response = response.map_err(|error| self.bounds.reason(not_given_out(&error, commit).unwrap_or_else(broken)))?;
        if !response.has_pack() {
            return Err(self.bounds.reason(broken()));
        }
        // With a handler the reader yields the pack, without one the packet lines around it. The
        // server's messages for people are not repeated.
        let progress = |is_error, _: &[u8]| if is_error { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        reader.set_progress_handler(Some(Box::new(progress)));
        let options = Options { thread_limit: Some(1), alloc_limit_bytes: Some(MAX_OBJECT_BYTES), ..Options::default() };
        let base = None::<gix_object::find::Never>;
        let hash = gix_hash::Kind::Sha1;
        let interrupt = self.bounds.interrupt();
        let written = Bundle::write_to_directory(&mut reader, Some(directory), &mut Discard, interrupt, base, hash, options);
        let bundle = written.ok().and_then(|written| written.to_bundle()).and_then(Result::ok);
        bundle.map(|bundle| bounded(bundle, MAX_READ_BYTES)).ok_or_else(|| self.bounds.reason(GitError::Pack))
    }
}

/// A bundle whose objects may take this much memory each, including the deltas that lead to them.
pub(super) fn bounded(Bundle { pack, index }: Bundle, bytes: usize) -> Bundle {
    Bundle { pack: pack.with_alloc_limit_bytes(Some(bytes)), index }
}

fn agent() -> (&'static str, Option<String>) {
    ("agent", Some(gix_protocol::agent("driftless")))
}

/// The commit of a ref with that name. An annotated tag resolves to its target.
fn target(found: &Ref, wanted: &str) -> Option<ObjectId> {
    match found {
        Ref::Peeled { full_ref_name, object, .. }
        | Ref::Direct { full_ref_name, object }
        | Ref::Symbolic { full_ref_name, object, .. } => (full_ref_name == wanted).then_some(*object),
        Ref::Unborn { .. } => None,
    }
}

/// The error of a git server for an object that it does not have or does not show. gitoxide reports
/// it as an unexpected line.
fn not_given_out(error: &Error, commit: ObjectId) -> Option<GitError> {
    error.to_string().contains("not our ref").then(|| GitError::NoCommit { commit: commit.to_string() })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Cursor, sink},
        time::Duration,
    };

    use gix_transport::{
        Protocol,
        client::git::{ConnectMode, blocking_io::Connection},
    };

    use super::*;

    /// The commit of `main`, by the first answer of a server of protocol version 0 or 1.
    fn resolved(capabilities: &str, refs: &[&str]) -> Result<ObjectId, GitError> {
        let line = |content: String| format!("{:04x}{content}", content.len() + 4);
        let id = "0123456789abcdef0123456789abcdef01234567";
        let refs = refs.iter().enumerate().map(|(at, name)| {
            let capabilities = if at == 0 { format!("\0{capabilities}") } else { String::new() };
            line(format!("{id} {name}{capabilities}\n"))
        });
        let said = format!("{}0000", refs.collect::<String>()).into_bytes();
        let host = None::<(&str, Option<u16>)>;
        let connection = Connection::new(Cursor::new(said), sink(), Protocol::V2, "/r", host, ConnectMode::Process, false);
        Session::open(Box::new(connection), Bounds::new(1000, Duration::from_mins(1)))?.resolve("spec.branch", "main")
    }

    #[tokio::test]
    async fn announced_but_unlisted_symbolic_ref_is_ignored() {
        let capabilities = "shallow symref=HEAD:refs/heads/main object-format=sha1";
        resolved(capabilities, &["HEAD", "refs/heads/main"]).unwrap();
        resolved(capabilities, &["refs/heads/main"]).unwrap();
        assert!(matches!(resolved(capabilities, &["refs/heads/other"]), Err(GitError::NoRef { .. })));
    }
}
