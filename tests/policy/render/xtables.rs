//! Interpreter of the inputs of ipset(8) `restore` and of iptables-restore(8) with `--noflush`, after
//! iptables-extensions(8). It knows the matches that are printed, and refuses every other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_source};
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderOptions, render};
use palisade::tables::PodName;

use super::System;

/// Sets, and chains of both families.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Xtables {
    sets: BTreeMap<String, IpSet>,
    v4: Tables,
    v6: Tables,
}

/// Entries of a `hash:net` set, with `nomatch` as false.
#[derive(Debug, PartialEq)]
struct IpSet {
    family: String,
    entries: BTreeMap<IpNet, bool>,
}

/// Chains by table and name.
type Tables = BTreeMap<(String, String), Vec<Rule>>;

#[derive(Debug, PartialEq)]
struct Rule {
    matches: Vec<(bool, Match)>,
    target: Target,
    comment: Option<String>,
}

#[derive(Debug, PartialEq)]
enum Match {
    Source(IpNet),
    Destination(IpNet),
    In(String),
    Out(String),
    Protocol(Protocol),
    Ports(Vec<(u16, u16)>),
    State(String),
    Set { name: String, is_source: bool },
    Mark { value: u32, mask: u32 },
    Icmp6Type,
    ReversePath,
    LocalSource,
}

#[derive(Debug, PartialEq)]
enum Target {
    Drop,
    Return,
    SetMark { value: u32, mask: u32 },
    Jump(String),
    Goto(String),
}

/// Packet on its way.
struct Packet<'a> {
    flow: &'a FlowKey,
    interfaces: [&'a str; 2],
    mark: u32,
    /// Whether the node's routes to the source name another interface.
    is_forged: bool,
}

/// Result of a chain.
#[derive(Debug, PartialEq)]
enum End {
    Dropped,
    Returned,
}

impl System for Xtables {
    /// Runs the files in the order of their comments.
    fn load(&mut self, parts: &[Part]) {
        parts.iter().for_each(|part| self.run_file(part.file, &part.text));
    }

    /// Runs the chain for forwarded packets.
    fn passes(&self, flow: &FlowKey, interfaces: [&str; 2]) -> bool {
        let chains = if flow.src.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut packet = Packet { flow, interfaces, mark: 0x4000, is_forged: false };
        let end = self.run(chains, ["filter", "palisade-forward"], &mut packet);
        assert_eq!(packet.mark & !0x1_0000, 0x4000, "the mark of others changes");
        end == End::Returned
    }

    fn passes_bindings(&self, flow: &FlowKey, interfaces: [&str; 2]) -> Option<bool> {
        Some(self.passes_guard(flow, interfaces, false) && self.passes(flow, interfaces))
    }
}

impl Xtables {
    fn passes_guard(&self, flow: &FlowKey, interfaces: [&str; 2], is_forged: bool) -> bool {
        let chains = if flow.src.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut packet = Packet { flow, interfaces, mark: 0, is_forged };
        self.run(chains, ["raw", "palisade-guard"], &mut packet) == End::Returned
    }

    /// Tests whether the guard and the chain for forwarded packets let a packet pass with a forged source.
    pub(super) fn passes_forged(&self, flow: &FlowKey, interfaces: [&str; 2]) -> bool {
        self.passes_guard(flow, interfaces, true) && self.passes(flow, interfaces)
    }

    /// Runs one file, or a part of it that changes at once.
    pub(super) fn run_file(&mut self, file: &str, text: &str) {
        match file {
            "palisade.ipset" | "palisade.ipset-final" => {
                text.lines().for_each(|line| self.ipset(line));
            }
            "palisade.iptables" | "palisade.iptables-final" => restore(&mut self.v4, text),
            "palisade.ip6tables" | "palisade.ip6tables-final" => restore(&mut self.v6, text),
            "palisade.unused" => self.remove_unused(text),
            other => panic!("{other}"),
        }
        for (chains, family) in [(&self.v4, "inet"), (&self.v6, "inet6")] {
            check(chains, &self.sets, family);
        }
    }

    /// Runs the script that removes all but the names that it lists.
    fn remove_unused(&mut self, script: &str) {
        let (_, rest) = script.split_once("<<'KEPT'\n").unwrap();
        let (kept, _) = rest.split_once("KEPT\n").unwrap();
        let kept: Vec<&str> = kept.lines().collect();
        for (program, chains) in [("iptables", &mut self.v4), ("ip6tables", &mut self.v6)] {
            chains.retain(|(table, name), _| kept.contains(&format!("{program} {table} {name}").as_str()));
        }
        // A set that a rule matches is found missing by the check of names.
        self.sets.retain(|name, _| kept.contains(&format!("set {name}").as_str()));
    }

    fn ipset(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [""] | ["#", ..] => {}
            ["create", name, "hash:net", "family", family, "maxelem", _] => {
                // With -exist an equal set is no error.
                let new = || IpSet { family: family.to_owned(), entries: BTreeMap::new() };
                let set = self.sets.entry(name.to_owned()).or_insert_with(new);
                assert!(name.len() <= 31 && set.family == family, "{line}");
            }
            ["flush", name] => self.sets.get_mut(name).unwrap().entries.clear(),
            ["add", name, entry, ref option @ ..] => {
                assert!(option.is_empty() || option == ["nomatch"], "{line}");
                let set = self.sets.get_mut(name).unwrap();
                let prefix = prefix(entry);
                assert_eq!(set.family == "inet", prefix.addr().is_ipv4(), "{line}");
                assert!(prefix.prefix_len() > 0, "hash:net does not hold {line}");
                assert!(set.entries.insert(prefix, option.is_empty()).is_none(), "{line}: it is in the set");
            }
            ["del", name, entry] => {
                let removed = self.sets.get_mut(name).unwrap().entries.remove(&prefix(entry));
                assert!(removed.is_some(), "{line}: it is not in the set");
            }
            _ => panic!("{line}"),
        }
    }

    fn run(&self, chains: &Tables, [table, chain]: [&str; 2], packet: &mut Packet<'_>) -> End {
        for rule in &chains[&(table.to_owned(), chain.to_owned())] {
            if !rule.matches.iter().all(|(is_equal, one)| self.matches(one, packet) == *is_equal) {
                continue;
            }
            match &rule.target {
                Target::Drop => return End::Dropped,
                Target::Return => return End::Returned,
                Target::SetMark { value, mask } => packet.mark = packet.mark & !mask ^ value,
                // The end of a chain reached by -g is the end of this one.
                Target::Goto(next) => return self.run(chains, [table, next], packet),
                Target::Jump(next) => {
                    if self.run(chains, [table, next], packet) == End::Dropped {
                        return End::Dropped;
                    }
                }
            }
        }
        End::Returned
    }

    fn matches(&self, one: &Match, packet: &Packet<'_>) -> bool {
        let flow = packet.flow;
        let is_interface = |pattern: &str, interface: &str| match pattern.strip_suffix('+') {
            Some(prefix) => interface.starts_with(prefix),
            None => interface == pattern,
        };
        match one {
            Match::Source(prefix) => prefix.contains(&flow.src),
            Match::Destination(prefix) => prefix.contains(&flow.dst),
            Match::In(pattern) => is_interface(pattern, packet.interfaces[0]),
            Match::Out(pattern) => is_interface(pattern, packet.interfaces[1]),
            Match::Protocol(protocol) => flow.protocol == *protocol,
            Match::Ports(spans) => {
                spans.iter().any(|(first, last)| (*first..=*last).contains(&flow.dst_port))
            }
            Match::State(states) => states.split(',').any(|state| state == "NEW"),
            Match::Set { name, is_source } => {
                let address = if *is_source { flow.src } else { flow.dst };
                let holding = self.sets[name].entries.iter().filter(|(prefix, _)| prefix.contains(&address));
                holding.max_by_key(|(prefix, _)| prefix.prefix_len()).is_some_and(|(_, is_in)| *is_in)
            }
            Match::Mark { value, mask } => packet.mark & mask == *value,
            Match::ReversePath => packet.is_forged,
            // The flows have sources elsewhere.
            Match::LocalSource => false,
            Match::Icmp6Type => panic!("{one:?} for a forwarded packet"),
        }
    }
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().unwrap()))
}

/// Runs the lines of iptables-restore: a chain that is declared is emptied.
fn restore(chains: &mut Tables, text: &str) {
    let mut table = None;
    for line in text.lines() {
        let in_table = |chain: &str| (table.clone().expect("a table"), chain.to_owned());
        if line.starts_with('#') {
        } else if let Some(name) = line.strip_prefix('*') {
            assert_eq!(table.replace(name.to_owned()), None, "COMMIT is missing");
        } else if line == "COMMIT" {
            assert!(table.take().is_some());
        } else if let Some(chain) = line.strip_prefix(':') {
            let name = chain.strip_suffix(" - [0:0]").unwrap();
            assert!(name.len() <= 28, "{name} is too long");
            chains.insert(in_table(name), Vec::new());
        } else {
            let words = words(line);
            assert_eq!(words[0], "-A", "{line}");
            chains.get_mut(&in_table(&words[1])).unwrap().push(rule(&words[2..]));
        }
    }
    assert_eq!(table, None);
}

/// Words of a line, with quoted ones.
fn words(line: &str) -> Vec<String> {
    line.split('"')
        .enumerate()
        .flat_map(|(place, text)| match place % 2 {
            0 => text.split_whitespace().map(str::to_owned).collect(),
            _ => vec![text.to_owned()],
        })
        .collect()
}

fn rule(words: &[String]) -> Rule {
    let mut rule = Rule { matches: Vec::new(), target: Target::Return, comment: None };
    let mut words = words.iter().map(String::as_str);
    let (mut is_equal, mut has_target) = (true, false);
    let pair = |text: &str| {
        let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap();
        let (value, mask) = text.split_once('/').unwrap();
        (hex(value), hex(mask))
    };
    while let Some(word) = words.next() {
        let mut argument = || words.next().unwrap_or_else(|| panic!("{word} has an argument"));
        let one = match word {
            "!" => {
                is_equal = false;
                continue;
            }
            "-m" => {
                argument();
                continue;
            }
            "--comment" => {
                rule.comment = Some(argument().to_owned());
                continue;
            }
            "-s" => Match::Source(prefix(argument())),
            "-d" => Match::Destination(prefix(argument())),
            "-i" => Match::In(argument().to_owned()),
            "-o" => Match::Out(argument().to_owned()),
            "-p" => Match::Protocol(match argument() {
                "ipv6-icmp" => Protocol::ICMPV6,
                other => other.parse().unwrap(),
            }),
            "--destination-ports" => {
                let span = |text: &str| {
                    let (first, last) = text.split_once(':').unwrap_or((text, text));
                    (first.parse().unwrap(), last.parse().unwrap())
                };
                let spans: Vec<(u16, u16)> = argument().split(',').map(span).collect();
                let weights = spans.iter().map(|(first, last)| if first == last { 1 } else { 2 });
                assert!(weights.sum::<usize>() <= 15, "xt_multiport takes 15 ports");
                Match::Ports(spans)
            }
            "--ctstate" => Match::State(argument().to_owned()),
            "--match-set" => Match::Set { name: argument().to_owned(), is_source: argument() == "src" },
            "--mark" => {
                let (value, mask) = pair(argument());
                Match::Mark { value, mask }
            }
            "--icmpv6-type" => {
                argument();
                Match::Icmp6Type
            }
            "--invert" => Match::ReversePath,
            "--src-type" => {
                assert_eq!([argument(), argument(), argument()], ["LOCAL", "--dst-type", "UNICAST"]);
                Match::LocalSource
            }
            "-j" | "-g" => {
                has_target = true;
                rule.target = match (word, argument()) {
                    ("-j", "DROP") => Target::Drop,
                    ("-j", "RETURN") => Target::Return,
                    ("-j", "MARK") => {
                        assert_eq!(words.next(), Some("--set-xmark"));
                        let (value, mask) = pair(words.next().unwrap());
                        Target::SetMark { value, mask }
                    }
                    ("-j", chain) => Target::Jump(chain.to_owned()),
                    (_, chain) => Target::Goto(chain.to_owned()),
                };
                continue;
            }
            other => panic!("{other} in a rule"),
        };
        rule.matches.push((is_equal, one));
        is_equal = true;
    }
    assert!(has_target, "a rule without a target");
    rule
}

/// Checks that every name stands for something.
fn check(chains: &Tables, sets: &BTreeMap<String, IpSet>, family: &str) {
    for ((table, _), rules) in chains {
        for rule in rules {
            if let Target::Jump(chain) | Target::Goto(chain) = &rule.target {
                assert!(chains.contains_key(&(table.clone(), chain.clone())), "no chain {chain}");
            }
            for (_, one) in &rule.matches {
                if let Match::Set { name, .. } = one {
                    assert!(sets.get(name).is_some_and(|set| set.family == family), "no {family} set {name}");
                }
            }
        }
    }
}

/// Rules of pod `d/six`, which is open and has IPv6 alone, and pod `d/four`, which a block of IPv4 may reach.
fn two_pods(prefix: Option<&str>) -> Xtables {
    let pod = |name: &str, labels: &str, address: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: d, labels: {labels}}}, spec: {{containers: [{{name: \
             c}}]}}, status: {{podIP: '{address}'}}}}\n"
        )
    };
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: d}\nspec: {podSelector: \
                  {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}\n";
    let text = pod("six", "{}", "fd00::1") + &pod("four", "{app: db}", "10.0.0.2") + policy;
    let parsed = parse_source(&Source::new("pods.yaml", text)).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    let compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    let interfaces =
        [("six", "v1"), ("four", "v2")].map(|(pod, name)| (PodName::new("d", pod), name.to_owned()));
    let options = RenderOptions {
        interfaces: interfaces.into(),
        pod_interface_prefix: prefix.map(str::to_owned),
        ..RenderOptions::default()
    };
    let mut system = Xtables::default();
    let state = ClusterState { objects: &objects, tables: compiler.tables() };
    system.load(&render(Format::Iptables, state, &options).unwrap());
    system
}

fn web_flow(src: &str, dst: &str) -> FlowKey {
    FlowKey {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        protocol: Protocol::TCP,
        src_port: 40_000,
        dst_port: 80,
    }
}

#[test]
fn an_interface_carries_the_addresses_of_its_pod_alone_in_both_families() {
    let system = two_pods(Some("v"));
    assert!(system.passes(&web_flow("192.0.2.7", "10.0.0.2"), ["uplink", "v2"]));
    for (src, dst, interfaces) in [
        ("192.0.2.7", "10.0.0.2", ["v1", "v2"]),
        ("10.0.0.3", "198.51.100.1", ["v1", "uplink"]),
        ("2001:db8::7", "fd00::1", ["v2", "v1"]),
        ("10.0.0.3", "198.51.100.1", ["v2", "uplink"]),
        // Nothing of a family in which its pod has no address goes to an interface.
        ("192.0.2.7", "198.51.100.1", ["uplink", "v1"]),
        // Nor does anything to or from an interface of pods that no pod has.
        ("10.0.0.9", "198.51.100.1", ["v9", "uplink"]),
        ("192.0.2.7", "10.0.0.9", ["uplink", "v9"]),
    ] {
        assert!(!system.passes(&web_flow(src, dst), interfaces), "{src} to {dst} by {interfaces:?}");
    }
    assert!(system.passes(&web_flow("fd00::1", "2001:db8::7"), ["v1", "uplink"]));
    assert!(system.passes(&web_flow("10.0.0.9", "198.51.100.1"), ["eth1", "uplink"]));
}

#[test]
fn an_address_of_a_pod_with_an_interface_passes_at_no_other() {
    let system = two_pods(None);
    assert!(system.passes(&web_flow("192.0.2.7", "10.0.0.2"), ["uplink", "v2"]));
    // A file from before the pods had new interfaces: no name says that these are pods'.
    for (src, dst, interfaces) in [
        ("192.0.2.7", "10.0.0.2", ["uplink", "v9"]),
        ("198.51.100.1", "10.0.0.2", ["uplink", "v9"]),
        ("10.0.0.2", "198.51.100.1", ["v9", "uplink"]),
        ("2001:db8::7", "fd00::1", ["uplink", "v9"]),
        ("fd00::1", "2001:db8::7", ["v9", "uplink"]),
    ] {
        assert!(!system.passes(&web_flow(src, dst), interfaces), "{src} to {dst} by {interfaces:?}");
    }
    // The node's other interfaces carry what is no pod's, whatever their names.
    for (src, dst) in [("192.0.2.7", "198.51.100.1"), ("2001:db8::7", "2001:db8::8")] {
        for interfaces in [["uplink", "docker0"], ["docker0", "uplink"], ["v9", "uplink"]] {
            assert!(system.passes(&web_flow(src, dst), interfaces), "{src} to {dst} by {interfaces:?}");
        }
    }
}
