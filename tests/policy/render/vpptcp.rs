//! Interpreter of VPP's session rules, after `session_lookup.c`, `session_rules_table.c` and `mma_template.c` of VPP: a
//! table is a tree. Lookup, insertion and removal descend by the lowest address and port of a rule into the first child
//! that matches, so that rules in the wrong order end up where they are not found. The local table of the namespace
//! from which a connection is made comes first; then the global table, by the end that accepts it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::render::Part;

use super::System;

/// Tables by namespace (empty for the global table), protocol and family.
#[derive(Default)]
pub(super) struct Sessions(BTreeMap<(String, bool, bool), Tree>);

/// Rule: match, mask and action. `None` is no action, as of the rule at the root.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    /// Remote and local prefix.
    networks: [IpNet; 2],
    /// Remote and local port; 0 for all.
    ports: [u16; 2],
    action: Option<i32>,
    children: Vec<usize>,
}

/// Remote and local address, remote and local port.
type Point = ([IpAddr; 2], [u16; 2]);

#[derive(Debug)]
struct Tree {
    /// The first is the root.
    rules: Vec<Option<Rule>>,
}

impl Rule {
    fn lowest(&self) -> Point {
        (self.networks.map(|network| network.network()), self.ports)
    }

    fn matches(&self, (addresses, ports): &Point) -> bool {
        (0..2).all(|end| {
            self.networks[end].contains(&addresses[end])
                && (self.ports[end] == 0 || self.ports[end] == ports[end])
        })
    }

    fn is_same(&self, other: &Rule) -> bool {
        (&self.networks, self.ports) == (&other.networks, other.ports)
    }

    /// Key of the order among children: the highest addresses, then ports.
    fn highest(&self) -> ([IpAddr; 2], [u16; 2]) {
        let port = |port| if port == 0 { u16::MAX } else { port };
        (self.networks.map(|network| network.broadcast()), self.ports.map(port))
    }
}

impl Tree {
    fn new(is_v4: bool) -> Tree {
        let all: IpNet = if is_v4 { "0.0.0.0/0" } else { "::/0" }.parse().unwrap();
        let root = Rule { networks: [all; 2], ports: [0; 2], action: None, children: Vec::new() };
        Tree { rules: vec![Some(root)] }
    }

    fn rule(&self, number: usize) -> &Rule {
        self.rules[number].as_ref().expect("a rule of the table")
    }

    /// Rule at which a lookup ends, if the one from which it starts matches.
    fn lookup(&self, point: &Point, from: usize) -> Option<usize> {
        let rule = self.rule(from);
        if !rule.matches(point) {
            return None;
        }
        Some(rule.children.iter().find_map(|child| self.lookup(point, *child)).unwrap_or(from))
    }

    fn add(&mut self, rule: &Rule) {
        let parent = self.lookup(&rule.lowest(), 0).expect("the root matches");
        if self.rule(parent).is_same(rule) {
            self.rules[parent].as_mut().unwrap().action = rule.action;
            return;
        }
        let is_there = self.rules.iter().flatten().any(|other| other.is_same(rule));
        assert!(!is_there, "{rule:?} is in the table, and a lookup does not find it");
        let number = self.rules.len();
        let (mut own, mut siblings, mut is_placed) = (Vec::new(), Vec::new(), false);
        for &child in &self.rule(parent).children {
            let is_below = rule.matches(&self.rule(child).lowest());
            if !is_placed && (is_below || rule.highest() < self.rule(child).highest()) {
                siblings.push(number);
                is_placed = true;
            }
            if is_below { own.push(child) } else { siblings.push(child) }
        }
        if !is_placed {
            siblings.push(number);
        }
        self.rules[parent].as_mut().unwrap().children = siblings;
        self.rules.push(Some(Rule { children: own, ..rule.clone() }));
    }

    /// Removes a rule below another. Its children take its place.
    fn remove(&mut self, rule: &Rule, from: usize) -> bool {
        if !self.rule(from).matches(&rule.lowest()) {
            return false;
        }
        for (place, child) in self.rule(from).children.clone().into_iter().enumerate() {
            if self.rule(child).is_same(rule) {
                let removed = self.rules[child].take().unwrap();
                let parent = self.rules[from].as_mut().unwrap();
                parent.children.splice(place..=place, removed.children);
                return true;
            }
            if self.remove(rule, child) {
                return true;
            }
        }
        false
    }

    /// Tests whether an action drops what a lookup finds.
    fn allows(&self, point: &Point) -> bool {
        let found = self.lookup(point, 0).expect("the root matches");
        match self.rule(found).action {
            // SESSION_RULES_TABLE_INVALID_INDEX and _ACTION_ALLOW; a listener decides.
            None | Some(-3) => true,
            Some(-2) => false,
            other => panic!("redirection to {other:?}"),
        }
    }
}

/// Rules in their order: places in the tree do not show.
impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.0.iter().flat_map(|(table, tree)| {
            let rules = tree.rules.iter().flatten().filter(|rule| rule.action.is_some());
            let mut rules: Vec<String> = rules
                .map(|rule| format!("{table:?} {:?} {:?} {:?}", rule.networks, rule.ports, rule.action))
                .collect();
            rules.sort();
            rules
        });
        f.debug_list().entries(rules).finish()
    }
}

impl System for Sessions {
    fn load(&mut self, parts: &[Part]) {
        let [Part { file: "palisade.vpptcp", text }] = parts else { panic!("{parts:?}") };
        text.lines().filter(|line| !line.starts_with("# ")).for_each(|line| self.run(line));
    }

    /// Ends are the namespaces of the pods, or empty.
    fn passes(&self, flow: &FlowKey, [from, _]: [&str; 2]) -> bool {
        if !self.is_exact(flow) {
            // The stack has no other transports.
            return false;
        }
        let (is_tcp, is_v4) = (flow.protocol == Protocol::TCP, flow.src.is_ipv4());
        let table = |namespace: &str| self.0.get(&(namespace.to_owned(), is_tcp, is_v4));
        let any: IpAddr = if is_v4 { "0.0.0.0" } else { "::" }.parse().unwrap();
        let connects = from.is_empty()
            || table(from).is_none_or(|tree| tree.allows(&([flow.dst, any], [flow.dst_port, 0])));
        let accepts =
            table("").is_none_or(|tree| tree.allows(&([flow.src, flow.dst], [flow.src_port, flow.dst_port])));
        connects && accepts
    }

    fn is_exact(&self, flow: &FlowKey) -> bool {
        matches!(flow.protocol, Protocol::TCP | Protocol::UDP)
    }
}

impl Sessions {
    fn run(&mut self, line: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || " /._:-".contains(c);
        assert!(line.chars().all(is_plain), "{line}: a shell reads it");
        let mut words = line.strip_prefix("vppctl session rule ").unwrap().split(' ');
        let (mut namespace, mut is_global, mut protocol) = (None, None, None);
        let (mut is_added, mut tuple, mut action) = (true, Vec::new(), None);
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("a value");
            match word {
                "add" => is_added = true,
                "del" => is_added = false,
                "appns" => namespace = Some(value().to_owned()),
                "scope" => is_global = Some(value() == "global"),
                "proto" => protocol = Some(value()),
                "action" => action = Some(value().parse::<i32>().unwrap()),
                local => tuple = [local, value(), value(), value()].map(str::to_owned).to_vec(),
            }
        }
        let [local, local_port, remote, remote_port] = &tuple[..] else { panic!("{line}") };
        let network = |text: &String| {
            assert!(!(text.contains(':') && text.contains('.')), "{text}");
            text.parse::<IpNet>().unwrap().trunc()
        };
        let (networks, ports) =
            ([network(remote), network(local)], [remote_port, local_port].map(|port| port.parse().unwrap()));
        let is_v4 = networks[0].addr().is_ipv4();
        assert_eq!(is_v4, networks[1].addr().is_ipv4());
        let rule = Rule { networks, ports, action, children: Vec::new() };
        if is_global == Some(false) {
            // VPP clears the local end.
            assert!(rule.networks[1].prefix_len() == 0 && rule.ports[1] == 0, "{line}");
            assert!(namespace.is_some(), "{line}: applications have namespaces of their own");
        }
        // VPP itself keeps redirections to a proxy there.
        assert!(rule.networks[0].prefix_len() > 0, "{line}");
        assert!(is_global == Some(namespace.is_none()) && is_added == action.is_some(), "{line}");
        let is_tcp = protocol.unwrap() == "tcp";
        assert!(is_tcp || protocol == Some("udp"), "{line}");
        let tree =
            self.0.entry((namespace.unwrap_or_default(), is_tcp, is_v4)).or_insert_with(|| Tree::new(is_v4));
        if is_added {
            tree.add(&rule);
        } else {
            assert!(tree.remove(&rule, 0), "{line}: there is no such rule");
        }
    }
}
