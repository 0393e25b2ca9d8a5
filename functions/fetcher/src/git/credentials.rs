//! The git credentials that a Stack or a Workspace names.

use std::collections::BTreeMap;

use driftless_api::{GitAuth, ResourceRef, Stack, WorkspaceGitAuth, WorkspaceGithubApp};
use driftless_core::KeySelector;
use driftless_kubernetes::{Cluster, Error as KubernetesError};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use secrecy::SecretString;

use super::{Fields, GitError, github::App, http::Login, ssh::Key, stop::Stop};
use crate::Error;

/// Credentials for a git server.
pub(super) enum Credentials {
    None,
    Login(Login),
    Key(Key),
    App(App),
}

/// The object that names the credentials.
pub(super) enum Named<'a> {
    Stack(&'a Stack),
    Workspace(Option<&'a WorkspaceGitAuth>),
}

impl Named<'_> {
    /// The names of its fields.
    pub(super) fn fields(&self) -> &'static Fields {
        match self {
            Self::Stack(_) => &Fields::STACK,
            Self::Workspace(_) => &Fields::WORKSPACE,
        }
    }
}

impl Credentials {
    /// Reads the credentials in a namespace.
    pub(super) async fn read<C: Cluster>(cluster: &C, namespace: &str, named: &Named<'_>) -> Result<Self, Stop> {
        let secrets = Secrets { cluster, namespace, read: BTreeMap::new() };
        match named {
            Named::Stack(stack) => Self::of_stack(secrets, stack).await,
            Named::Workspace(Some(auth)) => Self::of_workspace(secrets, auth).await,
            Named::Workspace(None) => Ok(Self::None),
        }
    }

    /// At most one form is given.
    async fn of_workspace<C: Cluster>(mut secrets: Secrets<'_, C>, auth: &WorkspaceGitAuth) -> Result<Self, Stop> {
        const APP: &str = "spec.git.auth.githubApp";
        let WorkspaceGitAuth { github_app, password, ssh_private_key, token, username } = auth;
        if let Some(WorkspaceGithubApp { app_id, installation_id, private_key }) = github_app {
            let (id, _) = secrets.selected("spec.git.auth.githubApp.appID", app_id).await?;
            let (installation, _) = secrets.selected("spec.git.auth.githubApp.installationID", installation_id).await?;
            let (key, source_name) = secrets.selected("spec.git.auth.githubApp.privateKey", private_key).await?;
            let (id, installation) = (id.trim().into(), installation.trim().into());
            return Ok(Self::App(App { id, installation, key: key.into(), source_name, field: APP }));
        }
        if let Some(token) = token {
            let (token, source_name) = secrets.selected("spec.git.auth.token", token).await?;
            return Ok(Self::token(token.trim_end(), source_name));
        }
        let secret = match password {
            Some(password) => Some(secrets.selected("spec.git.auth.password", password).await?),
            None => None,
        };
        if let Some(key) = ssh_private_key {
            let (pem, source_name) = secrets.selected("spec.git.auth.sshPrivateKey", key).await?;
            let known_hosts = secrets.key("spec.git.auth.sshPrivateKey", &key.name, "known_hosts").await?.unwrap_or_default();
            let passphrase = secret.map(|(passphrase, _)| passphrase.into());
            return Ok(Self::Key(Key { pem: pem.into(), passphrase, known_hosts, source_name }));
        }
        let (Some(username), Some((password, source_name))) = (username, secret) else { return Ok(Self::None) };
        let (user, name) = secrets.selected("spec.git.auth.username", username).await?;
        let source_name = format!("{name} and {source_name}");
        Ok(Self::Login(Login { user: user.trim_end().into(), password: password.trim_end().into(), source_name }))
    }

    /// The deprecated `gitAuthSecret` takes precedence; of the forms of `gitAuth`, the first in
    /// PKO's order.
    async fn of_stack<C: Cluster>(mut secrets: Secrets<'_, C>, stack: &Stack) -> Result<Self, Stop> {
        if let Some(name) = &stack.spec.git_auth_secret {
            return secrets.deprecated(name).await;
        }
        let Some(auth) = &stack.spec.git_auth else { return Ok(Self::None) };
        match auth {
            GitAuth { ssh_auth: Some(ssh), .. } => {
                let (key, source_name) = secrets.value("spec.gitAuth.sshAuth.sshPrivateKey", &ssh.ssh_private_key).await?;
                let passphrase = match &ssh.password {
                    Some(reference) => Some(secrets.value("spec.gitAuth.sshAuth.password", reference).await?.0.into()),
                    None => None,
                };
                let known_hosts = match &ssh.ssh_private_key.secret {
                    Some(secret) => secrets.key("spec.gitAuth.sshAuth.sshPrivateKey", &secret.name, "known_hosts").await?,
                    None => None,
                };
                Ok(Self::Key(Key { pem: key.into(), passphrase, known_hosts: known_hosts.unwrap_or_default(), source_name }))
            }
            GitAuth { access_token: Some(token), .. } => {
                let (token, source_name) = secrets.value("spec.gitAuth.accessToken", token).await?;
                Ok(Self::token(token.trim_end(), source_name))
            }
            GitAuth { github_app: Some(app), .. } => {
                let (id, _) = secrets.value("spec.gitAuth.githubApp.appID", &app.app_id).await?;
                let (installation, _) = secrets.value("spec.gitAuth.githubApp.installationID", &app.installation_id).await?;
                let (key, source_name) = secrets.value("spec.gitAuth.githubApp.privateKey", &app.private_key).await?;
                let (id, installation) = (id.trim().into(), installation.trim().into());
                Ok(Self::App(App { id, installation, key: key.into(), source_name, field: "spec.gitAuth.githubApp" }))
            }
            GitAuth { basic_auth: Some(basic), .. } => {
                let (user, name) = secrets.value("spec.gitAuth.basicAuth.userName", &basic.user_name).await?;
                let (password, source_name) = secrets.value("spec.gitAuth.basicAuth.password", &basic.password).await?;
                let source_name = format!("{name} and {source_name}");
                Ok(Self::Login(Login { user: user.trim_end().into(), password: password.trim_end().into(), source_name }))
            }
            GitAuth { access_token: None, basic_auth: None, github_app: None, ssh_auth: None } => Err(GitError::NoAuth.into()),
        }
    }

    /// Servers only check the token; the user name is PKO's.
    fn token(token: &str, source_name: String) -> Self {
        Self::Login(Login { user: "git".into(), password: token.into(), source_name })
    }

    /// The source of the credentials, for messages.
    pub(super) fn source_name(&self) -> &str {
        match self {
            Self::None => "",
            Self::Login(Login { source_name, .. }) | Self::Key(Key { source_name, .. }) | Self::App(App { source_name, .. }) => {
                source_name
            }
        }
    }
}

/// The Secrets of one namespace, each read once.
struct Secrets<'a, C> {
    cluster: &'a C,
    namespace: &'a str,
    /// `None` for a Secret that does not exist.
    read: BTreeMap<String, Option<BTreeMap<String, ByteString>>>,
}

impl<C: Cluster> Secrets<'_, C> {
    /// The value of a reference, and the name of its source for messages.
    async fn value(&mut self, field: &'static str, reference: &ResourceRef) -> Result<(String, String), Stop> {
        match (reference.selector.as_str(), &reference.secret, &reference.literal) {
            ("Literal", _, Some(literal)) => Ok((literal.value.clone(), format!("the literal in {field}"))),
            // A Stack cannot use a Secret of another namespace.
            ("Secret", Some(secret), _)
                if secret.namespace.as_deref().is_none_or(|other| other.is_empty() || other == self.namespace) =>
            {
                self.there(field, &secret.name, &secret.key).await
            }
            _ => Err(GitError::Selector { field }.into()),
        }
    }

    /// The same for a Workspace. The value is required even if it is `optional`.
    async fn selected(&mut self, field: &'static str, selector: &KeySelector) -> Result<(String, String), Stop> {
        self.there(field, &selector.name, &selector.key).await
    }

    async fn there(&mut self, field: &'static str, secret: &str, key: &str) -> Result<(String, String), Stop> {
        let missing = || GitError::NoKey { secret: secret.to_owned(), key: key.to_owned(), field };
        Ok((self.key(field, secret, key).await?.ok_or_else(missing)?, name(secret, key, field)))
    }

    async fn deprecated(&mut self, secret: &str) -> Result<Credentials, Stop> {
        const FIELD: &str = "spec.gitAuthSecret";
        let name = |key| name(secret, key, FIELD);
        if let Some(key) = self.key(FIELD, secret, "sshPrivateKey").await? {
            let passphrase = self.key(FIELD, secret, "password").await?.map(SecretString::from);
            let known_hosts = self.key(FIELD, secret, "known_hosts").await?.unwrap_or_default();
            return Ok(Credentials::Key(Key { pem: key.into(), passphrase, known_hosts, source_name: name("sshPrivateKey") }));
        }
        if let Some(token) = self.key(FIELD, secret, "accessToken").await? {
            return Ok(Credentials::token(token.trim_end(), name("accessToken")));
        }
        let Some(user) = self.key(FIELD, secret, "username").await? else { return Ok(Credentials::None) };
        let missing = || GitError::NoKey { secret: secret.into(), key: "password".into(), field: FIELD };
        let password = self.key(FIELD, secret, "password").await?.ok_or_else(missing)?;
        let source_name = format!("{} and key \"password\"", name("username"));
        Ok(Credentials::Login(Login { user: user.trim_end().into(), password: password.trim_end().into(), source_name }))
    }

    /// One key of a Secret; `None` if the Secret does not have it.
    async fn key(&mut self, field: &'static str, secret: &str, key: &str) -> Result<Option<String>, Stop> {
        if !self.read.contains_key(secret) {
            let got = match self.cluster.get::<Secret>(self.namespace, secret).await {
                Err(KubernetesError::Permanent { message, .. }) => {
                    return Err(GitError::Forbidden { secret: secret.into(), field, message }.into());
                }
                Err(KubernetesError::Unreadable { message, .. }) => {
                    let source_name = format!("Secret {secret:?} ({field})");
                    return Err(GitError::Credential { source_name, why: format!("cannot be read: {message}") }.into());
                }
                got => got.map_err(Error::from)?,
            };
            self.read.insert(secret.to_owned(), got.map(|secret| secret.data.unwrap_or_default()));
        }
        let data = self.read.get(secret).and_then(Option::as_ref);
        let data = data.ok_or_else(|| GitError::NoSecret { secret: secret.to_owned(), field })?;
        let Some(ByteString(value)) = data.get(key) else { return Ok(None) };
        let not_text = |_| GitError::NotText { source_name: name(secret, key, field) };
        Ok(Some(String::from_utf8(value.clone()).map_err(not_text)?))
    }
}

fn name(secret: &str, key: &str, field: &str) -> String {
    format!("Secret {secret:?} key {key:?} ({field})")
}
