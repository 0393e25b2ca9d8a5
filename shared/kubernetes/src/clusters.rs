use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use driftless_aws::Keyring;
use jiff::{SignedDuration, Timestamp};
use kube::{Config, config::KubeConfigOptions};
use secrecy::ExposeSecret as _;

use crate::{Client, Error, Result, kubeconfig::Entry};

/// How long a client is kept. Whoever gets one uses it to the end of an invocation, which lasts 5 minutes at most: an EKS cluster's token
/// is counted on for 14 of its 15. It is also how long a kubeconfig that was replaced goes on to be used.
const KEPT: SignedDuration = SignedDuration::from_mins(9);

/// The clusters that the functions serve: each is a context of one kubeconfig, named like the cluster. The kubeconfig is the text of a
/// secret.
pub struct Clusters<K> {
    keyring: K,
    secret: String,
    manager: &'static str,
    clients: Mutex<HashMap<String, (Client, Timestamp)>>,
}

impl<K: Keyring> Clusters<K> {
    /// The contexts of the kubeconfig that `secret` holds, a name or an ARN. `manager` as in [`Client::new`].
    #[must_use]
    pub fn new(keyring: K, secret: String, manager: &'static str) -> Self {
        Self { keyring, secret, manager, clients: Mutex::default() }
    }

    /// The client of a cluster, which is kept for a while. The secret is read for one that was not asked for lately, or that the API server
    /// refused as nobody's.
    pub async fn get(&self, cluster: &str, now: Timestamp) -> Result<Client> {
        let known = self.clients().get(cluster).cloned();
        if let Some((client, made)) = known
            && now < made + KEPT
            && !client.is_refused()
        {
            return Ok(client);
        }
        let client = self.connect(cluster, now).await?;
        self.clients().insert(cluster.into(), (client.clone(), now));
        Ok(client)
    }

    async fn connect(&self, cluster: &str, now: Timestamp) -> Result<Client> {
        let call = || format!("connect to cluster {cluster:?}");
        let unusable = |message: String| Error::Permanent { call: call(), message };
        let unavailable = |error: driftless_aws::Error| {
            let message = error.to_string();
            if error.is_transient() { Error::Transient { call: call(), message } } else { unusable(message) }
        };
        let text = self.keyring.secret(&self.secret).await.map_err(unavailable)?;
        let entry = Entry::read(text.expose_secret(), cluster).map_err(unusable)?;
        if entry.cluster.insecure_skip_tls_verify == Some(true) {
            tracing::warn!(
                cluster,
                "the kubeconfig has insecure-skip-tls-verify: whoever is on the way to the API server can act as it; set \
                 certificate-authority-data instead"
            );
        }
        let token = match &entry.eks {
            Some(eks) => Some(self.keyring.eks_token(&eks.cluster, eks.region.as_deref(), now).await.map_err(unavailable)?),
            None => None,
        };
        let config = Config::from_custom_kubeconfig(entry.into_kubeconfig(token), &KubeConfigOptions::default()).await;
        Client::new(config.map_err(|error| unusable(error.to_string()))?, self.manager)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<String, (Client, Timestamp)>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use driftless_aws::Error as AwsError;
    use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};
    use secrecy::SecretString;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{Cluster as _, Endpoint};

    const KUBECONFIG: &str = "
clusters: [{name: a, cluster: {server: 'http://SERVER'}}]
users: [{name: token, user: {token: canary}}, {name: eks, user: {exec: {command: aws, args: [eks, get-token, --cluster-name, shop]}}}]
contexts: [{name: plain, context: {cluster: a, user: token}}, {name: eks, context: {cluster: a, user: eks}}]
";

    /// What was asked for, and whether Secrets Manager answers.
    #[derive(Default)]
    struct Asked {
        calls: Mutex<Vec<String>>,
        away: bool,
        /// Where the API server is.
        server: String,
    }

    impl Keyring for &Asked {
        async fn secret(&self, id: &str) -> driftless_aws::Result<SecretString> {
            self.calls.lock().unwrap().push(format!("secret {id}"));
            let away = || AwsError::Transient { call: "read".into(), message: "throttled".into() };
            if self.away { Err(away()) } else { Ok(KUBECONFIG.replace("SERVER", &self.server).into()) }
        }

        async fn eks_token(&self, cluster: &str, region: Option<&str>, now: Timestamp) -> driftless_aws::Result<SecretString> {
            self.calls.lock().unwrap().push(format!("token {cluster} {region:?} {now}"));
            Ok("canary".into())
        }
    }

    fn clusters(asked: &Asked) -> Clusters<&Asked> {
        Clusters::new(asked, "s".into(), "driftless-test")
    }

    fn at(minutes: i64) -> Timestamp {
        "2026-11-22T05:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
    }

    #[tokio::test]
    async fn a_client_is_kept_for_as_long_as_its_token_outlasts_an_invocation() {
        let asked = Asked { server: "127.0.0.1:1".into(), ..Asked::default() };
        let clusters = clusters(&asked);
        for minute in [0, 0, 8, 9, 17, 18] {
            let client = clusters.get("eks", at(minute)).await.unwrap();
            assert_eq!(client.endpoint(), Endpoint { server: "http://127.0.0.1:1".into(), certificate_authority: None });
        }
        clusters.get("plain", at(18)).await.unwrap();
        let token = |time: &str| format!("token shop None 2026-11-22T05:{time}:00Z");
        let secret = || "secret s".to_owned();
        let expected = [secret(), token("00"), secret(), token("09"), secret(), token("18"), secret()];
        assert_eq!(*asked.calls.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn a_cluster_that_refuses_is_asked_with_what_the_secret_has_by_then() {
        let api_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = api_server.local_addr().unwrap().to_string();
        let answers = ["401 Unauthorized", "404 Not Found"];
        let answering = tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = api_server.accept().await.unwrap();
                let _request = stream.read(&mut [0; 4096]).await.unwrap();
                let text = format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        });
        let asked = Asked { server, ..Asked::default() };
        let clusters = clusters(&asked);
        let claim = Lease {
            metadata: ObjectMeta { name: Some("a".into()), namespace: Some("b".into()), ..ObjectMeta::default() },
            ..Lease::default()
        };
        for reads in 1..=2 {
            let error = clusters.get("plain", at(0)).await.unwrap().create(&claim).await.unwrap_err();
            assert_eq!(error.is_transient(), reads == 1, "{error}");
            assert_eq!(asked.calls.lock().unwrap().len(), reads);
        }
        answering.await.unwrap();
        clusters.get("plain", at(0)).await.unwrap();
        assert_eq!(asked.calls.lock().unwrap().len(), 2, "404 is no refusal");
    }

    #[tokio::test]
    async fn what_keeps_it_from_connecting_is_said_without_a_secret() {
        let asked = Asked::default();
        let error = clusters(&asked).get("staging", at(0)).await.err().unwrap();
        assert!(!error.is_transient());
        let words =
            "connect to cluster \"staging\": there is no cluster \"staging\": the contexts of the kubeconfig are plain, eks";
        assert_eq!(error.to_string(), words);
        let asked = Asked { away: true, ..Asked::default() };
        let error = clusters(&asked).get("plain", at(0)).await.err().unwrap();
        assert!(error.is_transient());
        assert_eq!(error.to_string(), "connect to cluster \"plain\": read: throttled");
    }
}
