//! Services of a server, and the request of a transfer.

use std::io::{self, Read, Write};

/// Service of a TCP connection: its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Service {
    /// Every byte comes back.
    Echo = b'E',
    /// A [`TransferRequest`], then both sides send a pattern at the same time.
    Transfer = b'T',
    /// Bytes until the end, then eight with their number.
    Sink = b'S',
}

/// Request of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TransferRequest {
    /// Bytes each way.
    pub(super) bytes: u64,
    /// Seed of the client's pattern.
    pub(super) seed_up: u64,
    /// Seed of the server's pattern.
    pub(super) seed_down: u64,
}

impl TransferRequest {
    /// Writes three numbers in network byte order.
    pub(super) fn write(self, mut to: impl Write) -> io::Result<()> {
        let words = [self.bytes, self.seed_up, self.seed_down].map(u64::to_be_bytes);
        to.write_all(words.as_flattened())
    }

    /// Reads what [`TransferRequest::write`] writes.
    pub(super) fn read(mut from: impl Read) -> io::Result<TransferRequest> {
        let mut word = || {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
        };
        Ok(TransferRequest { bytes: word()?, seed_up: word()?, seed_down: word()? })
    }
}
