//! Who answers: one thread for all places of a lab. A socket stays in the namespace where it was made, wherever it is used.

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
use crate::lab::error::Doing;
use crate::lab::{LabError, Pod};
use crate::net::flow::Protocol;

/// How soon the thread sees that it shall stop.
const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Room for what is asked, and an IP header.
const REQUEST_BYTES_MAX: usize = 2048;

/// Answers until it is dropped.
#[derive(Debug)]
pub(super) struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A socket that is asked.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
    Sctp { socket: UdpSocket, is_v4: bool },
    Raw { socket: UdpSocket, is_v4: bool },
}

impl Responder {
    /// Listens at places. When this returns, every service answers.
    pub(super) fn start(at: &[(Pod, Vec<Service>)]) -> Result<Responder, LabError> {
        let mut listeners = vec![];
        for (place, services) in at {
            for service in services {
                let listener = place.run(|| Listener::open(service))?;
                let (address, protocol, port) = service;
                listeners
                    .extend(listener.doing(|| format!("listen on {address} for {protocol}, port {port}"))?);
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::Builder::new()
            .name("lab answerer".to_owned())
            .spawn(move || serve(&listeners, &asked))
            .doing(|| "start a thread".to_owned())?;
        Ok(Responder { stop, thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that the callers have not missed.
            let _ = thread.join();
        }
    }
}

impl Listener {
    /// In the calling thread's namespace. None where the kernel answers by itself.
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

    /// Answers one question, if there is one.
    fn answer(&self) -> io::Result<()> {
        let reply = |question: &[u8]| (question == REQUEST).then(|| RESPONSE.to_vec());
        match self {
            // Who connects is greeted: the socket's buffer takes the words, and closing sends them.
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
    let mut question = [0; REQUEST_BYTES_MAX];
    let (bytes, from) = socket.recv_from(&mut question)?;
    if let Some(answer) = reply(&question[..bytes]) {
        socket.send_to(&answer, from)?;
    }
    Ok(())
}

fn serve(listeners: &[Listener], stop: &AtomicBool) {
    let mut asked: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN)).collect();
    while !stop.load(Ordering::Acquire) {
        // Interrupted by a signal: look again.
        if poll(&mut asked, Some(&STOP_CHECK)).is_err() {
            continue;
        }
        for (listener, asked) in listeners.iter().zip(&asked) {
            if !asked.revents().is_empty() {
                // An answer that cannot be given is one that the caller misses.
                let _ = listener.answer();
            }
        }
    }
}
