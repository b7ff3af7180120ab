//! Transfer in both directions at the same time, checked byte by byte.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use super::pattern;
use super::service::{Service, TransferRequest};
use crate::lab::Pod;

/// Error of a transfer.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Broken(#[from] io::Error),
    /// A received byte differs from the sent one.
    #[error("byte {at} of what the {receiver} received differs from what was sent")]
    Changed {
        /// Receiver: client or server.
        receiver: &'static str,
        /// Position of the byte.
        at: u64,
    },
    /// An error of the lab.
    #[error(transparent)]
    Lab(#[from] crate::lab::LabError),
}

/// Sends `bytes` pseudo-random bytes from `pod` to a [`super::Server`] and as many back, at the same time,
/// and compares both with the pattern. Fails when no byte moves for `timeout`.
pub fn transfer(
    pod: &Pod,
    to: IpAddr,
    port: u16,
    bytes: u64,
    timeout: Duration,
) -> Result<(), TransferError> {
    let mut connection = pod.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, port), timeout))??;
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    let seed = u64::from(connection.local_addr()?.port());
    let request = TransferRequest { bytes, seed_up: seed, seed_down: seed.rotate_left(32) };
    connection.write_all(&[Service::Transfer as u8])?;
    request.write(&connection)?;
    let up = connection.try_clone()?;
    let differs = std::thread::scope(|scope| {
        let sender = scope.spawn(move || pattern::send(up, request.seed_up, bytes));
        let differs = pattern::receive(&mut connection, request.seed_down, bytes);
        sender.join().map_err(|_| io::Error::other("the sender has died"))??;
        differs
    })?;
    let mut report = [0; 8];
    connection.read_exact(&mut report)?;
    match (differs, u64::from_be_bytes(report)) {
        (None, u64::MAX) => Ok(()),
        (Some(at), _) => Err(TransferError::Changed { receiver: "client", at }),
        (None, at) => Err(TransferError::Changed { receiver: "server", at }),
    }
}
