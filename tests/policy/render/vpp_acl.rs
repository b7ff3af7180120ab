//! Interpreter of the commands of VPP's ACL plugin, after `src/plugins/acl` of VPP: the commands read words until one
//! that they do not know, lists are numbered by a pool that gives the number freed last, rules of the other family
//! do not match, the first rule that matches decides, no match drops, an interface without lists passes all, and
//! `permit+reflect` makes a session at the interface that lets the replies pass there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::render::Part;

use super::System;

/// State of the plugin.
#[derive(Default)]
pub(super) struct Plugin {
    pub(super) acls: Vec<Option<Acl>>,
    /// Free numbers; the last is given first.
    free: Vec<usize>,
    /// Lists at the input and at the output of interfaces.
    pub(super) interfaces: BTreeMap<String, [Vec<usize>; 2]>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Acl {
    pub(super) tag: String,
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    action: Action,
    source: IpNet,
    destination: IpNet,
    /// 0 matches every protocol.
    protocol: u8,
    ports: [(u16, u16); 2],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Deny,
    Permit,
    PermitAndReflect,
}

/// Packet by the fields that rules match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    ends: [IpAddr; 2],
    protocol: u8,
    ports: [u16; 2],
}

impl Packet {
    fn reply(self) -> Packet {
        let ([source, destination], [from, to]) = (self.ends, self.ports);
        Packet { ends: [destination, source], protocol: self.protocol, ports: [to, from] }
    }
}

/// Lists by what they hold: numbers do not show.
impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = |numbers: &Vec<usize>| -> Vec<Acl> {
            numbers.iter().map(|number| self.acls[*number].clone().expect("a list")).collect()
        };
        let interfaces =
            self.interfaces.iter().map(|(name, [input, output])| (name, content(input), content(output)));
        f.debug_list().entries(interfaces).finish()
    }
}

impl System for Plugin {
    fn load(&mut self, parts: &[Part]) {
        let [Part { file: "palisade.vpp-acl", text }] = parts else { panic!("{parts:?}") };
        text.lines().for_each(|line| self.run(line));
        self.interfaces.retain(|_, lists| lists.iter().any(|numbers| !numbers.is_empty()));
        let used: BTreeSet<usize> = self.interfaces.values().flatten().flatten().copied().collect();
        let made = (0..self.acls.len()).filter(|number| self.acls[*number].is_some());
        assert_eq!(made.collect::<BTreeSet<usize>>(), used, "lists that no interface has");
        let tags: BTreeSet<&String> = self.acls.iter().flatten().map(|acl| &acl.tag).collect();
        assert_eq!(tags.len(), used.len(), "two lists have one tag");
        for numbers in self.interfaces.values().flatten() {
            assert!(numbers.len() < 2, "{numbers:?}");
        }
    }

    fn passes(&self, flow: &FlowKey, [from, to]: [&str; 2]) -> bool {
        let has_ports = matches!(flow.protocol, Protocol::TCP | Protocol::UDP);
        let ports = if has_ports { [flow.src_port, flow.dst_port] } else { [0, 0] };
        let packet = Packet { ends: [flow.src, flow.dst], protocol: flow.protocol.0, ports };
        let mut sessions = BTreeSet::new();
        let passes = self.crosses(packet, [from, to], &mut sessions);
        if passes {
            assert!(self.crosses(packet.reply(), [to, from], &mut sessions), "replies of {flow}");
        }
        passes
    }
}

impl Plugin {
    /// Tests whether a packet passes the input of one interface and the output of another.
    fn crosses(
        &self,
        packet: Packet,
        [from, to]: [&str; 2],
        sessions: &mut BTreeSet<(String, Packet)>,
    ) -> bool {
        self.passes_lists(packet, from, 0, sessions) && self.passes_lists(packet, to, 1, sessions)
    }

    fn passes_lists(
        &self,
        packet: Packet,
        interface: &str,
        side: usize,
        sessions: &mut BTreeSet<(String, Packet)>,
    ) -> bool {
        let Some(numbers) = self.interfaces.get(interface).map(|lists| &lists[side]) else { return true };
        if numbers.is_empty() {
            return true;
        }
        let of = |packet| (interface.to_owned(), packet);
        if sessions.contains(&of(packet)) || sessions.contains(&of(packet.reply())) {
            return true;
        }
        let mut rules = numbers.iter().flat_map(|number| &self.acls[*number].as_ref().unwrap().rules);
        match rules.find(|rule| rule.matches(&packet)).map(|rule| rule.action) {
            None | Some(Action::Deny) => false,
            Some(Action::Permit) => true,
            Some(Action::PermitAndReflect) => {
                sessions.insert(of(packet));
                true
            }
        }
    }

    fn run(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["comment", "{", .., "}"] => assert_eq!(line.matches(['{', '}']).count(), 2, "{line}"),
            ["set", "acl-plugin", "acl", ..] => {
                let acl = acl(line.strip_prefix("set acl-plugin acl ").unwrap());
                match self.free.pop() {
                    Some(number) => self.acls[number] = Some(acl),
                    None => self.acls.push(Some(acl)),
                }
            }
            ["set", "acl-plugin", "interface", name, side, "acl", number, ref rest @ ..] => {
                let side = ["input", "output"].iter().position(|word| *word == side).unwrap();
                let number: usize = number.parse().unwrap();
                assert!(self.acls[number].is_some(), "{line}: there is no such list");
                let numbers = &mut self.interfaces.entry(name.to_owned()).or_default()[side];
                match rest {
                    [] => {
                        assert!(!numbers.contains(&number), "{line}: it is there");
                        numbers.push(number);
                    }
                    ["del"] => {
                        let place = numbers.iter().position(|other| *other == number);
                        numbers.remove(place.expect("the list is at the interface"));
                    }
                    _ => panic!("{line}"),
                }
            }
            ["delete", "acl-plugin", "acl", "index", number] => {
                let number: usize = number.parse().unwrap();
                let is_used = self.interfaces.values().flatten().flatten().any(|other| *other == number);
                assert!(!is_used, "{line}: an interface has it");
                assert!(self.acls[number].take().is_some(), "{line}");
                self.free.push(number);
            }
            _ => panic!("{line}"),
        }
    }
}

/// Rules that commas part, and a tag.
fn acl(text: &str) -> Acl {
    let text = text.replace(',', " , ");
    let mut words = text.split_whitespace();
    let (mut acl, mut rule) = (Acl { tag: "cli".to_owned(), rules: Vec::new() }, Draft::default());
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("a value");
        match word {
            "permit" => rule.action = Action::Permit,
            "permit+reflect" => rule.action = Action::PermitAndReflect,
            "deny" => rule.action = Action::Deny,
            "src" => rule.source = network(value()),
            "dst" => rule.destination = network(value()),
            "proto" => rule.protocol = value().parse().unwrap(),
            "sport" => rule.ports[0] = ports(value()),
            "dport" => rule.ports[1] = ports(value()),
            "tag" => value().clone_into(&mut acl.tag),
            "," => acl.rules.push(std::mem::take(&mut rule).finish()),
            _ => panic!("the command ends at {word}, and leaves out the rest"),
        }
    }
    acl.rules.push(rule.finish());
    assert!(acl.tag.len() < 64, "{}", acl.tag);
    acl
}

/// Rule in the making, as the command begins it.
struct Draft {
    action: Action,
    source: IpNet,
    destination: IpNet,
    protocol: u8,
    ports: [(u16, u16); 2],
}

impl Default for Draft {
    fn default() -> Draft {
        let all = network("0.0.0.0/0");
        Draft {
            action: Action::Permit,
            source: all,
            destination: all,
            protocol: 0,
            ports: [(0, u16::MAX); 2],
        }
    }
}

impl Draft {
    fn finish(self) -> Rule {
        let Draft { action, source, destination, protocol, ports } = self;
        assert_eq!(source.addr().is_ipv4(), destination.addr().is_ipv4(), "one family");
        // A rule without a protocol does not look at ports.
        assert!(protocol != 0 || ports == [(0, u16::MAX); 2]);
        Rule { action, source, destination, protocol, ports }
    }
}

/// Prefix as `unformat_ip46_address` reads it: without a dotted tail.
fn network(text: &str) -> IpNet {
    assert!(!(text.contains(':') && text.contains('.')), "{text}");
    let network: IpNet = text.parse().unwrap();
    // The plugin compares the masked address with that of the rule as it is.
    assert_eq!(network, network.trunc());
    network
}

fn ports(text: &str) -> (u16, u16) {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    (first.parse().unwrap(), last.parse().unwrap())
}

impl Rule {
    fn matches(&self, packet: &Packet) -> bool {
        let has_port = |side: usize| (self.ports[side].0..=self.ports[side].1).contains(&packet.ports[side]);
        self.source.contains(&packet.ends[0])
            && self.destination.contains(&packet.ends[1])
            && (self.protocol == 0 || self.protocol == packet.protocol && has_port(0) && has_port(1))
    }
}
