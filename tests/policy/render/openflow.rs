//! Interpreter of flows after ovs-fields(7), ovs-actions(7) and ovs-ofctl(8). It knows the fields and actions that are
//! printed, and refuses every other, and every case that the manuals leave undefined.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::parse::{Source, parse_source};
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderOptions, render};

use super::System;

/// Fields of a packet, by place.
const FIELDS: [&str; 17] = [
    "in_port",
    "eth_type",
    "nw_proto",
    "nw_src",
    "nw_dst",
    "nw_ttl",
    "icmp_type",
    "nd_target",
    "arp_op",
    "arp_spa",
    "ct_state",
    "ct_nw_proto",
    "ct_tp_dst",
    "reg1",
    "reg2",
    "reg3",
    "conj_id",
];
const STATES: [&str; 6] = ["new", "est", "rel", "rpl", "inv", "trk"];

/// Bridge with its flows.
#[derive(Default)]
pub(super) struct Bridge {
    flows: BTreeMap<(u8, u16, Matches), Vec<Action>>,
    /// Flows by table, in groups that look at the same bits.
    tables: BTreeMap<u8, Vec<Group>>,
}

/// Values of fields under masks, sorted by field.
type Matches = Vec<(usize, u128, u128)>;
type Packet = [u128; FIELDS.len()];

/// Priority, matches and actions of a flow.
type Flow = (u16, Matches, Vec<Action>);

struct Group {
    masks: Vec<(usize, u128)>,
    flows: HashMap<u64, Vec<Flow>, foldhash::fast::RandomState>,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Drop,
    Normal,
    Goto(u8),
    Resubmit(u8),
    Set(usize, u128),
    Track(u8),
    Commit,
    Conjunction { id: u128, place: u8, of: u8 },
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.flows).finish()
    }
}

impl System for Bridge {
    fn load(&mut self, parts: &[Part]) {
        let [Part { file: "palisade.flows", text }] = parts else { panic!("{parts:?}") };
        if text.lines().next().unwrap().contains(" replace-flows ") {
            self.flows.clear();
        }
        for line in text.lines() {
            // A comment reaches to the end of the line.
            let line = line.split('#').next().unwrap().trim();
            if !line.is_empty() {
                self.change(line);
            }
        }
        self.index();
    }

    fn passes(&self, flow: &FlowKey, interfaces: [&str; 2]) -> bool {
        let tracked = self.sends(flow, interfaces[0], &["trk", "new"]);
        let is_known = [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP, Protocol::ICMPV6];
        if !is_known.contains(&flow.protocol) {
            // Connection tracking of the userspace datapath knows these protocols alone.
            assert_eq!(tracked, self.sends(flow, interfaces[0], &["trk", "inv"]), "{flow}");
        }
        tracked
    }
}

impl Bridge {
    fn change(&mut self, line: &str) {
        let (verb, flow) = match line.split_once(' ') {
            Some((verb @ ("add" | "modify_strict" | "delete_strict"), flow)) => (verb, flow),
            _ => ("replace", line),
        };
        let (matches, actions) = match flow.split_once(" actions=") {
            Some((matches, actions)) => (matches, Some(actions)),
            None => (flow, None),
        };
        let key = key(matches);
        let Some(actions) = actions else {
            assert!(verb == "delete_strict" && self.flows.remove(&key).is_some(), "{line}");
            return;
        };
        let actions = split(actions).into_iter().map(action).collect::<Vec<Action>>();
        check(key.0, &key.2, &actions, line);
        let before = self.flows.insert(key, actions);
        assert_eq!(before.is_some(), verb == "modify_strict", "{line}");
    }

    fn index(&mut self) {
        self.tables.clear();
        for ((table, priority, matches), actions) in &self.flows {
            let masks: Vec<(usize, u128)> = matches.iter().map(|&(field, _, mask)| (field, mask)).collect();
            let groups = self.tables.entry(*table).or_default();
            let place = groups.iter().position(|group| group.masks == masks).unwrap_or_else(|| {
                groups.push(Group { masks, flows: HashMap::default() });
                groups.len() - 1
            });
            let group = &mut groups[place];
            let hash = hash(matches.iter().map(|&(_, value, _)| value));
            group.flows.entry(hash).or_default().push((*priority, matches.clone(), actions.clone()));
        }
    }

    /// Sends the first packet of a flow from this interface. Connection tracking finds it in this state.
    fn sends(&self, flow: &FlowKey, interface: &str, state: &[&str]) -> bool {
        let mut packet = [0; FIELDS.len()];
        let mut set = |name: &str, value: u128| packet[field(name)] = value;
        set("in_port", port(interface));
        set("eth_type", if flow.src.is_ipv4() { 0x800 } else { 0x86dd });
        set("nw_proto", u128::from(flow.protocol.0));
        set("nw_src", bits(flow.src));
        set("nw_dst", bits(flow.dst));
        set("nw_ttl", 64);
        // An echo request.
        set("icmp_type", if flow.protocol == Protocol::ICMPV6 { 128 } else { 8 });
        let tracked = [state_bits(state), u128::from(flow.protocol.0), u128::from(flow.dst_port)];
        self.run(0, &mut packet, tracked)
    }

    /// Runs the actions of a table. Returns whether the packet leaves the bridge.
    fn run(&self, table: u8, packet: &mut Packet, tracked: [u128; 3]) -> bool {
        // A packet that no flow matches is dropped.
        let Some(actions) = self.lookup(table, packet, true) else { return false };
        let mut leaves = false;
        for action in actions {
            match *action {
                Action::Drop => {}
                Action::Normal => leaves = true,
                Action::Goto(next) | Action::Resubmit(next) => leaves |= self.run(next, packet, tracked),
                Action::Set(field, value) => packet[field] = value,
                Action::Track(next) => {
                    for (name, value) in ["ct_state", "ct_nw_proto", "ct_tp_dst"].into_iter().zip(tracked) {
                        packet[field(name)] = value;
                    }
                    leaves |= self.run(next, packet, tracked);
                }
                Action::Commit => assert_ne!(packet[field("ct_state")] & 1, 0, "a new connection"),
                Action::Conjunction { .. } => unreachable!("the lookup resolves conjunctions"),
            }
        }
        leaves
    }

    fn lookup(&self, table: u8, packet: &Packet, has_conjunctions: bool) -> Option<&[Action]> {
        let mut found: Vec<(u16, &[Action])> = Vec::new();
        for group in self.tables.get(&table)? {
            let masked = |&(field, mask): &(usize, u128)| packet[field] & mask;
            let Some(flows) = group.flows.get(&hash(group.masks.iter().map(masked))) else { continue };
            for (priority, matches, actions) in flows {
                if matches.iter().all(|&(field, value, mask)| packet[field] & mask == value) {
                    found.push((*priority, actions));
                }
            }
        }
        found.sort_unstable_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        for alike in found.chunk_by(|a, b| a.0 == b.0) {
            let is_plain = |actions: &[Action]| !matches!(actions[0], Action::Conjunction { .. });
            let mut plain =
                alike.iter().filter(|(_, actions)| is_plain(actions)).map(|(_, actions)| *actions);
            let mut decided = plain.next();
            assert_eq!(plain.next(), None, "two flows of table {table} match at one priority");
            if has_conjunctions {
                for id in complete(alike) {
                    let mut packet = *packet;
                    packet[field("conj_id")] = id;
                    let Some(actions) = self.lookup(table, &packet, false) else { continue };
                    assert_eq!(decided.replace(actions), None, "conjunctions of table {table} overlap");
                }
            }
            if decided.is_some() {
                return decided;
            }
        }
        None
    }
}

/// Conjunctions of which flows of every dimension match.
fn complete(alike: &[(u16, &[Action])]) -> Vec<u128> {
    let mut dimensions: BTreeMap<(u128, u8), u64> = BTreeMap::new();
    for action in alike.iter().flat_map(|(_, actions)| *actions) {
        if let Action::Conjunction { id, place, of } = *action {
            *dimensions.entry((id, of)).or_default() |= 1 << (place - 1);
        }
    }
    let all = dimensions.into_iter().filter(|((_, of), places)| places.count_ones() == u32::from(*of));
    all.map(|((id, _), _)| id).collect()
}

fn hash(values: impl Iterator<Item = u128>) -> u64 {
    let step = |hash: u64, value: u128| {
        (hash ^ (value as u64) ^ (value >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    values.fold(7, step)
}

fn field(name: &str) -> usize {
    FIELDS.iter().position(|field| *field == name).unwrap_or_else(|| panic!("{name} is no known field"))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Name of an interface as a number, which no other name has.
fn port(name: &str) -> u128 {
    assert!(name.len() <= 15);
    name.bytes().fold(1, |number, byte| number << 8 | u128::from(byte))
}

fn state_bits(states: &[&str]) -> u128 {
    let bit = |state: &&str| 1 << STATES.iter().position(|known| known == state).unwrap();
    states.iter().map(bit).sum()
}

fn number(text: &str) -> u128 {
    match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap_or_else(|_| panic!("{text} is no number")),
    }
}

/// Table, priority and match of a flow.
fn key(text: &str) -> (u8, u16, Matches) {
    let (mut table, mut priority, mut matches) = (None, None, Matches::new());
    for word in text.split(',') {
        let mut put = |name: &str, value: u128, mask: u128| {
            assert_eq!(value & !mask, 0, "{text}: bits beside the mask");
            matches.push((field(name), value, mask));
        };
        match word.split_once('=') {
            None => {
                let (eth_type, protocol) = match word {
                    "ip" => (0x800, None),
                    "arp" => (0x806, None),
                    "ipv6" => (0x86dd, None),
                    "icmp6" => (0x86dd, Some(58)),
                    other => panic!("{other} in {text}"),
                };
                put("eth_type", eth_type, u128::MAX);
                protocol.into_iter().for_each(|protocol| put("nw_proto", protocol, u128::MAX));
            }
            Some(("table", value)) => table = Some(value.parse().unwrap()),
            Some(("priority", value)) => priority = Some(value.parse().unwrap()),
            Some(("in_port", "LOCAL")) => put("in_port", 0, u128::MAX),
            Some(("in_port", value)) => {
                put("in_port", port(value.strip_prefix('"').unwrap().strip_suffix('"').unwrap()), u128::MAX);
            }
            Some((
                name @ ("nw_src" | "nw_dst" | "ipv6_src" | "ipv6_dst" | "nd_target" | "arp_spa"),
                value,
            )) => {
                let prefix: IpNet =
                    value.parse().unwrap_or_else(|_| IpNet::from(value.parse::<IpAddr>().unwrap()));
                let is_v6 = name.starts_with("ipv6") || name == "nd_target";
                assert_eq!(prefix.addr().is_ipv6(), is_v6, "{text}");
                put(&name.replace("ipv6", "nw"), bits(prefix.addr()), bits(prefix.netmask()));
            }
            Some(("ct_state", states)) => {
                let signs: Vec<(usize, char)> = states
                    .match_indices(['+', '-'])
                    .map(|(at, sign)| (at, sign.chars().next().unwrap()))
                    .collect();
                let (mut value, mut mask) = (0, 0);
                for (place, &(at, sign)) in signs.iter().enumerate() {
                    let end = signs.get(place + 1).map_or(states.len(), |next| next.0);
                    let bit = state_bits(&[&states[at + 1..end]]);
                    mask |= bit;
                    value |= if sign == '+' { bit } else { 0 };
                }
                put("ct_state", value, mask);
            }
            Some((name, value)) => match value.split_once('/') {
                Some((value, mask)) => put(name, number(value), number(mask)),
                None => put(name, number(value), u128::MAX),
            },
        }
    }
    matches.sort_unstable();
    assert!(matches.windows(2).all(|pair| pair[0].0 != pair[1].0), "{text}: a field stands twice");
    (table.unwrap(), priority.unwrap(), matches)
}

/// Splits actions at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn action(text: &str) -> Action {
    let inside = |name: &str| text.strip_prefix(name)?.strip_suffix(')');
    if let Some(table) = text.strip_prefix("goto_table:") {
        Action::Goto(table.parse().unwrap())
    } else if let Some(table) = inside("resubmit(,") {
        Action::Resubmit(table.parse().unwrap())
    } else if let Some(set) = text.strip_prefix("set_field:") {
        let (value, name) = set.split_once("->").unwrap();
        assert!(name.starts_with("reg"), "{text}");
        Action::Set(field(name), number(value))
    } else if let Some(arguments) = inside("conjunction(") {
        let (id, rest) = arguments.split_once(',').unwrap();
        let (place, of) = rest.split_once('/').unwrap();
        let (place, of) = (place.parse().unwrap(), of.parse().unwrap());
        assert!((1..=of).contains(&place) && (2..=64).contains(&of), "{text}");
        Action::Conjunction { id: number(id), place, of }
    } else {
        match text {
            "drop" => Action::Drop,
            "NORMAL" => Action::Normal,
            "ct(table=3,zone=61440)" => Action::Track(3),
            "ct(commit,zone=61440)" => Action::Commit,
            other => panic!("{other} is no known action"),
        }
    }
}

/// Checks the prerequisites of fields, and the order of actions.
fn check(table: u8, matches: &Matches, actions: &[Action], line: &str) {
    let value = |name: &str| matches.iter().find(|(place, ..)| *place == field(name)).map(|found| found.1);
    let is_ip = matches!(value("eth_type"), Some(0x800 | 0x86dd));
    for name in ["nw_proto", "nw_src", "nw_dst", "nw_ttl", "ct_nw_proto", "ct_tp_dst"] {
        assert!(value(name).is_none() || is_ip, "{line}: {name} is of IP");
    }
    if value("ct_tp_dst").is_some() {
        // Without the protocol the port is left out in silence.
        assert!(matches!(value("ct_nw_proto"), Some(6 | 17 | 132)), "{line}");
    }
    if value("ct_nw_proto").is_some() {
        let valid = (field("ct_state"), state_bits(&["trk"]), state_bits(&["trk", "inv"]));
        assert!(matches.contains(&valid), "{line}");
    }
    assert!(value("icmp_type").is_none() || value("nw_proto") == Some(58), "{line}");
    assert!(value("nd_target").is_none() || value("icmp_type") == Some(136), "{line}");
    let conjunctions = actions.iter().filter(|action| matches!(action, Action::Conjunction { .. })).count();
    assert!(conjunctions == 0 || conjunctions == actions.len(), "{line}");
    assert!(!actions.contains(&Action::Drop) || actions.len() == 1, "{line}");
    for (place, action) in actions.iter().enumerate() {
        if let Action::Goto(next) = action {
            assert!(*next > table && place + 1 == actions.len(), "{line}: goto_table leads on, at the end");
        }
    }
}

#[test]
fn ports_of_sctp_are_refused_by_pod_and_rule() {
    let text = |port: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: db, namespace: d}}, spec: {{containers: [{{name: c}}]}}, status: {{podIP: \
             10.0.0.2}}}}\n---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: d}}, spec: \
             {{podSelector: {{}}, ingress: [{{ports: [{{protocol: SCTP{port}}}]}}]}}}}\n"
        )
    };
    let rendered = |text: String| {
        let parsed = parse_source(&Source::new("objects.yaml", text)).unwrap();
        let compiler =
            Compiler::from_objects(parsed.objects.into_iter().map(|(object, _)| object), Options::default());
        let state = ClusterState { objects: &[], tables: compiler.tables() };
        render(Format::Openflow, state, &RenderOptions::default())
    };
    let error = rendered(text(", port: 80")).unwrap_err().to_string();
    let expected =
        "pod d/db: NetworkPolicy d/p ingress[0]: Open vSwitch's userspace datapath tracks no ports of SCTP";
    assert_eq!(error, expected);
    assert!(rendered(text("")).is_ok());
}
