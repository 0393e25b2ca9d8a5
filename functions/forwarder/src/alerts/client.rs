use std::{error::Error, sync::Arc, time::Duration};

use reqwest::{StatusCode, Url, header, redirect::Policy};

use super::{delivery::Failed, event::FluxEvent};

/// Flux answers before it sends the event to its Providers: within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The event endpoint of Flux's notification-controller.
pub struct Flux {
    http: reqwest::Client,
    url: Url,
}

impl Flux {
    /// The endpoint at this URL. With `https` its certificate must be signed by a public CA.
    pub fn new(url: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let example = "http://notification-controller.flux-system.svc.cluster.local./";
        let url = Url::parse(url).map_err(|error| format!("{url:?}: {error}; give one such as {example}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{:?}: neither http nor https; give one such as {example}", url.as_str()).into());
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.with_root_certificates(roots).with_no_client_auth())
            .no_proxy()
            .redirect(Policy::none())
            .timeout(TIMEOUT)
            .build()?;
        Ok(Self { http, url })
    }

    /// Posts an Event, once.
    pub(crate) async fn post(&self, event: &FluxEvent) -> Result<(), Failed> {
        let body = serde_json::to_vec(event).map_err(|error| Failed::Refused(error.to_string()))?;
        let request = self.http.post(self.url.clone()).header(header::CONTENT_TYPE, "application/json").body(body);
        verdict(request.send().await.map_err(|error| Failed::Passing(words(&error.without_url())))?.status())
    }
}

/// The meaning of a status. Flux answers 429 for an event that it has already, as after a lost
/// answer.
fn verdict(status: StatusCode) -> Result<(), Failed> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Ok(()),
        _ if status.is_success() => Ok(()),
        _ if status.is_server_error() => Err(Failed::Passing(format!("notification-controller answered {status}"))),
        _ => Err(Failed::Refused(format!("notification-controller answered {status}"))),
    }
}

/// An error with its causes.
fn words(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", words(cause)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::{Json, Router, http::Uri};
    use serde_json::Value;
    use tokio::net::TcpListener;

    use super::*;
    use crate::alerts::event::{Event, flux};

    #[test]
    fn duplicate_event_succeeds_and_only_server_errors_are_retried() {
        for status in [200, 202, 204, 429] {
            assert!(verdict(StatusCode::from_u16(status).unwrap()).is_ok(), "{status}");
        }
        for status in [500, 502, 503] {
            assert!(matches!(verdict(StatusCode::from_u16(status).unwrap()), Err(Failed::Passing(_))), "{status}");
        }
        for status in [301, 400, 404, 413] {
            assert!(matches!(verdict(StatusCode::from_u16(status).unwrap()), Err(Failed::Refused(_))), "{status}");
        }
    }

    #[test]
    fn invalid_events_url_is_refused_with_an_example() {
        for url in ["", "notification-controller", "ftp://flux/"] {
            let error = Flux::new(url).err().unwrap().to_string();
            assert!(error.starts_with(&format!("{url:?}: ")) && error.contains("http://notification-controller."), "{error}");
        }
        for url in ["http://notification-controller.flux-system.svc.cluster.local./", "https://flux.example/events"] {
            assert!(Flux::new(url).is_ok(), "{url}");
        }
    }

    #[tokio::test]
    async fn an_event_is_posted_as_json() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let posted: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let log = Arc::clone(&posted);
        let server = Router::new().fallback(async move |uri: Uri, Json(body): Json<Value>| {
            log.lock().unwrap().push((uri.path().to_owned(), body));
            StatusCode::ACCEPTED
        });
        let event = flux(&Event::default());
        tokio::select! {
            ended = axum::serve(listener, server) => panic!("{ended:?}"),
            posted = async { Flux::new(&format!("http://{address}/events")).unwrap().post(&event).await } => posted.unwrap(),
        }
        assert_eq!(*posted.lock().unwrap(), [("/events".to_owned(), serde_json::to_value(&event).unwrap())]);
        let Err(Failed::Passing(why)) = Flux::new(&format!("http://{address}")).unwrap().post(&event).await else {
            panic!("nobody listens any more")
        };
        assert!(why.contains("Connection refused") && !why.contains("http://"), "{why}");
    }
}
