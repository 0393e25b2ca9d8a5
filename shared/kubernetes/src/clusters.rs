use std::collections::HashMap;

use driftless_aws::Keyring;
use futures::lock::Mutex;
use jiff::{SignedDuration, Timestamp};
use kube::{Config, config::KubeConfigOptions};
use secrecy::ExposeSecret as _;

use crate::{Client, Error, Result, kubeconfig::Entry};

/// How long a client is kept. An invocation uses its client to its end, for 5 minutes at most:
/// together they stay within 14 of the 15 minutes of an EKS token. It is also how long a replaced
/// kubeconfig stays in use.
const KEPT: SignedDuration = SignedDuration::from_mins(9);

/// How long an instance keeps the labels of namespaces. A reconciliation that started before a
/// label changed may act for longer.
pub const LABELS_KEPT: SignedDuration = SignedDuration::from_secs(15);

/// How long an instance does not call an unreachable cluster. Shorter than the time between two
/// sweeps, so that each sweep tries.
const AWAY: SignedDuration = SignedDuration::from_secs(45);

/// The clusters that the functions serve: each is a context of one kubeconfig, with the name of the
/// cluster. The kubeconfig is the text of a secret.
pub struct Clusters<K> {
    keyring: K,
    secret: String,
    manager: &'static str,
    clients: Mutex<HashMap<String, Kept>>,
}

/// A client and its times.
struct Kept {
    client: Client,
    made: Timestamp,
    /// When it was last used.
    used: Timestamp,
    /// Since when it keeps the labels of namespaces.
    labels: Timestamp,
}

/// Whether a kept client can be used.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Usable,
    /// A new client replaces it.
    Stale,
    /// The API server is unreachable: it is not called before this time.
    AwayUntil(Timestamp),
}

impl Standing {
    /// The state of a client that was made and last used at these times.
    fn of(made: Timestamp, used: Timestamp, is_refused: bool, is_unreachable: bool, now: Timestamp) -> Self {
        if is_unreachable && now < used + AWAY {
            Self::AwayUntil(used + AWAY)
        } else if is_unreachable || is_refused || now >= made + KEPT {
            Self::Stale
        } else {
            Self::Usable
        }
    }
}

impl<K: Keyring> Clusters<K> {
    /// The contexts of the kubeconfig in `secret`, a name or an ARN. `manager` as in
    /// [`Client::new`].
    #[must_use]
    pub fn new(keyring: K, secret: String, manager: &'static str) -> Self {
        Self { keyring, secret, manager, clients: Mutex::default() }
    }

    /// The client of a cluster, which is cached. The secret is read again if the client was not
    /// used recently, or if the API server rejected its credentials. An unreachable cluster is a
    /// transient error for [`AWAY`].
    pub async fn get(&self, cluster: &str, now: Timestamp) -> Result<Client> {
        // Held while connecting, so that messages that are handled concurrently share one client
        // and one read of the secret.
        let mut clients = self.clients.lock().await;
        if let Some(Kept { client, made, used, labels }) = clients.get_mut(cluster) {
            match Standing::of(*made, *used, client.is_refused(), client.is_unreachable(), now) {
                Standing::Usable => {
                    *used = now;
                    if now >= *labels + LABELS_KEPT {
                        client.forget_labels();
                        *labels = now;
                    }
                    return Ok(client.clone());
                }
                Standing::AwayUntil(time) => {
                    let message = format!("API server does not answer; next try after {time:.0}");
                    return Err(Error::Transient { call: format!("connect to cluster {cluster:?}"), message });
                }
                Standing::Stale => {}
            }
        }
        let client = self.connect(cluster, now).await?;
        clients.insert(cluster.into(), Kept { client: client.clone(), made: now, used: now, labels: now });
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
                "kubeconfig has insecure-skip-tls-verify; an attacker on the network can impersonate the API server; set \
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
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use driftless_aws::Error as AwsError;
    use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};
    use secrecy::SecretString;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpSocket, TcpStream},
        time::{Duration, Instant, timeout},
    };

    use super::*;
    use crate::{Cluster as _, Endpoint};

    const KUBECONFIG: &str = "
clusters: [{name: a, cluster: {server: 'http://SERVER'}}]
users: [{name: token, user: {token: canary}}, {name: eks, user: {exec: {command: aws, args: [eks, get-token, --cluster-name, shop]}}}]
contexts: [{name: plain, context: {cluster: a, user: token}}, {name: eks, context: {cluster: a, user: eks}}]
";

    /// The requested secrets, and whether Secrets Manager answers.
    #[derive(Default)]
    struct Asked {
        calls: Mutex<Vec<String>>,
        away: bool,
        /// The URL of the API server.
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
    async fn client_refused_by_the_cluster_is_rebuilt_from_the_secret() {
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
    async fn connection_error_contains_no_secret() {
        let asked = Asked::default();
        let error = clusters(&asked).get("staging", at(0)).await.err().unwrap();
        assert!(!error.is_transient());
        let words =
            "connect to cluster \"staging\": cluster \"staging\" not found; the contexts of the kubeconfig are plain, eks";
        assert_eq!(error.to_string(), words);
        let asked = Asked { away: true, ..Asked::default() };
        let error = clusters(&asked).get("plain", at(0)).await.err().unwrap();
        assert!(error.is_transient());
        assert_eq!(error.to_string(), "connect to cluster \"plain\": read: throttled");
    }

    #[tokio::test]
    async fn label_of_a_namespace_is_read_once_in_15_seconds() {
        let api_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let asked = Asked { server: api_server.local_addr().unwrap().to_string(), ..Asked::default() };
        let answering = tokio::spawn(async move {
            for watch in ["true", "false"] {
                let (mut stream, _) = api_server.accept().await.unwrap();
                let _request = stream.read(&mut [0; 4096]).await.unwrap();
                let body = format!(r#"{{"metadata":{{"name":"n","labels":{{"driftless.dev/watch":"{watch}"}}}}}}"#);
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        });
        let clusters = clusters(&asked);
        for (seconds, label) in [(0, "true"), (14, "true"), (15, "false"), (29, "false")] {
            let client = clusters.get("plain", at(0) + SignedDuration::from_secs(seconds)).await.unwrap();
            assert_eq!(client.watch_label("n").await.unwrap(), Some(Some(label.to_owned())), "after {seconds} s");
        }
        answering.await.unwrap();
    }

    #[test]
    fn client_state_follows_from_its_age_and_errors() {
        let at = |seconds| at(0) + SignedDuration::from_secs(seconds);
        let [usable, stale, away] = [Standing::Usable, Standing::Stale, Standing::AwayUntil(at(145))];
        for (now, is_refused, is_unreachable, expected) in [
            (100, false, false, &usable),
            (539, false, false, &usable),
            (540, false, false, &stale),
            (101, true, false, &stale),
            (101, false, true, &away),
            (101, true, true, &away),
            (144, false, true, &away),
            (145, false, true, &stale),
        ] {
            assert_eq!(Standing::of(at(0), at(100), is_refused, is_unreachable, at(now)), *expected, "after {now} s");
        }
    }

    #[tokio::test]
    async fn cluster_that_drops_packets_costs_one_connect_timeout_in_45_seconds() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        // The kernel drops the SYNs to a listener whose queue is full.
        let listener = socket.listen(0).unwrap();
        let server = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(connection) = timeout(Duration::from_millis(200), TcpStream::connect(server)).await {
            queued.push(connection.unwrap());
        }
        let asked = Asked { server: server.to_string(), ..Asked::default() };
        let clusters = clusters(&asked);
        let seconds = |seconds| at(0) + SignedDuration::from_secs(seconds);
        let begin = Instant::now();
        let client = clusters.get("plain", at(0)).await.unwrap();
        let error = client.get::<Lease>("n", "a").await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!((3..5).contains(&begin.elapsed().as_secs()), "{error}: {:?}", begin.elapsed());
        for second in [3, 44] {
            let error = clusters.get("plain", seconds(second)).await.err().unwrap();
            assert!(error.is_transient());
            let words = "connect to cluster \"plain\": API server does not answer; next try after 2026-11-22T05:00:45Z";
            assert_eq!(error.to_string(), words);
        }
        assert_eq!(asked.calls.lock().unwrap().len(), 1);
        assert!(clusters.get("eks", seconds(44)).await.is_ok(), "another cluster is used");
        assert!(clusters.get("plain", seconds(45)).await.is_ok());
    }

    #[tokio::test]
    async fn cluster_that_answers_no_request_costs_one_timeout_in_45_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let asked = Asked { server: listener.local_addr().unwrap().to_string(), ..Asked::default() };
        let accepting = tokio::spawn(async move {
            let connection = listener.accept().await.unwrap();
            // From here on, time advances whenever all tasks are idle.
            tokio::time::pause();
            (connection, listener)
        });
        let clusters = clusters(&asked);
        let begin = Instant::now();
        let client = clusters.get("plain", at(0)).await.unwrap();
        let error = client.get::<Lease>("n", "a").await.unwrap_err();
        assert!(error.is_transient() && begin.elapsed().as_secs() == 15, "{error}: {:?}", begin.elapsed());
        let error = clusters.get("plain", at(0) + SignedDuration::from_secs(44)).await.err().unwrap().to_string();
        assert!(error.ends_with("API server does not answer; next try after 2026-11-22T05:00:45Z"), "{error}");
        drop(accepting.await.unwrap());
    }

    #[tokio::test]
    async fn refused_connection_is_tried_again_at_once() {
        let asked = Asked { server: "127.0.0.1:1".into(), ..Asked::default() };
        let clusters = clusters(&asked);
        let error = clusters.get("plain", at(0)).await.unwrap().get::<Lease>("n", "a").await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(clusters.get("plain", at(0)).await.is_ok());
        assert_eq!(asked.calls.lock().unwrap().len(), 1);
    }
}
