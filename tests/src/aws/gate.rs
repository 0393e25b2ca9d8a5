//! The AWS endpoint for all callers: it identifies the caller by the signature, checks the call
//! against the policies of the caller's role and of the resource, and forwards it to moto or to the
//! local Fargate.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::Debug,
    ops::ControlFlow,
    sync::{Arc, PoisonError},
};

use anyhow::Result;
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    serve::{Listener, ListenerExt as _},
};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Mutex};

use super::{
    fargate::{Fargate, Tls, send_at_once},
    identity::Caller,
    machine::now,
    outages::Outage,
    policy::Demand,
    s3,
    signature::{self, Declared, Flaw},
    site::Site,
};

/// The maximum size of an SQS call, with room for its JSON.
const MESSAGE_BYTES: usize = 2 << 20;

struct Gate {
    site: Arc<Site>,
    fargate: Arc<Fargate>,
    client: reqwest::Client,
    /// Held during a conditional write, because moto checks and writes in two steps, and S3 in one.
    conditional: Mutex<()>,
}

/// Serves until the world ends; with TLS too, at the address of S3 for tasks, if the world has it.
pub fn serve(site: &Arc<Site>, fargate: Arc<Fargate>, listener: TcpListener, s3: Option<Tls>) -> Result<()> {
    let gate = Arc::new(Gate { site: Arc::clone(site), fargate, client: http_client()?, conditional: Mutex::default() });
    let router = Router::new().fallback(handle).layer(DefaultBodyLimit::disable()).with_state(gate);
    if let Some(s3) = s3 {
        site.tasks.spawn(serve_on(s3, router.clone()));
    }
    site.tasks.spawn(serve_on(listener.tap_io(|stream| send_at_once(stream)), router));
    Ok(())
}

async fn serve_on<L: Listener<Addr: Debug>>(listener: L, router: Router) {
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the AWS endpoint ended");
    }
}

/// A client for plain HTTP on this machine: no proxy, no redirects, no CAs.
pub fn http_client() -> Result<reqwest::Client> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).tls_backend_preconfigured(tls);
    Ok(client.build()?)
}

/// A refusal, before it gets a service's form.
struct Refusal {
    status: StatusCode,
    code: Cow<'static, str>,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into() }
    }

    fn flawed(flaw: Flaw, service: &str) -> Self {
        let (status, code) = flaw.answer(service);
        Self::new(status, code, flaw.to_string())
    }

    fn denied(caller: &Caller, demand: &Demand) -> Self {
        let message =
            format!("User: {} is not authorized to perform: {} on resource: {}", caller.arn, demand.action, demand.resource);
        Self::new(StatusCode::FORBIDDEN, "AccessDenied", message)
    }

    fn unsupported(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", what)
    }

    fn broken(error: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", error.to_string())
    }

    fn into_response(self, service: &str) -> Response {
        let Self { status, code, message } = self;
        match service {
            "sqs" => {
                let code = if code == "AccessDenied" { "AccessDeniedException".into() } else { code };
                let body = json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": message });
                (
                    status,
                    [("content-type", "application/x-amz-json-1.0"), ("x-amzn-query-error", "AccessDenied;Sender")],
                    body.to_string(),
                )
                    .into_response()
            }
            // These services refuse with 400.
            "ecs" | "secretsmanager" if code == "AccessDenied" => {
                aws_json(StatusCode::BAD_REQUEST, &json!({ "__type": "AccessDeniedException", "message": message }))
            }
            "ecs" | "secretsmanager" => aws_json(status, &json!({ "__type": code, "message": message })),
            _ => {
                let message = message.replace('&', "&amp;").replace('<', "&lt;");
                let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
                let error = if service == "sts" { format!("<ErrorResponse>{error}</ErrorResponse>") } else { error };
                let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{error}");
                (status, [("content-type", "application/xml")], body).into_response()
            }
        }
    }
}

fn aws_json(status: StatusCode, body: &Value) -> Response {
    (status, [("content-type", "application/x-amz-json-1.1")], body.to_string()).into_response()
}

async fn handle(State(gate): State<Arc<Gate>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let link = signature::link_key(&parts);
    let (key, mut service) = credential(&parts.headers).or(link.map(|key| (key, "s3".into()))).unwrap_or_default();
    // The one unsigned call: its token identifies the caller.
    let is_unsigned = key.is_empty() && signature::is_form(&parts);
    if is_unsigned {
        service = "sts".into();
    }
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let mut entry = json!({
        "at": now().to_string(), "service": service, "host": host, "method": parts.method.as_str(), "path": parts.uri.path(),
    });
    let answer = if is_unsigned {
        gate.web_identity(body, &mut entry).await
    } else {
        gate.signed((&key, &service), &parts, body, &mut entry).await
    };
    let response = answer.unwrap_or_else(|refusal| {
        entry["refused"] = refusal.code.clone().into();
        if refusal.status.is_server_error() {
            gate.site.alarm(format!("the AWS endpoint: {} {}: {}", parts.method, parts.uri.path(), refusal.message));
        }
        refusal.into_response(&service)
    });
    if entry["kills"] == true
        && let Err(error) = gate.site.outages.kill(&key)
    {
        gate.site.alarm(format!("the AWS endpoint: {} {}: {error:#}", parts.method, parts.uri.path()));
    }
    entry["status"] = response.status().as_u16().into();
    gate.site.calls.write(&entry);
    response
}

/// The access key id and the service from a header `AWS4-HMAC-SHA256
/// Credential=<id>/<date>/<region>/<service>/aws4_request, …`.
pub(super) fn credential(headers: &HeaderMap) -> Option<(String, String)> {
    let header = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let scope = header.split_once("Credential=")?.1.split([',', ' ']).next()?;
    let mut parts = scope.split('/');
    Some((parts.next()?.into(), parts.nth(2)?.into()))
}

impl Gate {
    async fn signed(
        &self,
        (key, service): (&str, &str),
        parts: &Parts,
        body: Body,
        entry: &mut Value,
    ) -> Result<Response, Refusal> {
        if key.is_empty() {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied"));
        }
        let refused = |flaw| Refusal::flawed(flaw, service);
        let (caller, keys) = self.site.identities.holder(key, now()).ok_or(refused(Flaw::Key))?;
        entry["caller"] = caller.arn.clone().into();
        let verify = |body| signature::verify(parts, body, &keys, &self.site.template.region, now()).map_err(refused);
        if service == "s3" {
            if signature::link_key(parts).is_some() {
                signature::verify_link(parts, &keys, &self.site.template.region, now()).map_err(refused)?;
            } else {
                verify(None)?;
            }
            return self.s3(&caller, parts, body, entry).await;
        }
        let body = to_bytes(body, MESSAGE_BYTES).await.map_err(Refusal::broken)?;
        verify(Some(&body))?;
        match service {
            "sqs" => self.sqs(&caller, parts, body, entry).await,
            "ecs" => self.ecs(&caller, parts, &body, entry),
            "secretsmanager" => self.secrets_manager(&caller, parts, body, entry).await,
            "sts" => self.sts(&caller, &body, entry),
            // The administrator may use services of moto that no other caller uses.
            _ if caller.role.is_none() => self.forward(parts, body.into()).await,
            other => Err(Refusal::unsupported(format!("this world has no service {other}"))),
        }
    }

    /// Refuses a caller that lacks any of the permissions. `entry` gets the demands.
    fn check(&self, caller: &Caller, demands: Vec<Demand>, entry: &mut Value) -> Result<(), Refusal> {
        let asked = demands.iter().map(|demand| json!([demand.action, demand.resource, demand.context]));
        match &mut entry["demands"] {
            Value::Array(before) => before.extend(asked),
            none => *none = asked.collect(),
        }
        let denied = demands.into_iter().find(|demand| !self.may(caller, demand));
        entry["allowed"] = denied.is_none().into();
        denied.map_or(Ok(()), |demand| Err(Refusal::denied(caller, &demand)))
    }

    /// Breaks with the answer to a call that meets an outage. A call whose answer is lost
    /// continues, and is carried out before that answer.
    fn outage(
        &self,
        caller: Option<&Caller>,
        call: &str,
        text: &str,
        entry: &mut Value,
    ) -> ControlFlow<Response, Option<Response>> {
        let role = caller.and_then(|caller| caller.role.as_deref());
        let Some(Outage { call: of, status, code, message, lost, kills, .. }) = self.site.outages.met_by(role, call, text) else {
            return ControlFlow::Continue(None);
        };
        entry["fault"] = code.clone().into();
        entry["kills"] = kills.into();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let service = of.split(' ').next().unwrap_or_default();
        let answer = Refusal::new(status, code, message).into_response(service);
        if lost { ControlFlow::Continue(Some(answer)) } else { ControlFlow::Break(answer) }
    }

    fn may(&self, caller: &Caller, demand: &Demand) -> bool {
        let template = &self.site.template;
        match &caller.role {
            Some(role) => template.allows(role, &template.asked_by(role, &caller.userid, demand)),
            // The administrator has all rights but one: a write-once object is not written a second
            // time.
            None => demand.action != "s3:PutObject" || !template.denies(demand),
        }
    }

    async fn s3(&self, caller: &Caller, parts: &Parts, body: Body, entry: &mut Value) -> Result<Response, Refusal> {
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        let (request, about, body) = if s3::Request::deletes_objects(&parts.method, query) {
            let bytes = to_bytes(body, MESSAGE_BYTES).await.map_err(Refusal::broken)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            entry["input"] = text.clone().into();
            (s3::Request::parse_deletion(path, &text), text, Body::from(bytes))
        } else {
            (s3::Request::parse(&parts.method, path, query, &parts.headers), path.to_owned(), body)
        };
        let Some(request) = request else {
            // The administrator inspects without a policy, so the request needs no demands.
            return if caller.role.is_none() {
                self.forward(parts, checked(parts, body)?).await
            } else {
                Err(Refusal::unsupported("this S3 call is not known here"))
            };
        };
        self.check(caller, request.demands, entry)?;
        // The administrator is the test itself, and meets no outage.
        let about = format!("{about}{}", if request.conditional { " if-none-match" } else { "" });
        let mut lost = None;
        if caller.role.is_some() {
            match self.outage(Some(caller), &format!("s3 {}", parts.method), &about, entry) {
                ControlFlow::Break(answer) => return Ok(answer),
                ControlFlow::Continue(answer) => lost = answer,
            }
        }
        self.site.holds.pass(&format!("{} {}", parts.method, parts.uri.path())).await;
        let _alone = if request.conditional { Some(self.conditional.lock().await) } else { None };
        let response = self.forward(parts, checked(parts, body)?).await?;
        if response.status() == StatusCode::NOT_FOUND && request.reads {
            self.check(caller, vec![Demand::new("s3:ListBucket", request.bucket)], entry)?;
        }
        // A reader of an encrypted object also needs the right to decrypt it.
        if let Some(seal_key) = response.headers().get(s3::SEAL_KEY).and_then(|key| key.to_str().ok()).filter(|_| request.reads) {
            self.check(caller, vec![s3::seal("kms:Decrypt", seal_key, &request.object)], entry)?;
        }
        Ok(lost.unwrap_or(response))
    }

    async fn sqs(&self, caller: &Caller, parts: &Parts, bytes: Bytes, entry: &mut Value) -> Result<Response, Refusal> {
        let operation = operation(&parts.headers)?;
        let input = json_body(&bytes)?;
        let queue = input["QueueUrl"].as_str().and_then(|url| url.rsplit('/').next()).or(input["QueueName"].as_str());
        let (region, account) = (&self.site.template.region, &self.site.template.account);
        let resource = queue.map_or_else(|| "*".into(), |queue| format!("arn:aws:sqs:{region}:{account}:{queue}"));
        if operation.starts_with("SendMessage") {
            // No message may contain a secret: the tests search this log for secrets.
            entry["input"] = input;
        }
        let action = operation.strip_suffix("Batch").unwrap_or(&operation);
        self.check(caller, vec![Demand::new(format!("sqs:{action}"), resource)], entry)?;
        let lost = match self.outage(Some(caller), &format!("sqs {operation}"), &String::from_utf8_lossy(&bytes), entry) {
            ControlFlow::Break(answer) => return Ok(answer),
            ControlFlow::Continue(lost) => lost,
        };
        let answer = self.forward(parts, bytes.into()).await?;
        Ok(lost.unwrap_or(answer))
    }

    fn ecs(&self, caller: &Caller, parts: &Parts, body: &[u8], entry: &mut Value) -> Result<Response, Refusal> {
        let operation = operation(&parts.headers)?;
        let input = json_body(body)?;
        entry["operation"] = operation.clone().into();
        // Overrides and definitions are widely visible: they may contain no secret.
        entry["input"] = input.clone();
        let answer = match self.fargate.demands(&operation, &input) {
            Ok(demands) => {
                self.check(caller, demands, entry)?;
                let lost = match self.outage(Some(caller), &format!("ecs {operation}"), &self.fargate.text(&input), entry) {
                    ControlFlow::Break(answer) => return Ok(answer),
                    ControlFlow::Continue(lost) => lost,
                };
                let answer = self.fargate.call(&operation, input);
                if let Some(lost) = lost {
                    return Ok(lost);
                }
                answer
            }
            Err(fault) => Err(fault),
        };
        Ok(match answer {
            Ok(output) => aws_json(StatusCode::OK, &output),
            Err(fault) => {
                entry["fault"] = fault.code.into();
                aws_json(StatusCode::BAD_REQUEST, &fault.into_json())
            }
        })
    }

    /// A secret's policies name its ARN, of which only the service knows the suffix, so it is asked
    /// first.
    async fn secrets_manager(
        &self,
        caller: &Caller,
        parts: &Parts,
        bytes: Bytes,
        entry: &mut Value,
    ) -> Result<Response, Refusal> {
        let operation = operation(&parts.headers)?;
        if caller.role.is_some() && operation != "GetSecretValue" {
            return Err(Refusal::unsupported(format!("this world has no {operation} of Secrets Manager")));
        }
        entry["operation"] = operation.clone().into();
        // The administrator is the test itself, and meets no outage.
        if caller.role.is_some()
            && let ControlFlow::Break(answer) | ControlFlow::Continue(Some(answer)) =
                self.outage(Some(caller), &format!("secretsmanager {operation}"), &String::from_utf8_lossy(&bytes), entry)
        {
            return Ok(answer);
        }
        let (answer, body) = self.forward(parts, bytes.into()).await?.into_parts();
        let bytes = to_bytes(body, MESSAGE_BYTES).await.map_err(Refusal::broken)?;
        let output = json_body(&bytes)?;
        let secret = output["ARN"].as_str().unwrap_or("*");
        self.check(caller, vec![Demand::new(format!("secretsmanager:{operation}"), secret)], entry)?;
        Ok(Response::from_parts(answer, bytes.into()))
    }

    /// The one call that needs no permission.
    fn sts(&self, caller: &Caller, body: &[u8], entry: &mut Value) -> Result<Response, Refusal> {
        let form = String::from_utf8_lossy(body);
        if !form.split('&').any(|pair| pair == "Action=GetCallerIdentity") {
            return Err(Refusal::unsupported("this STS call is not known here"));
        }
        entry["operation"] = "GetCallerIdentity".into();
        // It changes nothing, so a lost answer equals a refusal.
        if let ControlFlow::Break(answer) | ControlFlow::Continue(Some(answer)) =
            self.outage(Some(caller), "sts GetCallerIdentity", &caller.arn, entry)
        {
            return Ok(answer);
        }
        let Caller { arn, userid, .. } = caller;
        let body = format!(
            "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult><Arn>{arn}</Arn>\
             <UserId>{userid}</UserId><Account>{}</Account></GetCallerIdentityResult><ResponseMetadata><RequestId>world</RequestId>\
             </ResponseMetadata></GetCallerIdentityResponse>",
            self.site.template.account
        );
        Ok(([("content-type", "text/xml")], body).into_response())
    }

    /// `AssumeRoleWithWebIdentity`: the log records who asks for which role. The answer has no
    /// keys, because no test uses them.
    async fn web_identity(&self, body: Body, entry: &mut Value) -> Result<Response, Refusal> {
        let body = to_bytes(body, MESSAGE_BYTES).await.map_err(Refusal::broken)?;
        let form: BTreeMap<String, String> = url::form_urlencoded::parse(&body).into_owned().collect();
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        if field("Action") != "AssumeRoleWithWebIdentity" {
            return Err(Refusal::unsupported("this STS call is not known here"));
        }
        let claims = field("WebIdentityToken").split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
        let claims: Value = claims.and_then(|claims| serde_json::from_slice(&claims).ok()).unwrap_or_default();
        entry["operation"] = "AssumeRoleWithWebIdentity".into();
        entry["input"] = json!({
            "role": field("RoleArn"), "session": field("RoleSessionName"), "audience": claims["aud"], "subject": claims["sub"],
        });
        let text = entry["input"].to_string();
        if let ControlFlow::Break(answer) | ControlFlow::Continue(Some(answer)) =
            self.outage(None, "sts AssumeRoleWithWebIdentity", &text, entry)
        {
            return Ok(answer);
        }
        let (template, role) = (&self.site.template, field("RoleArn"));
        let trust = template.role(role).ok().map(|(_, role)| &role.trust[..]);
        let federation = self.site.federation.read().unwrap_or_else(PoisonError::into_inner);
        let admitted = federation.admit(&template.account, role, trust, field("WebIdentityToken"), now());
        admitted.map_err(|denial| {
            let (status, code) = denial.answer();
            Refusal::new(status, code, denial.to_string())
        })?;
        Ok("<AssumeRoleWithWebIdentityResponse/>".into_response())
    }

    async fn forward(&self, parts: &Parts, body: reqwest::Body) -> Result<Response, Refusal> {
        let answer = forwarded(&self.client, &self.site.moto, parts, body).send().await;
        let answer = answer.map_err(|error| match Flaw::of_body(&error) {
            Some(flaw) => Refusal::flawed(flaw, "s3"),
            None => Refusal::broken(error),
        })?;
        Ok(answered(answer))
    }
}

/// The request to another server, whose URL has no trailing slash.
pub(super) fn forwarded(client: &reqwest::Client, to: &str, parts: &Parts, body: reqwest::Body) -> reqwest::RequestBuilder {
    let url = format!("{to}{}", parts.uri.path_and_query().map_or("/", |path| path.as_str()));
    let request = client.request(parts.method.clone(), url).headers(end_to_end(&parts.headers));
    // Without this, a request without a body would be forwarded with an empty chunked one.
    if has_body(&parts.headers) { request.body(body) } else { request }
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING)
}

/// The body of a request to S3, for the far end. An empty one is never read, so it is verified
/// here.
fn checked(parts: &Parts, body: Body) -> Result<reqwest::Body, Refusal> {
    if !has_body(&parts.headers) || parts.headers.get(header::CONTENT_LENGTH).is_some_and(|length| length == "0") {
        Declared::of(&parts.headers).verify().map_err(|flaw| Refusal::flawed(flaw, "s3"))?;
    }
    Ok(signature::checked(&parts.headers, body))
}

/// That server's answer.
pub(super) fn answered(answer: reqwest::Response) -> Response {
    let (status, headers) = (answer.status(), end_to_end(answer.headers()));
    let mut response = Body::from_stream(answer.bytes_stream()).into_response();
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The headers for the far end, without those of one connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let hop =
        [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::EXPECT, HeaderName::from_static("keep-alive")];
    let headers = headers.iter().filter(|(name, _)| !hop.contains(name));
    headers.map(|(name, value): (&HeaderName, &HeaderValue)| (name.clone(), value.clone())).collect()
}

/// The operation of the JSON protocols: `X-Amz-Target: <service>.<operation>`.
fn operation(headers: &HeaderMap) -> Result<String, Refusal> {
    let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    let operation = target.and_then(|target| target.split_once('.')).map(|(_, operation)| operation.into());
    operation.ok_or_else(|| Refusal::unsupported("only the JSON protocol is served"))
}

fn json_body(bytes: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, "SerializationException", error.to_string()))
}
