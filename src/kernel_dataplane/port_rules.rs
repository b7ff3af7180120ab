//! Rules about ports, in a table of their own: closed ports, and packets that no port of a switch takes or passes.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::net::IpAddr;

use ipnet::IpNet;

/// Table of the rules.
const TABLE: &str = "inet palisade-ports";
// Protocols are numbers, which `nft` needs no file for: 1 is ICMP, 58 ICMPv6.

/// `ICMPv6` types of neighbour discovery that a pod may send, and multicast listener reports (RFC 4861, RFC 2710, RFC 3810):
/// no advertisement of a router, no redirect.
const NEIGHBOR_DISCOVERY: &str = "{ 131, 132, 133, 135, 136, 143 }";

/// Ports by name of their interfaces, and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortRules {
    /// Interfaces of pods.
    pub(super) pods: BTreeSet<String>,
    /// Interfaces without a pod that may send or receive.
    pub(super) closed: BTreeSet<String>,
    /// Interfaces whose pods open no flow.
    pub(super) draining: BTreeSet<String>,
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
    /// Commands that replace the table.
    pub(super) fn whole(&self) -> String {
        format!("add table {TABLE}\ndelete table {TABLE}\n{}", self.since())
    }

    /// Commands that change the table, or make it.
    pub(super) fn since(&self) -> String {
        let mut text = format!("add table {TABLE}\n");
        // Writing to a string cannot fail.
        let all: BTreeSet<&String> = self.pods.iter().chain(&self.others).collect();
        let quoted = |names: &BTreeSet<String>| names.iter().map(|name| format!("\"{name}\"")).collect();
        let sets: [(&str, &str, Vec<String>); 4] = [
            ("pod-ports", "ifname", quoted(&self.pods)),
            ("closed-ports", "ifname", quoted(&self.closed)),
            ("draining-ports", "ifname", quoted(&self.draining)),
            ("ports", "ifname", all.into_iter().map(|name| format!("\"{name}\"")).collect()),
        ];
        for (name, kind, elements) in sets {
            let _ = writeln!(text, "add set {TABLE} {name} {{ type {kind}; }}\nflush set {TABLE} {name}");
            if !elements.is_empty() {
                let _ = writeln!(text, "add element {TABLE} {name} {{ {} }}", elements.join(", "));
            }
        }
        for (name, hook, rules) in self.chains() {
            let _ = writeln!(text, "add chain {TABLE} {name} {{ type filter hook {hook}; policy accept; }}");
            let _ = writeln!(text, "flush chain {TABLE} {name}");
            rules.iter().for_each(|rule| _ = writeln!(text, "add rule {TABLE} {name} {rule}"));
        }
        text
    }

    /// Chains with their hooks and rules.
    fn chains(&self) -> [(&'static str, &'static str, Vec<String>); 4] {
        let rule = |text: &str| text.to_owned();
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = self.gateways.iter().partition(|address| address.is_ipv4());
        let mut arriving = vec![
            rule("iifname @closed-ports drop"),
            // Sources of the link itself reach nothing but neighbour discovery: no policy knows them.
            rule("iifname @pod-ports ip6 saddr { ::, fe80::/10 } meta l4proto != 58 drop"),
            format!("iifname @pod-ports ip6 saddr {{ ::, fe80::/10 }} icmpv6 type != {NEIGHBOR_DISCOVERY} drop"),
            rule("iifname @pod-ports meta pkttype != host meta l4proto != 58 drop"),
            format!("iifname @pod-ports meta pkttype != host icmpv6 type != {NEIGHBOR_DISCOVERY} drop"),
        ];
        // A gateway answers echo requests, and has no services.
        if !v4.is_empty() {
            arriving.push(format!("iifname @pod-ports ip daddr {} meta l4proto != 1 drop", list(&v4)));
        }
        if !v6.is_empty() {
            arriving.push(format!("iifname @pod-ports ip6 daddr {} meta l4proto != 58 drop", list(&v6)));
        }
        let mut flows = vec![rule("iifname @draining-ports ct state new drop")];
        let mut leaving = vec![
            rule("oifname @closed-ports drop"),
            rule("oifname @draining-ports ct state new drop"),
        ];
        if !self.tcp_pickup {
            let middle = "ct state new tcp flags & (fin | syn | rst | ack) != syn drop";
            flows.push(format!("iifname @pod-ports {middle}"));
            leaving.push(format!("oifname @pod-ports {middle}"));
        }
        let mut between = Vec::new();
        if !self.through_node {
            between.push(rule("iifname @pod-ports oifname != @ports drop"));
            between.push(rule("oifname @pod-ports iifname != @ports drop"));
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
                    "iifname @ports {word} daddr {} oifname != @pod-ports drop",
                    list(&prefixes)
                ));
            }
        }
        [
            ("arriving", "prerouting priority -310", arriving),
            ("flows", "prerouting priority -150", flows),
            ("between", "forward priority -10", between),
            ("leaving", "postrouting priority 0", leaving),
        ]
    }
}

fn list(values: &[impl Display]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", values.join(", "))
}
