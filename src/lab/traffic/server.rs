//! Server of a pod: TCP and UDP on the same ports, IPv4 and IPv6.
//!
//! The first byte of a TCP connection selects a [`Service`]. A UDP datagram is sent back unchanged.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::pattern;
use super::service::{Service, TransferRequest};
use crate::lab::error::Context;
use crate::lab::{LabError, Pod};

/// Longest silence on a connection.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two looks of a UDP server at the stop flag.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// Largest UDP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Protocols of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Services {
    /// TCP only.
    Tcp,
    /// UDP only.
    Udp,
    /// TCP and UDP.
    Both,
}

/// Servers in a pod, until dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Stop>,
    listeners: Vec<TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

/// Stop flag of the threads, and the connections that a stop ends.
#[derive(Debug, Default)]
struct Stop {
    asked: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Server {
    /// Listens on the ports inside the pod. Connections are accepted when this returns.
    pub fn start(pod: &Pod, ports: &[u16], services: Services) -> Result<Server, LabError> {
        let mut server = Server { stop: Arc::default(), listeners: vec![], threads: vec![] };
        for &port in ports {
            let refused = || format!("listen on port {port} in pod {}", pod.plan().pod);
            if services != Services::Udp {
                let listener =
                    pod.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))?.context(refused)?;
                server.listeners.push(listener.try_clone().context(refused)?);
                let stop = server.stop.clone();
                server.start_thread(move || accept(&listener, &stop))?;
            }
            if services != Services::Tcp {
                let socket = pod.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)))?.context(refused)?;
                socket.set_read_timeout(Some(STOP_CHECK)).context(refused)?;
                let stop = server.stop.clone();
                server.start_thread(move || answer(&socket, &stop))?;
            }
        }
        Ok(server)
    }

    fn start_thread(&mut self, f: impl FnOnce() + Send + 'static) -> Result<(), LabError> {
        let thread = std::thread::Builder::new().name("lab server".to_owned()).spawn(f);
        self.threads.push(thread.context(|| "start a thread".to_owned())?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        for listener in &self.listeners {
            // shutdown(2) wakes a thread that waits in accept(2). It fails only on a closed socket.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        for connection in self.stop.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Keeps a handle of a connection, to end it from outside, and drops those of ended ones.
    fn note(&self, connection: &TcpStream) -> io::Result<()> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.peer_addr().is_ok());
        connections.push(connection.try_clone()?);
        Ok(())
    }
}

fn accept(listener: &TcpListener, stop: &Stop) {
    std::thread::scope(|scope| {
        while let Ok((connection, _)) = listener.accept() {
            if stop.note(&connection).is_err() || stop.is_asked() {
                break;
            }
            scope.spawn(move || {
                // The client reports a connection that breaks.
                let _ = serve(&connection);
                // The handle kept by `note` holds the connection open otherwise.
                let _ = connection.shutdown(Shutdown::Both);
            });
        }
        // Every listener ends all connections, since a stop is for all of them.
        for connection in stop.connections.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    });
}

fn serve(mut connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    let mut service = [0];
    // A client may connect without sending.
    if connection.read(&mut service)? == 0 {
        return Ok(());
    }
    match service[0] {
        service if service == Service::Echo as u8 => io::copy(&mut &*connection, &mut connection).map(drop),
        service if service == Service::Transfer as u8 => serve_transfer(connection),
        service if service == Service::Sink as u8 => {
            let bytes = io::copy(&mut connection, &mut io::sink())?;
            connection.write_all(&bytes.to_be_bytes())
        }
        _ => Ok(()),
    }
}

/// Sends its pattern while it receives the client's. Then it reports the position of the first difference in
/// eight bytes, all ones for none.
fn serve_transfer(mut connection: &TcpStream) -> io::Result<()> {
    let order = TransferRequest::read(connection)?;
    let differs = std::thread::scope(|scope| {
        let sender = scope.spawn(move || pattern::send(connection, order.seed_down, order.bytes));
        let differs = pattern::receive(connection, order.seed_up, order.bytes);
        sender.join().map_err(|_| io::Error::other("the sender has died"))??;
        differs
    })?;
    connection.write_all(&differs.unwrap_or(u64::MAX).to_be_bytes())
}

fn answer(socket: &UdpSocket, stop: &Stop) {
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    while !stop.is_asked() {
        if let Ok((bytes, from)) = socket.recv_from(&mut datagram) {
            // The client reports a missing answer.
            let _ = socket.send_to(&datagram[..bytes], from);
        }
    }
}
