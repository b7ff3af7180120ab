//! TCP listener for metrics, probes and status.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;

use tokio::net::TcpListener;

use super::error::ServerError;
use super::http_access::Access;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// TCP listener that is bound and not served yet: requests wait.
pub struct HttpListener {
    listener: StdListener,
    address: SocketAddr,
    access: Access,
}

impl HttpListener {
    /// Binds `address`, for clients with the token of `token_file`. Without one, only a loopback address is bound.
    pub fn bind(address: SocketAddr, token_file: Option<&Path>) -> Result<HttpListener, ServerError> {
        let access = Access::new(address, token_file)?;
        let failed = |source| ServerError::Http { address, source };
        let listener = StdListener::bind(address).map_err(failed)?;
        // The standard library asks for 128, which a flood of connections exceeds: a client then tries again after a second.
        rustix::net::listen(&listener, BACKLOG).map_err(|errno| failed(errno.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(HttpListener { listener, address, access })
    }

    /// Checks the conditions of [`HttpListener::bind`] on its clients, and binds nothing.
    pub(crate) fn check(address: SocketAddr, token_file: Option<&Path>) -> Result<(), ServerError> {
        Access::new(address, token_file).map(drop)
    }

    /// Bound address, with the port that the kernel has chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the listener over into the runtime of the calling thread.
    pub(super) fn into_parts(self) -> Result<(TcpListener, Access), ServerError> {
        let address = self.address;
        let listener = TcpListener::from_std(self.listener);
        Ok((listener.map_err(|source| ServerError::Http { address, source })?, self.access))
    }
}
