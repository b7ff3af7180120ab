//! Explanation of the verdicts on connections through a Service.

use std::fmt;

use serde::Serialize;

use super::explanation::Explanation;
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::services::ServiceBackends;
use crate::tables::Verdict;

/// Most backends whose verdicts the text explains. It counts the others.
const BACKENDS_SHOWN: usize = 16;
/// Most unused endpoints that the text lists.
const UNUSED_SHOWN: usize = 8;

/// Verdict on connections through a Service: each connection goes to one of the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceVerdict {
    /// Allowed to every backend.
    Allow,
    /// Denied to every backend, or there is none.
    Deny,
    /// Allowed to some backends and denied to others.
    Mixed,
}

impl ServiceVerdict {
    /// Sums up the verdicts on the flows to all backends.
    pub fn of(verdicts: impl IntoIterator<Item = Verdict>) -> ServiceVerdict {
        let (mut allows, mut denies) = (false, false);
        for verdict in verdicts {
            allows |= verdict == Verdict::Allow;
            denies |= verdict == Verdict::Deny;
        }
        match (allows, denies) {
            (true, false) => ServiceVerdict::Allow,
            (true, true) => ServiceVerdict::Mixed,
            (false, _) => ServiceVerdict::Deny,
        }
    }
}

impl fmt::Display for ServiceVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServiceVerdict::Allow => "allow",
            ServiceVerdict::Deny => "deny",
            ServiceVerdict::Mixed => "mixed",
        })
    }
}

/// Explanation of connections through a Service.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceExplanation {
    /// Service, `namespace/name`.
    pub service: String,
    /// Client.
    pub from: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Port of the Service.
    pub port: u16,
    /// Verdict on all connections.
    pub verdict: ServiceVerdict,
    /// Virtual addresses, and the endpoints that they stand for.
    #[serde(flatten)]
    pub backends: ServiceBackends,
    /// Verdict on the flow to each backend.
    pub flows: Vec<Explanation>,
}

impl ServiceExplanation {
    /// Explanation of the flows to the backends.
    pub fn new(
        [service, from]: [String; 2],
        protocol: Protocol,
        port: u16,
        backends: ServiceBackends,
        flows: Vec<Explanation>,
    ) -> ServiceExplanation {
        let verdict = ServiceVerdict::of(flows.iter().map(|flow| flow.verdict));
        ServiceExplanation { service, from, protocol, port, verdict, backends, flows }
    }

    /// Backend of a flow in words: `backend 10.0.0.2:8080 (shop/web-1)`.
    fn backend(flow: &FlowKey, owner: &str) -> String {
        let address = std::net::SocketAddr::new(flow.dst, flow.dst_port);
        format!("backend {address} ({owner})")
    }
}

impl fmt::Display for ServiceExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceExplanation { service, from, protocol, port, verdict, backends, flows } = self;
        write!(f, "{verdict}: {protocol} from {from} to service {service} port {port}")?;
        let addresses: Vec<String> = backends.addresses.iter().map(ToString::to_string).collect();
        if addresses.is_empty() {
            writeln!(f, " (no virtual address yet)")?;
        } else {
            writeln!(f, " ({})", addresses.join(", "))?;
        }
        let allowed = flows.iter().filter(|flow| flow.verdict == Verdict::Allow).count();
        match flows.len() {
            0 => writeln!(f, "  the Service has no backend for this client: connections are refused")?,
            1 => writeln!(f, "  every connection goes to the only backend; policy is asked about it")?,
            count => writeln!(
                f,
                "  each connection goes to one of {count} backends, policy is asked about that one: allowed to {allowed} of \
                 {count}"
            )?,
        }
        for flow in flows.iter().take(BACKENDS_SHOWN) {
            writeln!(f, "  {}", ServiceExplanation::backend(&flow.flow, &flow.to))?;
            flow.to_string().lines().try_for_each(|line| writeln!(f, "    {line}"))?;
        }
        if flows.len() > BACKENDS_SHOWN {
            writeln!(f, "  and {} more backends (all of them with -o json)", flows.len() - BACKENDS_SHOWN)?;
        }
        for unused in backends.unused.iter().take(UNUSED_SHOWN) {
            writeln!(f, "  {} takes no connection: {}", unused.address, unused.why)?;
        }
        if backends.unused.len() > UNUSED_SHOWN {
            let more = backends.unused.len() - UNUSED_SHOWN;
            writeln!(f, "  and {more} more endpoints that take none (with -o json)")?;
        }
        Ok(())
    }
}
