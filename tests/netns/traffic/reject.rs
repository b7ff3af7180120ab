//! `policy.denied = "reject"`: senders of denied packets learn at once that policy denies them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use palisade::lab::PodPorts;
use palisade::lab::traffic::{Outcome, Server, Services, tcp_connect};

use super::rig_of;
use crate::support::connection::Connection;
use crate::support::{PORT, TIMEOUT, assert_allowed, eventually, isolated, only_from};

#[test]
fn denied_connections_are_refused_at_once_and_denied_datagrams_answered_with_an_icmp_error() {
    let Some(_isolated) = isolated() else { return };
    told(PodPorts::Veth);
}

pub(super) fn told(ports: PodPorts) {
    let rig = rig_of(ports, &["client", "stranger", "server"], 1, "[policy]\ndenied = \"reject\"\n");
    let (client, stranger, server) = (rig.pod("client"), rig.pod("stranger"), rig.pod("server"));
    let mut cut = Connection::open(&stranger, &server);
    assert!(cut.goes_on(TIMEOUT));
    rig.apply(&only_from("server", "client"));

    // A connection that policy has cut is reset with its next segment, which may be a delayed acknowledgement.
    cut.client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let heard = cut.client.write_all(b"hello").and_then(|()| cut.client.read(&mut [0; 8]));
    assert_eq!(heard.unwrap_err().kind(), ErrorKind::ConnectionReset);
    drop(cut);

    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        assert_eq!(tcp_connect(&stranger, address, PORT, TIMEOUT).unwrap(), Outcome::Refused, "{address}");
        assert_allowed(&client, address);
        let socket = stranger.run(|| {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(SocketAddr::new(address, PORT)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        });
        let socket = socket.unwrap();
        socket.send(b"hello").unwrap();
        // Linux: EHOSTUNREACH for "packet filtered", EACCES for "administratively prohibited".
        let kind = socket.recv(&mut [0; 8]).unwrap_err().kind();
        let expected =
            if address.is_ipv4() { ErrorKind::HostUnreachable } else { ErrorKind::PermissionDenied };
        assert_eq!(kind, expected, "{address}");
    }
    let address = server.addresses()[0].to_string();
    let ping = stranger.output(Command::new("ping").args(["-c", "1", "-W", "60", &address])).unwrap();
    let said = String::from_utf8_lossy(&ping.stdout).into_owned();
    assert!(said.contains("Packet filtered"), "{said}");
    assert!(rig.drops()["policy-ingress"] >= 6, "{:?}", rig.drops());
    let client = rig.switch.client();
    eventually("samples of drops have the denied packets, not the answers", || {
        let drops = client.drops(&palisade::control::DropQuery::default()).unwrap().drops;
        drops.iter().any(|drop| drop.frame.ends_with("TCP SYN"))
            && !drops.iter().any(|drop| drop.frame.contains("RST"))
    });
}
