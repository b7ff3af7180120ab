//! Requests to the API server, and the reasons for which they fail.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder};

use super::kinds::Kind;
use crate::limits::OBJECT_BYTES_MAX;
use crate::printable;

/// Most bytes of the body of an error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Longest message of the server that is shown, in characters.
const MESSAGE_CHARS_MAX: usize = 300;
/// Longest wait for a connection, and for the head of a response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence of a connection after which the kernel asks its peer, and interval and number of questions without an answer
/// after which the connection ends.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 2;
/// Longest wait for the acknowledgement of sent data.
const SILENCE_MAX: Duration = Duration::from_secs(11);
/// Longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// Credentials and address of the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// File of credentials. Absent: `$KUBECONFIG`, then `~/.kube/config`, then those of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the file; its current one where absent.
    pub context: Option<String>,
}

/// Connection to the API server.
pub(super) struct Connection {
    access: Access,
    client: Mutex<Option<Client>>,
}

/// Reason for which a request has no result.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// Credentials cannot be read, or the server cannot be reached.
    Unreachable(String),
    /// Server has answered with an error.
    Status {
        /// HTTP status.
        code: u16,
        /// Message of the server.
        message: String,
        /// Wait that the server asks for.
        retry_after: Option<Duration>,
    },
    /// Response broke, or is not what the API specifies.
    Broken(String),
}

impl Failure {
    /// HTTP status of the answer.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Failure::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Wait that the server asks for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Failure of a request to `verb` objects of a kind, with the missing right.
    pub(super) fn describe(&self, verb: &str, kind: &Kind) -> String {
        match self {
            Failure::Status { code: 401, message, .. } => format!(
                "the API server does not accept the credentials, which {verb} {} needs (401: {message}): check the token or \
                 the client certificate",
                kind.resource()
            ),
            Failure::Status { code: 403, message, .. } => format!(
                "the right to {verb} {} is missing (403: {message}): grant it in a ClusterRole with apiGroups [{:?}], \
                 resources [{:?}], verbs [\"list\", \"watch\"]",
                kind.resource(),
                kind.group,
                kind.plural
            ),
            other => format!("{verb} {}: {other}", kind.resource()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unreachable(reason) => write!(f, "the API server cannot be reached: {reason}"),
            Failure::Status { code, message, .. } => write!(f, "the API server answers {code}: {message}"),
            Failure::Broken(reason) => f.write_str(reason),
        }
    }
}

impl Connection {
    /// Creates a connection, which reads its credentials with the first request.
    pub(super) fn new(access: Access) -> Connection {
        Connection { access, client: Mutex::default() }
    }

    /// Address of the API server, for messages.
    pub(super) async fn server(&self) -> Result<String, Failure> {
        let config = self.config().await?;
        Ok(shown(&config.cluster_url.to_string()))
    }

    /// Namespace of the agent's own objects: that of its service account or context.
    pub(super) async fn namespace(&self) -> Result<String, Failure> {
        Ok(self.config().await?.default_namespace)
    }

    /// Body of the response to a request, as JSON.
    pub(super) async fn value(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<serde_json::Value, Failure> {
        let response = self.send(method, path, body.map(ToString::to_string)).await?;
        let bytes = whole(response.into_body()).await?;
        serde_json::from_slice(&bytes).map_err(|error| Failure::Broken(format!("{path}: {error}")))
    }

    /// Sends a request. Returns a response with success.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Response<Body>, Failure> {
        let client = self.client().await?;
        // The one type of a server-side apply; JSON is YAML.
        let is_apply = method == Method::PATCH;
        let content_type = if is_apply { "application/apply-patch+yaml" } else { "application/json" };
        let body = body.map_or_else(Body::empty, |text| Body::from(text.into_bytes()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, content_type)
            .body(body)
            .map_err(|error| Failure::Broken(error.to_string()))?;
        let response = match timeout(HEAD_TIMEOUT, client.send(request)).await {
            Err(_) => Err(Failure::Unreachable(format!("no answer in {} s", HEAD_TIMEOUT.as_secs()))),
            Ok(Err(error)) => Err(Failure::Unreachable(causes(&error))),
            Ok(Ok(response)) => Ok(response),
        };
        let response = response.inspect_err(|_| self.renew())?;
        if response.status().is_success() {
            return Ok(response);
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            // The token may have been replaced.
            self.renew();
        }
        Err(status(response).await)
    }

    /// Reads the credentials again before the next request.
    fn renew(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn client(&self) -> Result<Client, Failure> {
        let known = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let client = client_of(&self.config().await?).map_err(|error| unusable(&error))?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    async fn config(&self) -> Result<Config, Failure> {
        let options =
            KubeConfigOptions { context: self.access.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match &self.access.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
                Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(&error))?
            }
            None => Config::infer().await.map_err(|error| unusable(&error))?,
        };
        // The sockets and the followers have time limits of their own.
        (config.connect_timeout, config.read_timeout, config.write_timeout) = (None, None, None);
        Ok(config)
    }
}

/// Client whose sockets end when their peer is silent: a watch sends nothing, maybe for a minute.
fn client_of(config: &Config) -> kube::Result<Client> {
    let mut sockets = HttpConnector::new();
    sockets.enforce_http(false);
    sockets.set_nodelay(true);
    sockets.set_connect_timeout(Some(HEAD_TIMEOUT));
    sockets.set_keepalive(Some(KEEPALIVE));
    sockets.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    sockets.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    sockets.set_tcp_user_timeout(Some(SILENCE_MAX));
    let connector = config.rustls_https_connector_with_connector(sockets)?;
    let requests = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(requests);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Address of a server without a user and a password.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    let separator = if scheme.is_empty() { "" } else { "://" };
    let text = format!("{scheme}{separator}{host}{}", &rest[end..]);
    printable::line(&text).trim_end_matches('/').to_owned()
}

/// Credentials cannot be used.
fn unusable(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::Unreachable(format!("its credentials cannot be used: {}", causes(error)))
}

/// Texts of `kube` behind which there is output of a command for credentials. Tokens are in a type without a text.
const OUTPUTS: [&str; 2] = [": Output {", "failed to parse auth exec output"];

/// Error with its causes, without credentials.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    let cut = OUTPUTS.iter().filter_map(|output| text.find(output)).min();
    match cut {
        Some(at) => bounded(&format!("{}: the output of the command is not shown", &text[..at])),
        None => bounded(&text),
    }
}

fn bounded(text: &str) -> String {
    printable::line(&printable::cut(text, MESSAGE_CHARS_MAX)).into_owned()
}

/// Failure of a response without success.
async fn status(response: Response<Body>) -> Failure {
    let code = response.status().as_u16();
    let seconds =
        response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    let mut body = Vec::new();
    let mut response = response.into_body();
    while let Ok(Some(Ok(bytes))) = timeout(HEAD_TIMEOUT, next_bytes(&mut response)).await {
        body.extend_from_slice(&bytes[..bytes.len().min(ERROR_BYTES_MAX - body.len())]);
        if body.len() == ERROR_BYTES_MAX {
            break;
        }
    }
    let message = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let message = message.as_ref().and_then(|status| status.get("message")?.as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(&body).trim().to_owned(), str::to_owned);
    Failure::Status { code, message: bounded(&text), retry_after }
}

/// Whole body of one object.
async fn whole(mut body: Body) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let silent = |_| Failure::Unreachable(format!("no answer in {} s", HEAD_TIMEOUT.as_secs()));
    while let Some(part) = timeout(HEAD_TIMEOUT, next_bytes(&mut body)).await.map_err(silent)? {
        bytes.extend_from_slice(&part?);
        if bytes.len() > OBJECT_BYTES_MAX {
            return Err(Failure::Broken(format!("an object has more than {OBJECT_BYTES_MAX} bytes")));
        }
    }
    Ok(bytes)
}

/// Next bytes of a body; `None` at its end.
pub(super) async fn next_bytes(body: &mut Body) -> Option<Result<Bytes, Failure>> {
    loop {
        match body.frame().await? {
            // Other frames are trailers.
            Ok(frame) => {
                if let Ok(bytes) = frame.into_data() {
                    return Some(Ok(bytes));
                }
            }
            Err(error) => {
                return Some(Err(Failure::Broken(format!("the response broke: {}", causes(&error)))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        assert_eq!(shown("https://user:pa@ss@192.0.2.1:6443/"), "https://192.0.2.1:6443");
        assert_eq!(shown("https://api.example/a@b"), "https://api.example/a@b");
    }

    #[test]
    fn the_output_of_a_command_for_credentials_is_not_shown() {
        #[derive(Debug)]
        struct Outer(kube::client::AuthError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "auth error: {}", self.0)
            }
        }
        impl std::error::Error for Outer {}
        let output = std::process::Output {
            status: std::process::ExitStatus::default(),
            stdout: b"token-of-stdout".to_vec(),
            stderr: b"secret-of-stderr".to_vec(),
        };
        let run = kube::client::AuthError::AuthExecRun { cmd: "get-token".to_owned(), out: Box::new(output) };
        let text = causes(&Outer(run));
        assert!(
            text.contains("get-token") && !text.contains("token-of") && !text.contains("secret"),
            "{text}"
        );
    }
}
