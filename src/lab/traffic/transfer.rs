//! Transfer in both directions at the same time, checked byte by byte.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use super::pattern;
use super::server::Service;
use crate::lab::Pod;

/// What a client asks of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    /// Bytes each way.
    pub(super) bytes: u64,
    /// Seed of what the client sends.
    pub(super) seed_up: u64,
    /// Seed of what the server sends.
    pub(super) seed_down: u64,
}

impl Order {
    fn write(self, mut to: impl Write) -> io::Result<()> {
        let words = [self.bytes, self.seed_up, self.seed_down].map(u64::to_be_bytes);
        to.write_all(words.as_flattened())
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Order> {
        let mut word = || {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
        };
        Ok(Order { bytes: word()?, seed_up: word()?, seed_down: word()? })
    }
}

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

/// Sends `bytes` pseudo-random bytes from `pod` to a [`super::Server`] and as many back, at the same time, and compares both with
/// the pattern. Fails when no byte moves for `patience`.
pub fn transfer(
    pod: &Pod,
    to: IpAddr,
    port: u16,
    bytes: u64,
    patience: Duration,
) -> Result<(), TransferError> {
    let mut connection = pod.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, port), patience))??;
    connection.set_read_timeout(Some(patience))?;
    connection.set_write_timeout(Some(patience))?;
    let seed = u64::from(connection.local_addr()?.port());
    let order = Order { bytes, seed_up: seed, seed_down: seed.rotate_left(32) };
    connection.write_all(&[Service::Transfer as u8])?;
    order.write(&connection)?;
    let up = connection.try_clone()?;
    let differs = std::thread::scope(|scope| {
        let sender = scope.spawn(move || pattern::send(up, order.seed_up, bytes));
        let differs = pattern::receive(&mut connection, order.seed_down, bytes);
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
