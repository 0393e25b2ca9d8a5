//! Decides whether `pulumi install` has work to do: it costs a process, and the dependencies of a
//! language take minutes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use driftless_contract::PROJECT_FILES;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::files;

/// The maximum number of a project's files that are checked.
const MAX_FILES: usize = 10_000;

/// Keys of a project's file that name packages.
const PACKAGES: [&str; 2] = ["packages", "plugins"];

/// The prefix of a function's name.
const FUNCTION: &str = "fn::";

/// Returns whether the image has everything that a YAML project needs. Any doubt is left to Pulumi.
pub(crate) fn has_all(dir: &Path, environment: &BTreeMap<OsString, OsString>) -> bool {
    let Some(Value::Object(project)) = read(dir) else { return false };
    let is_yaml = project.get("runtime").is_some_and(|runtime| runtime == "yaml");
    let is_simple = !project.contains_key("main") && PACKAGES.iter().all(|key| !project.contains_key(*key));
    let mut packages = BTreeSet::new();
    is_yaml
        && is_simple
        && has_one_program(dir)
        && project.iter().all(|(key, value)| take(key, value, &mut packages))
        && packages.iter().all(|(package, version)| is_installed(package, version.as_deref(), environment))
}

/// Reads the project's file if Pulumi reads no other one.
pub(crate) fn read(dir: &Path) -> Option<Value> {
    let [file, others @ ..] = PROJECT_FILES;
    let is_only = others.iter().all(|other| fs::symlink_metadata(dir.join(other)).is_err());
    let text = is_only.then(|| fs::read_to_string(dir.join(file)))?.ok()?;
    serde_saphyr::from_str(&text).ok()
}

/// Returns whether the project's file and settings are the only YAML in the directory: another file
/// may be a program or a package's declaration.
fn has_one_program(dir: &Path) -> bool {
    let (mut dirs, mut seen) = (vec![dir.to_owned()], 0);
    while let Some(current) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&current) else { return false };
        for entry in entries {
            let Ok((path, kind)) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) else { return false };
            seen += 1;
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let is_project = current == dir && name.starts_with("Pulumi.");
            let is_yaml = path.extension() == Some(OsStr::new("yaml"));
            if seen > MAX_FILES || (!is_project && (is_yaml || name == "Main.json")) {
                return false;
            }
            if kind.is_dir() {
                dirs.push(path);
            }
        }
    }
    true
}

/// A package, and the version that the program requires of it.
type Package = (String, Option<String>);

/// Collects the packages of the types and functions in a part of the program; `false` if Pulumi has
/// to decide.
fn take(key: &str, value: &Value, packages: &mut BTreeSet<Package>) -> bool {
    // A function's own name is in the key, or a field beside its arguments.
    let function = key.get(..FUNCTION.len()).filter(|start| start.eq_ignore_ascii_case(FUNCTION)).map(|_| &key[FUNCTION.len()..]);
    let token = match (function, value) {
        (Some(function), _) if function.contains(':') => Some(function),
        (None, Value::String(token)) if ["type", "function"].iter().any(|name| key.eq_ignore_ascii_case(name)) => {
            Some(token.as_str())
        }
        _ => None,
    };
    packages.extend(token.and_then(package).map(|package| (package, None)));
    match value {
        Value::Object(fields) if !take_version(fields, packages) => false,
        Value::Object(fields) => fields.iter().all(|(key, value)| take(key, value, packages)),
        Value::Array(values) => values.iter().all(|value| take("", value, packages)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Collects the package of a resource or a function that requires a version of its plugin; `false`
/// if the version is not known.
fn take_version(fields: &Map<String, Value>, packages: &mut BTreeSet<Package>) -> bool {
    let field = |fields: &Map<String, Value>, name: &str| {
        fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
    };
    let Some(Value::Object(options)) = field(fields, "options") else { return true };
    let (version, url) = (field(&options, "version"), field(&options, "pluginDownloadURL"));
    let token = field(fields, "type").or_else(|| field(fields, "function"));
    match (version, token) {
        (None, _) => url.is_none(),
        (Some(Value::String(version)), Some(Value::String(token))) => {
            packages.extend(package(&token).map(|package| (package, Some(version))));
            true
        }
        _ => false,
    }
}

/// Returns the package of a type or a function, unless it is built into Pulumi.
fn package(token: &str) -> Option<String> {
    let parts: Vec<&str> = token.split(':').collect();
    let package = match parts.as_slice() {
        ["pulumi", "providers", package] => *package,
        [package, _, ..] => package,
        _ => return None,
    };
    (package != "pulumi").then(|| package.to_owned())
}

/// Returns whether Pulumi finds a resource plugin of the package without a download: of that
/// version, or else of any.
fn is_installed(package: &str, version: Option<&str>, environment: &BTreeMap<OsString, OsString>) -> bool {
    let variable = |name: &str| environment.get(OsStr::new(name)).filter(|value| !value.is_empty());
    let home = variable("PULUMI_HOME").map(PathBuf::from).or_else(|| Some(Path::new(variable("HOME")?).join(".pulumi")));
    let prefix = format!("resource-{package}-v");
    let plugins = home.and_then(|home| fs::read_dir(home.join("plugins")).ok());
    let is_complete = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let partial = path.with_file_name(format!("{name}.partial"));
        let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        let is_wanted = name
            .strip_prefix(&prefix)
            .is_some_and(|found| version.is_none_or(|version| found == version.trim_start_matches('v')));
        is_wanted && is_directory && fs::symlink_metadata(partial).is_err()
    };
    plugins.into_iter().flatten().flatten().any(|entry| is_complete(&entry.path()))
}

/// Languages whose packages Pulumi lists without building the program.
const LISTED: [&str; 3] = ["go", "nodejs", "python"];

/// Returns whether a project can be destroyed and refreshed without its dependencies, as long as
/// its program does not run. A plugin of its own, or a language that is built first, is left to
/// Pulumi.
pub(crate) fn may_leave_out(dir: &Path, environment: &BTreeMap<OsString, OsString>) -> bool {
    // With it Pulumi runs the program in any case.
    let runs_program = environment.contains_key(OsStr::new("PULUMI_RUN_PROGRAM"));
    let listed = |project: &Value| {
        let is_simple = PACKAGES.iter().all(|key| project.get(key).is_none());
        is_simple && LISTED.iter().any(|name| runtime(project).is_some_and(|runtime| runtime == name))
    };
    !runs_program && read(dir).as_ref().is_some_and(listed)
}

/// Removes the options of its runtime from a project: they name a virtual environment, which Pulumi
/// would create and fill to list the program's packages. Returns whether nothing else changed.
pub(crate) fn leave_out(dir: &Path) -> bool {
    let path = dir.join(PROJECT_FILES[0]);
    let (Some(mut project), Ok(text)) = (read(dir), fs::read_to_string(&path)) else { return false };
    let Some(runtime) = runtime(&project).cloned() else { return false };
    let edited = without_options(&text, &runtime);
    if let Some(old) = project.get_mut("runtime") {
        *old = runtime;
    }
    let is_the_same = serde_saphyr::from_str::<Value>(&edited).is_ok_and(|edited| edited == project);
    is_the_same && (edited == text || files::write(&path, edited.as_bytes(), 0o644, 0o755).is_ok())
}

/// Returns the name of a project's runtime.
pub(crate) fn runtime(project: &Value) -> Option<&Value> {
    project.get("runtime").map(|runtime| runtime.get("name").unwrap_or(runtime))
}

/// Returns the text of a project's file with only the name of its runtime.
fn without_options(text: &str, runtime: &Value) -> String {
    let mut edited = String::new();
    let mut is_within = false;
    for line in text.lines() {
        is_within = line.starts_with("runtime:") || is_within && (line.is_empty() || line.starts_with([' ', '#']));
        if line.starts_with("runtime:") {
            edited.extend(["runtime: ", runtime.as_str().unwrap_or_default()]);
        } else if !is_within {
            edited.push_str(line);
        }
        edited.push('\n');
    }
    edited
}

/// Returns whether a state has a dynamic resource, whose provider is among the dependencies of the
/// language.
pub(crate) fn has_dynamic(state: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct State {
        deployment: Deployment,
    }
    #[derive(Deserialize)]
    struct Deployment {
        #[serde(default)]
        resources: Vec<Resource>,
    }
    #[derive(Deserialize)]
    struct Resource {
        r#type: String,
    }
    let is_dynamic = |resource: &Resource| package(&resource.r#type).is_some_and(|package| package.starts_with("pulumi-"));
    serde_json::from_slice::<State>(state).map_or(true, |state| state.deployment.resources.iter().any(is_dynamic))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Project {
        dir: PathBuf,
        environment: BTreeMap<OsString, OsString>,
    }

    impl Project {
        fn new(name: &str, text: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("driftless-install-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("source")).unwrap();
            fs::create_dir_all(dir.join("home/plugins/resource-aws-v7.1.0")).unwrap();
            fs::write(dir.join("source/Pulumi.yaml"), text).unwrap();
            let environment = [("PULUMI_HOME".into(), dir.join("home").into())].into();
            Self { dir, environment }
        }

        fn source(&self) -> PathBuf {
            self.dir.join("source")
        }

        fn has_all(&self) -> bool {
            has_all(&self.source(), &self.environment)
        }
    }

    impl Drop for Project {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.dir).unwrap();
        }
    }

    #[test]
    fn yaml_program_whose_plugins_are_installed_needs_nothing() {
        let bucket = "resources:\n  a:\n    type: aws:s3:Bucket\n    properties: { version: 1 }\n";
        let invoke = |function: &str| format!("variables:\n  a: {{ fn::{function} }}\n");
        for (program, has_all) in [
            (String::new(), true),
            (bucket.into(), true),
            ("resources: { p: { type: 'pulumi:providers:aws' }, s: { type: 'pulumi:pulumi:StackReference' } }\n".into(), true),
            (invoke("toJSON: { a: 'b:c' }"), true),
            (invoke("invoke: { function: 'aws:getRegion', arguments: {} }"), true),
            (invoke("aws:getRegion: {}"), true),
            (invoke("invoke: { function: 'gcp:getRegion' }"), false),
            (invoke("gcp:getRegion: {}"), false),
            (bucket.replace("aws", "gcp"), false),
            ("resources: { p: { type: 'pulumi:providers:gcp' } }\n".into(), false),
            (format!("{bucket}    options: {{ version: 6.0.0 }}\n"), false),
            (format!("{bucket}    options: {{ version: 7.1.0 }}\n"), true),
            (format!("{bucket}    options: {{ version: 7.1.0, pluginDownloadURL: 'https://x' }}\n"), true),
            (format!("{bucket}    options: {{ version: 7.1 }}\n"), false),
            (invoke("invoke: { function: 'aws:getRegion', options: { version: 6.0.0 } }"), false),
            (format!("{bucket}    options: {{ pluginDownloadURL: 'https://x' }}\n"), false),
            (format!("{bucket}    options: {{ protect: true }}\n"), true),
            ("packages: { a: b }\n".into(), false),
            ("plugins: {}\n".into(), false),
            ("main: src\n".into(), false),
            ("a: [\n".into(), false),
        ] {
            let project = Project::new("yaml", &format!("name: p\nruntime: yaml\n{program}"));
            assert_eq!(project.has_all(), has_all, "{program}");
        }
        for runtime in ["nodejs", "{ name: yaml, options: { compiler: cue } }"] {
            assert!(!Project::new("runtime", &format!("name: p\nruntime: {runtime}\n")).has_all(), "{runtime}");
        }
    }

    #[test]
    fn other_yaml_or_a_plugin_in_part_is_left_to_pulumi() {
        let project = Project::new("files", "name: p\nruntime: yaml\nresources: { a: { type: aws:s3:Bucket } }\n");
        for (file, has_all) in [
            ("source/Pulumi.dev.yaml", true),
            ("source/README.md", true),
            ("source/Main.yaml", false),
            ("source/Main.json", false),
            ("source/PulumiPlugin.yaml", false),
            ("source/Pulumi.json", false),
            ("source/sdks/aws/aws-7.1.0.yaml", false),
            ("home/plugins/resource-aws-v7.1.0.partial", false),
        ] {
            let path = project.dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            assert_eq!(project.has_all(), has_all, "{file}");
            fs::remove_file(path).unwrap();
        }
        assert!(project.has_all());
        assert!(!has_all(&project.source(), &BTreeMap::new()));
    }

    #[test]
    fn project_is_left_as_it_is_but_for_the_options_of_its_runtime() {
        let block =
            "name: p # mine\n\nruntime:\n  name: python\n  # a comment\n  options:\n    virtualenv: venv\n\nconfig:\n  a: 1.10\n";
        let flow = "runtime: { name: nodejs, options: { packagemanager: npm } }\nname: p\n";
        let plain = "name: p\nruntime: go\nmain: src\n";
        for (text, edited) in [
            (block, "name: p # mine\n\nruntime: python\n\n\n\n\n\nconfig:\n  a: 1.10\n"),
            (flow, "runtime: nodejs\nname: p\n"),
            (plain, plain),
        ] {
            let project = Project::new("options", text);
            assert!(may_leave_out(&project.source(), &project.environment) && leave_out(&project.source()), "{text}");
            assert_eq!(fs::read_to_string(project.source().join("Pulumi.yaml")).unwrap(), edited);
        }
        for text in [
            "name: p\nruntime: yaml\n",
            "name: p\nruntime: dotnet\n",
            "{ name: p, runtime: { name: python, options: {} } }\n",
            "name: p\nruntime: nodejs\nplugins: { providers: [] }\n",
            "name: p\ndescription: |\n  a\nruntime: &a python\nauthor: *a\n",
        ] {
            let project = Project::new("left", text);
            let is_left = may_leave_out(&project.source(), &project.environment) && leave_out(&project.source());
            assert!(!is_left, "{text}");
            assert_eq!(fs::read_to_string(project.source().join("Pulumi.yaml")).unwrap(), text);
        }
        let project = Project::new("program", plain);
        let environment = [("PULUMI_RUN_PROGRAM".into(), "true".into())].into();
        assert!(!may_leave_out(&project.source(), &environment));
    }

    #[test]
    fn resource_of_the_program_needs_its_dependencies() {
        let state = |kind: &str| {
            format!(
                r#"{{"version":3,"deployment":{{"resources":[{{"urn":"u","type":"pulumi:pulumi:Stack"}},{{"type":"{kind}"}}]}}}}"#
            )
        };
        for kind in ["pulumi-nodejs:dynamic:Resource", "pulumi-python:dynamic/x:Y", "pulumi:providers:pulumi-nodejs"] {
            assert!(has_dynamic(state(kind).as_bytes()), "{kind}");
        }
        for kind in ["aws:s3/bucket:Bucket", "pulumi:providers:aws", "app:Component"] {
            assert!(!has_dynamic(state(kind).as_bytes()), "{kind}");
        }
        assert!(has_dynamic(b"{"), "a state that is not understood");
        assert!(!has_dynamic(br#"{"deployment":{"manifest":{}}}"#));
    }
}
