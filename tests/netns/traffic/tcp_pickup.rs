//! TCP segments of no connection: those of connections that policy has ended, and forged ones.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use palisade::dataplane::Gateway;
use palisade::lab::traffic::{Server, Services};
use palisade::lab::{POD_INTERFACE, Pod};
use palisade::net::tcp::Flags;
use palisade::pktgen::{Content, FlowSpace, FrameSize, Kind, Rate, Receive, Session, Setup, Target, Traffic};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::support::capture::Capture;
use crate::support::connection::Connection;
use crate::support::{
    PATIENCE, PORT, Rig, assert_accounted, assert_allowed, eventually, isolated, only_from,
};

/// Ports of client and server: the client's higher, the client's lower, both from the ephemeral range.
const PORT_PAIRS: [[u16; 2]; 4] = [[40_000, 80], [80, 40_000], [40_001, 50_051], [50_051, 40_001]];

/// Opens a connection between these ports.
fn connection(from: &Pod, to: &Pod, [client_port, server_port]: [u16; 2]) -> Connection {
    let listener =
        to.run(|| TcpListener::bind(SocketAddr::new(to.v4().into(), server_port))).unwrap().unwrap();
    let open = || {
        let client = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&client, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, client_port))?;
        connect(&client, &SocketAddrV4::new(to.v4(), server_port))?;
        rustix::io::Result::Ok(TcpStream::from(client))
    };
    let client = from.run(open).unwrap().unwrap();
    let (server, _) = listener.accept().unwrap();
    [&client, &server].iter().for_each(|end| end.set_nodelay(true).unwrap());
    Connection { client, server }
}

#[test]
fn a_tightened_policy_cuts_running_connections_whatever_their_ports() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend", "stranger"], 1);
    let (db, stranger) = (rig.pod("db"), rig.pod("stranger"));
    let mut talks = PORT_PAIRS.map(|ports| connection(&stranger, &db, ports));
    assert!(talks.iter_mut().all(|talk| talk.goes_on(PATIENCE)));
    rig.apply(&only_from("db", "friend"));
    // The client sends first on every second connection, the server on the others.
    for (number, talk) in talks.iter_mut().enumerate() {
        let ends = if number % 2 == 0 {
            [&mut talk.client, &mut talk.server]
        } else {
            [&mut talk.server, &mut talk.client]
        };
        for end in ends {
            end.write_all(b"hello").unwrap();
        }
    }
    // Several times the delay of the kernel's first retransmissions.
    std::thread::sleep(Duration::from_secs(2));
    for talk in &mut talks {
        for end in [&mut talk.client, &mut talk.server] {
            end.set_nonblocking(true).unwrap();
            let heard = end.read(&mut [0; 16]);
            assert!(matches!(&heard, Err(error) if error.kind() == ErrorKind::WouldBlock), "{heard:?}");
        }
    }
    let drops = rig.drops();
    assert!(drops["policy-ingress"] >= 4 && drops["invalid-state"] >= 4, "{drops:?}");
    assert_accounted(&rig.counters());
}

/// Fewest segments of a probe.
const SEGMENTS_MIN: u64 = 200;

/// Sends segments with these flags to a port of `to`, from lower and from higher ports. Returns their number.
fn probe(from: &Pod, to: &Pod, flags: u8, dst_port: u16) -> u64 {
    let space = FlowSpace {
        src: from.addresses()[0].into(),
        dst: to.addresses()[0].into(),
        src_ports: dst_port - 500..=dst_port + 500,
        dst_ports: dst_port..=dst_port,
    };
    // The segments carry payload.
    let size = FrameSize::Fixed(128);
    let traffic = Traffic {
        flows: 1000,
        size,
        ..Traffic::new(Kind::Tcp(flags), from.plan().mac, Gateway::default().mac, space)
    };
    let namespace = Some(from.namespace().path().to_str().unwrap().to_owned());
    let setup = Setup {
        tx: Target { interface: POD_INTERFACE.to_owned(), namespace },
        rx: None,
        receive: Receive::Nothing,
        content: Content::Generated(traffic),
        queues: 1,
        cores: vec![],
    };
    let mut session = Session::open(&setup).unwrap();
    let mut sent = 0;
    while sent < SEGMENTS_MIN {
        let trial =
            session.trial(Rate::PerSecond(2000.0), Duration::from_millis(500), &AtomicBool::new(false));
        sent += trial.unwrap().sent.frames;
    }
    sent
}

#[test]
fn segments_of_no_connection_never_arrive_and_tell_open_ports_from_closed_ones_by_nothing() {
    const CLOSED: u16 = PORT + 1;
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["db", "friend", "stranger"], 1);
    let (db, friend, stranger) = (rig.pod("db"), rig.pod("friend"), rig.pod("stranger"));
    let _server = Server::start(&db, &[PORT], Services::Tcp).unwrap();
    rig.apply(&only_from("db", "friend"));
    let ends =
        [&db, &stranger].map(|pod| pod.run(|| Capture::on(POD_INTERFACE, Command::new("tcpdump"))).unwrap());
    // An allowed connection is the positive control of the captures.
    assert_allowed(&friend, db.v4().into());
    let mut sent = 0;
    for flags in [Flags::ACK, Flags::ACK | Flags::FIN, Flags::ACK | 0x08, Flags::FIN, 0] {
        for port in [PORT, CLOSED] {
            sent += probe(&stranger, &db, flags, port);
        }
    }
    let host_end = &stranger.plan().host_interface;
    eventually("every segment is received, or lost before the switch and counted", || {
        let port = &rig.counters().ports[host_end];
        port.received + port.lost.values().sum::<u64>() >= sent
    });
    let counters = rig.counters();
    let port = &counters.ports[host_end];
    assert_eq!(port.drops.keys().collect::<Vec<_>>(), ["invalid-state"], "{port:?}");
    assert!(port.drops["invalid-state"] > 0, "{sent} sent, {port:?}");
    assert_eq!((port.forwarded, port.flows_assured, port.flows_unassured), (0, 0, 0));
    let [at_db, at_stranger] = ends.map(Capture::frames);
    let of = |frames: &[String], pod: &Pod| {
        frames.iter().filter(|line| line.contains(&format!("IP {}.", pod.v4()))).count()
    };
    assert!(of(&at_db, &friend) > 0, "the capture hears nothing: {at_db:?}");
    assert_eq!((of(&at_db, &stranger), of(&at_stranger, &db)), (0, 0), "{at_db:?} {at_stranger:?}");
    assert_accounted(&counters);
}
