//! Connection of a client. It is kept from one request to the next, because opening one takes as long as a
//! small change of the tables.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, recv};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Most bytes of a line of a stream.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Reason for a missing response.
pub(super) enum ConnectionError {
    /// The connection cannot be opened.
    Unreachable(io::Error),
    /// The connection broke, or the response took too long.
    Broken(String),
}

/// Open connection. It makes progress only while a request is under way.
pub(super) struct Connection {
    /// Duplicate of the socket's descriptor, to test whether the server has closed the connection.
    end: OwnedFd,
    sender: SendRequest<Full<Bytes>>,
    /// Runtime that drives the connection. It is dropped last.
    runtime: Runtime,
}

impl Connection {
    pub(super) fn open(socket: &Path) -> Result<Connection, ConnectionError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(broken)?;
        let (end, sender) = runtime.block_on(async {
            let stream = UnixStream::connect(socket).await.map_err(ConnectionError::Unreachable)?;
            let end = rustix::io::fcntl_dupfd_cloexec(&stream, 0).map_err(broken)?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
            tokio::spawn(connection);
            Ok((end, sender))
        })?;
        Ok(Connection { end, sender, runtime })
    }

    /// Returns whether the connection can carry a request: the server has neither closed it nor sent anything
    /// unrequested.
    fn is_usable(&self) -> bool {
        let said = recv(&self.end, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !self.sender.is_closed() && said.err() == Some(rustix::io::Errno::AGAIN)
    }

    /// Sends a request and waits for the whole response.
    pub(super) fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), ConnectionError> {
        let sender = &mut self.sender;
        let exchange = async {
            sender.ready().await?;
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?;
            Ok::<_, hyper::Error>((status, body.to_bytes()))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(timeout, exchange).await });
        answer.map_err(broken)?.map_err(broken)
    }
}

impl Connection {
    /// Sends a request and passes the lines of the response to `see`, empty ones left out, until it returns false or the
    /// response ends. Returns a response without success whole.
    pub(super) fn stream(
        self,
        request: Request<Full<Bytes>>,
        see: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Option<(StatusCode, Bytes)>, ConnectionError> {
        let Connection { end: _end, mut sender, runtime } = self;
        runtime.block_on(async {
            sender.ready().await.map_err(broken)?;
            let answer = sender.send_request(request).await.map_err(broken)?;
            let status = answer.status();
            let mut body = answer.into_body();
            if !status.is_success() {
                let body = body.collect().await.map_err(broken)?;
                return Ok(Some((status, body.to_bytes())));
            }
            let mut text = Vec::new();
            while let Some(frame) = body.frame().await {
                text.extend_from_slice(frame.map_err(broken)?.data_ref().map_or(&[], |data| data));
                let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let mut lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                if !lines.all(&mut *see) {
                    return Ok(None);
                }
                text.drain(..whole);
                if text.len() > LINE_BYTES_MAX {
                    return Err(broken("a line of the response has no end"));
                }
            }
            Ok(None)
        })
    }
}

/// Idle connection, if there is one. Concurrent requests open connections of their own.
#[derive(Default)]
pub(super) struct IdleConnection(Mutex<Option<Connection>>);

impl IdleConnection {
    pub(super) fn take(&self) -> Option<Connection> {
        // The slot holds a whole connection or none, even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().filter(Connection::is_usable)
    }

    pub(super) fn put(&self, connection: Connection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
}

impl fmt::Debug for IdleConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdleConnection")
    }
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
fn broken(reason: impl fmt::Display) -> ConnectionError {
    ConnectionError::Broken(reason.to_string())
}
