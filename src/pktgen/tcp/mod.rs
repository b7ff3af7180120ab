//! Sessions of generated TCP connections, both ends of them, on interfaces or in-memory ports.

pub(crate) mod endpoints;
mod segment;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::net::mac::Mac;
use crate::pktgen::clock::pin;
use crate::pktgen::io::link_end::LinkEnd;
use crate::pktgen::rate_limiter::{Rate, RateLimiter};
use crate::pktgen::target::{Attached, Target, open_rx};
use crate::pktgen::tcp::endpoints::{CONCURRENT_MAX, Initiator, TcpTrial};
use crate::pktgen::tcp::segment::Link;
use crate::pktgen::traffic::flows::FlowSpace;
use crate::pktgen::{PktgenError, Traffic};
use crate::xdp::MemoryPeer;

/// Description of generated connections.
#[derive(Debug, Clone)]
pub struct TcpTraffic {
    /// Ethernet source of the initiator.
    pub src_mac: Mac,
    /// Ethernet destination of the initiator. The responder answers to the source of a frame.
    pub dst_mac: Mac,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// Five-tuples; each connection has the next one.
    pub space: FlowSpace,
    /// Most connections at a time.
    pub concurrent: u32,
}

/// Open sockets at both ends. Dropped, it detaches its programs from the interfaces.
pub struct TcpSession {
    dialogue: TcpTraffic,
    initiator: Vec<LinkEnd>,
    responder: Vec<LinkEnd>,
    next: u32,
    cores: Vec<usize>,
    _attached: Vec<Attached>,
}

impl TcpSession {
    /// Opens both ends. `cores` are those of the initiating thread and the responding one. While a session is
    /// open, the kernel's stack receives nothing on these interfaces.
    pub fn open(
        tx: &Target,
        rx: &Target,
        dialogue: TcpTraffic,
        cores: &[usize],
    ) -> Result<TcpSession, PktgenError> {
        check(&dialogue)?;
        let (initiator, at_tx) = open_rx(tx)?;
        let (responder, at_rx) = open_rx(rx)?;
        Ok(TcpSession {
            dialogue,
            initiator,
            responder,
            next: 0,
            cores: cores.to_vec(),
            _attached: vec![at_tx, at_rx],
        })
    }

    /// Opens both ends on in-memory ports.
    pub fn in_memory(
        initiator: Vec<MemoryPeer>,
        responder: Vec<MemoryPeer>,
        dialogue: TcpTraffic,
    ) -> Result<TcpSession, PktgenError> {
        check(&dialogue)?;
        let wires = |peers: Vec<MemoryPeer>| peers.into_iter().map(LinkEnd::Memory).collect();
        let (initiator, responder) = (wires(initiator), wires(responder));
        Ok(TcpSession { dialogue, initiator, responder, next: 0, cores: Vec::new(), _attached: Vec::new() })
    }

    /// Opens connections at a rate for a time, or without a limit, and waits for them to end. Returns early
    /// when `stop` is set.
    pub fn trial(&mut self, rate: Rate, time: Duration, stop: &AtomicBool) -> Result<TcpTrial, PktgenError> {
        let TcpTraffic { src_mac, dst_mac, vlan, space, concurrent } = &self.dialogue;
        let (link, tuples) = (
            Link { src: *src_mac, dst: *dst_mac, vlan: *vlan },
            crate::pktgen::traffic::flows::Tuples::new(space),
        );
        let limiter = match rate {
            Rate::Max => RateLimiter::Max,
            Rate::PerSecond(rate) => RateLimiter::of(rate, 1),
            Rate::Recorded => {
                let sentence = "connections have no recorded speed: give --rate";
                return Err(PktgenError::Traffic(sentence.to_owned()));
            }
        };
        let initiator = Initiator::new(&mut self.initiator, link, tuples, *concurrent);
        let (responder, cores, first) = (&mut self.responder, &self.cores, self.next);
        let end = AtomicBool::new(false);
        let connected = thread::scope(|scope| {
            let responding = scope.spawn(|| {
                pin(cores.get(1).copied())?;
                endpoints::respond(responder, *vlan, &end)
            });
            let initiating = scope.spawn(|| {
                pin(cores.first().copied())?;
                initiator.run(first, &limiter, time.as_nanos() as u64, stop)
            });
            let connected = initiating.join();
            end.store(true, Ordering::Relaxed);
            responding.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            connected.unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        self.next = self.next.wrapping_add(connected.opened as u32);
        Ok(connected)
    }
}

impl From<&Traffic> for TcpTraffic {
    /// Takes the addresses of single-frame traffic, with a thousand connections at a time.
    fn from(traffic: &Traffic) -> TcpTraffic {
        let Traffic { src_mac, dst_mac, vlan, ref space, .. } = *traffic;
        TcpTraffic { src_mac, dst_mac, vlan, space: space.clone(), concurrent: 1000 }
    }
}

fn check(dialogue: &TcpTraffic) -> Result<(), PktgenError> {
    let (concurrent, there) = (dialogue.concurrent, dialogue.space.len());
    if concurrent == 0 || concurrent > CONCURRENT_MAX {
        let sentence =
            format!("{concurrent} connections at a time are not possible: from 1 to {CONCURRENT_MAX} are");
        return Err(PktgenError::Traffic(sentence));
    }
    if u64::from(concurrent) > there {
        let sentence = format!(
            "{concurrent} connections at a time are wanted, and addresses and ports make {there} different ones: \
             widen --src-ports, --dst-ports, --src or --dst"
        );
        return Err(PktgenError::Traffic(sentence));
    }
    Ok(())
}
