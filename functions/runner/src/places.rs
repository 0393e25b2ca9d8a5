//! Where `pulumi install` and pulumi itself put what a program needs.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use driftless_contract::Layer;
use serde::Deserialize;

use crate::{
    archive::{Root, Selection},
    install,
};

/// The maximum number of directories that are searched for packages.
const MAX_DIRECTORIES: usize = 20_000;

/// The directory for the packages that Pulumi generates from a provider's schema.
const SDKS: &str = "sdks";

/// The places of a run.
pub(crate) struct Places {
    /// The source, with all that was installed into it.
    pub source: PathBuf,
    /// The project's directory, below the source.
    pub project: PathBuf,
    /// The cache of Node.js's compiler of TypeScript.
    pub compiled: PathBuf,
    /// The environment of pulumi.
    pub environment: BTreeMap<OsString, OsString>,
}

impl Places {
    /// The installed parts of a layer, by root. Fails with the reason if a later run could not restore them.
    pub(crate) fn installed(&self, layer: Layer) -> Result<Vec<Selection>, String> {
        let mut found = match layer {
            Layer::Plugins => vec![self.plugins()],
            Layer::Build => vec![Selection { root: root("build", &self.compiled), paths: names(&self.compiled) }],
            Layer::Dependencies => self.packages()?,
        };
        found.retain(|selection| !selection.paths.is_empty());
        Ok(found)
    }

    /// The directories that archives of a layer are restored below.
    pub(crate) fn roots(&self, layer: Layer) -> Vec<Root> {
        match layer {
            Layer::Plugins => vec![self.plugins().root],
            Layer::Build => vec![root("build", &self.compiled)],
            Layer::Dependencies if self.is_in_place() => vec![root("source", &self.source)],
            Layer::Dependencies => self.stores().into_iter().map(|(root, _)| root).collect(),
        }
    }

    /// Returns whether the packages of the language are in the source: with them, `pulumi install` has nothing to do. Where they are in a
    /// store of the language's tool, it links or compiles them.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self.runtime().as_deref(), Some("nodejs" | "python"))
    }

    fn runtime(&self) -> Option<String> {
        install::read(&self.project).and_then(|project| Some(install::runtime(&project)?.as_str()?.to_owned()))
    }

    fn variable(&self, name: &str) -> Option<PathBuf> {
        self.environment.get(OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn home(&self, path: &str) -> Option<PathBuf> {
        Some(self.variable("HOME")?.join(path))
    }

    /// A plugin is a directory. While pulumi downloads one, there is a file beside it.
    fn plugins(&self) -> Selection {
        let home = self.variable("PULUMI_HOME").or_else(|| self.home(".pulumi")).unwrap_or_default();
        let dir = home.join("plugins");
        let is_partial = |name: &Path| dir.join(format!("{}.partial", name.display())).exists();
        let paths = names(&dir).into_iter().filter(|name| is_directory(&dir.join(name)) && !is_partial(name)).collect();
        Selection { root: root("plugins", &dir), paths }
    }

    fn packages(&self) -> Result<Vec<Selection>, String> {
        match self.runtime().as_deref() {
            Some("nodejs") => self.in_source(&|path| is_directory(path) && path.ends_with("node_modules")),
            Some("python") => {
                let environments = self.in_source(&|path| path.join("pyvenv.cfg").is_file())?;
                for environment in environments.iter().flat_map(|found| &found.paths) {
                    if let Some(package) = copied_from_source(&self.source.join(environment)) {
                        return Err(format!("the package {package} is copied from the source into the virtual environment"));
                    }
                }
                Ok(environments)
            }
            _ => Ok(self.stores().into_iter().map(|(root, path)| Selection { root, paths: vec![path] }).collect()),
        }
    }

    /// The directories of the source that a test finds, without those in them.
    fn in_source(&self, is_found: &dyn Fn(&Path) -> bool) -> Result<Vec<Selection>, String> {
        if self.project.join(SDKS).exists() {
            return Err(format!("the project has packages in {SDKS}/, which are compiled in place"));
        }
        let (mut paths, mut dirs, mut seen) = (Vec::new(), vec![PathBuf::new()], 0);
        while let Some(dir) = dirs.pop() {
            for path in names(&self.source.join(&dir)).into_iter().map(|name| dir.join(name)) {
                let place = self.source.join(&path);
                if is_found(&place) {
                    paths.push(path);
                } else if is_directory(&place) {
                    dirs.push(path);
                }
            }
            seen += 1;
            if seen > MAX_DIRECTORIES {
                return Err(format!("the source has more than {MAX_DIRECTORIES} directories"));
            }
        }
        Ok(vec![Selection { root: root("source", &self.source), paths }])
    }

    /// The stores of packages of the language's tools, as the directory above and the name: that is what the archive has.
    fn stores(&self) -> Vec<(Root, PathBuf)> {
        let go = || self.variable("GOPATH").or_else(|| self.home("go"));
        let cache = || self.variable("XDG_CACHE_HOME").or_else(|| self.home(".cache"));
        let places = match self.runtime().as_deref() {
            Some("go") => vec![
                ("modules", self.variable("GOMODCACHE").or_else(|| Some(go()?.join("pkg/mod")))),
                ("compiled", self.variable("GOCACHE").or_else(|| Some(cache()?.join("go-build")))),
            ],
            Some("dotnet") => vec![("nuget", self.variable("NUGET_PACKAGES").or_else(|| self.home(".nuget/packages")))],
            Some("java") => vec![
                ("maven", self.home(".m2/repository")),
                ("gradle", self.variable("GRADLE_USER_HOME").or_else(|| self.home(".gradle")).map(|home| home.join("caches"))),
            ],
            _ => Vec::new(),
        };
        let store = |(name, place): (&str, Option<PathBuf>)| {
            let place = place?;
            Some((root(name, place.parent()?), place.file_name()?.into()))
        };
        places.into_iter().filter_map(store).collect()
    }
}

fn root(name: &str, dir: &Path) -> Root {
    Root { name: name.to_owned(), dir: dir.to_owned() }
}

/// The names in a directory; empty for an absent one.
fn names(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name().into()).collect()
}

/// A link is none.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// A package of a virtual environment that was copied from a directory: it is older than the source when that changes.
fn copied_from_source(environment: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Origin {
        url: String,
        #[serde(default)]
        dir_info: Directory,
    }
    #[derive(Default, Deserialize)]
    struct Directory {
        #[serde(default)]
        editable: bool,
    }
    let lib = environment.join("lib");
    let packages = names(&lib).into_iter().map(|python| lib.join(python).join("site-packages"));
    packages.flat_map(|dir| names(&dir).into_iter().map(move |name| dir.join(name))).find_map(|info| {
        let text = fs::read(info.join("direct_url.json")).ok()?;
        let is_copied =
            serde_json::from_slice(&text).map_or(true, |Origin { url, dir_info }| url.starts_with("file:") && !dir_info.editable);
        is_copied.then(|| info.file_stem().unwrap_or_default().to_string_lossy().into_owned())
    })
}
