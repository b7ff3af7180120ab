//! The client: one blocking method a request, for the command line, the lab and the demo.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Connection, Failure, Kept};
use super::explain::PathReport;
use super::protocol::{
    CountersReport, Loaded, PodInfo, PodRequest, PortInfo, PortRequest, Problem, Status, TablesPatch,
    TablesSummary,
};
use crate::dataplane::FlowInfo;
use crate::net::flow::Protocol;
use crate::policy::testcase::Endpoint;
use crate::tables::{PodName, RuleTables};

/// How long an answer may take. Loading large tables takes seconds; what takes longer hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(2);

/// A switch's control socket.
///
/// A connection is kept for the next request, and opened anew when the switch has closed it: so a client survives restarts of its
/// switch. The methods block and must not be called inside an asynchronous runtime.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    kept: Kept,
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "no switch answers at {socket} ({source}): is it running? Start it with `palisade run`, or name its \
         socket with --socket",
        socket = socket.display()
    )]
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The socket is not for this user.
    #[error(
        "not allowed to open {socket}: run the command as root (sudo), or as a member of the group that owns \
         the socket",
        socket = socket.display()
    )]
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// The connection broke before there was an answer.
    #[error("the switch at {socket} did not answer: {reason}", socket = socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The answer is not one that this program understands.
    #[error(
        "the switch at {socket} gave an answer that cannot be read ({reason}): is it of another version?",
        socket = socket.display()
    )]
    Unreadable {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The switch refuses the request; it has changed nothing.
    #[error("{problem}")]
    Refused {
        /// The HTTP status: 404 for something that is not there, 409 for a conflict, 422 for what does not check.
        status: u16,
        /// What the switch says.
        problem: String,
    },
}

impl ClientError {
    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            ClientError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl Client {
    /// The switch whose control socket is `socket`. Connects on each request, not here.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { socket: socket.into(), kept: Kept::default() }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The switch in short.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// Loads full tables; when this returns every worker judges by them.
    pub fn put_tables(&self, tables: &RuleTables) -> Result<Loaded, ClientError> {
        self.send(Method::PUT, "/v1/tables", tables)
    }

    /// Loads full tables though they know none of the attached pods, which are closed by that.
    pub fn put_tables_that_close(&self, tables: &RuleTables) -> Result<Loaded, ClientError> {
        self.send(Method::PUT, "/v1/tables?allow_empty=true", tables)
    }

    /// Changes the loaded tables. A refusal with status 409 means that they are not the patch's base.
    pub fn patch_tables(&self, patch: &TablesPatch) -> Result<Loaded, ClientError> {
        self.send(Method::PATCH, "/v1/tables", patch)
    }

    /// Unloads the tables: pods are closed (or open, with `fail = "open"`) until others are loaded.
    pub fn delete_tables(&self) -> Result<Loaded, ClientError> {
        self.read(Method::DELETE, "/v1/tables", Bytes::new())
    }

    /// The loaded tables in numbers.
    pub fn tables(&self) -> Result<TablesSummary, ClientError> {
        self.get("/v1/tables")
    }

    /// The loaded tables; a refusal with status 404 while none are.
    pub fn tables_document(&self) -> Result<RuleTables, ClientError> {
        self.get("/v1/tables/document")
    }

    /// All ports, by name.
    pub fn ports(&self) -> Result<Vec<PortInfo>, ClientError> {
        self.get("/v1/ports")
    }

    /// Adds the port `name`.
    pub fn put_port(&self, name: &str, port: &PortRequest) -> Result<PortInfo, ClientError> {
        self.send(Method::PUT, &format!("/v1/ports/{}", segment(name)), port)
    }

    /// Removes the port `name`; its pod must have been detached before.
    pub fn delete_port(&self, name: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/ports/{}", segment(name)), Bytes::new()).map(drop)
    }

    /// All attached pods, by name.
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

    /// All counters since the start of the switch.
    pub fn counters(&self) -> Result<CountersReport, ClientError> {
        self.get("/v1/counters")
    }

    /// Up to `max` flows, of all pods or of one.
    pub fn flows(&self, max: usize, pod: Option<&PodName>) -> Result<Vec<FlowInfo>, ClientError> {
        let of_pod = pod.map(|pod| format!("&pod={}", segment(&pod.to_string()))).unwrap_or_default();
        self.get(&format!("/v1/flows?max={max}{of_pod}"))
    }

    /// Explains a new connection: one report for each family in which both ends have an address.
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

    /// Sends one request and returns the body of its answer.
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
            Failure::Unreachable(error) => self.unreachable(error),
            Failure::Broken(reason) => self.broken(reason),
        };
        // The switch may close a kept connection at the moment when it is used again, to make room for others. What does the same
        // when it is done twice goes by a new one then.
        if request.method().is_idempotent()
            && let Some(mut connection) = self.kept.take()
            && let Ok(answer) = connection.exchange(request.clone(), ANSWER_TIMEOUT)
        {
            self.kept.put(connection);
            return Ok(answer);
        }
        let mut connection = match self.kept.take() {
            Some(connection) => connection,
            None => Connection::open(&self.socket).map_err(failed)?,
        };
        let answer = connection.exchange(request, ANSWER_TIMEOUT).map_err(failed)?;
        self.kept.put(connection);
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
    fn an_absent_switch_is_told_with_what_to_do() {
        let error = Client::new("/nonexistent/palisade.sock").status().unwrap_err();
        assert!(error.to_string().contains("is it running? Start it with `palisade run`"), "{error}");
        assert_eq!(error.status(), None);
    }
}
