//! Which of the dependencies that an earlier run installed fit a run.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Architecture, PROJECT_FILES, hash};

/// Part of every key: entries that an earlier release stored in another form are not found.
const FORMAT: &str = "1";

/// A part of what a run installs, with a cache entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The packages of the program's language.
    Dependencies,
    /// Provider plugins and other plugins of Pulumi.
    Plugins,
    /// What a compiler made of the program itself.
    Build,
}

impl Layer {
    /// All layers, in the order in which they are restored.
    pub const ALL: [Self; 3] = [Self::Plugins, Self::Dependencies, Self::Build];

    /// The word for it in keys and documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dependencies => "dependencies",
            Self::Plugins => "plugins",
            Self::Build => "build",
        }
    }
}

/// A program whose dependencies are to be installed.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The runtime, as `Pulumi.yaml` names it.
    pub runtime: &'a str,
    /// The project's directory in the source; empty for its root.
    pub dir: &'a str,
    /// The files of the source that the run gets: paths and digests.
    pub files: &'a [(&'a str, &'a str)],
    /// The paths of the symbolic links of the source.
    pub links: &'a [&'a str],
    /// The digest of the source.
    pub digest: &'a str,
    /// The image of the run.
    pub image: &'a str,
    /// The processor of the run.
    pub architecture: Architecture,
    /// The environment of the run, without that of the image.
    pub variables: &'a [Variable<'a>],
    /// The paths of the files that the run mounts.
    pub mounted: &'a [&'a str],
}

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value.
    pub value: &'a str,
    /// The value comes from a Secret.
    pub secret: bool,
}

/// The names of the cache entries that fit a run, within its scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheNames {
    /// The entry of each layer that the run can restore and store.
    pub layers: BTreeMap<Layer, String>,
    /// Why the packages of the language are installed in each run.
    pub uncached: Option<String>,
}

/// The package managers of a runtime. Names of files are compared with the last part of a path; one
/// that begins with `*` is a suffix.
struct Manager {
    runtime: &'static str,
    /// Files that pin all dependencies: with one of them an entry fits as long as it does not
    /// change.
    locks: &'static [&'static str],
    /// Files that name dependencies whose versions a later installation may choose anew. Without a
    /// lock file, an entry fits for a day (UTC). Empty if only a lock file will do.
    floating: &'static [&'static str],
    /// More files that decide what is installed.
    others: &'static [&'static str],
    /// The beginnings of the names of the environment variables that it reads.
    variables: &'static [&'static str],
}

const MANAGERS: [Manager; 5] = [
    Manager {
        runtime: "nodejs",
        locks: &["package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb"],
        floating: &[],
        others: &[
            "package.json",
            "package.yaml",
            "pnpm-workspace.yaml",
            ".pnpmfile.cjs",
            ".npmrc",
            ".yarnrc",
            ".yarnrc.yml",
            ".node-version",
            ".nvmrc",
        ],
        variables: &["npm_config_", "NPM_", "NODE_", "YARN_", "PNPM_", "BUN_", "PULUMI_PREFER_YARN"],
    },
    Manager {
        runtime: "python",
        locks: &["uv.lock", "poetry.lock"],
        floating: &["*requirements.txt", "pyproject.toml"],
        others: &["*.txt", "*.in", "setup.py", "setup.cfg", ".python-version", "pip.conf", "uv.toml", "poetry.toml"],
        variables: &["PIP_", "UV_", "POETRY_", "PYTHON"],
    },
    Manager {
        runtime: "go",
        locks: &["go.sum"],
        floating: &["go.mod"],
        others: &["go.work", "go.work.sum"],
        variables: &["GO", "CGO_"],
    },
    Manager {
        runtime: "dotnet",
        locks: &["packages.lock.json"],
        floating: &["*.csproj", "*.fsproj", "*.vbproj"],
        others: &["Directory.Build.props", "Directory.Build.targets", "Directory.Packages.props", "nuget.config", "global.json"],
        variables: &["NUGET_", "DOTNET_"],
    },
    Manager {
        runtime: "java",
        locks: &["gradle.lockfile"],
        floating: &["pom.xml", "*build.gradle", "*build.gradle.kts"],
        others: &["*settings.gradle", "*settings.gradle.kts", "gradle.properties", "maven.config", "*.versions.toml"],
        variables: &["MAVEN_", "GRADLE_", "JAVA_"],
    },
];

/// Files that hold logins for registries.
const LOGINS: [&str; 15] = [
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    "bunfig.toml",
    ".netrc",
    ".gitconfig",
    ".git-credentials",
    "id_ed25519",
    "id_rsa",
    "pip.conf",
    "uv.toml",
    "auth.toml",
    "nuget.config",
    "settings.xml",
    "gradle.properties",
];

/// Variables that hold logins for registries, by the end of their names.
const LOGIN_VARIABLES: [&str; 3] = ["NPM_TOKEN", "NODE_AUTH_TOKEN", "GOPRIVATE"];

/// Returns the entries that fit a program. A change of anything that decides what is installed
/// changes their names.
#[must_use]
pub fn cache_names(program: &Program<'_>, now: Timestamp) -> CacheNames {
    let processor = program.architecture.to_string();
    let common = [FORMAT, program.image, processor.as_str()];
    let mut names = CacheNames::default();
    let day = day(now);
    let servers: Vec<_> = program.variables.iter().filter(|variable| variable.name.starts_with("PULUMI_PLUGIN_")).collect();
    if servers.iter().all(|variable| !variable.secret) {
        let mut plugins = common.to_vec();
        plugins.extend(servers.into_iter().flat_map(pair));
        // A program in YAML names types. Without versions, Pulumi accepts any installed plugin, so
        // such a program has an entry of its own.
        plugins.extend([program.dir, &day].into_iter().filter(|_| program.runtime == "yaml"));
        names.layers.insert(Layer::Plugins, hash(&plugins));
    }

    let Some(manager) = MANAGERS.iter().find(|manager| manager.runtime == program.runtime) else { return names };
    match manager.inputs(program, &day) {
        Ok(inputs) => {
            let dependencies = hash(&[&common[..], &inputs].concat());
            if program.runtime == "nodejs" {
                names.layers.insert(Layer::Build, hash(&[&dependencies, program.digest]));
            }
            names.layers.insert(Layer::Dependencies, dependencies);
        }
        Err(why) => names.uncached = Some(why),
    }
    names
}

impl Manager {
    /// Everything that decides what is installed, or why that is not known.
    fn inputs<'a>(&self, program: &Program<'a>, day: &'a str) -> Result<Vec<&'a str>, String> {
        let reads = |name: &str| self.variables.iter().any(|prefix| name.starts_with(prefix)) || LOGIN_VARIABLES.contains(&name);
        let variables: Vec<_> = program.variables.iter().filter(|variable| reads(variable.name)).collect();
        let is_login = |path: &&&str| {
            LOGINS.iter().any(|login| file_name(path).eq_ignore_ascii_case(login))
                || variables.iter().any(|variable| variable.value == **path)
        };
        if let Some(login) = program.mounted.iter().find(is_login) {
            return Err(format!("{login} contains credentials: the registry may be private"));
        }
        if let Some(links) = variables.iter().find(|variable| variable.name.ends_with("FIND_LINKS")) {
            return Err(format!("the environment variable {} names packages that no file pins", links.name));
        }
        if let Some(login) = variables.iter().find(|variable| variable.secret) {
            return Err(format!("the environment variable {} is secret: the registry may be private", login.name));
        }
        let is_lock = |path: &str| self.locks.iter().any(|name| is_named(path, name));
        let locks =
            program.files.iter().map(|(path, _)| *path).filter(|path| is_within(program.dir, parent(path)) && is_lock(path));
        // A lock file above the project is that of a workspace, whose other members decide too.
        let workspace = locks.map(parent).min_by_key(|dir| dir.len()).unwrap_or(program.dir);
        let is_near = |path: &str| is_within(parent(path), workspace) || is_within(program.dir, parent(path));
        let files: Vec<_> = program.files.iter().filter(|(path, _)| is_near(path)).collect();
        // A lock file below the project is of another one.
        let beside = |path: &str| parent(path) == program.dir;
        let above = |path: &str| is_within(program.dir, parent(path));
        let has = |names: &[&str], is_placed: &dyn Fn(&str) -> bool| {
            files.iter().any(|(path, _)| is_placed(path) && names.iter().any(|name| is_named(path, name)))
        };
        // pip reads no lock file, and is the default where its own file is.
        let is_pips = self.runtime == "python" && has(&["requirements.txt"], &beside);
        let is_locked = has(self.locks, &above) && !is_pips;
        if !is_locked && !has(self.floating, &above) {
            let missing = if self.floating.is_empty() { self.locks } else { self.floating };
            return Err(format!("the source has no {}", missing.join(", ").replace('*', "")));
        }
        let decides = |path: &str| {
            let lists = [self.locks, self.floating, self.others];
            lists.concat().iter().any(|name| is_named(path, name)) || is_project(path, program.dir)
        };
        if let Some(link) = program.links.iter().find(|link| is_near(link) && decides(link)) {
            return Err(format!("{link} is a symbolic link"));
        }
        let mut inputs = vec![self.runtime, program.dir];
        inputs.extend(files.iter().filter(|(path, _)| decides(path)).flat_map(|(path, digest)| [*path, *digest]));
        inputs.extend(variables.into_iter().flat_map(pair));
        inputs.extend((!is_locked).then_some(day));
        Ok(inputs)
    }
}

fn pair<'a>(variable: &Variable<'a>) -> [&'a str; 2] {
    [variable.name, variable.value]
}

/// The day in UTC.
fn day(now: Timestamp) -> String {
    (now.as_second() / (24 * 60 * 60)).to_string()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn is_named(path: &str, name: &str) -> bool {
    let (file, name) = (file_name(path).to_ascii_lowercase(), name.to_ascii_lowercase());
    name.strip_prefix('*').map_or(file == name, |suffix| file.ends_with(suffix))
}

/// Returns whether a path is that of a directory, or below it.
fn is_within(inner: &str, outer: &str) -> bool {
    outer.is_empty() || inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a path is the project's own file.
fn is_project(path: &str, dir: &str) -> bool {
    let name = if dir.is_empty() { Some(path) } else { path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/')) };
    name.is_some_and(|name| PROJECT_FILES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: [(&str, &str); 4] =
        [("app/Pulumi.yaml", "1"), ("app/index.ts", "2"), ("app/package.json", "3"), ("package-lock.json", "4")];

    fn program<'a>(runtime: &'a str, files: &'a [(&'a str, &'a str)]) -> Program<'a> {
        Program {
            runtime,
            dir: "app",
            files,
            links: &[],
            digest: "d",
            image: "image:1",
            architecture: Architecture::Amd64,
            variables: &[],
            mounted: &[],
        }
    }

    fn names(program: &Program<'_>) -> CacheNames {
        cache_names(program, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn every_input_of_an_installation_changes_the_entry_name() {
        let first = names(&program("nodejs", &NODE));
        assert_eq!(first.layers.keys().copied().collect::<Vec<_>>(), [Layer::Dependencies, Layer::Plugins, Layer::Build]);
        assert_eq!(first.uncached, None);
        let changed = |name: &str| NODE.map(|(path, digest)| (path, if path == name { "new" } else { digest }));
        let moved = |layer: Layer, other: &Program<'_>| names(other).layers[&layer] != first.layers[&layer];
        for (file, is_new) in
            [("app/Pulumi.yaml", true), ("app/package.json", true), ("package-lock.json", true), ("app/index.ts", false)]
        {
            let files = changed(file);
            assert_eq!(moved(Layer::Dependencies, &program("nodejs", &files)), is_new, "{file}");
            assert!(!moved(Layer::Plugins, &program("nodejs", &files)), "{file}");
        }
        let other = program("nodejs", &NODE);
        assert!(moved(Layer::Build, &Program { digest: "e", ..other.clone() }));
        assert!(!moved(Layer::Dependencies, &Program { digest: "e", ..other.clone() }));
        for other in
            [Program { image: "image:2", ..other.clone() }, Program { architecture: Architecture::Arm64, ..other.clone() }]
        {
            assert!(Layer::ALL.iter().all(|layer| moved(*layer, &other)));
        }
        let moved_by = |layer, name, value| {
            let variables = [Variable { name, value, secret: false }];
            moved(layer, &Program { variables: &variables, ..program("nodejs", &NODE) })
        };
        assert!(moved_by(Layer::Dependencies, "npm_config_registry", "https://npm.example"));
        assert!(!moved_by(Layer::Dependencies, "STAGE", "prod"));
        assert!(moved_by(Layer::Plugins, "PULUMI_PLUGIN_DOWNLOAD_URL_OVERRIDES", "a=b"));
        let member = [&NODE[..], &[("other/package.json", "5")]].concat();
        assert!(moved(Layer::Dependencies, &program("nodejs", &member)), "a member of the workspace");
        let own = [&NODE[..3], &[("app/package-lock.json", "4")]].concat();
        let elsewhere = [&own[..], &[("other/package.json", "5")]].concat();
        assert_eq!(names(&program("nodejs", &own)), names(&program("nodejs", &elsewhere)));
    }

    #[test]
    fn entry_without_a_lock_file_fits_for_a_day() {
        let tomorrow = Timestamp::from_second(24 * 60 * 60).unwrap();
        let lasts = |runtime: &str, layer: Layer, files: &[(&str, &str)]| {
            let program = program(runtime, files);
            names(&program).layers[&layer] == cache_names(&program, tomorrow).layers[&layer]
        };
        assert!(lasts("nodejs", Layer::Dependencies, &NODE));
        assert!(lasts("python", Layer::Dependencies, &[("app/pyproject.toml", "1"), ("uv.lock", "2")]));
        assert!(
            !lasts("python", Layer::Dependencies, &[("app/requirements.txt", "1"), ("uv.lock", "2")]),
            "pip has no lock file"
        );
        assert!(!lasts("go", Layer::Dependencies, &[("app/go.mod", "1"), ("app/tools/go.sum", "2")]), "of another module");
        assert!(!lasts("python", Layer::Dependencies, &[("app/requirements.txt", "1")]));
        assert!(!lasts("java", Layer::Dependencies, &[("app/pom.xml", "1")]));
        assert!(lasts("python", Layer::Plugins, &[]));
        assert!(!lasts("yaml", Layer::Plugins, &[]), "a program in YAML that names no version gets the newest plugin");
    }

    #[test]
    fn uncertain_packages_are_installed_not_cached() {
        let uncached = |program: &Program<'_>| {
            let names = names(program);
            assert_eq!(names.layers.keys().copied().collect::<Vec<_>>(), [Layer::Plugins]);
            names.uncached.unwrap_or_default()
        };
        assert_eq!(
            uncached(&program("nodejs", &NODE[..3])),
            "the source has no package-lock.json, npm-shrinkwrap.json, yarn.lock, pnpm-lock.yaml, bun.lock, bun.lockb"
        );
        assert_eq!(uncached(&program("python", &[])), "the source has no requirements.txt, pyproject.toml");
        let secret = [Variable { name: "NPM_TOKEN", value: "canary", secret: true }];
        assert_eq!(
            uncached(&Program { variables: &secret, ..program("nodejs", &NODE) }),
            "the environment variable NPM_TOKEN is secret: the registry may be private"
        );
        assert_eq!(
            uncached(&Program { mounted: &["/home/pulumi/.npmrc"], ..program("nodejs", &NODE) }),
            "/home/pulumi/.npmrc contains credentials: the registry may be private"
        );
        let key = [Variable { name: "GOOGLE_APPLICATION_CREDENTIALS", value: "/secrets/key", secret: false }];
        let other = names(&Program { mounted: &["/secrets/key"], variables: &key, ..program("nodejs", &NODE) });
        assert_eq!(other.uncached, None, "the tool does not read it");
        let config = [Variable { name: "NPM_CONFIG_USERCONFIG", value: "/secrets/npm", secret: false }];
        assert_eq!(
            uncached(&Program { mounted: &["/secrets/npm"], variables: &config, ..program("nodejs", &NODE) }),
            "/secrets/npm contains credentials: the registry may be private"
        );
        assert_eq!(
            uncached(&Program { links: &["app/package.json"], ..program("nodejs", &NODE) }),
            "app/package.json is a symbolic link"
        );
        let links = [Variable { name: "PIP_FIND_LINKS", value: "wheels", secret: false }];
        assert_eq!(
            uncached(&Program { variables: &links, ..program("python", &[("app/requirements.txt", "1")]) }),
            "the environment variable PIP_FIND_LINKS names packages that no file pins"
        );
        let nested = [NODE[0], NODE[2], ("app/lambda/package-lock.json", "4")];
        assert!(uncached(&program("nodejs", &nested)).starts_with("the source has no package-lock.json"));
        for runtime in ["yaml", "ruby"] {
            assert_eq!(uncached(&program(runtime, &NODE)), "");
        }
    }
}
