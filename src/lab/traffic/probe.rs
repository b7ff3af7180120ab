//! Probes: one connection, one exchange or one echo, and its outcome.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use serde::{Deserialize, Serialize};

use super::service::Service;
use crate::lab::{LabError, Pod};
use crate::net::flow::Protocol;

/// Outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// An answer arrived.
    Allowed,
    /// No answer arrived in time, as under a policy that denies.
    TimedOut,
    /// The pod answered that the port is closed, so policy let the probe pass.
    Refused,
    /// Any other error, in the kernel's words.
    Failed(String),
}

impl Outcome {
    /// Converts the result of an exchange.
    pub(in crate::lab) fn of(result: io::Result<()>) -> Outcome {
        match result {
            Ok(()) => Outcome::Allowed,
            // A socket's time-out is reported as `EAGAIN` (socket(7), SO_RCVTIMEO).
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                Outcome::TimedOut
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Outcome::Refused,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Allowed => f.pad("allowed"),
            Outcome::TimedOut => f.pad("timed out"),
            Outcome::Refused => f.pad("refused"),
            Outcome::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// A probe of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// TCP, UDP, or ICMP of the address family of `to`.
    pub protocol: Protocol,
    /// Destination.
    pub to: IpAddr,
    /// Destination port, unused by ICMP.
    pub port: u16,
}

impl Probe {
    /// Sends the probe from `pod`.
    pub fn run(&self, pod: &Pod, timeout: Duration) -> Result<Outcome, LabError> {
        match self.protocol {
            Protocol::TCP => tcp_connect(pod, self.to, self.port, timeout),
            Protocol::UDP => udp_exchange(pod, self.to, self.port, timeout),
            Protocol::ICMP | Protocol::ICMPV6 => ping(pod, self.to, timeout),
            other => Err(LabError::Plan(format!("no probe speaks {other}: use TCP, UDP or ICMP"))),
        }
    }
}

/// Opens a TCP connection to a [`super::Server`], exchanges one message over it, and closes it at both ends, so that no
/// segment of it is left for the policy that is loaded next.
pub fn tcp_connect(pod: &Pod, to: IpAddr, port: u16, timeout: Duration) -> Result<Outcome, LabError> {
    let exchange = || {
        let mut connection = TcpStream::connect_timeout(&SocketAddr::new(to, port), timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        let message = *b"Ehello";
        debug_assert_eq!(message[0], Service::Echo as u8);
        connection.write_all(&message)?;
        let mut answer = [0; 5];
        connection.read_exact(&mut answer)?;
        same(&answer, &message[1..])?;
        connection.shutdown(Shutdown::Write)?;
        connection.read_to_end(&mut Vec::new()).map(drop)
    };
    pod.run(exchange).map(Outcome::of)
}

/// Sends a UDP datagram, and waits for its echo.
pub fn udp_exchange(pod: &Pod, to: IpAddr, port: u16, timeout: Duration) -> Result<Outcome, LabError> {
    let exchange = || {
        let socket = UdpSocket::bind((any(to), 0))?;
        socket.connect((to, port))?;
        let message = *b"hello";
        send_and_compare(&socket, &message, &message, 0, timeout)
    };
    pod.run(exchange).map(Outcome::of)
}

/// Sends an ICMP or `ICMPv6` echo request, and waits for the reply.
pub fn ping(pod: &Pod, to: IpAddr, timeout: Duration) -> Result<Outcome, LabError> {
    // Types of RFC 792 and RFC 4443 sections 4.1 and 4.2.
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let exchange = || {
        // The kernel fills in identifier and checksum of an echo that leaves a datagram socket (icmp(7)), and
        // takes the checksum of the reply for its own.
        let socket = UdpSocket::from(socket(family, SocketType::DGRAM, Some(protocol))?);
        socket.connect((to, 0))?;
        let echo = |kind| [&[kind, 0, 0, 0, 0, 0, 0, 1], &b"palisade lab echo"[..]].concat();
        send_and_compare(&socket, &echo(request), &echo(reply), ECHO_VARYING_BYTES, timeout)
    };
    pod.run(exchange).map(Outcome::of)
}

/// Bytes of an echo behind its type that are not compared: code, checksum and identifier.
const ECHO_VARYING_BYTES: usize = 5;

/// Sends on a connected socket, and compares the answer. `varying` bytes behind the first one may differ.
fn send_and_compare(
    socket: &UdpSocket,
    message: &[u8],
    wanted: &[u8],
    varying: usize,
    timeout: Duration,
) -> io::Result<()> {
    socket.set_read_timeout(Some(timeout))?;
    socket.send(message)?;
    let mut answer = [0; 64];
    let bytes = socket.recv(&mut answer)?;
    let answer = &answer[..bytes];
    if answer.len() <= varying || answer[0] != wanted[0] {
        return same(answer, wanted);
    }
    same(&answer[1 + varying..], &wanted[1 + varying..])
}

fn same(answer: &[u8], wanted: &[u8]) -> io::Result<()> {
    if answer == wanted { Ok(()) } else { Err(io::Error::other("the answer is not what was sent")) }
}

fn any(family: IpAddr) -> IpAddr {
    if family.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}
