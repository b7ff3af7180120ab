//! Policy of all systems, in one description that each renders in its own terms.
//!
//! Receiving pods are isolated for ingress. A rule allows one block of addresses on one port or range of
//! ports. The last two rules allow the client on UDP and on TCP, for the measured traffic. Rules with the
//! same ports form a [`RuleGroup`], like the peers of one `from`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use ipnet::Ipv4Net;
use palisade::net::flow::Protocol;
use serde_json::{Value, json};

use super::random::Random;

/// Ports that the client is allowed on.
pub(crate) const OPEN_PORTS: RangeInclusive<u16> = 5000..=5999;
/// Port that nobody is allowed on.
pub(crate) const CLOSED_PORT: u16 = 7000;
/// Port that changes of the policy open to the client, and close again.
pub(crate) const CHANGED_PORT: u16 = 6500;
/// Largest number of groups besides those of the client.
const GROUPS_MAX: usize = 62;
/// Prefix of all blocks, which are parts of distinct /24 there. No pod is in it.
const BLOCKS: u32 = 0x1400_0000;
/// Number of these /24: a power of two.
const SLOTS: u32 = 1 << 17;

/// Size and seed of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PolicySpec {
    /// Rules for each receiving pod.
    pub(crate) rules: usize,
    /// Pods, with the client and the outsider.
    pub(crate) pods: usize,
    /// Seed of blocks and ports.
    pub(crate) seed: u64,
}

/// Ports of one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ports {
    pub(crate) protocol: Protocol,
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// Blocks that are allowed on the same ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleGroup {
    pub(crate) ports: Ports,
    pub(crate) blocks: Vec<Ipv4Net>,
}

impl PolicySpec {
    /// Returns the groups. The last two are those of the client.
    pub(crate) fn rule_groups(&self, client: Ipv4Addr) -> Vec<RuleGroup> {
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let strangers = self.rules.saturating_sub(2);
        assert!(strangers <= SLOTS as usize, "a policy has at most {} rules, not {}", SLOTS + 2, self.rules);
        let mut by_ports: BTreeMap<Ports, Vec<Ipv4Net>> = BTreeMap::new();
        let ports: Vec<Ports> = (0..strangers.min(GROUPS_MAX)).map(|_| Ports::any(&mut random)).collect();
        for rule in 0..strangers {
            // The factor is odd, so distinct numbers stay distinct.
            let slot = (rule as u32).wrapping_mul(0x9e37_79b1) % SLOTS;
            let length = 24 + random.below(9) as u8;
            let address = BLOCKS | slot << 8 | random.below(256) as u32;
            let block = Ipv4Net::new_assert(Ipv4Addr::from_bits(address), length).trunc();
            by_ports.entry(ports[rule % ports.len()]).or_default().push(block);
        }
        let rule_groups = by_ports.into_iter().map(|(ports, blocks)| RuleGroup { ports, blocks });
        let client = [Protocol::UDP, Protocol::TCP].map(|protocol| RuleGroup {
            ports: Ports { protocol, first: *OPEN_PORTS.start(), last: *OPEN_PORTS.end() },
            blocks: vec![client.into()],
        });
        rule_groups.chain(client).collect()
    }

    /// Returns the group that allows the client on [`CHANGED_PORT`].
    pub(crate) fn change(client: Ipv4Addr) -> RuleGroup {
        let ports = Ports { protocol: Protocol::UDP, first: CHANGED_PORT, last: CHANGED_PORT };
        RuleGroup { ports, blocks: vec![client.into()] }
    }

    /// Renders the policy as a Kubernetes `NetworkPolicy` for pods with the label `role: receiver`.
    pub(crate) fn network_policy(&self, client: Ipv4Addr) -> String {
        policy("receivers", &self.rule_groups(client))
    }

    /// Renders the same rules as policies none of which is longer than an object may be.
    #[allow(dead_code)] // Not every benchmark has so many rules.
    pub(crate) fn network_policies(&self, client: Ipv4Addr) -> String {
        const GROUPS_OF_ONE: usize = 4000;
        let groups = self.rule_groups(client);
        let policies = groups.chunks(GROUPS_OF_ONE).enumerate();
        let policies = policies.map(|(number, groups)| policy(&format!("receivers-{number}"), groups));
        policies.collect::<Vec<_>>().join("---\n")
    }

    /// Renders the policy of [`CHANGED_PORT`] alone.
    pub(crate) fn changed_policy(client: Ipv4Addr) -> String {
        policy("changed", &[PolicySpec::change(client)])
    }

    /// Renders the policy of [`CHANGED_PORT`] with an address of no pod (TEST-NET-1 of RFC 5737) in place of the client.
    pub(crate) fn closed_policy() -> String {
        PolicySpec::changed_policy(Ipv4Addr::new(192, 0, 2, 1))
    }
}

fn policy(name: &str, rule_groups: &[RuleGroup]) -> String {
    let ingress: Vec<Value> = rule_groups.iter().map(RuleGroup::to_ingress_rule).collect();
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "podSelector": {"matchLabels": {"role": "receiver"}},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    });
    format!("{policy}\n")
}

impl Ports {
    /// Draws one port, or a range of up to a thousand.
    fn any(random: &mut Random) -> Ports {
        let protocol = [Protocol::TCP, Protocol::TCP, Protocol::UDP][random.below(3) as usize];
        let first = random.below(65_536) as u16;
        let more = if random.below(3) == 0 { random.below(1000) as u16 } else { 0 };
        Ports { protocol, first, last: first.saturating_add(more) }
    }

    /// Returns `tcp` or `udp`.
    pub(crate) fn protocol_name(self) -> &'static str {
        if self.protocol == Protocol::TCP { "tcp" } else { "udp" }
    }

    /// Returns the fewest prefixes that cover the range: value and length.
    pub(crate) fn prefixes(self) -> Vec<(u16, u8)> {
        let (mut next, end) = (u32::from(self.first), u32::from(self.last) + 1);
        let mut prefixes = vec![];
        while next < end {
            let aligned = next.trailing_zeros().min(16);
            let fits = (end - next).ilog2();
            let bits = aligned.min(fits);
            prefixes.push((next as u16, 16 - bits as u8));
            next += 1 << bits;
        }
        prefixes
    }
}

impl RuleGroup {
    fn to_ingress_rule(&self) -> Value {
        let from: Vec<Value> =
            self.blocks.iter().map(|block| json!({"ipBlock": {"cidr": block.to_string()}})).collect();
        let mut port = json!({
            "protocol": self.ports.protocol_name().to_uppercase(),
            "port": self.ports.first,
        });
        if self.ports.last > self.ports.first {
            port["endPort"] = self.ports.last.into();
        }
        json!({"from": from, "ports": [port]})
    }
}
