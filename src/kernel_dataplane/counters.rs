//! Counters of the kernel, by the names of the switch's own.

use std::collections::BTreeMap;

use super::nft::Nft;
use super::port_rules::{COUNTED, DROPS};
use super::table_names::is_ours;
use crate::dataplane::{DecisionCount, PortCounters};
use crate::tables::{RuleOrigin, Verdict};

/// Packets by decision.
pub(super) type Decisions = BTreeMap<(RuleOrigin, Verdict), u64>;

/// Counters of the tables by name: packets and bytes, summed over the address families.
#[derive(Debug, Default)]
pub(super) struct KernelCounters(BTreeMap<String, (u64, u64)>);

impl KernelCounters {
    /// Reads all counters of the tables of Palisade.
    pub(super) fn read(nft: &Nft) -> Result<KernelCounters, String> {
        let listed = nft.list(&["counters"])?;
        let mut counters: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let objects = listed["nftables"].as_array().into_iter().flatten().map(|object| &object["counter"]);
        for counter in objects {
            let [family, table, name] = ["family", "table", "name"].map(|key| counter[key].as_str());
            let (Some(family), Some(table), Some(name)) = (family, table, name) else { continue };
            if is_ours(family, table) {
                let sum = counters.entry(name.to_owned()).or_default();
                sum.0 += counter["packets"].as_u64().unwrap_or(0);
                sum.1 += counter["bytes"].as_u64().unwrap_or(0);
            }
        }
        Ok(KernelCounters(counters))
    }

    /// Counters of a port by the name of its interface.
    pub(super) fn of_port(&self, interface: &str) -> PortCounters {
        let get = |what: &str| self.0.get(&format!("{what}/{interface}")).copied().unwrap_or_default();
        let [received, forwarded, consumed, transmitted] = COUNTED.map(get);
        let mut drops = BTreeMap::new();
        let mut add = |reason: &str, packets: u64| {
            if packets > 0 {
                *drops.entry(reason.to_owned()).or_default() += packets;
            }
        };
        for reason in DROPS {
            add(if reason == "not-in-flow" { "invalid-state" } else { reason }, get(reason).0);
        }
        for reason in ["spoofed", "invalid-state", "policy-egress", "policy-ingress"] {
            add(reason, get(&format!("drop/{reason}")).0);
        }
        PortCounters {
            received: received.0,
            received_bytes: received.1,
            received_on_wire: received.0,
            forwarded: forwarded.0,
            consumed: consumed.0,
            drops,
            transmitted: transmitted.0,
            transmitted_bytes: transmitted.1,
            transmitted_on_wire: transmitted.0,
            ..PortCounters::default()
        }
    }

    /// Adds the packets of each decision to `sum`. `names` are those of their counters.
    pub(super) fn add_decisions(&self, names: &BTreeMap<String, (RuleOrigin, Verdict)>, sum: &mut Decisions) {
        for (name, decision) in names {
            if let Some((packets @ 1.., _)) = self.0.get(name) {
                *sum.entry(decision.clone()).or_default() += packets;
            }
        }
    }

    /// Leaves those that are not among `others`.
    pub(super) fn without(mut self, others: &KernelCounters) -> KernelCounters {
        self.0.retain(|name, _| !others.0.contains_key(name));
        self
    }
}

/// Counts as the control side shows them.
pub(super) fn shown(decisions: Decisions) -> Vec<DecisionCount> {
    let shown = decisions.into_iter();
    shown.map(|((origin, verdict), packets)| DecisionCount { verdict, origin, packets }).collect()
}
