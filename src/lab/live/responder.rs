//! Responder: one thread that answers for all sites of a lab. A socket stays in the network namespace in
//! which it was made.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::raw_socket;
use super::message::{REQUEST, RESPONSE, raw_payload, sctp_response};
use super::placement::Service;
use crate::lab::error::Context;
use crate::lab::{LabError, Pod};
use crate::net::flow::Protocol;

/// Time between two looks at the stop flag.
const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes of the longest request, with an IP header.
const REQUEST_BYTES_MAX: usize = 2048;

/// A running responder. Dropped, it stops.
#[derive(Debug)]
pub(super) struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A socket for requests.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
    Sctp { socket: UdpSocket, is_v4: bool },
    Raw { socket: UdpSocket, is_v4: bool },
}

impl Responder {
    /// Listens at sites. Every service answers when this returns.
    pub(super) fn start(at: &[(Pod, Vec<Service>)]) -> Result<Responder, LabError> {
        let mut listeners = vec![];
        for (site, services) in at {
            for service in services {
                let listener = site.run(|| Listener::open(service))?;
                let (address, protocol, port) = service;
                listeners
                    .extend(listener.context(|| format!("listen on {address} for {protocol}, port {port}"))?);
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::Builder::new()
            .name("lab responder".to_owned())
            .spawn(move || serve(&listeners, &asked))
            .context(|| "start a thread".to_owned())?;
        Ok(Responder { stop, thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread shows in the clients' outcomes.
            let _ = thread.join();
        }
    }
}

impl Listener {
    /// Opens a listener in the calling thread's namespace; `None` for a protocol that the kernel answers.
    fn open(&(address, protocol, port): &Service) -> io::Result<Option<Listener>> {
        let to = SocketAddr::new(address, port);
        let is_v4 = address.is_ipv4();
        let listener = match protocol {
            Protocol::ICMP | Protocol::ICMPV6 => return Ok(None),
            Protocol::TCP => Listener::Tcp(TcpListener::bind(to)?),
            Protocol::UDP => Listener::Udp(UdpSocket::bind(to)?),
            Protocol::SCTP => Listener::Sctp { socket: raw_socket(address, protocol)?, is_v4 },
            _ => Listener::Raw { socket: raw_socket(address, protocol)?, is_v4 },
        };
        listener.set_nonblocking()?;
        Ok(Some(listener))
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Udp(socket) | Listener::Sctp { socket, .. } | Listener::Raw { socket, .. } => {
                socket.set_nonblocking(true)
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Udp(socket) | Listener::Sctp { socket, .. } | Listener::Raw { socket, .. } => {
                socket.as_fd()
            }
        }
    }

    /// Answers one request, if one waits.
    fn answer(&self) -> io::Result<()> {
        let reply = |request: &[u8]| (request == REQUEST).then(|| RESPONSE.to_vec());
        match self {
            // The socket's buffer takes the greeting, and closing the connection sends it.
            Listener::Tcp(listener) => listener.accept()?.0.write_all(RESPONSE),
            Listener::Udp(socket) => respond_to_datagram(socket, reply),
            Listener::Sctp { socket, is_v4 } => {
                respond_to_datagram(socket, |packet| sctp_response(raw_payload(packet, *is_v4)))
            }
            Listener::Raw { socket, is_v4 } => {
                respond_to_datagram(socket, |packet| reply(raw_payload(packet, *is_v4)))
            }
        }
    }
}

fn respond_to_datagram(socket: &UdpSocket, reply: impl Fn(&[u8]) -> Option<Vec<u8>>) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES_MAX];
    let (bytes, from) = socket.recv_from(&mut request)?;
    if let Some(answer) = reply(&request[..bytes]) {
        socket.send_to(&answer, from)?;
    }
    Ok(())
}

fn serve(listeners: &[Listener], stop: &AtomicBool) {
    let mut asked: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN)).collect();
    while !stop.load(Ordering::Acquire) {
        // A signal interrupts the wait.
        if poll(&mut asked, Some(&STOP_CHECK)).is_err() {
            continue;
        }
        for (listener, asked) in listeners.iter().zip(&asked) {
            if !asked.revents().is_empty() {
                // The client reports a missing answer.
                let _ = listener.answer();
            }
        }
    }
}
