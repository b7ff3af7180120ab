//! TCP connection between two pods under the control of a test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use palisade::lab::Pod;

use crate::support::{PATIENCE, PORT};

/// Connection with both of its sockets.
pub(crate) struct Connection {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Connection {
    pub(crate) fn open(from: &Pod, to: &Pod) -> Connection {
        let address = SocketAddr::new(to.v4().into(), PORT);
        let listener = to.run(|| TcpListener::bind(address)).unwrap().unwrap();
        let client = from.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
        }
        Connection { client, server }
    }

    /// Tells whether a message of the client reaches the server, and then one of the server the client.
    pub(crate) fn goes_on(&mut self, patience: Duration) -> bool {
        let word = |from: &mut TcpStream, to: &mut TcpStream| {
            let mut heard = [0; 5];
            to.set_read_timeout(Some(patience)).unwrap();
            from.write_all(b"hello").is_ok() && to.read_exact(&mut heard).is_ok() && heard == *b"hello"
        };
        word(&mut self.client, &mut self.server) && word(&mut self.server, &mut self.client)
    }
}
