//! Where `pulumi install` and pulumi itself put what a program needs.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use driftless_contract::Layer;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::{
    archive::{Root, Selection},
    install,
};

/// The maximum number of directories that are searched for packages.
const MAX_DIRECTORIES: usize = 20_000;

/// Bytes of a file that are read at once.
const PIECE: usize = 64 << 10;

/// The directory for the packages that Pulumi generates from a provider's schema.
const SDKS: &str = "sdks";

/// Scripts that a package manager of Node.js runs when it installs the packages of the source.
const SCRIPTS: [&str; 4] = ["preinstall", "install", "postinstall", "prepare"];

/// Words in a `package.json`, or in the settings of a workspace, of packages whose content comes
/// from the source.
const FROM_SOURCE: [&str; 8] = [
    "\"file:",
    "\"link:",
    "\"portal:",
    "\"injected\"",
    "injectWorkspacePackages",
    "patchedDependencies",
    "patch-package",
    "prisma",
];

/// The beginnings of a version in a `package.json` that is a path: Yarn copies such a package.
const PATHS: [&str; 3] = ["./", "../", "~/"];

/// The fields of a `package.json` that name versions.
const VERSIONS: [&str; 4] = ["dependencies", "devDependencies", "optionalDependencies", "resolutions"];

/// The files with a list of packages for pip and uv; one that begins with `.` is a suffix.
const LISTS: [&str; 5] = [".txt", ".in", "pyproject.toml", "uv.toml", "poetry.toml"];

/// The beginnings of lines in such a file about packages whose content comes from the source, or
/// from a directory that no file pins.
const UNPINNED: [&str; 5] = ["--find-links", "find-links", "-f ", "file:", "../"];

/// Settings of registries, and the signs of a login in them.
const REGISTRIES: [&str; 7] =
    [".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml", "nuget.config", "settings.xml", "gradle.properties"];
const LOGINS: [&str; 6] = ["${", "_auth", "Auth", "packageSourceCredentials", "<password>", "assword="];

/// A file that Yarn 4 writes beside `node_modules`, and needs no more than it needs to be there.
const INSTALL_STATE: &str = ".yarn/install-state.gz";

/// The digests of files, by path. npm writes a lock file again that it does not change, so their
/// times say nothing.
pub(crate) type Files = BTreeMap<PathBuf, Option<String>>;

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
    /// The installed parts of a layer, by root. Fails with the reason if a later run could not
    /// restore them.
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

    /// Returns whether the packages of the language are in the source: with them, `pulumi install`
    /// has nothing to do. Where they are in a store of the language's tool, it links or compiles
    /// them.
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
            Some("nodejs") => self.in_source(&|path| path.ends_with("node_modules")),
            Some("python") => {
                let environments = self.in_source(&|path| path.join("pyvenv.cfg").is_file())?;
                for environment in environments.iter().flat_map(|found| &found.paths) {
                    if !has_python(&self.source.join(environment)) {
                        return Err(format!("the virtual environment {} has no Python of the image", environment.display()));
                    }
                    if let Some(package) = copied_from_source(&self.source.join(environment)) {
                        return Err(format!("the package {package} is copied from the source into the virtual environment"));
                    }
                }
                Ok(environments)
            }
            _ => {
                let exists = |(root, path): &(Root, PathBuf)| root.dir.join(path).exists();
                Ok(self.stores().into_iter().filter(exists).map(|(root, path)| Selection { root, paths: vec![path] }).collect())
            }
        }
    }

    /// The files of the source that are no packages.
    pub(crate) fn others(&self) -> Files {
        let digest = |path: &Path| {
            let (mut file, mut hasher) = (fs::File::open(self.source.join(path)).ok()?, Sha256::new());
            let mut piece = vec![0; PIECE];
            loop {
                match file.read(&mut piece).ok()? {
                    0 => break,
                    read => hasher.update(&piece[..read]),
                }
            }
            Some(base16ct::lower::encode_string(&hasher.finalize()))
        };
        let mut files = Files::new();
        // `doubt` refuses a source that is too large.
        let _: Result<_, _> = self.walk(&is_package, &mut |path| drop(files.insert(path.to_owned(), digest(path))));
        files.retain(|path, _| !path.ends_with(INSTALL_STATE));
        files
    }

    /// Returns why packages may depend on more than the files that name them.
    pub(crate) fn doubt(&self) -> Option<String> {
        let mut names = Vec::new();
        if let Err(why) = self.walk(&is_package, &mut |path| names.push(path.to_owned())) {
            return Some(why);
        }
        let is_python = self.runtime().as_deref() == Some("python");
        names.into_iter().find_map(|path| {
            let name = path.file_name()?.to_str()?;
            let text = || fs::read_to_string(self.source.join(&path)).unwrap_or_default();
            let shown = path.display();
            if ["package.json", "pnpm-workspace.yaml"].contains(&name) {
                let text = text();
                let word = FROM_SOURCE.iter().find(|word| text.contains(*word)).map(|word| word.trim_matches('"').to_owned());
                let package: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                let script =
                    SCRIPTS.iter().find(|script| package["scripts"].get(script).is_some()).map(|name| (*name).to_owned());
                return Some(format!("{shown} has {}", script.or(word).or_else(|| path_of_package(&package))?));
            }
            let list =
                is_python && LISTS.iter().any(|list| if list.starts_with('.') { name.ends_with(list) } else { name == *list });
            if list || REGISTRIES.iter().any(|registry| name.eq_ignore_ascii_case(registry)) {
                let text = text();
                let has_login = text.lines().any(has_login) || (!list && LOGINS.iter().any(|login| text.contains(login)));
                if has_login {
                    return Some(format!("{shown} contains credentials: the registry may be private"));
                }
                let is_unpinned = |line: &str| UNPINNED.iter().any(|word| line.starts_with(word)) || is_odd_list(line);
                let line = text.lines().map(str::trim).find(|line| list && is_unpinned(line))?;
                return Some(format!("{shown} names packages that no file pins: {line}"));
            }
            None
        })
    }

    /// The directories of the source that a test finds, without those in them.
    fn in_source(&self, is_found: &dyn Fn(&Path) -> bool) -> Result<Vec<Selection>, String> {
        if self.project.join(SDKS).exists() {
            return Err(format!("the project has packages in {SDKS}/, which are compiled in place"));
        }
        let paths = self.walk(is_found, &mut |_| ())?;
        Ok(vec![Selection { root: root("source", &self.source), paths }])
    }

    /// Walks the source without the directories that a test finds, and returns these. `file` gets
    /// each file and link.
    fn walk(&self, is_found: &dyn Fn(&Path) -> bool, file: &mut dyn FnMut(&Path)) -> Result<Vec<PathBuf>, String> {
        let (mut paths, mut dirs, mut seen) = (Vec::new(), vec![PathBuf::new()], 0);
        while let Some(dir) = dirs.pop() {
            for path in names(&self.source.join(&dir)).into_iter().map(|name| dir.join(name)) {
                let place = self.source.join(&path);
                match fs::symlink_metadata(&place) {
                    Ok(found) if found.is_dir() && is_found(&place) => paths.push(path),
                    Ok(found) if found.is_dir() => dirs.push(path),
                    Ok(_) => file(&path),
                    Err(_) => {}
                }
            }
            seen += 1;
            if seen > MAX_DIRECTORIES {
                return Err(format!("the source has more than {MAX_DIRECTORIES} directories"));
            }
        }
        Ok(paths)
    }

    /// The stores of packages of the language's tools, as the directory above and the name: that is
    /// what the archive has.
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

/// Returns whether a directory of the source has packages.
fn is_package(path: &Path) -> bool {
    path.ends_with("node_modules") || path.join("pyvenv.cfg").is_file()
}

/// A dependency of a `package.json` that is a directory of the source.
fn path_of_package(package: &serde_json::Value) -> Option<String> {
    let versions = VERSIONS.iter().filter_map(|field| package[field].as_object()).flatten();
    let paths = versions.filter_map(|(name, version)| Some((name, version.as_str()?)));
    let mut paths = paths.filter(|(_, version)| PATHS.iter().any(|path| version.starts_with(path)));
    paths.next().map(|(name, path)| format!("{name}: {path}"))
}

/// Returns whether a line has a URL with a user: `https://user:password@host`.
fn has_login(line: &str) -> bool {
    let urls = line.split("://").skip(1);
    urls.into_iter().any(|rest| rest.split(['/', ' ', '"', '\'']).next().is_some_and(|host| host.contains('@')))
}

/// Returns whether a line of a list of packages includes a list whose digest is in no key: outside
/// of its directory, or by its name.
fn is_odd_list(line: &str) -> bool {
    let included = ["-r", "-c", "--requirement", "--constraint"].iter().find_map(|flag| line.strip_prefix(flag));
    let name = included.filter(|rest| rest.starts_with([' ', '='])).map(|name| name.trim_matches([' ', '=']));
    name.is_some_and(|name| name.contains("../") || ![".txt", ".in"].iter().any(|end| name.ends_with(end)))
}

/// Returns whether the Python of a virtual environment is one of the image. uv may have downloaded
/// it for this run.
fn has_python(environment: &Path) -> bool {
    let python = environment.join("bin/python").canonicalize();
    python.is_ok_and(|python| !python.ancestors().any(|dir| dir.ends_with("uv/python")))
}

/// Returns whether a path is a directory and not a link.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// A package of a virtual environment that was copied from a directory: it is older than the source
/// when that changes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn places(name: &str, project: &str, files: &[(&str, &str)]) -> (PathBuf, Places) {
        let source = std::env::temp_dir().join(format!("driftless-places-{name}-{}", std::process::id()));
        for (path, text) in [("app/Pulumi.yaml", project)].iter().chain(files) {
            let place = source.join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
        let environment = [("HOME".into(), source.join("home").into())].into();
        let places =
            Places { project: source.join("app"), compiled: source.join("compiled"), source: source.clone(), environment };
        (source, places)
    }

    #[test]
    fn content_from_the_source_and_logins_are_doubts() {
        for (name, files, doubt) in [
            ("plain", &[("app/package.json", r#"{"dependencies":{"a":"1"}}"#)][..], None),
            ("script", &[("app/package.json", r#"{"scripts":{"prepare":"tsc"}}"#)], Some("app/package.json has prepare")),
            ("file", &[("lib/package.json", r#"{"dependencies":{"a":"file:../a"}}"#)], Some("lib/package.json has file:")),
            ("of-package", &[("app/node_modules/a/package.json", r#"{"scripts":{"install":"x"}}"#)], None),
            (
                "login",
                &[(".npmrc", "//npm.example/:_authToken=${TOKEN}")],
                Some(".npmrc contains credentials: the registry may be private"),
            ),
            ("registry", &[(".npmrc", "registry=https://npm.example")], None),
            (
                "pip",
                &[("app/requirements.txt", "# ../\npulumi>=3 # ../\n-r ../common.txt")],
                Some("app/requirements.txt names packages that no file pins: -r ../common.txt"),
            ),
            ("list", &[("app/requirements.txt", "-r base.txt\n-c limits.in")], None),
            (
                "odd-list",
                &[("app/requirements.txt", "-r base.reqs")],
                Some("app/requirements.txt names packages that no file pins: -r base.reqs"),
            ),
            (
                "wheels",
                &[("app/requirements.txt", "--find-links ./wheels")],
                Some("app/requirements.txt names packages that no file pins: --find-links ./wheels"),
            ),
            (
                "index",
                &[("app/requirements.txt", "--extra-index-url https://user:canary@pypi.example/simple")],
                Some("app/requirements.txt contains credentials: the registry may be private"),
            ),
            (
                "nuget",
                &[("NuGet.Config", "<packageSourceCredentials>")],
                Some("NuGet.Config contains credentials: the registry may be private"),
            ),
            (
                "path",
                &[("app/package.json", r#"{"dependencies":{"own":"./own","b":"~1.2"}}"#)],
                Some("app/package.json has own: ./own"),
            ),
            (
                "injected",
                &[("package.json", r#"{"dependenciesMeta":{"a":{"injected":true}}}"#)],
                Some("package.json has injected"),
            ),
        ] {
            let runtime = if files[0].0 == "app/requirements.txt" { "python" } else { "nodejs" };
            let (source, places) = places(&format!("doubt-{name}"), &format!("name: app\nruntime: {runtime}\n"), files);
            assert_eq!(places.doubt().as_deref(), doubt, "{name}");
            fs::remove_dir_all(source).unwrap();
        }
    }

    #[test]
    fn stores_and_packages_are_found_where_the_tools_have_them() {
        let found = |name: &str, project: &str, files: &[(&str, &str)]| {
            let (source, places) = places(name, project, files);
            let found = places.installed(Layer::Dependencies).map(|found| {
                let paths = found.into_iter().flat_map(|Selection { root, paths }| {
                    paths.into_iter().map(move |path| format!("{}: {}", root.name, path.display()))
                });
                let mut paths: Vec<_> = paths.collect();
                paths.sort();
                paths
            });
            fs::remove_dir_all(source).unwrap();
            found
        };
        let go = "name: app\nruntime: go\n";
        assert_eq!(found("go-empty", go, &[]), Ok(vec![]));
        let stores = [("home/go/pkg/mod/a", ""), ("home/.cache/go-build/b", "")];
        assert_eq!(found("go", go, &stores), Ok(vec!["compiled: go-build".into(), "modules: mod".into()]));
        assert_eq!(
            found("java", "name: app\nruntime: java\n", &[("home/.m2/repository/a", "")]),
            Ok(vec!["maven: repository".into()])
        );
        let nuget = [("home/.nuget/packages/a", "")];
        assert_eq!(found("dotnet", "name: app\nruntime: dotnet\n", &nuget), Ok(vec!["nuget: packages".into()]));
        let python = "name: app\nruntime: { name: python, options: { virtualenv: venv } }\n";
        let (venv, bin) = (("app/venv/pyvenv.cfg", ""), ("app/venv/bin/python", ""));
        assert_eq!(found("python", python, &[venv, bin]), Ok(vec!["source: app/venv".into()]));
        let dangling = "the virtual environment app/venv has no Python of the image";
        assert_eq!(found("dangling", python, &[venv]), Err(dangling.into()));
        let downloaded = ("app/uv/python/venv/pyvenv.cfg", "");
        assert!(found("downloaded", python, &[downloaded, ("app/uv/python/venv/bin/python", "")]).is_err());
        let copied =
            ("app/venv/lib/python3.13/site-packages/own-1.0.dist-info/direct_url.json", r#"{"url":"file:///share/source/own"}"#);
        let why = "the package own-1.0 is copied from the source into the virtual environment";
        assert_eq!(found("copied", python, &[venv, bin, copied]), Err(why.into()));
        let sdks = "the project has packages in sdks/, which are compiled in place";
        assert_eq!(found("sdks", "name: app\nruntime: nodejs\n", &[("app/sdks/a", "")]), Err(sdks.into()));
    }
}
