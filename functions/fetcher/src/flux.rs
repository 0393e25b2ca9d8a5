//! The artifact of a Flux source. A tenant writes the source's spec and may write its status, so
//! the artifact must be at the place where source-controller puts those of that object.

use std::io::BufReader;

use driftless_api::{Artifact, KINDS, Source};
use driftless_aws::{Objects, Queues};
use driftless_contract::{ArtifactDigest, FetchedArtifact, ObjectKey, keys};
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use driftless_source::{Digest, InvalidDigest, unpack};

use crate::{
    Answer, Error, Fetcher, Refusal, Settings,
    collect::is_stored,
    store,
    transport::{Artifacts, Download, Place},
};

impl<C: Cluster, O: Objects, Q: Queues, A: Artifacts> Fetcher<'_, C, O, Q, A> {
    pub(crate) async fn fetch_flux(&self, key: &ObjectKey, is_resting: impl Fn(&str) -> bool) -> Result<Option<Answer>, Error> {
        let (group, kind) = (key.group().to_owned(), key.kind.clone());
        let (stated, artifact) = match self.offered_artifact(key).await {
            Ok(Some(offered)) => offered,
            Ok(None) if is_used(self.settings, key) => return Ok(None),
            // A user's Update may name any kind. No state of the source is known, so the answer has
            // no subject.
            Ok(None) => return Ok(Some((String::new(), Err(Refusal::Kind { group, kind })))),
            Err(Error::Kubernetes(KubernetesError::Permanent { message, .. })) => {
                return Ok(Some((String::new(), Err(Refusal::Unreadable { group, kind, message }))));
            }
            Err(error) => return Err(error),
        };
        if is_resting(stated.as_str()) {
            return Ok(None);
        }
        let stored = self.store_offered(key, &stated, &artifact).await?;
        // A missing or different artifact was replaced: the object may name the new one already.
        if matches!(stored, Err(Refusal::Gone | Refusal::Mismatch(_)))
            && let Some((newer, artifact)) = self.offered_artifact(key).await?.filter(|(_, newer)| *newer != artifact)
        {
            let stored = self.store_offered(key, &newer, &artifact).await?;
            return Ok(Some((newer.to_string(), stored.map(|()| None))));
        }
        Ok(Some((stated.to_string(), stored.map(|()| None))))
    }

    /// What the source offers now, with the digest that it states.
    async fn offered_artifact(&self, key: &ObjectKey) -> Result<Option<(ArtifactDigest, Artifact)>, Error> {
        let artifact = self.cluster.get_dynamic(key).await?.and_then(|object| Source::from_object(&object).artifact);
        Ok(artifact.and_then(|artifact| Some((artifact.digest.as_ref()?.into(), artifact))))
    }

    async fn store_offered(
        &self,
        key: &ObjectKey,
        stated: &ArtifactDigest,
        artifact: &Artifact,
    ) -> Result<Result<(), Refusal>, Error> {
        let digest = digest(stated.as_str()).map_err(Refusal::from);
        let (digest, place) = match digest.and_then(|digest| Ok((digest, place(self.settings, key, artifact)?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.store_artifact(key, stated, (&place, digest)).await
    }

    /// Stores the artifact at a place, unless it is stored.
    async fn store_artifact(
        &self,
        key: &ObjectKey,
        stated: &ArtifactDigest,
        (place, digest): (&Place, Digest),
    ) -> Result<Result<(), Refusal>, Error> {
        let folder = keys::tree(key, stated);
        if is_stored(self.objects, &folder, self.settings.retention, self.now).await? {
            return Ok(Ok(()));
        }
        match self.unpacked(place, digest).await {
            Ok((tree, mut spool)) => store::store(self.objects, self.settings, key, &folder, &tree, &mut spool).await,
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Fetches the artifact that a Workspace names by its URL. `key` is the Workspace's.
    pub(crate) async fn fetch_flux_of_workspace(
        &self,
        key: &ObjectKey,
        (url, stated): (&str, &str),
    ) -> Result<Result<Option<FetchedArtifact>, Refusal>, Error> {
        let wrong = |field, value: &str, why| Refusal::Artifact { field, value: value.to_owned(), why };
        let of_digest = |error: InvalidDigest| wrong("spec.flux.digest", stated, error.to_string());
        let (digest, place) =
            match digest(stated).map_err(of_digest).and_then(|digest| Ok((digest, place_of(self.settings, key, url)?))) {
                Ok(checked) => checked,
                Err(refusal) => return Ok(Err(refusal)),
            };
        let stored = self.store_artifact(key, &stated.into(), (&place, digest)).await?;
        Ok(match stored {
            Ok(()) => Ok(Some(FetchedArtifact { revision: stated.into(), digest: stated.into() })),
            Err(Refusal::Gone) => Err(Refusal::Outdated { url: url.to_owned() }),
            Err(Refusal::Artifact { why, .. }) => Err(wrong("spec.flux.url", url, why)),
            Err(refusal) => Err(refusal),
        })
    }

    /// Downloads the archive, verifies it and only then unpacks it. The content is in scratch
    /// files, not in memory.
    async fn unpacked(&self, place: &Place, digest: Digest) -> Result<(driftless_source::Tree, std::fs::File), Refusal> {
        let mut download = Download::new(digest, self.settings.max_archive_bytes)?;
        self.artifacts.get(place, &mut download).await?;
        let file = download.finish()?;
        let spool = tempfile::tempfile()?;
        let tree = unpack(BufReader::new(file), &self.settings.limits, &spool).map_err(store::refusal)?;
        Ok((tree, spool))
    }
}

/// The place of a Workspace's URL, if that is one of an artifact of a source of the Workspace's own
/// namespace. `key` is the Workspace's.
fn place_of(settings: &Settings, key: &ObjectKey, url: &str) -> Result<Place, Refusal> {
    let wrong = |why: String| Refusal::Artifact { field: "spec.flux.url", value: url.to_owned(), why };
    let namespace = &key.namespace;
    let foreign = || {
        wrong(format!(
            "expected the status.artifact.url of a Flux source in namespace {namespace:?}, such as \
             http://HOST/KIND/{namespace}/NAME/FILE"
        ))
    };
    let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    let [kind, of, name, _] = path.split('/').collect::<Vec<_>>()[..] else { return Err(foreign()) };
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c));
    if of != namespace || !is_name {
        return Err(foreign());
    }
    let others = settings.source_kinds.iter().filter_map(|listed| listed.split_once('/'));
    let kinds = KINDS.iter().map(|(version, known)| (version.split('/').next().unwrap_or_default(), *known)).chain(others);
    let Some((group, kind)) = kinds.into_iter().find(|(_, known)| known.to_lowercase() == kind) else { return Err(foreign()) };
    let source = key.sibling(&format!("{group}/v1"), kind, name);
    let artifact = Artifact { path: path.into(), url: url.into(), ..Artifact::default() };
    place(settings, &source, &artifact).map_err(|refusal| match refusal {
        Refusal::Artifact { why, .. } => wrong(why),
        refusal => refusal,
    })
}

/// Parses a digest as Flux does: without an algorithm it is a SHA-256.
fn digest(stated: &str) -> Result<Digest, InvalidDigest> {
    match stated.parse() {
        Err(InvalidDigest::NoAlgorithm) => format!("sha256:{stated}").parse(),
        parsed => parsed,
    }
}

/// Returns whether the kind is one of Flux's, or one that the installation lists.
fn is_used(settings: &Settings, key: &ObjectKey) -> bool {
    let (group, kind) = (key.group(), &key.kind);
    let of_flux = |(api_version, known): &(&str, &str)| api_version.starts_with(&format!("{group}/")) && known == kind;
    KINDS.iter().any(of_flux) || settings.source_kinds.contains(&format!("{group}/{kind}"))
}

/// The place of the artifact: a host that the installation allows, and the path of this object.
fn place(settings: &Settings, key: &ObjectKey, artifact: &Artifact) -> Result<Place, Refusal> {
    let ObjectKey { kind, namespace, name, .. } = key;
    if !is_used(settings, key) {
        return Err(Refusal::Kind { group: key.group().into(), kind: kind.clone() });
    }
    let wrong = |field, value: &str, why: String| Refusal::Artifact { field, value: value.to_owned(), why };
    let Artifact { path, url, .. } = artifact;
    let own = format!("{}/{namespace}/{name}/", kind.to_lowercase());
    let file = path.strip_prefix(&own).unwrap_or_default();
    // Characters without a special meaning in a URL and a path, so that a server cannot read an
    // encoded slash or a query.
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-._~+:@=,".contains(&c);
    if file.is_empty() || file.starts_with('.') || !file.bytes().all(plain) {
        return Err(wrong("status.artifact.path", path, format!("the path of an artifact of this object begins with {own}")));
    }
    let place = Place::of_url(url, path).ok_or_else(|| {
        wrong("status.artifact.url", url, "expected http://HOST/PATH with the path of status.artifact.path".into())
    })?;
    if !place.is_among(&settings.services) {
        return Err(wrong(
            "status.artifact.url",
            url,
            format!("host not in ArtifactServices, which lists {}", settings.services.join(", ")),
        ));
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::settings;

    const PATH: &str = "gitrepository/team/shop/abc.tar.gz";
    const URL: &str = "http://source-controller.flux-system.svc.cluster.local./gitrepository/team/shop/abc.tar.gz";

    fn check_kind(api_version: &str, kind: &str, path: &str, url: &str) -> Result<Place, String> {
        let key = ObjectKey {
            cluster: "c".into(),
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: "team".into(),
            name: "shop".into(),
        };
        let artifact = Artifact { path: path.into(), url: url.into(), ..Artifact::default() };
        let settings = Settings {
            services: ["source-controller.flux-system", "archives.example.com:8080"].map(Into::into).into(),
            source_kinds: vec!["example.com/Widget".into()],
            ..settings()
        };
        place(&settings, &key, &artifact).map_err(|refusal| refusal.to_string())
    }

    fn check(path: &str, url: &str) -> Result<Place, String> {
        check_kind("source.toolkit.fluxcd.io/v1", "GitRepository", path, url)
    }

    #[test]
    fn artifact_path_is_that_of_its_own_object() {
        assert_eq!(check(PATH, URL).unwrap().path(), PATH);
        for path in [
            "gitrepository/other/shop/abc.tar.gz",
            "gitrepository/team/shop2/abc.tar.gz",
            "gitrepository/team/shop/",
            "gitrepository/team/shop/../../other/shop/abc.tar.gz",
            "gitrepository/team/shop/..",
            "gitrepository/team/shop/x%2f..%2f..%2f..%2fother%2fshop%2fabc.tar.gz",
            "gitrepository/team/shop/x\\..\\..\\abc.tar.gz",
            "gitrepository/team/shop/abc.tar.gz?x",
            "gitrepository/team/shop/abc.tar.gz#x",
            "gitrepository/team/shop/abc def",
            "",
        ] {
            let url = format!("http://source-controller.flux-system.svc.cluster.local./{path}");
            assert!(check(path, &url).unwrap_err().contains("begins with gitrepository/team/shop/"), "{path}");
        }
    }

    #[test]
    fn the_names_that_source_controller_gives_archives_are_accepted() {
        let host = "http://source-controller.flux-system.svc.cluster.local.";
        for (kind, file) in [
            ("OCIRepository", "sha256:0f1e.tar.gz"),
            ("Bucket", "0f1e.tar.gz"),
            ("HelmChart", "shop-6.2.1+3.tgz"),
            ("ExternalArtifact", "latest@sha256:0f1e.tar.gz"),
        ] {
            let path = format!("{}/team/shop/{file}", kind.to_lowercase());
            assert!(check_kind("source.toolkit.fluxcd.io/v1", kind, &path, &format!("{host}/{path}")).is_ok(), "{path}");
        }
    }

    #[test]
    fn artifact_is_fetched_only_from_allowed_hosts() {
        assert!(check(PATH, &format!("http://archives.example.com:8080/{PATH}")).is_ok());
        for host in [
            "http://169.254.169.254",
            "http://evil.example.com",
            "http://archives.example.com",
            "http://archives.example.com:80",
            "http://source-controller.flux-system.svc.cluster.local.:8080",
            "http://source-controller.flux-system.svc@evil.example.com",
            "http://source-controller.evil.svc.cluster.local",
            "http://source-controller.flux-system.svc.cluster.local./other",
            "https://source-controller.flux-system.svc.cluster.local.",
            "file://",
        ] {
            assert!(check(PATH, &format!("{host}/{PATH}")).is_err(), "{host}");
        }
        assert!(check(PATH, "http://source-controller.flux-system.svc.cluster.local./other/path.tar.gz").is_err());
    }

    #[test]
    fn source_kind_is_of_flux_or_listed_in_source_kinds() {
        let host = "http://source-controller.flux-system.svc";
        let check = |api_version, kind: &str| {
            let path = format!("{}/team/shop/f", kind.to_lowercase());
            check_kind(api_version, kind, &path, &format!("{host}/{path}"))
        };
        assert!(check("source.toolkit.fluxcd.io/v1", "GitRepository").is_ok());
        assert!(check("source.toolkit.fluxcd.io/v1beta2", "GitRepository").is_ok());
        assert!(check("example.com/v1", "Widget").is_ok());
        let index = check("source.toolkit.fluxcd.io/v1", "HelmRepository").unwrap_err();
        assert!(index.ends_with("; name a HelmChart, a GitRepository or an OCIRepository"), "{index}");
        let other = check("evil.example.com/v1", "GitRepository").unwrap_err();
        assert!(other.contains("add evil.example.com/GitRepository to SourceKinds"), "{other}");
    }

    #[test]
    fn workspace_artifact_is_of_its_own_namespace() {
        let [cluster, api_version, kind] = ["c", "auto.pulumi.com/v1alpha1", "Workspace"].map(String::from);
        let key = ObjectKey { cluster, api_version, kind, namespace: "team".into(), name: "w".into() };
        let settings = Settings { source_kinds: vec!["example.com/Widget".into()], ..settings() };
        let host = "http://source-controller.flux-system.svc.cluster.local.";
        for path in ["gitrepository/team/shop/abc.tar.gz", "ocirepository/team/shop.1/sha256:0f.tar.gz", "widget/team/w/f"] {
            assert_eq!(place_of(&settings, &key, &format!("{host}/{path}")).unwrap().path(), path);
        }
        for url in [
            format!("{host}/gitrepository/other/shop/abc.tar.gz"),
            format!("{host}/gitrepository/team/../other/shop/abc.tar.gz"),
            format!("{host}/gitrepository/team/../abc.tar.gz"),
            format!("{host}/gitrepository/team/shop/../abc.tar.gz"),
            format!("{host}/gitrepository/team/sh%2fop/abc.tar.gz"),
            format!("{host}/gitrepository/team/shop/..%2f..%2fother%2fshop%2fabc.tar.gz"),
            format!("{host}/gitrepository/team/shop/abc.tar.gz?x"),
            format!("{host}/gitrepository/team/shop/"),
            format!("{host}/GitRepository/team/shop/abc.tar.gz"),
            format!("{host}/helmrepository/team/shop/index.yaml"),
            format!("{host}//gitrepository/team/shop/abc.tar.gz"),
            format!("{host}:8080/gitrepository/team/shop/abc.tar.gz"),
            "http://evil.example.com/gitrepository/team/shop/abc.tar.gz".into(),
            "http://169.254.169.254/gitrepository/team/shop/abc.tar.gz".into(),
            "https://source-controller.flux-system.svc/gitrepository/team/shop/abc.tar.gz".into(),
            "gitrepository/team/shop/abc.tar.gz".into(),
            String::new(),
        ] {
            let refusal = place_of(&settings, &key, &url).unwrap_err();
            assert!(
                refusal.is_terminal() && refusal.to_string().starts_with(&format!("spec.flux.url is {url:?}: ")),
                "{refusal}"
            );
        }
    }

    #[test]
    fn a_digest_without_an_algorithm_is_a_sha256_and_sha1_is_refused() {
        let hex = "0f".repeat(32);
        assert_eq!(digest(&hex).unwrap().as_str(), format!("sha256:{hex}"));
        for (algorithm, digits) in [("sha256", 64), ("sha384", 96), ("sha512", 128), ("blake3", 64)] {
            assert!(digest(&format!("{algorithm}:{}", "a".repeat(digits))).is_ok(), "{algorithm}");
        }
        assert!(digest(&format!("sha1:{}", "a".repeat(40))).is_err());
        assert!(digest(&"a".repeat(40)).is_err());
        assert!(digest("").is_err());
    }
}
