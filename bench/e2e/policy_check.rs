//! Verification that a system enforces the policy, before its measurement: allowed traffic passes with its
//! replies, denied traffic does not.

use std::time::Duration;

use palisade::lab::Pod;
use palisade::lab::traffic::{Outcome, Probe, Server, Services};
use palisade::net::flow::Protocol;

use crate::common::policy::{CLOSED_PORT, OPEN_PORTS};
use crate::error::BenchError;
use crate::rig::Rig;
use crate::system::Kind;

/// Longest wait for an expected answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// Attempts of an allowed probe. The first packets may wait for address resolution.
const TRIES: usize = 10;
/// Wait that proves silence: many times the latency of an answer.
const SILENCE: Duration = Duration::from_millis(200);

/// Sends probes between the pods. Fails with the first one that has the wrong outcome.
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
        seen = probe.run(from, ANSWER_TIMEOUT)?;
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
