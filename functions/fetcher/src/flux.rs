//! The artifact of a Flux source. A tenant writes the source's spec and may write its status: the artifact has to lie where
//! source-controller would put that very object's.

use std::io::{BufReader, Seek as _, Write as _};

use driftless_api::{Artifact, Source};
use driftless_aws::{Objects, Queues};
use driftless_contract::{ObjectKey, keys};
use driftless_kubernetes::Cluster;
use driftless_source::{Digest, Verifier, unpack};

use crate::{
    Answer, Error, Ports, Refusal, Settings,
    proxy::{Artifacts, Service},
    store,
};

pub(crate) async fn fetch<C: Cluster, O: Objects, Q: Queues, A: Artifacts>(
    ports: &Ports<'_, C, O, Q, A>,
    settings: &Settings,
    key: &ObjectKey,
) -> Result<Option<Answer>, Error> {
    let Some(object) = ports.cluster.get_dynamic(key).await? else { return Ok(None) };
    let Some(Artifact { digest: Some(stated), path, url, .. }) = Source::from_object(&object).artifact else { return Ok(None) };
    let folder = keys::tree(key, &stated);
    if ports.objects.exists(&format!("{folder}manifest")).await? {
        return Ok(Some((stated, Ok(()))));
    }
    let digest: Digest = match stated.parse() {
        Ok(digest) => digest,
        Err(invalid) => return Ok(Some((stated, Err(invalid.into())))),
    };
    let fetched = match service(settings, key, &path, &url) {
        Ok(service) => archive(ports.artifacts, settings, &service, &path, digest).await,
        Err(refusal) => Err(refusal),
    };
    let (tree, mut spool) = match fetched {
        Ok(unpacked) => unpacked,
        Err(refusal) => return Ok(Some((stated, Err(refusal)))),
    };
    let stored = store::store(ports.objects, &folder, &tree, &mut spool).await?;
    Ok(Some((stated, stored)))
}

/// The Service that the artifact is to be had from: one that the installation allows, at a path that is this object's own.
fn service(settings: &Settings, key: &ObjectKey, path: &str, url: &str) -> Result<Service, Refusal> {
    let wrong = |field, value: &str, why: String| Refusal::Artifact { field, value: value.to_owned(), why };
    let own = format!("{}/{}/{}/", key.kind.to_lowercase(), key.namespace, key.name);
    let file = path.strip_prefix(&own).unwrap_or_default();
    if file.is_empty() || file.contains('/') || file.starts_with('.') {
        return Err(wrong("path", path, format!("an artifact of this object lies in {own}")));
    }
    let service = Service::of_url(url, path).ok_or_else(|| wrong("url", url, "not http://SERVICE.NAMESPACE.svc…/PATH".into()))?;
    if !settings.services.contains(&service.to_string()) {
        return Err(wrong("url", url, format!("artifacts may come from {}", settings.services.join(", "))));
    }
    Ok(service)
}

/// Gets the archive, verifies it and only then unpacks it. Content is on scratch files, not in memory.
async fn archive<A: Artifacts>(
    artifacts: &A,
    settings: &Settings,
    service: &Service,
    path: &str,
    digest: Digest,
) -> Result<(driftless_source::Tree, std::fs::File), Refusal> {
    let mut file = tempfile::tempfile()?;
    let mut verifier = Verifier::new(digest);
    let mut size = 0;
    artifacts
        .get(service, path, |piece| {
            size += piece.len() as u64;
            if size > settings.max_archive_bytes {
                return Err(Refusal::TooLarge { limit: settings.max_archive_bytes });
            }
            verifier.update(piece);
            Ok(file.write_all(piece)?)
        })
        .await?;
    verifier.finish()?;
    file.rewind()?;
    let spool = tempfile::tempfile()?;
    let tree = unpack(BufReader::new(file), &settings.limits, &spool).map_err(store::refusal)?;
    Ok((tree, spool))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "gitrepository/team/shop/abc.tar.gz";
    const URL: &str = "http://source-controller.flux-system.svc.cluster.local./gitrepository/team/shop/abc.tar.gz";

    fn check(path: &str, url: &str) -> Result<String, String> {
        let key = ObjectKey {
            cluster: "c".into(),
            api_version: "source.toolkit.fluxcd.io/v1".into(),
            kind: "GitRepository".into(),
            namespace: "team".into(),
            name: "shop".into(),
        };
        let settings = Settings {
            bucket: "b".into(),
            services: vec!["source-controller.flux-system".into()],
            max_archive_bytes: 1,
            limits: driftless_source::Limits::default(),
        };
        service(&settings, &key, path, url).map(|service| service.to_string()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn an_artifact_lies_where_source_controller_puts_this_objects() {
        assert_eq!(check(PATH, URL).unwrap(), "source-controller.flux-system");
        for path in [
            "gitrepository/other/shop/abc.tar.gz",
            "gitrepository/team/shop2/abc.tar.gz",
            "gitrepository/team/shop/",
            "gitrepository/team/shop/../../other/shop/abc.tar.gz",
            "gitrepository/team/shop/..",
            "",
        ] {
            let url = format!("http://source-controller.flux-system.svc.cluster.local./{path}");
            assert!(check(path, &url).unwrap_err().contains("lies in gitrepository/team/shop/"), "{path}");
        }
    }

    #[test]
    fn an_artifact_comes_from_an_allowed_service_and_from_nowhere_else() {
        for url in [
            "http://169.254.169.254/gitrepository/team/shop/abc.tar.gz",
            "http://evil.example.com/gitrepository/team/shop/abc.tar.gz",
            "http://source-controller.flux-system.svc.cluster.local./other/path.tar.gz",
            "http://source-controller.flux-system.svc@evil.example.com/gitrepository/team/shop/abc.tar.gz",
            "http://source-controller.evil.svc.cluster.local/gitrepository/team/shop/abc.tar.gz",
            "file:///gitrepository/team/shop/abc.tar.gz",
        ] {
            assert!(check(PATH, url).is_err(), "{url}");
        }
    }
}
