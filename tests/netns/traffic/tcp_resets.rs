//! TCP resets between kernel stacks: the owner's reset ends the flow, a forged one does not.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use palisade::lab::{Pod, PodPorts};
use palisade::net::checksum::pseudo_header_of;
use palisade::net::flow::Protocol;
use palisade::net::tcp::Flags;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrV4, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with, sockopt,
};

use super::{rig_of, services};
use crate::support::connection::Connection;
use crate::support::{PORT, Rig, TIMEOUT, assert_accounted, eventually, isolated};

/// State of the flow of a connection.
fn state(rig: &Rig, talk: SocketAddr) -> String {
    let mut flows = rig.flows(10);
    flows.retain(|flow| flow.key.src_port == talk.port());
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows[0].state.to_string()
}

/// Closes a socket with a reset and discards unsent data.
fn reset(socket: TcpStream) {
    sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
}

#[test]
fn a_connection_that_its_owner_resets_ends_its_flow_also_with_data_in_flight() {
    let Some(_isolated) = isolated() else { return };
    owner_resets(PodPorts::Veth);
}

pub(super) fn owner_resets(ports: PodPorts) {
    let rig = rig_of(ports, &["client", "server"], 1, "");
    for (by_client, bytes) in [(true, 0), (false, 0), (true, 4 << 20), (false, 4 << 20)] {
        let mut talk = Connection::open(&rig.pod("client"), &rig.pod("server"));
        assert!(talk.goes_on(TIMEOUT));
        let of = talk.client.local_addr().unwrap();
        assert_eq!(state(&rig, of), "established");
        let Connection { client, server } = talk;
        let (mut closes, _stays) = if by_client { (client, server) } else { (server, client) };
        // The other end reads nothing: sent data is unacknowledged, and unsent data exceeds its window.
        closes.set_nonblocking(true).unwrap();
        let _ = closes.write(&vec![7; bytes]);
        reset(closes);
        eventually("the flow is reset", || state(&rig, of) == "reset");
    }
    assert_accounted(&rig.counters());
}

/// Number of SYNs that a pod has sent again.
fn repeated_syns(pod: &Pod) -> u64 {
    let text = pod.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "TCPSynRetrans").unwrap().1.parse().unwrap()
}

/// Opens connections from one port of a client, each reset before the next one begins.
fn reopen(client: &Pod, listener: &TcpListener, to: SocketAddr) {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let connect = || {
        let stream = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&stream, true).unwrap();
        rustix::net::bind(&stream, &SocketAddr::new(any, 40_000)).unwrap();
        rustix::net::connect(&stream, &to).unwrap();
        TcpStream::from(stream)
    };
    listener.set_nonblocking(true).unwrap();
    // The server closes none before the last: its FIN would meet the next connection.
    for _ in 0..3 {
        // Each socket has a queue by a hash of its own.
        client.run(|| (0..100).for_each(|_| reset(connect()))).unwrap();
        // A reset that overtakes the end of its handshake, in the queue of another worker, leaves nothing to accept.
        let accepted = std::iter::from_fn(|| listener.accept().ok()).collect::<Vec<_>>();
        assert!(accepted.len() > 50, "{} connections of 100", accepted.len());
    }
}

fn ports_open_at_once(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let rig = rig_of(ports, &["client", "server"], 2, "");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    rig.switch.client().put_services(&services::table(&[&server])).unwrap();
    let listener = server.run(|| TcpListener::bind(("::", PORT)).unwrap()).unwrap();
    let by_services = services::virtual_addresses().map(|address| (address, services::SERVICE));
    let directly = server.addresses().into_iter().map(|address| (address, PORT));
    let mut before = 0;
    for to in directly.chain(by_services).map(SocketAddr::from) {
        reopen(&client, &listener, to);
        let repeated = repeated_syns(&client);
        // A SYN that waits for a worker without a core is given up in the end.
        assert!(repeated - before <= 3, "{to}: {} of 300 SYNs", repeated - before);
        before = repeated;
    }
    // Flows of a tap device may all have one queue.
    let both_work = rig.counters().workers.values().all(|worker| worker.received > 100);
    assert!(both_work || ports == PodPorts::Tap);
}

#[test]
fn a_connection_on_ports_that_were_just_reset_opens_with_its_first_syn() {
    ports_open_at_once(PodPorts::Veth);
}

#[test]
fn a_connection_of_taps_on_ports_that_were_just_reset_opens_with_its_first_syn() {
    ports_open_at_once(PodPorts::Tap);
}

/// Raw socket that receives copies of a pod's segments, and sends forged segments from its address.
struct Forger {
    socket: OwnedFd,
    from: Ipv4Addr,
    to: Ipv4Addr,
}

/// Last segment from the server: ports of its answer, sequence and acknowledgement number.
struct Heard {
    ports: [u16; 2],
    sequence: u32,
    acknowledgement: u32,
}

impl Forger {
    fn of(pod: &Pod, to: &Pod) -> Forger {
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::TCP))
        };
        Forger { socket: pod.run(open).unwrap().unwrap(), from: pod.v4(), to: to.v4() }
    }

    /// Last received segment.
    fn heard(&self) -> Heard {
        let mut buffer = [0; 2048];
        let (mut last, start) = (None, Instant::now());
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, bytes)) => {
                    let segment = &buffer[usize::from(buffer[0] & 0x0f) * 4..bytes];
                    let word = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
                    let [sequence, acknowledgement] =
                        [4, 8].map(|at| u32::from(word(at)) << 16 | u32::from(word(at + 2)));
                    last = Some(Heard { ports: [word(2), word(0)], sequence, acknowledgement });
                }
                Err(_) if last.is_some() => return last.unwrap(),
                Err(_) => {
                    assert!(start.elapsed() < TIMEOUT, "no segment has come");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
    }

    /// Sends a reset with this sequence number on the pod's own connection.
    fn reset(&self, heard: &Heard, sequence: u32, right_checksum: bool) {
        self.send(heard, sequence, Flags::RST, right_checksum);
    }

    /// Sends a segment with this sequence number, and the server's as the one that it acknowledges.
    fn send(&self, heard: &Heard, sequence: u32, flags: u8, right_checksum: bool) {
        let mut segment = [0; 20];
        segment[..2].copy_from_slice(&heard.ports[0].to_be_bytes());
        segment[2..4].copy_from_slice(&heard.ports[1].to_be_bytes());
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        if flags & Flags::ACK != 0 {
            segment[8..12].copy_from_slice(&heard.sequence.to_be_bytes());
        }
        (segment[12], segment[13]) = (5 << 4, flags);
        let pseudo = pseudo_header_of(self.from.into(), self.to.into(), Protocol::TCP, segment.len());
        let checksum = pseudo.add_bytes(&segment).finish() ^ if right_checksum { 0 } else { 0x0ff0 };
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        let to = SocketAddrV4::new(self.to, 0);
        assert_eq!(sendto(&self.socket, &segment, SendFlags::empty(), &to), Ok(segment.len()));
    }
}

#[test]
fn a_reset_that_is_not_exact_or_not_right_ends_neither_the_flow_nor_the_connection() {
    let Some(_isolated) = isolated() else { return };
    forged_resets(PodPorts::Veth);
}

pub(super) fn forged_resets(ports: PodPorts) {
    let rig = rig_of(ports, &["client", "server"], 1, "");
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let forger = Forger::of(&client, &server);
    let mut talk = Connection::open(&client, &server);
    let of = talk.client.local_addr().unwrap();
    (0..100).for_each(|_| assert!(talk.goes_on(TIMEOUT)));
    let drops = |reason: &str| rig.drops().get(reason).copied().unwrap_or(0);
    let sent = |rig: &Rig| rig.flows(10)[0].packets;

    // A reset in the window passes the switch, and the server answers it with a challenge ACK (RFC 5961
    // section 3.2): the connection continues.
    let heard = forger.heard();
    let before = sent(&rig);
    forger.reset(&heard, heard.acknowledgement.wrapping_add(500), true);
    eventually("the reset has passed", || sent(&rig) > before);
    assert!(talk.goes_on(TIMEOUT));
    assert_eq!(state(&rig, of), "established");

    let heard = forger.heard();
    forger.reset(&heard, heard.acknowledgement.wrapping_add(1 << 30), true);
    eventually("one outside the window is dropped", || drops("invalid-state") == 1);
    // A segment far from the window makes its number no better.
    let before = sent(&rig);
    forger.send(&heard, heard.acknowledgement.wrapping_add(1 << 30), Flags::ACK, true);
    eventually("the segment has passed", || sent(&rig) > before);
    forger.reset(&heard, heard.acknowledgement.wrapping_add(1 << 30), true);
    eventually("the reset is dropped", || drops("invalid-state") == 2);
    forger.reset(&heard, heard.acknowledgement, false);
    eventually("one with a wrong checksum is dropped", || drops("bad-checksum") == 1);
    assert!(talk.goes_on(TIMEOUT));
    assert_eq!(state(&rig, of), "established");

    // The exact reset is the positive control of the forgery.
    let heard = forger.heard();
    forger.reset(&heard, heard.acknowledgement, true);
    eventually("the exact one ends the flow", || state(&rig, of) == "reset");
    let ended = talk.server.read(&mut [0; 16]).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    assert_accounted(&rig.counters());
    assert_eq!(rig.drops().into_keys().collect::<Vec<_>>(), ["bad-checksum", "invalid-state"]);
    assert_eq!(rig.flows(10)[0].key.dst_port, PORT);
}
