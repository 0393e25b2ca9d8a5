//! A git server, and repositories to serve.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::{
    dirs::Dirs,
    network::free_port,
    process::{Supervisor, command},
    ready,
};

/// lighttpd in front of git's own `git-http-backend`: read-only, without credentials.
pub struct GitServer {
    /// The folder of bare repositories.
    pub root: PathBuf,
    /// Where they are served: `root/a.git` at `<url>/a.git`.
    pub url: String,
}

impl GitServer {
    /// Starts it with no repositories.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor) -> Result<Self> {
        let root = dirs.create("git")?;
        let address = (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?);
        let backend = git(Path::new("/"), &["--exec-path"]).await?;
        let config = dirs.create("lighttpd")?.join("lighttpd.conf");
        fs::write(&config, configuration(&root, address.1, &backend, &dirs.tmp()))?;
        let mut lighttpd = command(dirs, dirs.tool("lighttpd")?);
        lighttpd.arg("-D").arg("-f").arg(&config);
        supervisor.start(dirs, "git", lighttpd)?;
        ready::until("the git server listens", ready::START, || ready::listens(address)).await?;
        Ok(Self { root, url: format!("http://127.0.0.1:{}/git", address.1) })
    }

    /// Creates the bare repository `<name>.git`, with `main` as its branch and nothing in it.
    pub async fn create(&self, name: &str) -> Result<Repository> {
        let path = self.root.join(format!("{name}.git"));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        git(&path, &["init", "--quiet", "--bare", "--initial-branch=main"]).await?;
        Ok(Repository { url: format!("{}/{name}.git", self.url), path })
    }
}

fn configuration(root: &Path, port: u16, exec_path: &str, tmp: &Path) -> String {
    let (root, tmp) = (root.display(), tmp.display());
    format!(
        r#"server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{root}"
server.upload-dirs = ("{tmp}")
server.modules = ("mod_alias", "mod_setenv", "mod_cgi")
alias.url = ("/git" => "{exec_path}/git-http-backend")
cgi.assign = ("" => "")
setenv.set-environment = ("GIT_PROJECT_ROOT" => "{root}", "GIT_HTTP_EXPORT_ALL" => "1")
"#
    )
}

/// A bare repository.
pub struct Repository {
    /// The folder of the repository.
    pub path: PathBuf,
    /// Where it is served.
    pub url: String,
}

impl Repository {
    /// Puts `files` (path and content) on top of `main` and returns the new commit's id.
    pub async fn commit(&self, message: &str, files: &[(&str, &str)]) -> Result<String> {
        let work = self.path.with_extension("work");
        if !work.exists() {
            fs::create_dir(&work)?;
            git(&work, &["clone", "--quiet", &self.path.display().to_string(), "."]).await?;
        }
        for (path, content) in files {
            let path = work.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, content)?;
        }
        git(&work, &["add", "--all"]).await?;
        git(&work, &["commit", "--quiet", "--message", message]).await?;
        git(&work, &["push", "--quiet", "origin", "HEAD:main"]).await?;
        git(&work, &["rev-parse", "HEAD"]).await
    }
}

/// Runs git in `dir`, without this user's settings, and returns its output.
async fn git(dir: &Path, args: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new("git")
        .args(["-c", "user.name=world", "-c", "user.email=world@driftless.invalid"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .kill_on_drop(true)
        .output()
        .await
        .context("running git")?;
    ensure!(output.status.success(), "git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
