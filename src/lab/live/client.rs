//! Client of a probe: it sends a flow from its source address, and returns the outcome.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with};

use super::message::{REQUEST, RESPONSE, is_sctp_response, raw_payload, sctp_init};
use crate::lab::traffic::Outcome;
use crate::lab::{LabError, Pod};
use crate::net::flow::{FlowKey, Protocol};

/// Time between two requests over protocols for which the kernel sends nothing again.
const AGAIN: Duration = Duration::from_millis(300);
/// Source ports of SCTP, which no socket reserves: the range of Linux (`net.ipv4.ip_local_port_range`).
const SCTP_PORTS: std::ops::Range<u32> = 32_768..61_000;

/// Sends a flow from a site, and waits `timeout` for the answer. `number` is unique among the probes of a
/// lab.
pub(super) fn send_probe(
    site: &Pod,
    flow: &FlowKey,
    number: u32,
    timeout: Duration,
) -> Result<Outcome, LabError> {
    let sent = site.run(|| match flow.protocol {
        Protocol::TCP => probe_tcp(flow, timeout),
        Protocol::UDP => probe_udp(flow, timeout),
        Protocol::ICMP | Protocol::ICMPV6 => probe_echo(flow, timeout),
        Protocol::SCTP => probe_sctp(flow, number, timeout),
        _ => probe_raw(flow, timeout),
    });
    sent.map(Outcome::of)
}

/// Opens a raw socket for a protocol at an address.
pub(super) fn raw_socket(at: IpAddr, protocol: Protocol) -> io::Result<UdpSocket> {
    let number = std::num::NonZeroU32::new(u32::from(protocol.0)).ok_or(Errno::PROTONOSUPPORT)?;
    socket_at(at, SocketType::RAW, rustix::net::Protocol::from_raw(number))
}

/// Opens a datagram socket of any protocol at an address.
fn socket_at(at: IpAddr, kind: SocketType, protocol: rustix::net::Protocol) -> io::Result<UdpSocket> {
    let socket = socket_with(family(at), kind, SocketFlags::CLOEXEC, Some(protocol))?;
    bind(&socket, &SocketAddr::new(at, 0))?;
    Ok(UdpSocket::from(socket))
}

fn family(of: IpAddr) -> AddressFamily {
    if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Opens a connection, and reads the server's greeting. The kernel sends its SYN again after a second.
fn probe_tcp(flow: &FlowKey, timeout: Duration) -> io::Result<()> {
    let socket = socket_with(family(flow.src), SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // SO_SNDTIMEO limits connect(2) as well (socket(7)).
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    bind(&socket, &SocketAddr::new(flow.src, 0))?;
    match connect(&socket, &SocketAddr::new(flow.dst, flow.dst_port)) {
        Err(Errno::INPROGRESS) => return Err(io::ErrorKind::TimedOut.into()),
        connected => connected?,
    }
    let mut connection = TcpStream::from(socket);
    connection.set_read_timeout(Some(timeout))?;
    let mut greeting = [0; RESPONSE.len()];
    connection.read_exact(&mut greeting)?;
    if greeting == RESPONSE { Ok(()) } else { Err(io::Error::other("the greeting is not the responder's")) }
}

fn probe_udp(flow: &FlowKey, timeout: Duration) -> io::Result<()> {
    let socket = UdpSocket::bind((flow.src, 0))?;
    socket.connect((flow.dst, flow.dst_port))?;
    ask(&socket, REQUEST, timeout, |answer| answer == RESPONSE)
}

fn probe_echo(flow: &FlowKey, timeout: Duration) -> io::Result<()> {
    // Types of RFC 792 and RFC 4443 sections 4.1 and 4.2. The kernel fills in identifier and checksum, and
    // delivers replies with that identifier to the socket (icmp(7)).
    let (protocol, request, reply) =
        if flow.src.is_ipv4() { (ipproto::ICMP, 8, 0) } else { (ipproto::ICMPV6, 128, 129) };
    let socket = socket_at(flow.src, SocketType::DGRAM, protocol)?;
    socket.connect((flow.dst, 0))?;
    let message = [&[request, 0, 0, 0, 0, 0, 0, 1], REQUEST].concat();
    ask(&socket, &message, timeout, |answer| answer.first() == Some(&reply) && answer.ends_with(REQUEST))
}

fn probe_sctp(flow: &FlowKey, number: u32, timeout: Duration) -> io::Result<()> {
    let src_port = (SCTP_PORTS.start + number % (SCTP_PORTS.end - SCTP_PORTS.start)) as u16;
    let socket = raw_socket(flow.src, flow.protocol)?;
    socket.connect((flow.dst, 0))?;
    let init = sctp_init(src_port, flow.dst_port, number | 1);
    let is_answer =
        |packet: &[u8]| is_sctp_response(raw_payload(packet, flow.src.is_ipv4()), src_port, flow.dst_port);
    ask(&socket, &init, timeout, is_answer)
}

fn probe_raw(flow: &FlowKey, timeout: Duration) -> io::Result<()> {
    let socket = raw_socket(flow.src, flow.protocol)?;
    socket.connect((flow.dst, 0))?;
    ask(&socket, REQUEST, timeout, |packet| raw_payload(packet, flow.src.is_ipv4()) == RESPONSE)
}

/// Sends a request on a connected socket, again and again, until an answer arrives or `timeout` has passed.
fn ask(
    socket: &UdpSocket,
    question: &[u8],
    timeout: Duration,
    is_answer: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let (start, mut asked) = (Instant::now(), None);
    let mut answer = [0; 2048];
    loop {
        let now = start.elapsed();
        if now >= timeout {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if asked.is_none_or(|asked| now >= asked + AGAIN) {
            socket.send(question)?;
            asked = Some(now);
        }
        let until = asked.map_or(timeout, |asked| timeout.min(asked + AGAIN));
        // A time-out of zero means none (SO_RCVTIMEO of socket(7)).
        socket.set_read_timeout(Some(until.saturating_sub(now).max(Duration::from_millis(1))))?;
        match socket.recv(&mut answer) {
            Ok(bytes) if is_answer(&answer[..bytes]) => return Ok(()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}
