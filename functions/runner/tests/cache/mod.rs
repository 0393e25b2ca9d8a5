//! Runs that restore what an earlier one installed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use driftless_contract::{Installed, Layer, RunCache, Verdict};

use crate::aws::{Aws, TASK};

/// What `pulumi install` does: packages with a link and a program, and a plugin.
const INSTALLS: &str = r#"
mkdir -p node_modules/.bin node_modules/net "$PULUMI_HOME/plugins/resource-net-v1.0.0"
echo "module.exports = 1" > node_modules/net/index.js
printf '#!/bin/sh\n' > node_modules/net/tool; chmod 755 node_modules/net/tool
ln -sf ../net/tool node_modules/.bin/tool
touch -d @1000000000 node_modules/net/index.js
echo plugin > "$PULUMI_HOME/plugins/resource-net-v1.0.0/pulumi-resource-net"
"#;

const LAYERS: [Layer; 3] = [Layer::Dependencies, Layer::Plugins, Layer::Build];

fn cache(restored: impl IntoIterator<Item = Layer>) -> RunCache {
    RunCache { restored: restored.into_iter().collect(), stored: LAYERS.into(), max_bytes: 1 << 20, uncached: None }
}

/// A run with these archives in its folder.
async fn run(name: &str, archives: &BTreeMap<Layer, Vec<u8>>, cache: RunCache) -> Aws {
    let aws = Aws::new(&format!("cache-{name}"));
    fs::write(
        aws.dir.join("installs"),
        format!("{INSTALLS}{}", if name == "whole" { "touch node_modules/of-another-lock-file" } else { "" }),
    )
    .unwrap();
    for (layer, archive) in archives {
        aws.put(&format!("in/cache/{}", layer.as_str()), archive.clone());
    }
    aws.launch(|spec| spec.cache = Some(cache));
    aws.run().await.unwrap();
    assert_eq!(aws.result().verdict, Verdict::Succeeded {}, "{name}");
    aws
}

fn installed(aws: &Aws) -> Installed {
    aws.result().installed.unwrap()
}

/// What the run stored.
fn archives(aws: &Aws) -> BTreeMap<Layer, Vec<u8>> {
    let served = aws.served.lock().unwrap();
    let archive = |layer: &Layer| Some((*layer, served.objects.get(&format!("{TASK}out/cache/{}", layer.as_str()))?.clone()));
    LAYERS.iter().filter_map(archive).collect()
}

/// Checks the files that `pulumi install` leaves. Returns whether Pulumi installed them in this
/// run.
fn has_installed(aws: &Aws) -> bool {
    let modules = aws.dir.join("share/source/node_modules");
    assert_eq!(fs::read_to_string(modules.join("net/index.js")).unwrap(), "module.exports = 1\n");
    assert_eq!(fs::read_to_string(modules.join(".bin/tool")).unwrap(), "#!/bin/sh\n");
    let modified = fs::metadata(modules.join("net/index.js")).unwrap().modified().unwrap();
    assert_eq!(modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(), 1_000_000_000);
    assert!(fs::exists(aws.dir.join("home/plugins/resource-net-v1.0.0/pulumi-resource-net")).unwrap());
    aws.calls().contains(&"install".to_owned())
}

#[tokio::test]
async fn run_restores_what_an_earlier_one_stored() {
    let first = run("first", &BTreeMap::new(), cache([])).await;
    assert!(has_installed(&first));
    let told = installed(&first);
    assert!(told.summary.starts_with("installed in ") && told.summary.ends_with("s: no cache entry"), "{told:?}");
    assert!(told.missed && told.restored.is_empty());
    assert_eq!(told.stored, [Layer::Dependencies, Layer::Plugins].into());
    let archives = archives(&first);
    assert_eq!(archives.values().map(|archive| archive.len() as u64).sum::<u64>(), told.stored_bytes);

    let second = run("second", &archives, cache(archives.keys().copied())).await;
    assert!(!has_installed(&second));
    let told = installed(&second);
    assert!(told.summary.starts_with("restored 0.0 MB in ") && !told.missed, "{told:?}");
    assert_eq!((told.restored, told.stored), ([Layer::Dependencies, Layer::Plugins].into(), BTreeSet::new()));
    assert_eq!(self::archives(&second), BTreeMap::new(), "what an entry has is not stored again");

    // The plugins of an entry are kept although its packages are not the ones of this run.
    let changed = run("changed", &archives, cache([Layer::Plugins])).await;
    assert!(has_installed(&changed));
    assert_eq!(installed(&changed).stored, [Layer::Dependencies].into());
}

#[tokio::test]
async fn archive_that_cannot_be_used_is_installed_anew() {
    let first = run("whole", &BTreeMap::new(), cache([])).await;
    let whole = archives(&first);
    let dependencies = &whole[&Layer::Dependencies];
    let broken = |at: usize| {
        let mut archive = dependencies.clone();
        archive[at] ^= 1;
        archive
    };
    for (name, archive, why) in [
        ("frame", broken(20), "archive is damaged"),
        ("index", broken(dependencies.len() - 60), "its index has another digest"),
        ("footer", broken(dependencies.len() - 1), "its index has another digest"),
        ("short", dependencies[..100].to_vec(), "its format is unknown"),
        ("empty", Vec::new(), "size"),
    ] {
        let aws = run(name, &[(Layer::Dependencies, archive)].into(), cache([Layer::Dependencies])).await;
        assert!(has_installed(&aws), "{name}");
        let rest = aws.dir.join("share/source/node_modules/of-another-lock-file");
        assert!(!fs::exists(rest).unwrap(), "{name}: a part of the archive is left");
        let told = installed(&aws);
        let begin = told.summary.find(": cannot use the cache entry of dependencies: ");
        assert!(begin.is_some() && told.summary.contains(why), "{name}: {told:?}");
        assert!(told.restored.is_empty() && told.missed && told.stored.contains(&Layer::Dependencies), "{name}: {told:?}");
    }
    let absent = run("absent", &BTreeMap::new(), cache([Layer::Dependencies])).await;
    assert!(has_installed(&absent) && installed(&absent).summary.contains("404"));
}

/// The whole log. A slow run stores it in parts.
fn log(aws: &Aws) -> String {
    let prefix = format!("{TASK}out/log/");
    let objects = &aws.served.lock().unwrap().objects;
    objects.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(_, part)| String::from_utf8_lossy(part)).collect()
}

#[tokio::test]
async fn layer_without_request_is_not_stored() {
    let uncached = RunCache { uncached: Some("the source has no package-lock.json".into()), ..cache([]) };
    for (name, cache, stored) in [
        ("preview", RunCache { stored: BTreeSet::new(), ..cache([]) }, vec![]),
        ("large", RunCache { max_bytes: 100, ..cache([]) }, vec![]),
        ("uncached", RunCache { stored: [Layer::Plugins].into(), ..uncached }, vec![Layer::Plugins]),
    ] {
        let aws = run(name, &BTreeMap::new(), cache).await;
        assert!(has_installed(&aws));
        let told = installed(&aws);
        assert_eq!(told.stored.iter().copied().collect::<Vec<_>>(), stored, "{name}");
        let log = log(&aws);
        let is_said = match name {
            "large" => {
                log.contains("driftless: layer dependencies not stored: installed dependencies exceed the limit of 100 bytes")
            }
            "uncached" => told.summary.ends_with(": the source has no package-lock.json") && !told.missed,
            _ => !log.contains("not stored"),
        };
        assert!(is_said, "{name}: {told:?}\n{log}");
    }
}

#[tokio::test]
async fn packages_that_depend_on_more_than_their_lock_file_are_not_stored() {
    let aws = Aws::new("cache-generates");
    fs::write(aws.dir.join("installs"), format!("{INSTALLS}echo generated > generated.js\n")).unwrap();
    aws.launch(|spec| spec.cache = Some(cache([])));
    aws.run().await.unwrap();
    assert_eq!(installed(&aws).stored, [Layer::Plugins].into());
    let log = log(&aws);
    assert!(log.contains("layer dependencies not stored: the installation changed files of the source"), "{log}");
}

#[tokio::test]
async fn packages_without_the_plugins_of_their_run_are_completed() {
    let first = run("with-plugins", &BTreeMap::new(), cache([])).await;
    let packages = [(Layer::Dependencies, archives(&first).remove(&Layer::Dependencies).unwrap())].into();
    let second = run("without-plugins", &packages, cache([Layer::Dependencies])).await;
    assert!(has_installed(&second), "pulumi installs the plugin");
    let told = installed(&second);
    assert!(told.summary.starts_with("restored ") && told.summary.contains(", installed in "), "{told:?}");
    assert_eq!((told.stored, told.missed), (Layer::ALL.into_iter().filter(|layer| *layer != Layer::Build).collect(), false));
}
