//! Pulumi's environment: the image's own, without the task's variables.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    path::Path,
};

use driftless_contract::Env;

use crate::dotenv;

/// Prefixes of variables that identify the task or control the runner. With the first two a program
/// could act as the task. The Region and the host name differ between tasks, and Pulumi would
/// replace resources whose properties a program derives from them.
const OURS: [&str; 7] = ["AWS_CONTAINER_", "ECS_", "AWS_ENDPOINT_URL", REGIONS[0], REGIONS[1], "DRIFTLESS_", "HOSTNAME"];

/// The variables from which AWS SDKs read a Region.
pub(crate) const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Pulumi's environment.
pub(crate) struct Environment {
    pub variables: BTreeMap<OsString, OsString>,
    /// Its secret values, without those of the run's spec.
    pub secrets: Vec<String>,
}

/// The container's environment without the task's variables, then the run's from `envFrom`, the
/// variables of the program's `identity`, and the run's others, in order; then the file that
/// `PULUMI_ENV` names, from init containers, as in PKO. The identity's Region is left out under
/// both names if the others have one of them. `HOME` is the image's if Pulumi can write there, else
/// a directory in `scratch`.
pub(crate) fn environment(
    container: impl IntoIterator<Item = (OsString, OsString)>,
    identity: Vec<(OsString, OsString)>,
    run: &[Env],
    scratch: &Path,
) -> io::Result<Environment> {
    let mut environment: BTreeMap<OsString, OsString> = container.into_iter().filter(|(name, _)| !is_ours(name)).collect();
    let file = environment.get(OsStr::new("PULUMI_ENV")).cloned();
    if !environment.get(OsStr::new("HOME")).is_some_and(|home| is_writable(Path::new(home))) {
        let home = scratch.join("home");
        std::fs::create_dir_all(&home)?;
        environment.entry("PULUMI_HOME".into()).or_insert_with(|| home.join(".pulumi").into());
        environment.insert("HOME".into(), home.into());
    }
    environment.insert("PULUMI_SKIP_UPDATE_CHECK".into(), "true".into());
    // Without this variable each process that opens a backend in a bucket lists the stacks that old
    // versions of pulumi wrote there, only to name them in a warning.
    environment.insert("PULUMI_DIY_BACKEND_NO_LEGACY_WARNING".into(), "true".into());
    // A task has no stack settings from an earlier run. Without this variable a state whose secrets
    // are encrypted by a key service would be read and encrypted again with a passphrase.
    environment.insert("PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER".into(), "true".into());
    let (from, own): (Vec<_>, Vec<_>) = run.iter().partition(|env| env.below_identity);
    environment.extend(from.into_iter().map(|env| (OsString::from(&env.name), OsString::from(&env.value))));
    // As EKS's webhook does, which ignores `envFrom`: otherwise the cluster's Region under one name
    // would take precedence over the run's own under the other.
    let has_region = own.iter().any(|env| REGIONS.contains(&env.name.as_str()));
    let is_left_out = |name: &OsStr| has_region && REGIONS.iter().any(|region| name == *region);
    environment.extend(identity.into_iter().filter(|(name, _)| !is_left_out(name)));
    environment.extend(own.into_iter().map(|env| (OsString::from(&env.name), OsString::from(&env.value))));
    let written = file.map_or_else(|| Ok(BTreeMap::new()), |file| written(Path::new(&file), &environment))?;
    environment.extend(written.iter().map(|(name, value)| (name.into(), value.into())));
    // Without it `--event-log` is an unknown flag.
    environment.insert("PULUMI_DEBUG_COMMANDS".into(), "true".into());
    Ok(Environment { variables: environment, secrets: written.into_values().collect() })
}

/// The content of the file; empty if it does not exist.
fn written(file: &Path, environment: &BTreeMap<OsString, OsString>) -> io::Result<BTreeMap<String, String>> {
    let known = |name: &str| environment.get(OsStr::new(name))?.to_str().map(str::to_owned);
    let invalid = |error: &dyn std::fmt::Display| {
        io::Error::other(format!(
            "cannot read the file {} that PULUMI_ENV names: {error}; an init container of the run writes it",
            file.display()
        ))
    };
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(invalid(&error)),
        Ok(text) => dotenv::parse(&text, known).map_err(|error| invalid(&error)),
    }
}

fn is_ours(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    OURS.iter().any(|prefix| name.starts_with(prefix))
}

fn is_writable(path: &Path) -> bool {
    path.is_dir() && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str, value: &str) -> Env {
        Env { name: name.into(), value: value.into(), secret: false, below_identity: false }
    }

    #[test]
    fn task_credentials_do_not_reach_pulumi() {
        let container = [
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN",
            "ECS_CONTAINER_METADATA_URI_V4",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "DRIFTLESS_BUCKET",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
            "HOSTNAME",
            "PATH",
        ];
        let container = container.map(|name| (name.into(), "x".into())).into_iter().chain([("HOME".into(), "/tmp".into())]);
        let run = [env("A", "1"), env("A", "2"), env("AWS_REGION", "eu-west-1")];
        let found = environment(container, vec![], &run, Path::new("/nowhere")).unwrap().variables;
        let found: Vec<String> = found.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        let expected = [
            "A=2",
            "AWS_REGION=eu-west-1",
            "HOME=/tmp",
            "PATH=x",
            "PULUMI_DEBUG_COMMANDS=true",
            "PULUMI_DIY_BACKEND_NO_LEGACY_WARNING=true",
            "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER=true",
            "PULUMI_SKIP_UPDATE_CHECK=true",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn pulumi_gets_a_home_that_it_can_write_to() {
        let scratch = std::env::temp_dir().join(format!("driftless-home-{}", std::process::id()));
        let found = environment([("HOME".into(), "/dev/null".into())], vec![], &[], &scratch).unwrap().variables;
        let home = scratch.join("home");
        assert!(is_writable(&home));
        assert_eq!(found[OsStr::new("HOME")], home);
        assert_eq!(found[OsStr::new("PULUMI_HOME")], home.join(".pulumi"));
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn run_identity_overrides_program_and_program_the_image() {
        let container = [("HOME", "/tmp"), ("KUBECONFIG", "image"), ("AWS_ROLE_ARN", "image")]
            .map(|(name, value)| (name.into(), value.into()));
        let identity = vec![("KUBECONFIG".into(), "ours".into()), ("AWS_ROLE_ARN".into(), "ours".into())];
        let found = environment(container, identity, &[env("AWS_ROLE_ARN", "run")], Path::new("/nowhere")).unwrap().variables;
        assert_eq!((&found[OsStr::new("KUBECONFIG")], &found[OsStr::new("AWS_ROLE_ARN")]), (&"ours".into(), &"run".into()));
    }

    #[test]
    fn region_of_the_run_under_either_name_replaces_the_clusters_under_both() {
        let regions = |run: &[Env]| {
            let identity = [REGIONS[0], REGIONS[1], "AWS_ROLE_ARN"].map(|name| (name.into(), "cluster".into())).to_vec();
            let found = environment([("HOME".into(), "/tmp".into())], identity, run, Path::new("/nowhere")).unwrap().variables;
            assert_eq!(found[OsStr::new("AWS_ROLE_ARN")], "cluster");
            REGIONS.map(|name| found.get(OsStr::new(name)).map(|value| value.to_str().unwrap().to_owned()))
        };
        let both = |first: Option<&str>, second: Option<&str>| [first, second].map(|value| value.map(str::to_owned));
        assert_eq!(regions(&[env("AWS_DEFAULT_REGION", "run")]), both(None, Some("run")));
        assert_eq!(regions(&[env("AWS_REGION", "run")]), both(Some("run"), None));
        assert_eq!(regions(&[env("OTHER", "run")]), both(Some("cluster"), Some("cluster")));
        let from = Env { below_identity: true, ..env("AWS_REGION", "from") };
        assert_eq!(regions(std::slice::from_ref(&from)), both(Some("cluster"), Some("cluster")));
        assert_eq!(regions(&[from, env("AWS_DEFAULT_REGION", "run")]), both(Some("from"), Some("run")));
    }

    #[test]
    fn variables_of_an_init_container_win_and_are_secret() {
        let file = std::env::temp_dir().join(format!("driftless-dotenv-{}", std::process::id()));
        let container = || [("HOME".into(), "/tmp".into()), ("PULUMI_ENV".into(), file.clone().into())];
        let found = |text: Option<&str>| {
            let _: io::Result<()> = std::fs::remove_file(&file);
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            environment(container(), vec![], &[env("A", "spec"), env("B", "spec")], Path::new("/nowhere"))
        };
        let there = found(Some("export A='canary'\nC=$B\n")).unwrap();
        let value = |name: &str| there.variables[OsStr::new(name)].to_str().unwrap();
        assert_eq!([value("A"), value("B"), value("C")], ["canary", "spec", "spec"]);
        assert_eq!(there.secrets, ["canary", "spec"]);
        let absent = found(None).unwrap();
        assert_eq!(absent.variables[OsStr::new("A")], "spec");
        assert!(absent.secrets.is_empty());
        let words = found(Some("canary")).err().unwrap().to_string();
        assert!(
            words.contains("PULUMI_ENV") && words.contains("line 1 is not NAME=value") && !words.contains("canary"),
            "{words}"
        );
        std::fs::remove_file(file).unwrap();
    }
}
