//! iptables with ipset, in the style of Calico's Felix: chains that dispatch by the workload's interface,
//! marks for accepted packets, and ESTABLISHED accepted in the workload's chain.
//!
//! Felix renders each address block as a rule of its own, and every new connection passes all of them. For
//! many blocks its users are told to use sets (network sets), so here the blocks that share their ports are
//! in one set.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::kernel_conntrack::KernelConntrack;
use crate::common::policy::{PolicySpec, RuleGroup};
use crate::error::BenchError;
use crate::process::version;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

/// Workloads in one dispatch chain. Larger numbers are split by the next character of the interface's name.
const DISPATCH_MAX: usize = 10;
/// Mark of a packet that policy accepts: the first bit of Felix's `IptablesMarkMask`.
const ACCEPT: &str = "0x10000/0x10000";
/// Name of the policy's chain.
const POLICY: &str = "cali-pi-receivers";

pub(super) struct Iptables;

impl System for Iptables {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn kind(&self) -> Kind {
        Kind::Peer
    }

    fn versions(&self) -> Vec<String> {
        version("iptables-legacy", &["--version"])
            .into_iter()
            .chain(version("ipset", &["--version"]))
            .collect()
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        rig.route_in_kernel()?;
        rig.enable_rp_filter()?;
        let client = rig.client_v4()?;
        let mut rule_groups = shape.rule_groups(client);
        // The set of the changed group is empty at first. A change adds to the set, as with Felix.
        rule_groups.push(RuleGroup { blocks: vec![], ..PolicySpec::change(client) });
        rig.in_node("ipset", &["restore"], &sets(&rule_groups))?;
        rig.in_node("iptables-legacy-restore", &["--wait"], &rules(rig, &rule_groups))?;
        let changed = set_name(rule_groups.len() - 1);
        Ok(Box::new(KernelConntrack::with_capacity(move |rig, open| {
            let verb = if open { "add" } else { "del" };
            rig.in_node("ipset", &[verb, &changed, &client.to_string()], "")?;
            Ok(())
        })?))
    }
}

/// Name of the set of a group's blocks.
fn set_name(group: usize) -> String {
    format!("cali40s{group}")
}

fn sets(rule_groups: &[RuleGroup]) -> String {
    let mut text = String::new();
    for (number, group) in rule_groups.iter().enumerate() {
        let size = group.blocks.len().next_power_of_two().max(64);
        // Writing to a string cannot fail.
        let name = set_name(number);
        let _ = writeln!(text, "create {name} hash:net family inet hashsize {size} maxelem 1048576");
        for block in &group.blocks {
            let _ = writeln!(text, "add {name} {block}");
        }
    }
    text
}

fn rules(rig: &Rig, rule_groups: &[RuleGroup]) -> String {
    let ends = rig.host_ends();
    let isolated: Vec<String> = rig.receivers().iter().map(|pod| pod.plan().host_interface.clone()).collect();
    let common = common_prefix(&ends);
    let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut chain = |name: &str, rules: Vec<String>| chains.insert(name.to_owned(), rules);
    chain("FORWARD", vec!["-j cali-FORWARD".into()]);
    chain(
        "cali-FORWARD",
        vec![
            "-j MARK --set-xmark 0x0/0xe0000".into(),
            format!("-i {common}+ -j cali-from-wl-dispatch"),
            format!("-o {common}+ -j cali-to-wl-dispatch"),
            format!("-m mark --mark {ACCEPT} -j ACCEPT"),
        ],
    );
    for (name, rules) in dispatch("cali-from-wl-dispatch", "-i", "cali-fw-", &ends, &common) {
        chain(&name, rules);
    }
    for (name, rules) in dispatch("cali-to-wl-dispatch", "-o", "cali-tw-", &ends, &common) {
        chain(&name, rules);
    }
    for end in &ends {
        chain(&format!("cali-fw-{end}"), workload(None));
        chain(&format!("cali-tw-{end}"), workload(isolated.contains(end).then_some(POLICY)));
    }
    chain(POLICY, rule_groups.iter().enumerate().flat_map(policy_rules).collect());
    let mut text = "*filter\n".to_owned();
    for name in chains.keys() {
        let _ = writeln!(text, ":{name} {} [0:0]", if name == "FORWARD" { "ACCEPT" } else { "-" });
    }
    for (name, rules) in &chains {
        for rule in rules {
            let _ = writeln!(text, "-A {name} {rule}");
        }
    }
    text + "COMMIT\n"
}

/// Renders a dispatch from an interface to its workload's chain, as a tree over the characters of the name.
fn dispatch(
    chain: &str,
    flag: &str,
    target: &str,
    ends: &[String],
    prefix: &str,
) -> Vec<(String, Vec<String>)> {
    let direct = |end: &String| format!("{flag} {end} -g {target}{end}");
    if ends.len() <= DISPATCH_MAX {
        return vec![(chain.to_owned(), ends.iter().map(direct).chain(["-j DROP".to_owned()]).collect())];
    }
    let mut groups: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for end in ends {
        groups.entry(end[prefix.len()..].chars().next().unwrap_or('-')).or_default().push(end.clone());
    }
    let (mut here, mut below) = (vec![], vec![]);
    for (letter, group) in groups {
        if let [only] = &group[..] {
            here.push(direct(only));
            continue;
        }
        // The exact name of the group is a prefix of the others, so it goes first.
        let exact = format!("{prefix}{letter}");
        here.extend(group.iter().filter(|end| **end == exact).map(direct));
        let rest: Vec<String> = group.into_iter().filter(|end| *end != exact).collect();
        let child = format!("{chain}-{}", &exact[exact.len() - 1..]);
        here.push(format!("{flag} {exact}+ -g {child}"));
        below.extend(dispatch(&child, flag, target, &rest, &exact));
    }
    here.push("-j DROP".to_owned());
    below.push((chain.to_owned(), here));
    below
}

fn workload(policy: Option<&str>) -> Vec<String> {
    let mut rules = vec![
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
        "-m conntrack --ctstate INVALID -j DROP".to_owned(),
        format!("-j MARK --set-xmark 0x0/{}", &ACCEPT[..7]),
    ];
    match policy {
        Some(policy) => rules.extend([
            "-j MARK --set-xmark 0x0/0x20000".to_owned(),
            format!("-m mark --mark 0x0/0x20000 -j {policy}"),
            format!("-m mark --mark {ACCEPT} -j RETURN"),
            "-m mark --mark 0x0/0x20000 -j DROP".to_owned(),
        ]),
        // Profile of pods without a policy.
        None => rules.extend([
            format!("-j MARK --set-xmark {ACCEPT}"),
            format!("-m mark --mark {ACCEPT} -j RETURN"),
            "-j DROP".to_owned(),
        ]),
    }
    rules
}

fn policy_rules((number, group): (usize, &RuleGroup)) -> [String; 2] {
    let (protocol, first, last) = (group.ports.protocol_name(), group.ports.first, group.ports.last);
    let set = set_name(number);
    let ports = if first == last { first.to_string() } else { format!("{first}:{last}") };
    [
        format!(
            "-p {protocol} -m set --match-set {set} src -m multiport --destination-ports {ports} \
             -j MARK --set-xmark {ACCEPT}"
        ),
        format!("-m mark --mark {ACCEPT} -j RETURN"),
    ]
}

/// Returns the longest common prefix that is shorter than every name.
fn common_prefix(names: &[String]) -> String {
    let first = names.first().map_or("", String::as_str);
    let shared = |len: &usize| names.iter().all(|name| name.starts_with(&first[..*len]) && name.len() > *len);
    first[..(0..first.len()).rev().find(shared).unwrap_or(0)].to_owned()
}
