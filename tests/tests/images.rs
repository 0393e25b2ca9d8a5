//! The images, as `make images` publishes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use driftless_tests::world::{
    dirs::Dirs,
    process::{Supervisor, command, output},
    registry::Registry,
};
use serde_json::{Value, json};
use tokio::process::Command;

#[tokio::test]
async fn images_have_a_static_program_its_bill_of_materials_and_no_root() -> Result<()> {
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    fs::create_dir_all(project.join("target"))?;
    let _exists = symlink(root().join("target/tools"), project.join("target/tools"));
    let dirs = Dirs::fresh(&project)?;
    let supervisor = Supervisor::default();
    let registry = Registry::start(&dirs, &supervisor).await?;
    let images = publish(&dirs, &registry).await?;
    assert_eq!(images.keys().map(String::as_str).collect::<Vec<_>>(), ["FORWARDER_IMAGE", "RUNNER_IMAGE"]);
    for (name, known) in [("forwarder", "kube-client-"), ("runner", "reqwest-")] {
        let image = &images[&format!("{}_IMAGE", name.to_uppercase())];
        let folder = pull(&dirs, &registry, name, image).await?;
        let version = output(within(&dirs, &folder, &[&format!("/{name}"), "--version"])).await?;
        assert_eq!(version.trim(), format!("{name} {}", env!("CARGO_PKG_VERSION")));
        let (listed, linked) = (listed(&folder.join("sbom.cdx.json"))?, linked(&fs::read(folder.join(name))?));
        assert!(linked.iter().any(|package| package.starts_with(known)), "{linked:?}");
        assert_eq!(linked.difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new());
        // Not linked: it is in Cargo.lock for other features.
        assert!(!listed.iter().any(|package| package.starts_with("ring-")));
    }
    let folder = dirs.root().join("forwarder");
    let authorities = fs::read_to_string(folder.join("etc/ssl/certs/ca-certificates.crt"))?;
    assert!(authorities.matches("BEGIN CERTIFICATE").count() > 50);
    installs(&dirs).await?;
    supervisor.stop().await;
    Ok(())
}

/// Runs the init container's command on a task's volumes.
async fn installs(dirs: &Dirs) -> Result<()> {
    let folder = dirs.root().join("runner");
    for volume in ["driftless", "share", "var/run/secrets"] {
        fs::create_dir_all(folder.join(volume))?;
    }
    output(within(dirs, &folder, &["/runner", "install", "/driftless/runner", "/share", "/var/run/secrets"])).await?;
    let mode = |path: &str| Ok::<_, anyhow::Error>(fs::metadata(folder.join(path))?.permissions().mode() & 0o7777);
    assert_eq!((mode("driftless/runner")?, mode("share")?, mode("var/run/secrets")?), (0o755, 0o1777, 0o1777));
    let version = output(within(dirs, &folder, &["/driftless/runner", "--version"])).await?;
    assert!(version.starts_with("runner "), "{version}");
    Ok(())
}

/// Builds and pushes the images, unoptimised and for one architecture. Returns their names with
/// digests, by the variables of `make deploy`.
async fn publish(dirs: &Dirs, registry: &Registry) -> Result<BTreeMap<String, String>> {
    let storage = dirs.root().join("storage.conf");
    let place = |name: &str| dirs.root().join(name).display().to_string();
    let lines = [
        "[storage]",
        "driver = \"vfs\"",
        &format!("graphroot = {:?}", place("storage")),
        &format!("runroot = {:?}", place("run")),
    ];
    fs::write(&storage, lines.join("\n"))?;
    let build = Command::new(root().join("infra/images/build"))
        .envs([("REGISTRY", registry.host.as_str()), ("PUSH", "1"), ("TAG", "test"), ("SOURCE", "https://example.org/driftless")])
        .envs([("ARCHITECTURES", "amd64"), ("PROFILE", "dev"), ("ENGINE", "buildah"), ("BUILDAH_ISOLATION", "chroot")])
        .env("CONTAINERS_STORAGE_CONF", storage)
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    let printed = String::from_utf8(build.stdout)?;
    printed
        .lines()
        .map(|line| line.split_once('=').map(|(name, image)| (name.into(), image.into())).context(line.to_owned()))
        .collect()
}

/// Checks an image's settings, and extracts its files from the registry.
async fn pull(dirs: &Dirs, registry: &Registry, name: &str, image: &str) -> Result<PathBuf> {
    let crane = |arguments: &[&str]| {
        let mut crane = command(dirs, registry.tools.join("crane"));
        crane.args(arguments).args(["--insecure", "--platform", "linux/amd64", image]);
        crane
    };
    assert!(image.starts_with(&format!("{}/driftless-{name}@sha256:", registry.host)), "{image}");
    let config: Value = serde_json::from_str(&output(crane(&["config"])).await?)?;
    let settings = &config["config"];
    assert_eq!((&settings["User"], &settings["Entrypoint"]), (&json!("65532:65532"), &json!([format!("/{name}")])));
    assert_eq!((&config["architecture"], &config["os"]), (&json!("amd64"), &json!("linux")));
    let label = |key: &str| settings["Labels"][format!("org.opencontainers.image.{key}")].as_str().unwrap_or_default();
    assert_eq!([label("title"), label("version"), label("licenses")], [&format!("driftless-{name}"), "test", "Apache-2.0"]);
    assert_eq!((label("source"), label("revision").len()), ("https://example.org/driftless", 40));
    let archive = dirs.root().join(format!("{name}.tar"));
    let mut export = command(dirs, registry.tools.join("crane"));
    export.args(["export", "--insecure", "--platform", "linux/amd64", image]).arg(&archive);
    output(export).await?;
    let folder = dirs.create(name)?;
    fs::create_dir(folder.join("proc"))?;
    tar::Archive::new(fs::File::open(archive)?).unpack(&folder)?;
    Ok(folder)
}

/// A program in an image's own root, with only /proc beside it, as a container engine provides.
fn within(dirs: &Dirs, folder: &Path, words: &[&str]) -> Command {
    let mut program = command(dirs, "unshare");
    program.args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--root"]).arg(folder).args(words);
    program
}

/// The packages in a bill of materials, as `<name>-<version>`.
fn listed(path: &Path) -> Result<BTreeSet<String>> {
    let bill: Value = serde_json::from_slice(&fs::read(path)?)?;
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
    let word = |component: &Value, key: &str| component[key].as_str().map(str::to_owned).with_context(|| component.to_string());
    let package = |component| Ok(format!("{}-{}", word(component, "name")?, word(component, "version")?));
    bill["components"].as_array().context("components")?.iter().map(package).collect()
}

/// The packages of the registry that a program names in its messages and for debuggers:
/// `…/registry/src/<registry>/<name>-<version>/src/lib.rs`.
fn linked(program: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(program);
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_.+".contains(letter);
    let package = |path: &str| path.split('/').nth(1)?.split(|letter| !is_part(letter)).next().map(ToOwned::to_owned);
    text.split("/registry/src/").skip(1).filter_map(package).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
