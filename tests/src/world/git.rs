//! Git servers, and repositories to serve.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::{
    dirs::{Dirs, write_private},
    github::{self, GitHub},
    network::free_port,
    process::{Supervisor, command},
    ready,
    ssh::Ssh,
    tls::Certificates,
};

/// The users with access to the private repositories over https. Servers such as GitHub only check
/// a token; PKO calls its user `git`.
const USERS: [(&str, &str); 3] =
    [("alice", "canary-git-password-81f3"), ("git", "canary-git-token-5a0e"), ("x-access-token", github::TOKEN)];

/// lighttpd in front of git's own `git-http-backend`: read-only.
pub struct GitServer {
    /// The folder of bare repositories.
    pub root: PathBuf,
    /// Their URL: `root/a.git` is served at `<url>/a.git`.
    pub url: String,
}

impl GitServer {
    /// Starts one without repositories and without authentication.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor) -> Result<Self> {
        Self::start_as(dirs, supervisor, "git", "http", "").await
    }

    /// Starts lighttpd with `more` in its configuration. `name` names its folder of repositories,
    /// its log and its pid file.
    async fn start_as(dirs: &Dirs, supervisor: &Supervisor, name: &str, scheme: &str, more: &str) -> Result<Self> {
        let root = dirs.create(name)?;
        let address = (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?);
        let backend = git(Path::new("/"), &["--exec-path"]).await?;
        let config = dirs.create("lighttpd")?.join(format!("{name}.conf"));
        fs::write(&config, configuration(&root, address.1, &backend, &dirs.tmp(), more))?;
        let mut lighttpd = command(dirs, dirs.tool("lighttpd")?);
        lighttpd.arg("-D").arg("-f").arg(&config);
        supervisor.start(dirs, name, lighttpd)?;
        ready::until("the git server listens", ready::START, || ready::listens(address)).await?;
        Ok(Self { root, url: format!("{scheme}://127.0.0.1:{}/git", address.1) })
    }

    /// Creates the bare repository `<name>.git` with an empty branch `main`. It replaces one of
    /// that name.
    pub async fn create(&self, name: &str) -> Result<Repository> {
        let path = self.root.join(format!("{name}.git"));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        git(&path, &["init", "--quiet", "--bare", "--initial-branch=main"]).await?;
        Ok(Repository { url: format!("{}/{name}.git", self.url), path })
    }
}

fn configuration(root: &Path, port: u16, exec_path: &str, tmp: &Path, more: &str) -> String {
    let (root, tmp) = (root.display(), tmp.display());
    format!(
        r#"server.bind = "127.0.0.1"
server.port = {port}
server.document-root = "{root}"
server.upload-dirs = ("{tmp}")
server.modules = ("mod_alias", "mod_setenv")
{more}server.modules += ("mod_cgi")
alias.url = ("/git" => "{exec_path}/git-http-backend")
cgi.assign = ("" => "")
setenv.set-environment = ("GIT_PROJECT_ROOT" => "{root}", "GIT_HTTP_EXPORT_ALL" => "1")
"#
    )
}

/// Repositories that require credentials: over https and over ssh.
pub struct PrivateGit {
    /// The server over https, with a certificate of the world's own CA.
    pub server: GitServer,
    /// The prefix of a repository's path, for ssh.
    pub ssh_url: String,
    /// The lines of a `known_hosts` file for the ssh server.
    pub known_hosts: String,
    /// The CA's certificate, as PEM.
    pub authority: String,
    /// The certificate of an unused CA, as PEM.
    pub other_authority: String,
    /// GitHub's API, beside the server over https.
    pub api_url: String,
    /// One file per credential: `username` and `password`, `token`, and those of [`Ssh::start`] and
    /// [`GitHub::start`].
    pub credentials: PathBuf,
    _api: GitHub,
}

impl PrivateGit {
    /// Starts the servers without repositories.
    pub async fn start(dirs: &Dirs, supervisor: &Supervisor) -> Result<Self> {
        let (credentials, files) = (dirs.create("git-credentials")?, dirs.create("tls")?);
        let (ssh, api, tls) = tokio::try_join!(
            Ssh::start(dirs, supervisor, &credentials),
            GitHub::start(dirs, &credentials),
            Certificates::create(dirs, &files)
        )?;
        let [(user, password), (_, token), _] = USERS;
        for (name, value) in [("username", user), ("password", password), ("token", token)] {
            write_private(&credentials.join(name), value)?;
        }
        let users = files.join("users");
        write_private(&users, &USERS.map(|(user, password)| format!("{user}:{password}\n")).concat())?;
        let more = private(&tls, &users, api.port);
        let server = GitServer::start_as(dirs, supervisor, "git-private", "https", &more).await?;
        Ok(Self {
            api_url: server.url.replace("/git", "/api/v3"),
            server,
            ssh_url: ssh.url,
            known_hosts: ssh.known_hosts,
            authority: tls.authority,
            other_authority: tls.other_authority,
            credentials,
            _api: api,
        })
    }
}

/// TLS, HTTP's basic authentication, and GitHub's API.
fn private(tls: &Certificates, users: &Path, api: u16) -> String {
    let (certificate, key, users) = (tls.certificate.display(), tls.key.display(), users.display());
    format!(
        r#"server.modules += ("mod_openssl", "mod_auth", "mod_authn_file", "mod_proxy")
ssl.engine = "enable"
ssl.pemfile = "{certificate}"
ssl.privkey = "{key}"
auth.backend = "plain"
auth.backend.plain.userfile = "{users}"
auth.require = ("/git/" => ("method" => "basic", "realm" => "git", "require" => "valid-user"))
proxy.server = ("/api/" => (("host" => "127.0.0.1", "port" => {api})))
"#
    )
}

/// A bare repository.
pub struct Repository {
    /// The folder of the repository.
    pub path: PathBuf,
    /// Its URL.
    pub url: String,
}

impl Repository {
    /// Commits `files` (path and content) to `main`. Returns the new commit's id.
    pub async fn commit(&self, message: &str, files: &[(&str, &str)]) -> Result<String> {
        self.commit_on("main", message, files).await
    }

    /// Commits `files` on top of the last commit and makes that a branch. Returns the new commit's
    /// id.
    pub async fn commit_on(&self, branch: &str, message: &str, files: &[(&str, &str)]) -> Result<String> {
        self.commit_at(&format!("refs/heads/{branch}"), message, files).await
    }

    /// The same for any ref, such as that of a pull request.
    pub async fn commit_at(&self, reference: &str, message: &str, files: &[(&str, &str)]) -> Result<String> {
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
        git(&work, &["push", "--quiet", "origin", &format!("HEAD:{reference}")]).await?;
        git(&work, &["rev-parse", "HEAD"]).await
    }

    /// Adds a submodule at `path`, which the next commit records.
    pub async fn add_submodule(&self, path: &str, module: &Self) -> Result<()> {
        git(&self.path.with_extension("work"), &["clone", "--quiet", &module.path.display().to_string(), path]).await.map(drop)
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
