//! Client of the control API with one blocking method for each request, for the command line, the lab and the
//! demo.

mod connection;
mod rehearsal;
mod services;
mod steering;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::connection::{Connection, ConnectionError, IdleConnection};
use super::DropQuery;
use super::explain::PathReport;
use super::protocol::{
    AclReport, CaptureReport, CaptureRequest, CaptureStarted, Checked, ClassesReport, CountersReport,
    DropsReport, FlowEventLine, FlowQuery, FlowsEnded, FlowsReport, Loaded, PodInfo, PodRequest,
    PoliciesReport, PortInfo, PortRequest, Problem, ReloadRequested, RouteInfo, Status, TablesPatch,
    TablesSummary,
};
use crate::dataplane::WorkerTimes;
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
    timeout: Duration,
    idle: IdleConnection,
}

/// Reason for which a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No switch listens on the socket.
    #[error(
        "no switch answers at {socket} ({source}): is it running? Start it with `palisade run`, or name its \
         socket with --socket or PALISADE_SOCKET",
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
        Client { socket: socket.into(), timeout: ANSWER_TIMEOUT, idle: IdleConnection::default() }
    }

    /// Sets the longest wait for a response, two minutes otherwise.
    #[must_use]
    pub fn with_patience(self, timeout: Duration) -> Client {
        Client { timeout, ..self }
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

    /// Checks full tables as a load would, and changes nothing. With `allow_empty` they may know none of the attached
    /// pods.
    pub fn check_tables(&self, tables: &RuleTables, allow_empty: bool) -> Result<Checked, ClientError> {
        self.send(Method::POST, &format!("/v1/tables/check?allow_empty={allow_empty}"), tables)
    }

    /// Reports the tables of a pod.
    pub fn acl(&self, pod: &PodName) -> Result<AclReport, ClientError> {
        self.get(&pod_path("acls", pod))
    }

    /// Reports the classes of the loaded tables.
    pub fn classes(&self) -> Result<ClassesReport, ClientError> {
        self.get("/v1/classes")
    }

    /// Reports the policies of the loaded tables.
    pub fn policies(&self) -> Result<PoliciesReport, ClientError> {
        self.get("/v1/policies")
    }

    /// Lists the routes by prefix.
    pub fn routes(&self) -> Result<Vec<RouteInfo>, ClientError> {
        self.get("/v1/routes")
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
        self.send(Method::PUT, &pod_path("pods", pod), request)
    }

    /// Detaches a pod.
    pub fn delete_pod(&self, pod: &PodName) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &pod_path("pods", pod), Bytes::new()).map(drop)
    }

    /// Reads all counters since the start of the switch.
    pub fn counters(&self) -> Result<CountersReport, ClientError> {
        self.get("/v1/counters")
    }

    /// Reports work and times of the workers.
    pub fn worker_times(&self) -> Result<Vec<WorkerTimes>, ClientError> {
        self.get("/v1/workers")
    }

    /// Starts a capture of packets. Returns its number.
    pub fn start_capture(&self, request: &CaptureRequest) -> Result<u64, ClientError> {
        let started: CaptureStarted = self.send(Method::POST, "/v1/captures", request)?;
        Ok(started.number)
    }

    /// Asks the switch to read its configuration again.
    pub fn reload(&self) -> Result<ReloadRequested, ClientError> {
        self.read(Method::POST, "/v1/reload", Bytes::new())
    }

    /// Takes the captured packets that wait.
    pub fn fetch_capture(&self, number: u64) -> Result<CaptureReport, ClientError> {
        self.get(&format!("/v1/captures/{number}"))
    }

    /// Ends a capture.
    pub fn stop_capture(&self, number: u64) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/captures/{number}"), Bytes::new()).map(drop)
    }

    /// Reports the last dropped frames that `query` selects.
    pub fn drops(&self, query: &DropQuery) -> Result<DropsReport, ClientError> {
        self.get(&path_with("/v1/drops", &query.parameters()))
    }

    /// Lists the flows that `query` selects, or their holders.
    pub fn flows(&self, query: &FlowQuery) -> Result<FlowsReport, ClientError> {
        self.get(&path_with("/v1/flows", &query.parameters()))
    }

    /// Passes events of the flows that `query` selects to `see` until it returns false, or the stream ends.
    pub fn follow_flows(
        &self,
        query: &FlowQuery,
        mut see: impl FnMut(FlowEventLine) -> bool,
    ) -> Result<(), ClientError> {
        let request =
            self.request(Method::GET, &path_with("/v1/flows/events", &query.parameters()), Bytes::new())?;
        let mut unreadable = None;
        let mut see = |line: &[u8]| match serde_json::from_slice(line) {
            Ok(event) => see(event),
            Err(error) => {
                unreadable = Some(self.unreadable(&error));
                false
            }
        };
        let connection = Connection::open(&self.socket).map_err(|failure| self.failed(failure))?;
        let answer = connection.stream(request, &mut see).map_err(|failure| self.failed(failure))?;
        if let Some((status, body)) = answer {
            Self::accepted(status, body)?;
        }
        unreadable.map_or(Ok(()), Err)
    }

    /// Ends the flows that `query` selects.
    pub fn flush_flows(&self, query: &FlowQuery) -> Result<FlowsEnded, ClientError> {
        self.read(Method::DELETE, &path_with("/v1/flows", &query.parameters()), Bytes::new())
    }

    /// Explains a new connection: one report for each address family that both ends have. One to an address of a Service gets this
    /// backend, if the Service has it.
    pub fn explain(
        &self,
        [from, to]: [&Endpoint; 2],
        protocol: Protocol,
        port: Option<u16>,
        backend: Option<SocketAddr>,
    ) -> Result<Vec<PathReport>, ClientError> {
        let end = |end: &Endpoint| segment(&end.to_string());
        let port = port.map(|port| format!("&port={port}")).unwrap_or_default();
        let backend = backend.map(|backend| format!("&backend={}", segment(&backend.to_string())));
        let backend = backend.unwrap_or_default();
        let query = format!("from={}&to={}&protocol={protocol}{port}{backend}", end(from), end(to));
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
        let (status, body) = self.exchange(self.request(method, path, body)?)?;
        Self::accepted(status, body)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, ClientError> {
        let request = Request::builder().method(method).uri(path).header(HOST, "palisade");
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(body));
        request.map_err(|error| self.broken(error.to_string()))
    }

    /// Returns the body of a response, or the problem that it reports.
    fn accepted(status: StatusCode, body: Bytes) -> Result<Bytes, ClientError> {
        if status.is_success() {
            return Ok(body);
        }
        let problem: Problem = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Problem { error: format!("the switch answered {status}") });
        Err(ClientError::Refused { status: status.as_u16(), problem: problem.error })
    }

    fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), ClientError> {
        let failed = |failure| self.failed(failure);
        // The switch may close an idle connection at the moment of its use, to accept others. An idempotent
        // request is sent again on another connection then.
        if request.method().is_idempotent()
            && let Some(mut connection) = self.idle.take()
            && let Ok(answer) = connection.exchange(request.clone(), self.timeout)
        {
            self.idle.put(connection);
            return Ok(answer);
        }
        let mut connection = match self.idle.take() {
            Some(connection) => connection,
            None => Connection::open(&self.socket).map_err(failed)?,
        };
        let answer = connection.exchange(request, self.timeout).map_err(failed)?;
        self.idle.put(connection);
        Ok(answer)
    }

    fn failed(&self, failure: ConnectionError) -> ClientError {
        match failure {
            ConnectionError::Unreachable(error) => self.unreachable(error),
            ConnectionError::Broken(reason) => self.broken(reason),
        }
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

fn pod_path(of: &str, pod: &PodName) -> String {
    format!("/v1/{of}/{}/{}", segment(&pod.namespace), segment(&pod.name))
}

fn path_with(path: &str, parameters: &[(&str, String)]) -> String {
    let encoded: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name}={}", segment(value))).collect();
    format!("{path}?{}", encoded.join("&"))
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
        assert_eq!(pod_path("pods", &PodName::new("default", "db")), "/v1/pods/default/db");
    }

    #[test]
    fn an_absent_switch_is_reported_with_the_remedy() {
        let error = Client::new("/nonexistent/palisade.sock").status().unwrap_err();
        assert!(error.to_string().contains("is it running? Start it with `palisade run`"), "{error}");
        assert_eq!(error.status(), None);
    }
}
