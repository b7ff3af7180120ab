//! Prefix regions: external addresses, divided at the borders of the classes of several sets of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::ids::ClassId;
use crate::tables::Classifier;

/// Class of a region in each of the tables.
pub(super) type Key = Vec<ClassId>;

/// Node of the tree of all prefixes.
struct Node {
    net: IpNet,
    parent: Option<usize>,
    children: Vec<usize>,
    /// Classes of the region. `None` if pods and inner prefixes cover all of its addresses.
    key: Option<Key>,
}

/// Computes the regions of one family: for each combination of classes, its prefixes as `10.0.0.0/8 except
/// 10.1.0.0/16`.
pub(super) fn regions(
    root: IpNet,
    prefixes: &BTreeSet<IpNet>,
    pods: &BTreeSet<IpAddr>,
    classifiers: &[&Classifier],
) -> BTreeMap<Key, Vec<String>> {
    let nodes = tree(root, prefixes, pods, classifiers);
    let mut found: BTreeMap<Key, Vec<String>> = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let Some(key) = &node.key else { continue };
        if above(&nodes, index) == Some(key) {
            continue;
        }
        let mut inside = Vec::new();
        others_inside(&nodes, index, key, &mut inside);
        let except = if inside.is_empty() { String::new() } else { format!(" except {}", inside.join(", ")) };
        let text = format!("{}{except}", node.net);
        found.entry(key.clone()).or_default().push(text);
    }
    found
}

/// Builds the tree. Sorted prefixes come after the prefixes that contain them.
fn tree(
    root: IpNet,
    prefixes: &BTreeSet<IpNet>,
    pods: &BTreeSet<IpAddr>,
    classifiers: &[&Classifier],
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let of_family = prefixes.iter().filter(|net| root.contains(*net) && **net != root);
    let own = of_family.filter(|net| net.prefix_len() < net.max_prefix_len() || !pods.contains(&net.addr()));
    for &net in std::iter::once(&root).chain(own) {
        while open.last().is_some_and(|&top| !nodes[top].net.contains(&net)) {
            open.pop();
        }
        let index = nodes.len();
        let parent = open.last().copied();
        if let Some(parent) = parent {
            nodes[parent].children.push(index);
        }
        nodes.push(Node { net, parent, children: Vec::new(), key: None });
        open.push(index);
    }
    for index in 0..nodes.len() {
        let own = first_own_address(&nodes, index, pods);
        nodes[index].key = own.map(|address| classifiers.iter().map(|table| table.class(address)).collect());
    }
    nodes
}

/// First address of a prefix that belongs to no pod and to no inner prefix.
fn first_own_address(nodes: &[Node], index: usize, pods: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let net = nodes[index].net;
    let last = bits(net.broadcast());
    let mut next = bits(net.network());
    let mut children = nodes[index].children.iter().map(|&child| nodes[child].net).peekable();
    loop {
        if let Some(child) = children.next_if(|child| bits(child.network()) <= next) {
            let group = bits(child.broadcast());
            if group >= last {
                return None;
            }
            next = next.max(group + 1);
            continue;
        }
        let candidate = address(next, net);
        if !pods.contains(&candidate) {
            return Some(candidate);
        }
        if next >= last {
            return None;
        }
        next += 1;
    }
}

/// Key of the nearest outer prefix with addresses of its own.
fn above(nodes: &[Node], index: usize) -> Option<&Key> {
    let parent = nodes[index].parent?;
    nodes[parent].key.as_ref().or_else(|| above(nodes, parent))
}

/// Collects inner prefixes with another key.
fn others_inside(nodes: &[Node], index: usize, key: &Key, found: &mut Vec<String>) {
    for &child in &nodes[index].children {
        match &nodes[child].key {
            Some(other) if other != key => found.push(nodes[child].net.to_string()),
            _ => others_inside(nodes, child, key, found),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(bits: u128, of: IpNet) -> IpAddr {
    match of {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}
