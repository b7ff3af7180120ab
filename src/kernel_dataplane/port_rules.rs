//! Rules about ports, in a table of their own: closed ports, and packets that no port of a switch takes or passes.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::net::IpAddr;

use ipnet::IpNet;

// Protocols are numbers, which `nft` needs no file for: 1 is ICMP, 58 ICMPv6.

/// `ICMPv6` types of neighbour discovery that a pod may send, and multicast listener reports (RFC 4861, RFC 2710, RFC 3810):
/// no advertisement of a router, no redirect.
const NEIGHBOR_DISCOVERY: &str = "{ 131, 132, 133, 135, 136, 143 }";

/// Counters of the packets of a port, by the interface that they come from, and `transmitted` by the one that they leave by.
pub(super) const COUNTED: [&str; 4] = ["received", "forwarded", "consumed", "transmitted"];
/// Reasons of drops that this table counts, by port. The names are those of the switch's counters.
pub(super) const DROPS: [&str; 5] = ["unknown-pod", "not-for-us", "multicast", "not-in-flow", "no-route"];

/// Ports by name of their interfaces, and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortRules {
    /// Interfaces of pods.
    pub(super) pods: BTreeSet<String>,
    /// Interfaces without a pod that may send or receive.
    pub(super) closed: BTreeSet<String>,
    /// Interfaces of other ports.
    pub(super) others: BTreeSet<String>,
    /// Addresses on which pods know the switch.
    pub(super) gateways: BTreeSet<IpAddr>,
    /// Prefixes of the addresses of this node's pods.
    pub(super) pod_prefixes: BTreeSet<IpNet>,
    /// Whether a route leads by way of the node's own stack, which may pass packets on by any interface.
    pub(super) through_node: bool,
    /// Whether a TCP connection may be picked up in its middle.
    pub(super) tcp_pickup: bool,
}

impl PortRules {
    /// Commands that make the table, or fill it anew, up to the chains at hooks.
    pub(super) fn below_hooks(&self, table: &str) -> String {
        let mut text = format!("add table {table}\n");
        let quoted = |names: &BTreeSet<String>| names.iter().map(|name| format!("\"{name}\"")).collect();
        let all = self.all();
        let sets: [(&str, Vec<String>); 3] = [
            ("pod-ports", quoted(&self.pods)),
            ("closed-ports", quoted(&self.closed)),
            ("ports", quoted(&all)),
        ];
        for (name, elements) in sets {
            fill(&mut text, "set", (table, name), "ifname", &elements);
        }
        for what in COUNTED.into_iter().chain(DROPS) {
            for port in &all {
                let _ = writeln!(text, "add counter {table} {what}/{port}");
            }
            let elements: Vec<String> =
                all.iter().map(|port| format!("\"{port}\" : \"{what}/{port}\"")).collect();
            fill(&mut text, "map", (table, what), "ifname : counter", &elements);
        }
        for reason in DROPS {
            let rules = [format!("counter name iifname map @{reason}"), "drop".to_owned()];
            chain(&mut text, (table, reason), "", &rules);
        }
        text
    }

    /// Commands that fill the chains at hooks.
    pub(super) fn hooks(&self, table: &str) -> String {
        let mut text = String::new();
        for (name, hook, rules) in self.chains() {
            let hook = format!(" {{ type filter hook {hook}; policy accept; }}");
            chain(&mut text, (table, name), &hook, &rules);
        }
        text
    }

    /// Commands that remove what the table has for earlier ports alone.
    pub(super) fn gone_since(&self, old: &PortRules, table: &str) -> String {
        let gone: Vec<String> = old.all().difference(&self.all()).cloned().collect();
        let counters = gone.iter().flat_map(|port| {
            COUNTED
                .into_iter()
                .chain(DROPS)
                .map(move |what| format!("delete counter {table} {what}/{port}\n"))
        });
        counters.collect()
    }

    /// Interfaces of all ports.
    fn all(&self) -> BTreeSet<String> {
        self.pods.union(&self.others).cloned().collect()
    }

    /// Chains with their hooks and rules.
    fn chains(&self) -> [(&'static str, &'static str, Vec<String>); 6] {
        let rule = |text: &str| text.to_owned();
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) =
            self.gateways.iter().partition(|address| address.is_ipv4());
        let neighbors = NEIGHBOR_DISCOVERY;
        let mut arriving = vec![
            rule("counter name iifname map @received"),
            // A pod that waits for its tables knows its gateway by then: ARP passes no rules, and neighbour discovery is let
            // through to the node.
            rule("iifname @closed-ports ip6 daddr { fe80::/10, ff02::/16 } icmpv6 type { 135, 136 } accept"),
            rule("iifname @closed-ports goto unknown-pod"),
            // Sources of the link itself reach nothing but neighbour discovery: no policy knows them.
            rule("iifname @pod-ports ip6 saddr { ::, fe80::/10 } meta l4proto != 58 goto not-for-us"),
            format!(
                "iifname @pod-ports ip6 saddr {{ ::, fe80::/10 }} icmpv6 type != {neighbors} goto not-for-us"
            ),
            rule("iifname @pod-ports meta pkttype != host meta l4proto != 58 goto multicast"),
            format!("iifname @pod-ports meta pkttype != host icmpv6 type != {neighbors} goto multicast"),
            // A frame to the gateway's Ethernet address may have a group as its IP destination.
            rule("iifname @pod-ports ip daddr { 224.0.0.0/4, 255.255.255.255 } goto multicast"),
            rule("iifname @pod-ports ip6 daddr ff00::/8 meta l4proto != 58 goto multicast"),
        ];
        // A gateway answers echo requests, and has no services.
        if !v4.is_empty() {
            arriving
                .push(format!("iifname @pod-ports ip daddr {} meta l4proto != 1 goto not-for-us", list(&v4)));
        }
        if !v6.is_empty() {
            arriving.push(format!(
                "iifname @pod-ports ip6 daddr {} meta l4proto != 58 goto not-for-us",
                list(&v6)
            ));
        }
        let mut flows = Vec::new();
        let mut between = vec![rule("oifname @closed-ports goto unknown-pod")];
        if !self.tcp_pickup {
            let middle = "ct state new tcp flags & (fin | syn | rst | ack) != syn goto not-in-flow";
            flows.push(format!("iifname @pod-ports {middle}"));
            between.push(format!("oifname @pod-ports {middle}"));
        }
        if !self.through_node {
            between.push(rule("iifname @pod-ports oifname != @ports goto no-route"));
            between.push(rule("oifname @pod-ports iifname != @ports goto no-route"));
        }
        let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) =
            self.pod_prefixes.iter().partition(|prefix| matches!(prefix, IpNet::V4(_)));
        for (word, prefixes) in [("ip", v4), ("ip6", v6)] {
            // Sets of intervals take no prefix within another.
            let prefixes = prefixes.iter().filter(|prefix| {
                !self.pod_prefixes.iter().any(|other| other != **prefix && other.contains(**prefix))
            });
            let prefixes: Vec<&&IpNet> = prefixes.collect();
            if !prefixes.is_empty() {
                between.push(format!(
                    "iifname @ports {word} daddr {} oifname != @pod-ports goto no-route",
                    list(&prefixes)
                ));
            }
        }
        let leaving = vec![
            rule("oifname @closed-ports icmpv6 type { 135, 136 } accept"),
            // Of the node itself: the others have met `between`.
            rule("oifname @closed-ports drop"),
            rule("counter name oifname map @transmitted"),
        ];
        [
            ("arriving", "prerouting priority -310", arriving),
            ("flows", "prerouting priority -150", flows),
            ("between", "forward priority -10", between),
            ("consumed", "input priority 10", vec![rule("counter name iifname map @consumed")]),
            ("forwarded", "forward priority 10", vec![rule("counter name iifname map @forwarded")]),
            ("leaving", "postrouting priority 0", leaving),
        ]
    }
}

/// Prints the commands that fill a set or a map anew.
fn fill(text: &mut String, kind: &str, (table, name): (&str, &str), types: &str, elements: &[String]) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "add {kind} {table} {name} {{ type {types}; }}\nflush {kind} {table} {name}");
    if !elements.is_empty() {
        let _ = writeln!(text, "add element {table} {name} {{ {} }}", elements.join(", "));
    }
}

/// Prints the commands that fill a chain anew.
fn chain(text: &mut String, (table, name): (&str, &str), hook: &str, rules: &[String]) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "add chain {table} {name}{hook}\nflush chain {table} {name}");
    rules.iter().for_each(|rule| _ = writeln!(text, "add rule {table} {name} {rule}"));
}

fn list(values: &[impl Display]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", values.join(", "))
}
