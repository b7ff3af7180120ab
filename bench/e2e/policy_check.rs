//! The proof that a system does its work, before it is measured: what the policy lets in passes, with its replies, and
//! what it does not is dropped.

use std::time::Duration;

use palisade::lab::Pod;
use palisade::lab::traffic::{Outcome, Probe, Server, Services};
use palisade::net::flow::Protocol;

use crate::common::policy::{CLOSED_PORT, OPEN_PORTS};
use crate::error::BenchError;
use crate::rig::Rig;
use crate::system::Kind;

/// Wait for an answer that shall come.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);
/// Tries: the first packets may find nobody's Ethernet address known.
const TRIES: usize = 10;
/// Wait for an answer that shall not come: many times what the others take.
const SILENCE: Duration = Duration::from_millis(200);

/// Probes between the pods; fails with the first that comes out wrong.
pub(crate) fn verify(rig: &Rig, kind: Kind) -> Result<(), BenchError> {
    let [client, server, outsider] = ["client", "server", "outsider"].map(|name| rig.pod(name));
    let (client, server, outsider) = (client?, server?, outsider?);
    let open = *OPEN_PORTS.start();
    let _server = Server::start(&server, &[open, CLOSED_PORT], Services::Both)?;
    for protocol in [Protocol::UDP, Protocol::TCP] {
        let probe = |port| Probe { protocol, to: server.v4().into(), port };
        passes(&client, probe(open))?;
        if kind.enforces() {
            is_dropped(&client, probe(CLOSED_PORT))?;
            is_dropped(&outsider, probe(open))?;
        }
    }
    Ok(())
}

fn passes(from: &Pod, probe: Probe) -> Result<(), BenchError> {
    let mut seen = Outcome::TimedOut;
    for _ in 0..TRIES {
        seen = probe.run(from, ANSWER_PATIENCE)?;
        if seen == Outcome::Allowed {
            return Ok(());
        }
    }
    Err(wrong(from, probe, "allowed", &seen))
}

fn is_dropped(from: &Pod, probe: Probe) -> Result<(), BenchError> {
    match probe.run(from, SILENCE)? {
        Outcome::TimedOut => Ok(()),
        seen => Err(wrong(from, probe, "dropped", &seen)),
    }
}

fn wrong(from: &Pod, probe: Probe, wanted: &str, seen: &Outcome) -> BenchError {
    let (pod, Probe { protocol, to, port }) = (&from.plan().pod, probe);
    BenchError::Other(format!(
        "a probe fails: {pod} to {to}, {protocol} port {port}, shall be {wanted}, is: {seen}"
    ))
}
