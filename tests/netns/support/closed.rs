//! Assertions that nothing passes, by the counter that tells the dropped packet: of a switch, or of an interface whose
//! switch has ended.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;

use palisade::control::Client;
use palisade::lab::{POD_INTERFACE, Pod, PodPorts, Switch};
use palisade::net::flow::Protocol;
use rustix::io::Errno;

use super::connection::Connection;
use super::namespace::output;
use super::verdict::{assert_unanswered, first_packet};
use super::{PORT, eventually};

/// First packet of a connection, whose socket stays open: a later segment would be a packet of its own.
pub(crate) struct FirstPacket {
    socket: OwnedFd,
    protocol: Protocol,
    what: String,
}

impl FirstPacket {
    /// Sends it from the calling thread's namespace.
    pub(crate) fn send(protocol: Protocol, to: IpAddr, port: u16) -> FirstPacket {
        let socket = first_packet(protocol, to, port).unwrap();
        FirstPacket { socket, protocol, what: format!("{protocol} to {to} port {port}") }
    }

    /// Sends the first segment of a connection to [`PORT`].
    pub(crate) fn tcp(to: IpAddr) -> FirstPacket {
        FirstPacket::to(SocketAddr::new(to, PORT))
    }

    /// Sends the first segment of a connection.
    pub(crate) fn to(at: SocketAddr) -> FirstPacket {
        FirstPacket::send(Protocol::TCP, at.ip(), at.port())
    }

    pub(crate) fn assert_unanswered(&self) {
        assert_unanswered(&self.socket, self.protocol, &self.what);
    }

    /// Whether the sender's own kernel has given up, without the answer of another host: it has not found the gateway,
    /// and will send nothing more.
    fn is_unsent(&self) -> bool {
        let error = rustix::net::sockopt::socket_error(&self.socket);
        matches!(error, Ok(Err(error)) if error != Errno::CONNREFUSED)
    }
}

/// Drops of a port for a reason.
pub(crate) fn drops(client: &Client, port: &str, reason: &str) -> u64 {
    let port = client.counters().unwrap().ports.remove(port).expect("the port is open");
    port.drops.get(reason).copied().unwrap_or(0)
}

/// Asserts that `count` grows by what `send` sends, and that nothing answers it.
pub(crate) fn assert_counted<S>(what: &str, count: impl Fn() -> u64, send: S)
where
    S: FnOnce() -> FirstPacket,
{
    let before = count();
    let sent = send();
    eventually(&format!("{what}: the drop of {} is counted, {before} before", sent.what), || {
        count() > before
    });
    sent.assert_unanswered();
}

/// Asserts that the switch drops a message of a connection's client for this reason, and that the server hears nothing.
pub(crate) fn assert_cut(switch: &Switch, from: &Pod, connection: &mut Connection, reason: &str) {
    // An acknowledgement may be the first packet that is denied. It ends the flow, and the message is in no state.
    let of = |reason: &str| drops(switch.client(), &from.plan().host_interface, reason);
    let count = || of(reason) + of("invalid-state");
    let before = count();
    connection.client.write_all(b"hello").unwrap();
    eventually(&format!("the connection is dropped under {reason}, {before} before"), || {
        count() > before && of(reason) > 0
    });
    assert_hears_nothing(&connection.server);
}

/// Asserts that there is nothing to read.
pub(crate) fn assert_hears_nothing(end: &TcpStream) {
    end.set_nonblocking(true).unwrap();
    let heard = end.peek(&mut [0; 16]);
    end.set_nonblocking(false).unwrap();
    assert_eq!(heard.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock), "it hears something");
}

/// Asserts that nothing of a pod passes although its switch has ended: the program that stays on the host end drops all
/// that the pod sends, and a tap device has no process that reads it.
pub(crate) fn assert_closed(from: &Pod, to: IpAddr) {
    let send = || from.run(|| FirstPacket::tcp(to)).unwrap();
    match from.plan().ports {
        PodPorts::Veth | PodPorts::Offload => {
            assert_dropped_by_program(|| ProgramCounts::on(&from.plan().host_interface), send);
        }
        PodPorts::Tap => {
            assert!(!has_carrier(from), "a process reads the tap device");
            send().assert_unanswered();
        }
    }
}

/// Asserts that the XDP program on a veth interface drops what `send` sends to it, and all else that it receives.
pub(crate) fn assert_dropped_by_program(counts: impl Fn() -> ProgramCounts, send: impl Fn() -> FirstPacket) {
    let before = counts();
    let mut sent = send();
    eventually(&format!("the program drops {}: {before:?}", sent.what), || {
        if sent.is_unsent() {
            sent = send();
        }
        let now = counts();
        now.dropped > before.dropped && now.dropped - before.dropped == now.received - before.received
    });
    sent.assert_unanswered();
}

/// Counters of a veth interface's receive queues.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramCounts {
    pub(crate) received: u64,
    pub(crate) dropped: u64,
}

impl ProgramCounts {
    /// Counters of an interface of the calling thread's namespace.
    pub(crate) fn on(interface: &str) -> ProgramCounts {
        ProgramCounts::of(&output(&format!("ethtool -S {interface}")))
    }

    /// Reads `ethtool -S`, whose names `veth_rq_stats_desc` of `drivers/net/veth.c` has.
    pub(crate) fn of(statistics: &str) -> ProgramCounts {
        let sum = |name: &str| {
            let values = statistics.lines().filter_map(|line| {
                let (counter, value) = line.trim().split_once(": ")?;
                (counter.starts_with("rx_queue_") && counter.ends_with(name))
                    .then(|| value.parse::<u64>().unwrap())
            });
            values.sum()
        };
        assert!(statistics.contains("_xdp_drops: "), "no counters of a veth interface: {statistics}");
        ProgramCounts { received: sum("_xdp_packets"), dropped: sum("_xdp_drops") }
    }
}

/// Whether a process has a pod's tap device open.
fn has_carrier(pod: &Pod) -> bool {
    let link =
        pod.output(Command::new("ip").args(["-oneline", "link", "show", "dev", POD_INTERFACE])).unwrap();
    let link = String::from_utf8(link.stdout).unwrap();
    assert!(link.contains("state "), "{link}");
    !link.contains("NO-CARRIER")
}
