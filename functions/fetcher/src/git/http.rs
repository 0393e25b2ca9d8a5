//! Git's smart protocol over HTTP: gitoxide's requests through the guarded client.

use std::{
    any::Any,
    io::{self, BufRead, Cursor, Read, Write},
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use gix_error::ErrorExt as _;
use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use secrecy::{ExposeSecret as _, SecretString};

use super::{GitError, bounds::Bounds, net};

const MAX_REDIRECTS: usize = 5;

/// A user, a password and their source.
pub(super) struct Login {
    pub user: SecretString,
    pub password: SecretString,
    pub source_name: String,
}

/// One repository on a web server.
pub(super) struct Web {
    client: Client,
    bounds: Bounds,
    login: Option<Login>,
    /// Where the server redirected to: later requests use it.
    moved: Option<String>,
}

impl Web {
    pub(super) fn new(client: Client, bounds: Bounds, login: Option<Login>) -> Self {
        Self { client, bounds, login, moved: None }
    }

    /// gitoxide's headers and the credentials. The first request has the credentials already: a
    /// server that needs none ignores them, and with one that needs them this saves a round trip.
    fn headers(&self, lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
        let mut headers: HeaderMap = lines
            .into_iter()
            .filter_map(|line| {
                let (name, value) = line.as_ref().split_once(':')?;
                Some((name.parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
            })
            .collect();
        if let Some(Login { user, password, .. }) = &self.login {
            let pair = STANDARD.encode(format!("{}:{}", user.expose_secret(), password.expose_secret()));
            if let Ok(mut value) = HeaderValue::try_from(format!("Basic {pair}")) {
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
        }
        headers
    }

    /// The next URL of a redirect. It may change the path, or http to https, but never the host,
    /// with or without credentials.
    fn next(&self, here: &Url, response: &Response) -> io::Result<Url> {
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let next = location.and_then(|location| here.join(location).ok());
        let same = |next: &Url| {
            let origin = next.scheme() == here.scheme() && next.port_or_known_default() == here.port_or_known_default();
            let upgrade = here.scheme() == "http" && next.scheme() == "https" && next.port().is_none() && here.port().is_none();
            next.host() == here.host() && (origin || upgrade) && next.username().is_empty() && next.password().is_none()
        };
        next.filter(same).ok_or_else(|| self.bounds.stop(GitError::Redirect))
    }

    /// Sends a request and follows redirects.
    fn follow(&mut self, url: &str, base: &str, headers: &HeaderMap) -> io::Result<Response> {
        let wrong = |_| self.bounds.stop(GitError::Url("it is not a URL"));
        let mut here: Url = url.parse().map_err(wrong)?;
        for hops in 0..=MAX_REDIRECTS {
            let request = self.client.get(here.clone()).headers(headers.clone());
            let response = self.bounds.wait_for_first_answer(request.send())?.map_err(unreachable(&self.bounds))?;
            if response.status().is_redirection() {
                here = self.next(&here, &response)?;
                continue;
            }
            if hops > 0 {
                let tail = url.strip_prefix(base).unwrap_or(url);
                let moved = here.as_str().strip_suffix(tail).ok_or_else(|| self.bounds.stop(GitError::Redirect))?;
                self.moved = Some(moved.to_owned());
            }
            return self.accept(response);
        }
        Err(self.bounds.stop(GitError::Redirect))
    }

    fn accept(&self, response: Response) -> io::Result<Response> {
        let source_name = self.login.as_ref().map(|login| login.source_name.clone());
        let refused = match (response.status(), source_name) {
            (StatusCode::OK, _) => return Ok(response),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(source_name)) => GitError::Denied { source_name },
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => GitError::Anonymous,
            (StatusCode::NOT_FOUND, source_name) => GitError::NotFound { source_name },
            (status, _) => GitError::Status { who: "the git server", status: status.as_u16() },
        };
        Err(self.bounds.stop(refused))
    }
}

fn unreachable(bounds: &Bounds) -> impl Fn(reqwest::Error) -> io::Error {
    |error| bounds.stop(GitError::Unreachable { who: "the git server", why: net::words(error) })
}

impl Http for Web {
    type Headers = Headers;
    type ResponseBody = Body;
    type PostBody = Upload;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix_error::Result<GetResponse<Headers, Body>> {
        let headers = self.headers(headers);
        let response = self.follow(url, base_url, &headers).map_err(|error| error.raise())?;
        let (headers, body) = Exchange::open(self.bounds.clone(), None, Some(response));
        Ok(GetResponse { headers, body })
    }

    fn post(
        &mut self,
        url: &str,
        _base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _kind: PostBodyDataKind,
    ) -> gix_error::Result<PostResponse<Headers, Body, Upload>> {
        let request = self.client.post(url).headers(self.headers(headers));
        let (headers, body) = Exchange::open(self.bounds.clone(), Some(request), None);
        let post_body = Upload(Arc::clone(&body.exchange));
        Ok(PostResponse { post_body, headers, body })
    }

    fn configure(&mut self, _: &dyn Any) -> gix_error::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.moved.clone()
    }
}

/// A request and its response. gitoxide writes the request's body after it has the response's
/// reader, so the request is sent at the first read of the response. Requests are short.
struct Exchange {
    bounds: Bounds,
    request: Option<RequestBuilder>,
    upload: Vec<u8>,
    response: Option<Response>,
}

impl Exchange {
    fn open(bounds: Bounds, request: Option<RequestBuilder>, response: Option<Response>) -> (Headers, Body) {
        let exchange = Arc::new(Mutex::new(Self { bounds, request, upload: Vec::new(), response }));
        let headers = Headers { exchange: Arc::clone(&exchange), text: None };
        (headers, Body { exchange, piece: Bytes::new() })
    }

    fn response(&mut self) -> io::Result<Option<&mut Response>> {
        if let Some(request) = self.request.take() {
            let request = request.body(std::mem::take(&mut self.upload));
            let response = self.bounds.wait(request.send())?.map_err(unreachable(&self.bounds))?;
            if response.status() != StatusCode::OK {
                let status = response.status().as_u16();
                return Err(self.bounds.stop(GitError::Status { who: "the git server", status }));
            }
            self.response = Some(response);
        }
        Ok(self.response.as_mut())
    }
}

type Shared = Arc<Mutex<Exchange>>;

/// The body of a request.
pub(super) struct Upload(Shared);

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).upload.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A response's headers as lines.
pub(super) struct Headers {
    exchange: Shared,
    text: Option<Cursor<Vec<u8>>>,
}

impl Headers {
    fn text(&mut self) -> io::Result<&mut Cursor<Vec<u8>>> {
        if self.text.is_none() {
            let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
            let mut lines = Vec::new();
            for (name, value) in exchange.response()?.into_iter().flat_map(|response| response.headers()) {
                lines.extend_from_slice(name.as_str().as_bytes());
                lines.push(b':');
                lines.extend_from_slice(value.as_bytes());
                lines.push(b'\n');
            }
            drop(exchange);
            self.text = Some(Cursor::new(lines));
        }
        Ok(self.text.get_or_insert_default())
    }
}

impl Read for Headers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.text()?.read(buffer)
    }
}

impl BufRead for Headers {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.text()?.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        if let Some(text) = &mut self.text {
            text.consume(amount);
        }
    }
}

/// A response's body, as it arrives.
pub(super) struct Body {
    exchange: Shared,
    piece: Bytes,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Body {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece.is_empty() {
            let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
            let bounds = exchange.bounds.clone();
            while self.piece.is_empty() {
                let Some(response) = exchange.response()? else { break };
                match bounds.wait(response.chunk())? {
                    Ok(Some(piece)) => self.piece = piece,
                    Ok(None) => break,
                    Err(error) => {
                        return Err(bounds.stop(GitError::Unreachable { who: "the git server", why: net::words(error) }));
                    }
                }
            }
            bounds.count(self.piece.len())?;
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, amount: usize) {
        self.piece = self.piece.split_off(amount);
    }
}
