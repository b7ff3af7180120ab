//! Who answers: one thread for all places of a lab. A socket stays in the namespace where it was made, wherever it is used.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::caller::raw_socket;
use super::message::{ANSWER, QUESTION, raw_payload, sctp_answer};
use super::places::Service;
use crate::lab::error::Doing;
use crate::lab::{LabError, Pod};
use crate::net::flow::Protocol;

/// How soon the thread sees that it shall stop.
const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Room for what is asked, and an IP header.
const QUESTION_BYTES_MAX: usize = 2048;

/// Answers until it is dropped.
#[derive(Debug)]
pub(super) struct Answerer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A socket that is asked.
#[derive(Debug)]
enum Ear {
    Tcp(TcpListener),
    Udp(UdpSocket),
    Sctp { socket: UdpSocket, is_v4: bool },
    Raw { socket: UdpSocket, is_v4: bool },
}

impl Answerer {
    /// Listens at places. When this returns, every service answers.
    pub(super) fn start(at: &[(Pod, Vec<Service>)]) -> Result<Answerer, LabError> {
        let mut ears = vec![];
        for (place, services) in at {
            for service in services {
                let ear = place.run(|| Ear::open(service))?;
                let (address, protocol, port) = service;
                ears.extend(ear.doing(|| format!("listen on {address} for {protocol}, port {port}"))?);
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::Builder::new()
            .name("lab answerer".to_owned())
            .spawn(move || serve(&ears, &asked))
            .doing(|| "start a thread".to_owned())?;
        Ok(Answerer { stop, thread: Some(thread) })
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that the callers have not missed.
            let _ = thread.join();
        }
    }
}

impl Ear {
    /// In the calling thread's namespace. None where the kernel answers by itself.
    fn open(&(address, protocol, port): &Service) -> io::Result<Option<Ear>> {
        let to = SocketAddr::new(address, port);
        let is_v4 = address.is_ipv4();
        let ear = match protocol {
            Protocol::ICMP | Protocol::ICMPV6 => return Ok(None),
            Protocol::TCP => Ear::Tcp(TcpListener::bind(to)?),
            Protocol::UDP => Ear::Udp(UdpSocket::bind(to)?),
            Protocol::SCTP => Ear::Sctp { socket: raw_socket(address, protocol)?, is_v4 },
            _ => Ear::Raw { socket: raw_socket(address, protocol)?, is_v4 },
        };
        ear.set_nonblocking()?;
        Ok(Some(ear))
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Ear::Tcp(listener) => listener.set_nonblocking(true),
            Ear::Udp(socket) | Ear::Sctp { socket, .. } | Ear::Raw { socket, .. } => {
                socket.set_nonblocking(true)
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Ear::Tcp(listener) => listener.as_fd(),
            Ear::Udp(socket) | Ear::Sctp { socket, .. } | Ear::Raw { socket, .. } => socket.as_fd(),
        }
    }

    /// Answers one question, if there is one.
    fn answer(&self) -> io::Result<()> {
        let reply = |question: &[u8]| (question == QUESTION).then(|| ANSWER.to_vec());
        match self {
            // Who connects is greeted: the socket's buffer takes the words, and closing sends them.
            Ear::Tcp(listener) => listener.accept()?.0.write_all(ANSWER),
            Ear::Udp(socket) => answer_datagram(socket, reply),
            Ear::Sctp { socket, is_v4 } => {
                answer_datagram(socket, |packet| sctp_answer(raw_payload(packet, *is_v4)))
            }
            Ear::Raw { socket, is_v4 } => {
                answer_datagram(socket, |packet| reply(raw_payload(packet, *is_v4)))
            }
        }
    }
}

fn answer_datagram(socket: &UdpSocket, reply: impl Fn(&[u8]) -> Option<Vec<u8>>) -> io::Result<()> {
    let mut question = [0; QUESTION_BYTES_MAX];
    let (bytes, from) = socket.recv_from(&mut question)?;
    if let Some(answer) = reply(&question[..bytes]) {
        socket.send_to(&answer, from)?;
    }
    Ok(())
}

fn serve(ears: &[Ear], stop: &AtomicBool) {
    let mut asked: Vec<PollFd<'_>> =
        ears.iter().map(|ear| PollFd::from_borrowed_fd(ear.fd(), PollFlags::IN)).collect();
    while !stop.load(Ordering::Acquire) {
        // Interrupted by a signal: look again.
        if poll(&mut asked, Some(&STOP_CHECK)).is_err() {
            continue;
        }
        for (ear, asked) in ears.iter().zip(&asked) {
            if !asked.revents().is_empty() {
                // An answer that cannot be given is one that the caller misses.
                let _ = ear.answer();
            }
        }
    }
}
