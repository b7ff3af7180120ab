//! nftables: one input of `nft -f`, which the kernel takes as one transaction, or one for each step of a load.
//!
//! Two tables of its own, `ip palisade` and `ip6 palisade`, drop what policy denies, and leave everything else to the
//! other tables. A verdict map leads from the address of a pod to the chain of its rule list: first that of the
//! source's egress, then that of the destination's ingress. In these chains `return` allows.

mod collection;
mod since;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use super::plan::{AclPlan, Family, Peers, Plan, PlanRule, Span, comment};
use crate::net::flow::Protocol;
use crate::render::output::{Part, RenderError, RenderOptions};
use crate::render::rendering::{ClusterState, Rendering, plans};
use crate::tables::{Direction, Verdict};
use collection::{Collection, Key};
use steps::Steps;

/// Reasons of drops, by the names of the switch's counters.
const SPOOFED: &str = "spoofed";
const INVALID_STATE: &str = "invalid-state";
const POLICY_EGRESS: &str = "policy-egress";
const POLICY_INGRESS: &str = "policy-ingress";
/// Both tables.
pub(super) struct Ruleset {
    tables: [Table; 2],
}

/// Table of one family.
struct Table {
    name: &'static str,
    family: Family,
    /// Whether the rules judge every packet, by its flow, and count decisions.
    every_packet: bool,
    /// Counters of decisions.
    counters: BTreeSet<String>,
    /// Sets and maps.
    collections: BTreeMap<String, Collection>,
    chains: BTreeMap<String, Chain>,
}

/// Chain.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    note: String,
    /// Declaration of the hook.
    hook: Option<&'static str>,
    rules: Vec<String>,
}

impl Rendering for Ruleset {
    fn new(state: ClusterState, options: &RenderOptions) -> Result<Ruleset, RenderError> {
        let [v4, v6] = plans(state.tables, options);
        Ok(Ruleset { tables: [Table::new(&v4, Family::V4, options), Table::new(&v6, Family::V6, options)] })
    }

    /// Input that replaces both tables.
    fn parts(&self) -> Vec<Part> {
        let mut steps = Steps::default();
        self.tables.iter().for_each(|table| table.print(&mut steps));
        steps.parts("One transaction replaces the tables.", self.every_packet())
    }

    fn parts_since(&self, old: &Ruleset) -> Vec<Part> {
        self.steps_since(old)
    }
}

impl Ruleset {
    fn every_packet(&self) -> bool {
        self.tables.iter().any(|table| table.every_packet)
    }
}

impl Table {
    fn new(plan: &Plan, family: Family, options: &RenderOptions) -> Table {
        let mut table = Table {
            name: options.table,
            family,
            every_packet: options.every_packet,
            counters: BTreeSet::new(),
            collections: BTreeMap::new(),
            chains: BTreeMap::new(),
        };
        if plan.endpoints.is_empty() {
            return table;
        }
        let address = table.address_type();
        for (name, set) in &plan.sets {
            let declaration = format!("type {address}; flags interval");
            let mut collection = Collection::set(&set.title, declaration);
            collection.extend(collection::ranges(&set.addresses));
            table.collections.insert(name.clone(), collection);
        }
        for (name, list) in &plan.acls {
            let chain = table.list_chain(list);
            table.chains.insert(name.clone(), chain);
        }
        table.add_dispatch(plan);
        table.add_guard(plan, options);
        table.add_drop_chains(options);
        table
    }

    /// Name with the family.
    fn full_name(&self) -> String {
        format!("{} {}", self.word(), self.name)
    }

    /// Word of the family in rules, and in the names of its tables.
    fn word(&self) -> &'static str {
        match self.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    fn address_type(&self) -> &'static str {
        match self.family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        }
    }

    /// Address of a flow's originator in rules. Of every packet of the flow, it is the one before translation.
    fn source(&self) -> String {
        let direction = if self.every_packet { "ct original " } else { "" };
        format!("{direction}{} saddr", self.word())
    }

    /// Address of a flow's responder. Of every packet of the flow, it is the one after translation: that which
    /// replies come from.
    fn destination(&self) -> String {
        let word = self.word();
        if self.every_packet { format!("ct reply {word} saddr") } else { format!("{word} daddr") }
    }

    fn list_chain(&mut self, list: &AclPlan) -> Chain {
        let side = match list.direction {
            Direction::Ingress => self.source(),
            Direction::Egress => self.destination(),
        };
        let mut rules = vec![format!("ct state invalid {}", self.drop_for(INVALID_STATE))];
        let denied = match list.direction {
            Direction::Ingress => POLICY_INGRESS,
            Direction::Egress => POLICY_EGRESS,
        };
        list.rules.iter().for_each(|rule| self.push_rules(rule, &side, denied, &mut rules));
        self.push_verdict("", (list.last, denied), &list.title, &list.counter, &mut rules);
        Chain { note: String::new(), hook: None, rules }
    }

    fn push_rules(&mut self, rule: &PlanRule, side: &str, denied: &'static str, rules: &mut Vec<String>) {
        let verdict = (rule.verdict, denied);
        let peers = match &rule.peers {
            Peers::Anyone => String::new(),
            Peers::In(set) => format!("{side} @{set} "),
            Peers::NotIn(set) => format!("{side} != @{set} "),
            Peers::Hosts(hosts) => format!("{side} {} ", one_of(hosts.iter().map(IpAddr::to_string))),
        };
        let Some(services) = &rule.services else {
            return self.push_verdict(&peers, verdict, &rule.title, &rule.counter, rules);
        };
        for (protocol, name) in [(Protocol::TCP, "tcp"), (Protocol::UDP, "udp"), (Protocol::SCTP, "sctp")] {
            let spans: Vec<&Span> = services.iter().filter(|span| span.0 == protocol).collect();
            let ports = one_of(spans.iter().map(|&&(_, first, last)| ports(first, last)));
            let service = match (&spans[..], self.every_packet) {
                ([], _) => continue,
                ([(_, 0, u16::MAX)], false) => format!("meta l4proto {name} "),
                ([(_, 0, u16::MAX)], true) => format!("ct original protocol {} ", protocol.0),
                (_, false) => format!("{name} dport {ports} "),
                (_, true) => format!("ct original protocol {} ct reply proto-src {ports} ", protocol.0),
            };
            self.push_verdict(&(peers.clone() + &service), verdict, &rule.title, &rule.counter, rules);
        }
    }

    /// Adds the rule of a decision. Counts the packets of flows without a reply that it allows, and all that it denies.
    fn push_verdict(
        &mut self,
        matches: &str,
        (verdict, denied): (Verdict, &'static str),
        title: &str,
        counter: &str,
        rules: &mut Vec<String>,
    ) {
        let action = match verdict {
            Verdict::Allow => "return".to_owned(),
            Verdict::Deny => self.drop_for(denied),
        };
        let title = comment(title);
        let mut count = String::new();
        if self.every_packet {
            self.counters.insert(counter.to_owned());
            match verdict {
                Verdict::Allow => {
                    rules.push(format!("{matches}ct state new counter name \"{counter}\" {action}"));
                }
                Verdict::Deny => count = format!("counter name \"{counter}\" "),
            }
        }
        rules.push(format!("{matches}{count}{action} comment \"{title}\""));
    }

    /// Adds the verdict maps and the chains at the hooks.
    fn add_dispatch(&mut self, plan: &Plan) {
        let (word, address) = (self.word(), self.address_type());
        let mut own = Collection::set("Packets of a pod to itself", format!("type {address} . {address}"));
        let mut nodes =
            Collection::set("Packets of a node to its pods", format!("type {address} . {address}"));
        let mut from = Collection::map("Rule lists of sources", format!("type {address} : verdict"));
        let mut to = Collection::map("Rule lists of destinations", format!("type {address} : verdict"));
        for (&address, endpoint) in &plan.endpoints {
            own.extend(endpoint.own.iter().map(|&other| Key::Pair(address, other)));
            nodes.extend(endpoint.nodes.iter().map(|&node| Key::Pair(node, address)));
            for (map, lists) in [(&mut from, &endpoint.egress), (&mut to, &endpoint.ingress)] {
                let chain = match &lists[..] {
                    [] => continue,
                    [only] => only.clone(),
                    several => self.add_shared(several),
                };
                map.put(Key::Range(address, address), format!("jump {chain}"));
            }
        }
        self.collections.extend([
            ("own".to_owned(), own),
            ("from-pods".to_owned(), from),
            ("to-pods".to_owned(), to),
        ]);
        let (source, destination) = (self.source(), self.destination());
        let from_pods = format!("{source} vmap @from-pods");
        // Without a flow, a packet has neither an original direction nor a verdict.
        let without_flow = |sides: &[&str]| -> Vec<String> {
            let drop = self.drop_for(INVALID_STATE);
            sides
                .iter()
                .map(|side| format!("ct state invalid,untracked {word} {side} @pods {drop}"))
                .collect()
        };
        let mut input = Vec::new();
        if self.family == Family::V6 {
            input
                .push(format!("icmpv6 type {} accept", one_of(NEIGHBOR_DISCOVERY.iter().map(u8::to_string))));
        }
        let mut forward = Vec::new();
        if self.every_packet {
            forward.extend(without_flow(&["saddr", "daddr"]));
            input.extend(without_flow(&["saddr"]));
            let mut pods = Collection::set("Addresses of pods", format!("type {address}"));
            pods.extend(plan.endpoints.keys().map(|&address| Key::Range(address, address)));
            self.collections.insert("pods".to_owned(), pods);
            let replies = vec![format!("ct direction reply {from_pods}")];
            self.add_hook(
                "output",
                "Replies of the node to pods",
                "type filter hook output priority filter; policy accept;",
                replies,
            );
        } else {
            for chain in [&mut forward, &mut input] {
                chain.insert(0, "ct state established,related accept".to_owned());
            }
        }
        input.push(from_pods.clone());
        forward.extend([format!("{source} . {destination} @own accept"), from_pods]);
        if !nodes.is_empty() {
            forward.push(format!("{source} . {destination} @own-node accept"));
            self.collections.insert("own-node".to_owned(), nodes);
        }
        forward.push(format!("{destination} vmap @to-pods"));
        self.add_hook(
            "forward",
            "Packets between pods and others",
            "type filter hook forward priority filter; policy accept;",
            forward,
        );
        self.add_hook(
            "input",
            "Packets to the node: egress of pods",
            "type filter hook input priority filter; policy accept;",
            input,
        );
    }

    fn add_hook(&mut self, name: &str, note: &str, hook: &'static str, rules: Vec<String>) {
        self.chains.insert(name.to_owned(), Chain { note: note.to_owned(), hook: Some(hook), rules });
    }

    /// Adds a chain for an address of several pods: each of their lists may deny. Returns its name.
    fn add_shared(&mut self, lists: &[String]) -> String {
        let name = format!("shared/{}", super::plan::digest(&lists.join(" ")));
        let rules = lists.iter().map(|list| format!("jump {list}")).collect();
        let note = "Several pods claim the address".to_owned();
        self.chains.insert(name.clone(), Chain { note, hook: None, rules });
        name
    }

    /// Adds the guard against forged addresses. No packet that comes by an interface and goes on is the node's own, which reach
    /// its pods whatever policy says: the kernel drops such sources itself over IPv4 alone. Copies of the node's own multicast
    /// come by an interface too, and stay. A named interface carries the addresses of
    /// its pod alone; any other pod's address is dropped on interfaces that the node's routes to it do not name.
    fn add_guard(&mut self, plan: &Plan, options: &RenderOptions) {
        let (word, address_type) = (self.word(), self.address_type());
        let mut routed =
            Collection::set("Addresses of pods without a named interface", format!("type {address_type}"));
        let mut bound = Collection::set("Addresses of pods with one", format!("type {address_type}"));
        let mut bindings = Collection::set(
            "Interfaces of these pods with addresses",
            format!("type ifname . {address_type}"),
        );
        let mut interfaces = Collection::set("Interfaces of these pods", "type ifname".to_owned());
        for (&address, endpoint) in &plan.endpoints {
            let named: Vec<&String> =
                endpoint.pods.iter().filter_map(|pod| options.interfaces.get(pod)).collect();
            if named.len() < endpoint.pods.len() {
                routed.extend([Key::Range(address, address)]);
            } else {
                bound.extend([Key::Range(address, address)]);
            }
            bindings.extend(named.iter().map(|name| Key::Binding((*name).clone(), address)));
        }
        let chosen = options.interfaces.iter().filter(|(pod, _)| options.is_chosen(pod));
        interfaces.extend(chosen.map(|(_, name)| Key::Interface(name.clone())));
        // Neighbour discovery has link-local sources and none (RFC 4861, section 4.3).
        let except = if self.family == Family::V6 { "ip6 saddr != { ::, fe80::/10 } " } else { "" };
        let drop = self.drop_for(SPOOFED);
        let mut rules = vec![format!("iifname != \"lo\" fib saddr type local fib daddr type unicast {drop}")];
        if !interfaces.is_empty() {
            let is_foreign = format!("iifname . {word} saddr != @pod-bindings {drop}");
            rules.push(format!("iifname @pod-interfaces {except}{is_foreign}"));
            rules.push(format!("{word} saddr @bound-pods {is_foreign}"));
            let named = [("pod-interfaces", interfaces), ("pod-bindings", bindings), ("bound-pods", bound)];
            self.collections.extend(named.map(|(name, set)| (name.to_owned(), set)));
        }
        if !routed.is_empty() {
            rules.push(format!("{word} saddr @routed-pods fib saddr . iif oif missing drop"));
            self.collections.insert("routed-pods".to_owned(), routed);
        }
        let hook = "type filter hook prerouting priority raw; policy accept;";
        self.add_hook("guard", "Forged addresses", hook, rules);
    }

    /// Verdict that drops a packet. Drops of a dataplane are counted by reason and interface.
    fn drop_for(&self, reason: &'static str) -> String {
        if self.every_packet { format!("goto drop/{reason}") } else { "drop".to_owned() }
    }

    /// Adds a chain for each reason of a drop, with a counter for each named interface.
    fn add_drop_chains(&mut self, options: &RenderOptions) {
        if !self.every_packet {
            return;
        }
        for reason in [SPOOFED, INVALID_STATE, POLICY_EGRESS, POLICY_INGRESS] {
            let note = format!("Counters of drops: {reason}");
            let mut counters = Collection::map(&note, "type ifname : counter".to_owned());
            for interface in options.interfaces.values() {
                let counter = format!("drop/{reason}/{interface}");
                counters.put(Key::Interface(interface.clone()), format!("\"{counter}\""));
                self.counters.insert(counter);
            }
            // Packets of other interfaces break off the first rule.
            let rules = vec![format!("counter name iifname map @drop/{reason}"), "drop".to_owned()];
            self.collections.insert(format!("drop/{reason}"), counters);
            let note = format!("Drops: {reason}");
            self.chains.insert(format!("drop/{reason}"), Chain { note, hook: None, rules });
        }
    }

    /// Prints the commands that replace the table. In steps, the chains at hooks come later than what they lead to.
    fn print(&self, steps: &mut Steps) {
        let name = self.full_name();
        // Writing to a string cannot fail.
        let _ = writeln!(steps.added, "\nadd table {name}\ndelete table {name}");
        if self.chains.is_empty() {
            return;
        }
        let _ = writeln!(steps.added, "table {name} {{");
        for counter in &self.counters {
            let _ = writeln!(steps.added, "\tcounter {counter} {{ }}");
        }
        for (name, collection) in &self.collections {
            collection.print(name, &mut steps.added);
        }
        let (hooks, others): (Vec<_>, Vec<_>) =
            self.chains.iter().partition(|(_, chain)| self.every_packet && chain.hook.is_some());
        others.iter().for_each(|(name, chain)| chain.print(name, &mut steps.added));
        steps.added.push_str("}\n");
        if !hooks.is_empty() {
            let _ = writeln!(steps.changed, "table {name} {{");
            hooks.iter().for_each(|(name, chain)| chain.print(name, &mut steps.changed));
            steps.changed.push_str("}\n");
        }
    }
}

impl Chain {
    fn print(&self, name: &str, text: &mut String) {
        let note = if self.note.is_empty() { String::new() } else { format!("\t# {}\n", self.note) };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{note}\tchain {name} {{");
        let lines = self.hook.into_iter().chain(self.rules.iter().map(String::as_str));
        lines.for_each(|line| _ = writeln!(text, "\t\t{line}"));
        text.push_str("\t}\n");
    }
}

/// `ICMPv6` types of neighbour discovery (RFC 4861) and multicast listeners (RFC 2710, RFC 3810).
const NEIGHBOR_DISCOVERY: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];

fn ports(first: u16, last: u16) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Expression for one value of a list.
fn one_of(values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    match &values[..] {
        [only] => only.clone(),
        _ => format!("{{ {} }}", values.join(", ")),
    }
}
