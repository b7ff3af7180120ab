//! iptables with ipset in the shape of Calico's Felix: dispatch through a tree of chains, a chain for each pod and
//! direction, a chain for each policy, marks for accepted packets, one `hash:net` set for each selector.
//!
//! All chains and sets are palisade's own. They drop what policy denies, and return everything else to the chains
//! of the node. Between the chain of a pod and those of its policies stands the group of policies that pods share,
//! as in Felix since 3.26.

mod dispatch;
mod policy;
mod since;
mod unused;
mod whole;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;

use super::plan::{AddressSet, Endpoint, Family, Plan, comment, digest};
use crate::render::output::{Part, RenderError, RenderOptions};
use crate::render::rendering::{ClusterState, Rendering, plans};
use dispatch::{Entry, Side};

/// Bit of the packet mark for accepted packets: the first of Felix's `IptablesMarkMask`.
const ACCEPT: &str = "0x10000/0x10000";
/// Most entries of a set.
const ENTRIES_MAX: usize = 1 << 20;
/// `ICMPv6` types of neighbour discovery (RFC 4861) and multicast listeners (RFC 2710, RFC 3810).
const NEIGHBOR_DISCOVERY: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];

/// Sets and chains.
#[derive(Default)]
pub(super) struct State {
    sets: BTreeMap<String, IpSet>,
    families: [Chains; 2],
    /// Names of the sets of pods' addresses, which the guards match.
    guards: Vec<String>,
    /// Short names with the names that they stand for.
    names: BTreeMap<String, String>,
}

/// Set of prefixes.
struct IpSet {
    family: Family,
    note: String,
    entries: BTreeMap<IpNet, bool>,
}

/// Chains of one family, by name.
#[derive(Default)]
struct Chains {
    filter: BTreeMap<String, Vec<String>>,
    raw: BTreeMap<String, Vec<String>>,
}

impl Rendering for State {
    fn new(cluster: ClusterState, options: &RenderOptions) -> Result<State, RenderError> {
        let mut state = State::default();
        for (index, (plan, family)) in plans(cluster.tables, options).iter().zip(Family::ALL).enumerate() {
            let mut chains = Chains::default();
            for (name, set) in &plan.sets {
                let short = state.set_name(family, name)?;
                state.add_set(short, family, &set.title, &set.addresses)?;
            }
            state.add_lists(plan, family, &mut chains)?;
            state.add_pods(plan, options, &mut chains)?;
            state.add_guard(plan, family, &mut chains)?;
            add_hooks(family, &mut chains);
            state.families[index] = chains;
        }
        Ok(state)
    }

    fn parts(&self) -> Vec<Part> {
        self.inputs()
    }

    fn parts_since(&self, old: &State) -> Vec<Part> {
        self.inputs_since(old)
    }
}

impl State {
    /// Short name that stands for `full` after `prefix`. The kernel's names have at most 28 characters for chains
    /// and 31 for sets.
    fn short_name(&mut self, prefix: &str, full: &str) -> Result<String, RenderError> {
        let name = format!("{prefix}{}", digest(full));
        match self.names.get(&name) {
            Some(first) if first != full => {
                Err(RenderError::SameName { first: first.clone(), second: full.to_owned(), name })
            }
            Some(_) => Ok(name),
            None => {
                self.names.insert(name.clone(), full.to_owned());
                Ok(name)
            }
        }
    }

    fn set_name(&mut self, family: Family, name: &str) -> Result<String, RenderError> {
        self.short_name(
            match family {
                Family::V4 => "pal4-",
                Family::V6 => "pal6-",
            },
            name,
        )
    }

    fn add_set(
        &mut self,
        name: String,
        family: Family,
        title: &str,
        addresses: &AddressSet,
    ) -> Result<(), RenderError> {
        // hash:net does not hold a prefix of length 0.
        let (whole, mut entries): (Vec<_>, BTreeMap<IpNet, bool>) = {
            let (whole, others): (Vec<_>, Vec<_>) =
                addresses.iter().copied().partition(|(prefix, _)| prefix.prefix_len() == 0);
            (whole, others.into_iter().collect())
        };
        for (prefix, is_in) in whole {
            let halves = prefix.subnets(1).expect("a prefix of length 0 has halves");
            halves.for_each(|half| _ = entries.entry(half).or_insert(is_in));
        }
        if entries.len() > ENTRIES_MAX {
            let (found, max) = (entries.len(), ENTRIES_MAX);
            return Err(RenderError::SetTooLarge { rule: title.to_owned(), found, max });
        }
        self.sets.insert(name, IpSet { family, note: comment(title), entries });
        Ok(())
    }

    /// Adds chains of pods, and the dispatch to them.
    fn add_pods(
        &mut self,
        plan: &Plan,
        options: &RenderOptions,
        chains: &mut Chains,
    ) -> Result<(), RenderError> {
        for side in [Side::From, Side::To] {
            let mut by_address = Vec::new();
            // An interface whose pod has no address of the family carries nothing of it.
            let chosen = options.interfaces.iter().filter(|(pod, _)| options.is_chosen(pod));
            let mut by_interface: BTreeMap<&String, Vec<String>> =
                chosen.map(|(_, interface)| (interface, Vec::new())).collect();
            for (&address, endpoint) in &plan.endpoints {
                let target = match side.lists(endpoint) {
                    [] => "-j RETURN".to_owned(),
                    lists => format!("-g {}", self.add_pod(side, address, endpoint, lists, chains)?),
                };
                let named: Vec<&String> =
                    endpoint.pods.iter().filter_map(|pod| options.interfaces.get(pod)).collect();
                for interface in &named {
                    let rule = format!("{} {address} {target}", side.address_flag());
                    by_interface.entry(interface).or_default().push(rule);
                }
                if named.len() == endpoint.pods.len() {
                    // Their interfaces have chains of their own: at all others the address is forged, or its route is of
                    // another time.
                    by_address.push(Entry::of_address(address, "-j DROP".to_owned()));
                } else if !side.lists(endpoint).is_empty() {
                    by_address.push(Entry::of_address(address, target));
                }
            }
            let mut entries = Vec::new();
            for (interface, mut rules) in by_interface {
                // An interface carries the addresses of its pod alone.
                rules.push("-j DROP".to_owned());
                let name = format!("{}{interface}", side.interface_prefix());
                entries.push(Entry::of_interface(interface, format!("-g {name}")));
                chains.filter.insert(name, rules);
            }
            let mut root = dispatch::tree(side, &entries, &mut chains.filter);
            root.extend(options.pod_interface_prefix.iter().map(|prefix| side.drop_from_others(prefix)));
            root.extend(dispatch::tree(side, &by_address, &mut chains.filter));
            chains.filter.insert(side.root().to_owned(), root);
        }
        Ok(())
    }

    /// Adds the chain of an address in one direction. Returns its name.
    fn add_pod(
        &mut self,
        side: Side,
        address: IpAddr,
        endpoint: &Endpoint,
        lists: &[String],
        chains: &mut Chains,
    ) -> Result<String, RenderError> {
        let owner = match &endpoint.pods[..] {
            [only] => only.to_string(),
            _ => format!("address {address}"),
        };
        let name = self.short_name(side.pod_prefix(), &owner)?;
        let title = format!("-m comment --comment \"{}\"", comment(&owner));
        let mut rules = vec![
            format!("{title} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"),
            "-m conntrack --ctstate INVALID -j DROP".to_owned(),
        ];
        rules.extend(endpoint.own.iter().map(|own| format!("{} {own} -j RETURN", side.peer_flag())));
        if side == Side::To {
            rules.extend(endpoint.nodes.iter().map(|node| format!("-s {node} -j RETURN")));
        }
        for list in lists {
            rules.push(format!("-j {}", self.short_name(side.group_prefix(), list)?));
        }
        chains.filter.insert(name.clone(), rules);
        Ok(name)
    }

    /// Adds the guard against forged addresses: the node's own ones, which the kernel drops itself over IPv4 alone, and a
    /// pod's address on interfaces that the node's routes to it do not name.
    fn add_guard(&mut self, plan: &Plan, family: Family, chains: &mut Chains) -> Result<(), RenderError> {
        let set = self.set_name(family, "pods")?;
        let addresses = plan.endpoints.keys().map(|&address| (IpNet::from(address), true)).collect();
        self.add_set(set.clone(), family, "Addresses of pods", &addresses)?;
        let own = "! -i lo -m addrtype --src-type LOCAL --dst-type UNICAST -j DROP".to_owned();
        let pods = format!("-m set --match-set {set} src -m rpfilter --invert -j DROP");
        self.guards.push(set);
        chains.raw.insert("palisade-guard".to_owned(), vec![own, pods]);
        Ok(())
    }
}

/// Adds the chains that the node's own chains call.
fn add_hooks(family: Family, chains: &mut Chains) {
    let from = format!("-j {}", Side::From.root());
    let mut input = Vec::new();
    if family == Family::V6 {
        let accept = |kind: &u8| format!("-p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j RETURN");
        input.extend(NEIGHBOR_DISCOVERY.iter().map(accept));
    }
    input.push(from.clone());
    chains.filter.insert("palisade-input".to_owned(), input);
    chains.filter.insert("palisade-forward".to_owned(), vec![from, format!("-j {}", Side::To.root())]);
}

impl IpSet {
    fn print_declaration(&self, name: &str, text: &mut String) {
        let family = match self.family {
            Family::V4 => "inet",
            Family::V6 => "inet6",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n# {}", self.note);
        let _ = writeln!(text, "create {name} hash:net family {family} maxelem {ENTRIES_MAX}");
    }

    /// Prints a declaration and all entries.
    fn print_whole(&self, name: &str, text: &mut String) {
        self.print_declaration(name, text);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "flush {name}");
        self.entries.iter().for_each(|(prefix, is_in)| print_entry("add", name, *prefix, *is_in, text));
    }
}

fn print_entry(verb: &str, set: &str, prefix: IpNet, is_in: bool, text: &mut String) {
    let nomatch = if is_in || verb == "del" { "" } else { " nomatch" };
    // Writing to a string cannot fail.
    let _ = if prefix.prefix_len() == prefix.max_prefix_len() {
        writeln!(text, "{verb} {set} {}{nomatch}", prefix.addr())
    } else {
        writeln!(text, "{verb} {set} {prefix}{nomatch}")
    };
}

fn print_rules(chain: &str, rules: &[String], text: &mut String) {
    for rule in rules {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "-A {chain} {rule}");
    }
}
