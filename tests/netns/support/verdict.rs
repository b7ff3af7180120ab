//! Assertions about connections: one is allowed when it works, and denied when the switch says that it has dropped it.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use palisade::dataplane::PortCounters;
use palisade::lab::traffic::{Outcome, ping, tcp_connect, udp_exchange};
use palisade::lab::{Pod, Switch};
use palisade::net::flow::Protocol;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, connect, ipproto, send, socket_with};

use super::{PORT, TIMEOUT, eventually};

/// Drop reason of a connection that the destination's policy denies.
pub(crate) const INGRESS: &str = "policy-ingress";
/// Drop reason of a connection that the source's policy denies.
pub(crate) const EGRESS: &str = "policy-egress";

/// Asserts that a TCP connection to [`PORT`] carries a message and its answer.
pub(crate) fn assert_allowed(from: &Pod, to: IpAddr) {
    assert_eq!(tcp_connect(from, to, PORT, TIMEOUT).unwrap(), Outcome::Allowed, "TCP to {to}");
}

pub(crate) fn assert_pings(from: &Pod, to: IpAddr) {
    assert_eq!(ping(from, to, TIMEOUT).unwrap(), Outcome::Allowed, "ping to {to}");
}

pub(crate) fn assert_udp(from: &Pod, to: IpAddr) {
    assert_eq!(udp_exchange(from, to, PORT, TIMEOUT).unwrap(), Outcome::Allowed, "UDP to {to}");
}

/// Asserts that the switch drops the first packet of a TCP connection to [`PORT`] for this reason. No other traffic of
/// the pod may run meanwhile.
pub(crate) fn assert_denied(switch: &Switch, from: &Pod, to: IpAddr, reason: &str) {
    assert_protocol_denied(switch, from, (Protocol::TCP, to, PORT), reason);
}

/// Asserts that the switch drops the first packet to a destination for this reason: TCP, UDP or an ICMP echo.
pub(crate) fn assert_protocol_denied(
    switch: &Switch,
    from: &Pod,
    (protocol, to, port): (Protocol, IpAddr, u16),
    reason: &str,
) {
    let what = format!("{protocol} to {to} port {port}");
    let counted = || port_counters(switch, from);
    let drops = |of: &PortCounters| of.drops.get(reason).copied().unwrap_or(0);
    let before = counted();
    // The socket stays open until the end: a later segment would be a frame of its own.
    let socket = from.run(|| first_packet(protocol, to, port)).unwrap().unwrap();
    let mut after = before.clone();
    eventually(&format!("{what} is dropped under {reason}: {before:?}"), || {
        after = counted();
        drops(&after) > drops(&before)
    });
    assert_eq!(after.forwarded, before.forwarded, "{what}: a frame passed");
    assert_unanswered(&socket, protocol, &what);
}

/// Asserts that nothing has answered a first packet.
pub(super) fn assert_unanswered(socket: &impl AsFd, protocol: Protocol, what: &str) {
    let mut answer = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
    poll(&mut answer, Some(&Timespec::default())).unwrap();
    // A datagram socket is always writable. A stream socket is writable once it is connected.
    let signs = if protocol == Protocol::TCP { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    assert!(!answer[0].revents().intersects(signs), "{what} is answered: {:?}", answer[0].revents());
}

/// Counters of a pod's port.
pub(crate) fn port_counters(switch: &Switch, pod: &Pod) -> PortCounters {
    let mut ports = switch.client().counters().unwrap().ports;
    ports.remove(&pod.plan().host_interface).expect("the pod has a port")
}

/// Sends the first packet of a connection, and waits for nothing.
pub(super) fn first_packet(protocol: Protocol, to: IpAddr, port: u16) -> rustix::io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Types of an echo request: RFC 792, and RFC 4443 section 4.1.
    let (kind, of, packet, port) = match protocol {
        Protocol::TCP => (SocketType::STREAM, ipproto::TCP, None, port),
        Protocol::UDP => (SocketType::DGRAM, ipproto::UDP, Some(*b"hello\0\0\0"), port),
        Protocol::ICMP => (SocketType::DGRAM, ipproto::ICMP, Some([8, 0, 0, 0, 0, 0, 0, 1]), 0),
        Protocol::ICMPV6 => (SocketType::DGRAM, ipproto::ICMPV6, Some([128, 0, 0, 0, 0, 0, 0, 1]), 0),
        other => panic!("no first packet of {other} is known"),
    };
    let socket = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, Some(of))?;
    match connect(&socket, &std::net::SocketAddr::new(to, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => (),
        Err(error) => return Err(error),
    }
    if let Some(packet) = packet {
        send(&socket, &packet, SendFlags::empty())?;
    }
    Ok(socket)
}
