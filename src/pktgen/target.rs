//! Target of a generator: an interface in a network namespace, and the sockets opened on it.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::PktgenError;
use super::io::link_end::{LinkEnd, Socket};
use crate::ids::PortId;
use crate::netlink::Interface;
use crate::xdp::{DropCounter, PortQueue, Program, Umem, XdpError};

/// Frames of the UMEM of each queue.
const FRAMES: usize = 4096;
/// Longest wait for a queue that a session which has ended still holds.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Directory of named network namespaces (ip-netns(8)).
const NAMED: &str = "/run/netns";

/// An interface: `eth0`, or `eth0@pod1` in a named network namespace, or `eth0@/proc/4711/ns/net` in the
/// namespace of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the interface.
    pub interface: String,
    /// Network namespace; `None` for the caller's.
    pub namespace: Option<String>,
}

impl Target {
    /// Runs `f` on a thread of its own in the network namespace of the target.
    pub(super) fn enter<T: Send>(
        &self,
        f: impl FnOnce() -> Result<T, PktgenError> + Send,
    ) -> Result<T, PktgenError> {
        let Some(namespace) = &self.namespace else { return f() };
        let refused = |source| PktgenError::Namespace { name: namespace.clone(), source };
        let path =
            if namespace.contains('/') { PathBuf::from(namespace) } else { Path::new(NAMED).join(namespace) };
        let file = File::open(path).map_err(refused)?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|error| refused(error.into()))?;
                f()
            });
            inside.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Reads the facts of the interface.
    pub(super) fn find(&self) -> Result<Interface, PktgenError> {
        self.enter(|| Ok(Interface::find(&self.interface)?))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            None => f.write_str(&self.interface),
            Some(namespace) => write!(f, "{}@{namespace}", self.interface),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let (interface, namespace) = match text.split_once('@') {
            None => (text, None),
            Some((interface, namespace)) => (interface, Some(namespace)),
        };
        if interface.is_empty() || namespace == Some("") {
            return Err(format!("{text:?} is not a place: write INTERFACE or INTERFACE@NETNS"));
        }
        Ok(Target { interface: interface.to_owned(), namespace: namespace.map(str::to_owned) })
    }
}

/// An XDP program on an interface. Dropped, it is detached.
pub(super) struct Attached {
    place: Target,
    attachment: Option<Attachment>,
}

enum Attachment {
    Program(Program),
    Counter(DropCounter),
}

impl Attached {
    /// Attaches the program that counts and drops.
    pub(super) fn counter(place: &Target) -> Result<Attached, PktgenError> {
        let counter = place.enter(|| Ok(DropCounter::attach(&Interface::find(&place.interface)?)?.0))?;
        Ok(Attached { place: place.clone(), attachment: Some(Attachment::Counter(counter)) })
    }

    /// Returns the counter; `None` for a program that redirects.
    pub(super) fn as_counter(&self) -> Option<&DropCounter> {
        match &self.attachment {
            Some(Attachment::Counter(counter)) => Some(counter),
            _ => None,
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(attachment) = self.attachment.take() else { return };
        let detached = self.place.enter(|| match attachment {
            // Restores the program of a switch that has ended and keeps its pods closed.
            Attachment::Program(program) => Ok(program.undo()?),
            Attachment::Counter(counter) => Ok(counter.detach()?),
        });
        if let Err(error) = detached {
            tracing::warn!("{error}");
        }
    }
}

/// Opens queues of an interface to send only: the kernel's stack receives as before.
pub(super) fn open_tx(place: &Target, queues: u16) -> Result<Vec<LinkEnd>, PktgenError> {
    place.enter(|| {
        let interface = Interface::find(&place.interface)?;
        let open = |number| {
            let (umem, frames) = Umem::new(FRAMES, false)?;
            let queue = patiently(|| PortQueue::open_to_send(&umem.binder(), PortId(0), &interface, number))?;
            Ok(LinkEnd::Socket(Box::new(Socket::new(umem, frames, queue, &place.interface, 0))))
        };
        (0..queues).map(open).collect()
    })
}

/// Opens a queue, and tries again for a while where it is taken: the kernel may be late to release the socket
/// of an earlier session.
fn patiently(mut open: impl FnMut() -> Result<PortQueue, XdpError>) -> Result<PortQueue, XdpError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match open() {
            Err(XdpError::QueueTaken { .. }) if Instant::now() < deadline => (),
            opened => return opened,
        }
    }
}

/// Opens all queues of an interface to receive and to send.
pub(super) fn open_rx(place: &Target) -> Result<(Vec<LinkEnd>, Attached), PktgenError> {
    place.enter(|| {
        let interface = Interface::find(&place.interface)?;
        let queues = interface.queues();
        let mut program = Program::load(&interface, queues)?;
        let open = |number| {
            let (umem, frames) = Umem::new(FRAMES, false)?;
            let queue =
                patiently(|| PortQueue::open(&umem.binder(), PortId(0), &interface, number, &program))?;
            let mut wire =
                LinkEnd::Socket(Box::new(Socket::new(umem, frames, queue, &place.interface, FRAMES / 2)));
            // Lends the first frames to receive into.
            wire.receive(|_| ());
            Ok(wire)
        };
        let wires = (0..queues).map(open).collect::<Result<_, PktgenError>>()?;
        // The queues are opened first: the queues of a running switch are taken, so its program stays.
        program.take(None)?;
        Ok((wires, Attached { place: place.clone(), attachment: Some(Attachment::Program(program)) }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_parses_as_it_prints() {
        for text in ["eth0", "eth0@pod1", "eth0@/proc/1/ns/net"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "@pod", "eth0@"] {
            assert!(text.parse::<Target>().is_err());
        }
    }

    #[test]
    fn a_namespace_that_does_not_exist_is_named() {
        let place: Target = "eth0@no-such-namespace".parse().unwrap();
        let error = place.find().unwrap_err().to_string();
        assert!(error.contains("no-such-namespace"), "{error}");
    }
}
