//! Client of the control API with one blocking method for each request, for the command line, the lab and the
//! demo.

mod connection;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::connection::{Connection, ConnectionError, IdleConnection};
use super::explain::PathReport;
use super::protocol::{
    CountersReport, Loaded, PodInfo, PodRequest, PortInfo, PortRequest, Problem, Status, TablesPatch,
    TablesSummary,
};
use crate::dataplane::FlowInfo;
use crate::net::flow::Protocol;
use crate::policy::testcase::Endpoint;
use crate::tables::{PodName, RuleTables};

/// Longest wait for a response. Loading large tables takes seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(2);

/// Client of one control socket.
///
/// It keeps a connection for the next request, and opens another one when the switch has closed it: so a
/// client survives restarts of its switch. The methods block and must not be called inside an asynchronous
/// runtime.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    idle: IdleConnection,
}

/// Reason for which a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No switch listens on the socket.
    #[error(
        "no switch answers at {socket} ({source}): is it running? Start it with `palisade run`, or name its \
         socket with --socket",
        socket = socket.display()
    )]
    NotRunning {
        /// Path of the socket.
        socket: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The user may not open the socket.
    #[error(
        "not allowed to open {socket}: run the command as root (sudo), or as a member of the group that owns \
         the socket",
        socket = socket.display()
    )]
    Forbidden {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The connection broke before the response.
    #[error("the switch at {socket} did not answer: {reason}", socket = socket.display())]
    Broken {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The response is not in a format that this program understands.
    #[error(
        "the switch at {socket} gave an answer that cannot be read ({reason}): is it of another version?",
        socket = socket.display()
    )]
    Unreadable {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The switch rejects the request and has changed nothing.
    #[error("{problem}")]
    Refused {
        /// HTTP status: 404 for an unknown object, 409 for a conflict, 422 for an invalid request.
        status: u16,
        /// Message of the switch.
        problem: String,
    },
}

impl ClientError {
    /// HTTP status of a rejected request.
    pub fn status(&self) -> Option<u16> {
        match self {
            ClientError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl Client {
    /// Creates a client of the control socket `socket`. It connects with the first request.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { socket: socket.into(), idle: IdleConnection::default() }
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads the status of the switch.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// Loads full tables. On return every worker applies them.
    pub fn put_tables(&self, tables: &RuleTables) -> Result<Loaded, ClientError> {
        self.send(Method::PUT, "/v1/tables", tables)
    }

    /// Loads full tables even if they know none of the attached pods, whose traffic is dropped then.
    pub fn put_tables_allow_empty(&self, tables: &RuleTables) -> Result<Loaded, ClientError> {
        self.send(Method::PUT, "/v1/tables?allow_empty=true", tables)
    }

    /// Changes the loaded tables. An error with status 409 means that they are not the patch's base.
    pub fn patch_tables(&self, patch: &TablesPatch) -> Result<Loaded, ClientError> {
        self.send(Method::PATCH, "/v1/tables", patch)
    }

    /// Unloads the tables. Traffic of pods is dropped (or passes, with `fail = "open"`) until others are
    /// loaded.
    pub fn delete_tables(&self) -> Result<Loaded, ClientError> {
        self.read(Method::DELETE, "/v1/tables", Bytes::new())
    }

    /// Reads the sizes of the loaded tables.
    pub fn tables(&self) -> Result<TablesSummary, ClientError> {
        self.get("/v1/tables")
    }

    /// Reads the loaded tables. Fails with status 404 while none are loaded.
    pub fn tables_document(&self) -> Result<RuleTables, ClientError> {
        self.get("/v1/tables/document")
    }

    /// Lists all ports by name.
    pub fn ports(&self) -> Result<Vec<PortInfo>, ClientError> {
        self.get("/v1/ports")
    }

    /// Adds the port `name`.
    pub fn put_port(&self, name: &str, port: &PortRequest) -> Result<PortInfo, ClientError> {
        self.send(Method::PUT, &format!("/v1/ports/{}", segment(name)), port)
    }

    /// Removes the port `name`. Its pod must be detached first.
    pub fn delete_port(&self, name: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/ports/{}", segment(name)), Bytes::new()).map(drop)
    }

    /// Lists all attached pods by name.
    pub fn pods(&self) -> Result<Vec<PodInfo>, ClientError> {
        self.get("/v1/pods")
    }

    /// Attaches a pod to a port.
    pub fn put_pod(&self, pod: &PodName, request: &PodRequest) -> Result<PodInfo, ClientError> {
        self.send(Method::PUT, &pod_path(pod), request)
    }

    /// Detaches a pod.
    pub fn delete_pod(&self, pod: &PodName) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &pod_path(pod), Bytes::new()).map(drop)
    }

    /// Reads all counters since the start of the switch.
    pub fn counters(&self) -> Result<CountersReport, ClientError> {
        self.get("/v1/counters")
    }

    /// Lists up to `max` flows, of all pods or of one.
    pub fn flows(&self, max: usize, pod: Option<&PodName>) -> Result<Vec<FlowInfo>, ClientError> {
        let of_pod = pod.map(|pod| format!("&pod={}", segment(&pod.to_string()))).unwrap_or_default();
        self.get(&format!("/v1/flows?max={max}{of_pod}"))
    }

    /// Explains a new connection: one report for each address family that both ends have.
    pub fn explain(
        &self,
        [from, to]: [&Endpoint; 2],
        protocol: Protocol,
        port: Option<u16>,
    ) -> Result<Vec<PathReport>, ClientError> {
        let end = |end: &Endpoint| segment(&end.to_string());
        let port = port.map(|port| format!("&port={port}")).unwrap_or_default();
        let query = format!("from={}&to={}&protocol={protocol}{port}", end(from), end(to));
        self.get(&format!("/v1/explain?{query}"))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(Method::GET, path, Bytes::new())
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.unreadable(&error))?;
        self.read(method, path, body.into())
    }

    fn read<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T, ClientError> {
        let answer = self.ask(method, path, body)?;
        serde_json::from_slice(&answer).map_err(|error| self.unreadable(&error))
    }

    /// Sends one request and returns the body of its response.
    fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "palisade")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| self.broken(error.to_string()))?;
        let (status, body) = self.exchange(request)?;
        if status.is_success() {
            return Ok(body);
        }
        let problem: Problem = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Problem { error: format!("the switch answered {status}") });
        Err(ClientError::Refused { status: status.as_u16(), problem: problem.error })
    }

    fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), ClientError> {
        let failed = |failure| match failure {
            ConnectionError::Unreachable(error) => self.unreachable(error),
            ConnectionError::Broken(reason) => self.broken(reason),
        };
        // The switch may close an idle connection at the moment of its use, to accept others. An idempotent
        // request is sent again on another connection then.
        if request.method().is_idempotent()
            && let Some(mut connection) = self.idle.take()
            && let Ok(answer) = connection.exchange(request.clone(), ANSWER_TIMEOUT)
        {
            self.idle.put(connection);
            return Ok(answer);
        }
        let mut connection = match self.idle.take() {
            Some(connection) => connection,
            None => Connection::open(&self.socket).map_err(failed)?,
        };
        let answer = connection.exchange(request, ANSWER_TIMEOUT).map_err(failed)?;
        self.idle.put(connection);
        Ok(answer)
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { socket },
            _ => ClientError::NotRunning { socket, source },
        }
    }

    fn broken(&self, reason: String) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), reason }
    }

    fn unreadable(&self, reason: &dyn std::error::Error) -> ClientError {
        ClientError::Unreadable { socket: self.socket.clone(), reason: reason.to_string() }
    }
}

fn pod_path(pod: &PodName) -> String {
    format!("/v1/pods/{}/{}", segment(&pod.namespace), segment(&pod.name))
}

/// Percent-encodes all but RFC 3986 unreserved characters.
fn segment(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_are_encoded() {
        assert_eq!(segment("veth-a_1.2"), "veth-a_1.2");
        assert_eq!(segment("a/b c?"), "a%2Fb%20c%3F");
        assert_eq!(pod_path(&PodName::new("default", "db")), "/v1/pods/default/db");
    }

    #[test]
    fn an_absent_switch_is_reported_with_the_remedy() {
        let error = Client::new("/nonexistent/palisade.sock").status().unwrap_err();
        assert!(error.to_string().contains("is it running? Start it with `palisade run`"), "{error}");
        assert_eq!(error.status(), None);
    }
}
