//! The stack that is selected in Pulumi's home. The runner names the stack in each call; a program
//! that calls Pulumi may not.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use driftless_contract::{PROJECT_FILES, to_json};
use serde::Serialize;

/// The settings of a workspace, in the form that every version of Pulumi reads.
#[derive(Serialize)]
struct Workspace<'a> {
    stack: &'a str,
}

/// Selects the stack in the project's directory, as `pulumi stack select` does.
pub(crate) fn select(dir: &Path, project: &str, stack: &str, environment: &BTreeMap<OsString, OsString>) -> io::Result<()> {
    let variable = |name: &str| environment.get(OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from);
    let Some(home) = variable("PULUMI_HOME").or_else(|| Some(variable("HOME")?.join(".pulumi"))) else { return Ok(()) };
    let Some(file) = PROJECT_FILES.iter().map(|file| dir.join(file)).find(|file| file.exists()) else { return Ok(()) };
    let file = file.canonicalize()?;
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, file.as_os_str().as_encoded_bytes());
    let hash = base16ct::lower::encode_string(hash.as_ref());
    let workspaces = home.join("workspaces");
    fs::create_dir_all(&workspaces)?;
    let path = workspaces.join(format!("{project}-{hash}-workspace.json"));
    fs::write(&path, to_json(&Workspace { stack }))?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_is_named_after_the_project_and_its_file() {
        let home = std::env::temp_dir().join(format!("driftless-selection-{}", std::process::id()));
        fs::create_dir_all(home.join("project")).unwrap();
        fs::write(home.join("project/Pulumi.yaml"), "").unwrap();
        let environment = [("HOME".into(), "/nowhere".into()), ("PULUMI_HOME".into(), home.clone().into())].into();
        select(&home.join("project"), "shop", "acme/dev", &environment).unwrap();
        let files: Vec<PathBuf> = fs::read_dir(home.join("workspaces")).unwrap().map(|file| file.unwrap().path()).collect();
        let [file] = files.as_slice() else { panic!("{files:?}") };
        let name = file.file_name().unwrap().to_str().unwrap();
        let hash = name.strip_prefix("shop-").and_then(|rest| rest.strip_suffix("-workspace.json")).unwrap();
        assert!(hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        assert_eq!(fs::read_to_string(file).unwrap(), r#"{"stack":"acme/dev"}"#);
        fs::remove_dir_all(home).unwrap();
    }
}
