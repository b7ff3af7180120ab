//! UDP session with the collector: its socket, the sequence numbers, and the size of a message.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

use super::message::Message;
use crate::limits::{IPFIX_MESSAGE_BYTES_MAX, IPFIX_MESSAGE_BYTES_MIN};

/// Bytes of the headers of UDP and IPv4.
const HEADERS_V4: usize = 8 + 20;
/// Bytes of the headers of UDP and IPv6.
const HEADERS_V6: usize = 8 + 40;

/// UDP session: templates and sequence numbers belong to it.
pub(super) struct Session {
    socket: UdpSocket,
    is_v4: bool,
    /// Data records so far, modulo 2^32.
    sequence: u32,
    /// Bytes of a message that fits into one packet to the collector.
    bytes_max: usize,
    /// Whether the collector has the templates, as far as the exporter knows.
    pub(super) has_templates: bool,
    /// Time at which templates and the names of all interfaces were sent; `None` if they are to be sent.
    pub(super) refreshed: Option<Instant>,
}

impl Session {
    /// Opens a socket to the collector.
    pub(super) fn open(collector: SocketAddr) -> io::Result<Session> {
        let any: SocketAddr = match collector {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(collector)?;
        socket.set_nonblocking(true)?;
        let mut session = Session {
            socket,
            is_v4: collector.is_ipv4(),
            sequence: 0,
            bytes_max: IPFIX_MESSAGE_BYTES_MAX,
            has_templates: false,
            refreshed: None,
        };
        session.follow_path_mtu();
        Ok(session)
    }

    /// Bytes of a message that fits into one packet to the collector.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Limits messages to the path MTU: "The maximum size of exported messages MUST be configured such that the total packet
    /// size does not exceed the PMTU" (RFC 7011 section 10.3.3).
    pub(super) fn follow_path_mtu(&mut self) {
        let (mtu, headers) = if self.is_v4 {
            (ip_mtu(&self.socket), HEADERS_V4)
        } else {
            (ipv6_mtu(&self.socket), HEADERS_V6)
        };
        // A socket whose route has gone has no MTU.
        if let Ok(mtu) = mtu {
            self.bytes_max = self.bytes_max.min(message_bytes(mtu as usize, headers));
        }
    }

    /// Takes the error of an earlier message, which an answer from the network has reported.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().ok().flatten()
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &mut Message, unix_s: u32, domain: u32) -> io::Result<()> {
        self.socket.send(message.finish(unix_s, self.sequence, domain)).map(drop)
    }

    /// Counts the data records of a message, sent or not: the collector sees by the next number that some are missing.
    pub(super) fn count(&mut self, message: &Message) {
        self.sequence = self.sequence.wrapping_add(message.data_records());
    }
}

/// Bytes of a message for this MTU and the headers before it. A smaller MTU than that of any IPv4 path makes fragments.
fn message_bytes(mtu: usize, headers: usize) -> usize {
    mtu.saturating_sub(headers).clamp(IPFIX_MESSAGE_BYTES_MIN, IPFIX_MESSAGE_BYTES_MAX)
}

/// Whether an error belongs to an earlier message: nobody listens, or the message was larger than a link on its way takes.
pub(super) fn is_of_earlier_message(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::CONNREFUSED | Errno::MSGSIZE))
}

/// Whether an error passes without another socket: buffers are full.
pub(super) fn is_passing(error: &io::Error) -> bool {
    let full = |errno| matches!(errno, Errno::AGAIN | Errno::NOBUFS);
    is_of_earlier_message(error) || Errno::from_io_error(error).is_some_and(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_fits_into_a_packet_of_the_path() {
        assert_eq!(message_bytes(1500, HEADERS_V4), IPFIX_MESSAGE_BYTES_MAX);
        assert_eq!(message_bytes(65_536, HEADERS_V6), IPFIX_MESSAGE_BYTES_MAX);
        assert_eq!(message_bytes(1280, HEADERS_V6), 1232);
        assert_eq!(message_bytes(1280, HEADERS_V4), 1252);
        assert_eq!(message_bytes(20, HEADERS_V4), IPFIX_MESSAGE_BYTES_MIN);
    }

    #[test]
    fn a_session_on_loopback_has_the_largest_messages() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let session = Session::open(collector.local_addr().unwrap()).unwrap();
        assert_eq!(session.bytes_max(), IPFIX_MESSAGE_BYTES_MAX);
    }
}
