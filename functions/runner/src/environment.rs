//! The environment of pulumi: the image's own, without what is the task's.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    path::Path,
};

use driftless_contract::Env;

/// Variables that identify the task or steer the runner. With the first two a program would act as the task.
const OURS: [&str; 4] = ["AWS_CONTAINER_", "ECS_", "AWS_ENDPOINT_URL", "DRIFTLESS_"];

/// The container's environment without ours, then the run's, in order. `HOME` is the image's where pulumi can write there, and else a
/// directory in `scratch`.
pub(crate) fn environment(
    container: impl IntoIterator<Item = (OsString, OsString)>,
    run: &[Env],
    scratch: &Path,
) -> io::Result<BTreeMap<OsString, OsString>> {
    let mut environment: BTreeMap<OsString, OsString> = container.into_iter().filter(|(name, _)| !is_ours(name)).collect();
    if !environment.get(OsStr::new("HOME")).is_some_and(|home| is_writable(Path::new(home))) {
        let home = scratch.join("home");
        std::fs::create_dir_all(&home)?;
        environment.entry("PULUMI_HOME".into()).or_insert_with(|| home.join(".pulumi").into());
        environment.insert("HOME".into(), home.into());
    }
    environment.insert("PULUMI_SKIP_UPDATE_CHECK".into(), "true".into());
    environment.extend(run.iter().map(|env| (OsString::from(&env.name), OsString::from(&env.value))));
    // Without it `--event-log` is an unknown flag.
    environment.insert("PULUMI_DEBUG_COMMANDS".into(), "true".into());
    Ok(environment)
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
        Env { name: name.into(), value: value.into(), secret: false }
    }

    #[test]
    fn the_tasks_identity_does_not_reach_pulumi() {
        let container = [
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN",
            "ECS_CONTAINER_METADATA_URI_V4",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "DRIFTLESS_BUCKET",
            "AWS_REGION",
            "PATH",
        ];
        let container = container.map(|name| (name.into(), "x".into())).into_iter().chain([("HOME".into(), "/tmp".into())]);
        let run = [env("A", "1"), env("A", "2"), env("AWS_REGION", "eu-west-1")];
        let found = environment(container, &run, Path::new("/nowhere")).unwrap();
        let found: Vec<String> = found.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        let expected =
            ["A=2", "AWS_REGION=eu-west-1", "HOME=/tmp", "PATH=x", "PULUMI_DEBUG_COMMANDS=true", "PULUMI_SKIP_UPDATE_CHECK=true"];
        assert_eq!(found, expected);
    }

    #[test]
    fn pulumi_gets_a_home_that_it_can_write_to() {
        let scratch = std::env::temp_dir().join(format!("driftless-home-{}", std::process::id()));
        let found = environment([("HOME".into(), "/dev/null".into())], &[], &scratch).unwrap();
        let home = scratch.join("home");
        assert!(is_writable(&home));
        assert_eq!(found[OsStr::new("HOME")], home);
        assert_eq!(found[OsStr::new("PULUMI_HOME")], home.join(".pulumi"));
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
