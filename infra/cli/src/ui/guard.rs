//! Which requests the page answers: those of the browser that the user gave the URL to, and no
//! others.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use url::form_urlencoded;

/// The headers of every response. Nothing is loaded from elsewhere, embedded elsewhere, cached, or
/// interpreted as HTML by a script.
pub const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
];

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has the cookie.
    Answer,
    /// It has the token in its URL: the response sets this cookie.
    AnswerWithCookie(String),
    /// It is refused, for this reason.
    Refuse(StatusCode, &'static str),
}

/// The secret of one page: a token in the URL that the user opens, and in the cookie of the
/// requests after it.
#[derive(Clone)]
pub struct Guard {
    port: u16,
    token: String,
}

impl Guard {
    /// A guard of the page at a port of 127.0.0.1. `token` has to be unpredictable.
    #[must_use]
    pub fn new(port: u16, token: String) -> Self {
        Self { port, token }
    }

    /// The URL that the user opens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Decides about a request.
    #[must_use]
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Verdict {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        // A name that resolves to 127.0.0.1 would make this page part of the site of that name (DNS
        // rebinding).
        let hosts = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{}", self.port));
        if !text(header::HOST).is_some_and(|host| hosts.iter().any(|known| known == host)) {
            return Verdict::Refuse(StatusCode::FORBIDDEN, "unknown Host; open the URL that kubectl driftless ui printed");
        }
        if method != Method::GET {
            return Verdict::Refuse(StatusCode::METHOD_NOT_ALLOWED, "this page is read-only");
        }
        // Cookies do not distinguish ports: another server on this machine may send requests with
        // the cookie.
        let site = text(HeaderName::from_static("sec-fetch-site"));
        if uri.path() != "/" && site.is_some_and(|site| site != "same-origin" && site != "none") {
            return Verdict::Refuse(StatusCode::FORBIDDEN, "request from another origin");
        }
        let mut query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        if uri.path() == "/" && query.any(|(name, value)| name == "token" && self.is_token(&value)) {
            let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie(), self.token);
            return Verdict::AnswerWithCookie(cookie);
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        if pairs.any(|(name, value)| name == self.cookie() && self.is_token(value)) {
            Verdict::Answer
        } else {
            Verdict::Refuse(StatusCode::FORBIDDEN, "no token; open the URL that kubectl driftless ui printed")
        }
    }

    /// Two pages at once have two cookies.
    fn cookie(&self) -> String {
        format!("driftless-{}", self.port)
    }

    /// Compares all bytes, so that the time of a refusal reveals nothing about the token.
    fn is_token(&self, text: &str) -> bool {
        let pairs = text.bytes().zip(self.token.bytes());
        text.len() == self.token.len() && pairs.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &Method, uri: &str, headers: &[(&'static str, &str)]) -> Verdict {
        let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        Guard::new(4711, "0123abcd".into()).check(method, &uri.parse().unwrap(), &headers)
    }

    fn refused(verdict: &Verdict) -> Option<u16> {
        match verdict {
            Verdict::Refuse(status, _) => Some(status.as_u16()),
            Verdict::Answer | Verdict::AnswerWithCookie(_) => None,
        }
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:4711");
    const COOKIE: (&str, &str) = ("cookie", "other=1; driftless-4711=0123abcd");

    #[test]
    fn token_of_the_url_becomes_a_strict_cookie() {
        let verdict = check(&Method::GET, "/?token=0123abcd", &[HOST]);
        let cookie = "driftless-4711=0123abcd; Path=/; HttpOnly; SameSite=Strict";
        assert_eq!(verdict, Verdict::AnswerWithCookie(cookie.into()));
        assert_eq!(check(&Method::GET, "/api/stacks", &[HOST, COOKIE]), Verdict::Answer);
        assert_eq!(check(&Method::GET, "/", &[("host", "localhost:4711"), COOKIE]), Verdict::Answer);
        let guard = Guard::new(4711, "0123abcd".into());
        assert_eq!(guard.url(), "http://127.0.0.1:4711/?token=0123abcd");
    }

    #[test]
    fn request_without_the_token_is_refused() {
        for (uri, cookie) in [
            ("/", ""),
            ("/?token=", ""),
            ("/?token=0123abce", ""),
            ("/?token=0123abcd0", ""),
            ("/page.js", "driftless-4712=0123abcd"),
            ("/api/stacks", "driftless-4711=0123abc"),
            ("/api/stacks", "xdriftless-4711=0123abcd"),
            ("/api/stacks?token=0123abcd", ""),
        ] {
            assert_eq!(refused(&check(&Method::GET, uri, &[HOST, ("cookie", cookie)])), Some(403), "{uri} {cookie}");
        }
    }

    #[test]
    fn request_for_another_host_is_refused() {
        for host in
            ["evil.example", "evil.example:4711", "127.0.0.1", "127.0.0.1:4712", "127.0.0.1.evil.example:4711", "[::1]:4711"]
        {
            assert_eq!(refused(&check(&Method::GET, "/?token=0123abcd", &[("host", host), COOKIE])), Some(403), "{host}");
        }
        assert_eq!(refused(&check(&Method::GET, "/?token=0123abcd", &[COOKIE])), Some(403), "no Host");
    }

    #[test]
    fn request_of_another_origin_is_refused() {
        let site = |site| refused(&check(&Method::GET, "/api/stacks", &[HOST, COOKIE, ("sec-fetch-site", site)]));
        assert_eq!(["same-origin", "none", "same-site", "cross-site"].map(site), [None, None, Some(403), Some(403)]);
    }

    #[test]
    fn request_that_could_write_is_refused() {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            assert_eq!(refused(&check(&method, "/api/stacks", &[HOST, COOKIE])), Some(405), "{method}");
        }
    }
}
