//! TCP connection between two pods under the control of a test.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use palisade::lab::{Pod, Switch};

use crate::support::verdict::port_counters;
use crate::support::{PORT, TIMEOUT, eventually};

/// Connection with both of its sockets.
pub(crate) struct Connection {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Connection {
    pub(crate) fn open(from: &Pod, to: &Pod) -> Connection {
        Connection::open_by(from, to, SocketAddr::new(to.v4().into(), PORT))
    }

    /// Opens a connection to a port of a pod by another address of it.
    pub(crate) fn open_by(from: &Pod, to: &Pod, by: SocketAddr) -> Connection {
        let own = if by.is_ipv4() { to.v4().into() } else { to.v6().into() };
        let listener = to.run(|| TcpListener::bind(SocketAddr::new(own, PORT))).unwrap().unwrap();
        let client = from.run(|| TcpStream::connect_timeout(&by, TIMEOUT)).unwrap().unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
        }
        Connection { client, server }
    }

    /// Tells whether a message of the client reaches the server, and then one of the server the client.
    pub(crate) fn goes_on(&mut self, timeout: Duration) -> bool {
        let word = |from: &mut TcpStream, to: &mut TcpStream| {
            let mut heard = [0; 5];
            to.set_read_timeout(Some(timeout)).unwrap();
            from.write_all(b"hello").is_ok() && to.read_exact(&mut heard).is_ok() && heard == *b"hello"
        };
        word(&mut self.client, &mut self.server) && word(&mut self.server, &mut self.client)
    }

    /// Asserts that the switch drops the client's segments, the first one for this reason, and that the server hears
    /// nothing. `from` is the client's pod, of which no other traffic may run.
    pub(crate) fn assert_ended(&mut self, switch: &Switch, from: &Pod, reason: &str) {
        let drops = || port_counters(switch, from).drops;
        let before: u64 = drops().values().sum();
        self.client.write_all(b"hello").unwrap();
        // An acknowledgement of an earlier segment may be the first of two, the message or its repetition is the other.
        eventually(&format!("a message is dropped under {reason}: {:?}", drops()), || {
            let drops = drops();
            drops.values().sum::<u64>() >= before + 2 && drops.contains_key(reason)
        });
        self.server.set_nonblocking(true).unwrap();
        let heard = self.server.read(&mut [0; 16]).map_err(|error| error.kind());
        self.server.set_nonblocking(false).unwrap();
        assert_eq!(
            heard,
            Err(ErrorKind::WouldBlock),
            "the server hears a message that the switch has dropped"
        );
    }
}
