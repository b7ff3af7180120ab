//! Clients of the control socket: their credentials, and the log of their changes.

use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Extension, Router};
use tokio::net::UnixStream;

/// Most characters of a request's address in the log.
const LOGGED_CHARACTERS: usize = 256;

/// Credentials of a connection's client, where the kernel knows them (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

impl Peer {
    fn of(stream: &UnixStream) -> Peer {
        let credentials = stream.peer_cred().ok();
        Peer {
            uid: credentials.map(|credentials| credentials.uid()),
            pid: credentials.and_then(|credentials| credentials.pid()),
        }
    }

    /// User id.
    pub(super) fn uid(self) -> Option<u32> {
        self.uid
    }

    /// Process id.
    pub(super) fn pid(self) -> Option<i32> {
        self.pid
    }

    /// Name of the program, as the process gives it to the kernel; `None` once the process has ended.
    fn program(self) -> Option<String> {
        let name = std::fs::read(format!("/proc/{}/comm", self.pid?)).ok()?;
        Some(String::from_utf8_lossy(&name).trim_end().to_owned())
    }
}

/// Routes for one connection, with the credentials of its client.
pub(super) fn with_peer(router: &Router, stream: &UnixStream) -> Router {
    router.clone().layer(Extension(Peer::of(stream)))
}

/// Logs each change with its client.
pub(super) fn log_changes(router: Router) -> Router {
    router.layer(from_fn(log_change))
}

/// Tests whether a request changes nothing. A capture ends with its packets, so that the request for them takes them from
/// their reader.
pub(super) fn only_reads(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
        && !request.uri().path().starts_with("/v1/captures")
}

async fn log_change(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<Peer>().copied();
    // A short-lived client may be gone when the response is there.
    let program = peer.and_then(Peer::program);
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    let target: String = target.chars().take(LOGGED_CHARACTERS).collect();
    let method = request.method().clone();
    let response = next.run(request).await;
    tracing::info!(
        uid = peer.and_then(Peer::uid),
        pid = peer.and_then(Peer::pid),
        program,
        status = response.status().as_u16(),
        "{method} {target} on the control socket"
    );
    response
}
