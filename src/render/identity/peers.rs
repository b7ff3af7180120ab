//! Identities of all addresses: of pods, of nodes, and of blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::classes::Classes;
use super::nodes::NodeGroup;
use super::numbers::{self, CIDR, CLUSTER, REMOTE_NODE, Range};
use super::owners::Owners;
use crate::ids::ClassId;
use crate::render::output::RenderError;
use crate::tables::{PodName, RuleTables};

/// Local host.
pub(super) const HOST: u32 = 1;
/// Other nodes.
const REMOTE: u32 = 6;
/// Addresses outside, of each family. A cluster of one family has 2 for them.
const WORLD_IPV4: u32 = 9;
const WORLD_IPV6: u32 = 10;

/// Most entries of the address-to-identity cache: `cilium_ipcache` of Cilium's `pkg/maps/ipcache`.
const IPCACHE_MAX: usize = 512_000;

/// Identities of peers.
pub(super) struct Peers {
    /// Labels by identity.
    pub(super) identities: BTreeMap<u32, Vec<String>>,
    /// Identities by prefix.
    pub(super) ipcache: BTreeMap<IpNet, u32>,
    /// Identities by class, sorted, without those of nodes.
    pub(super) by_class: BTreeMap<ClassId, Vec<u32>>,
    /// Identities of nodes, with the addresses that have them.
    pub(super) nodes: Vec<(u32, NodeGroup)>,
    /// Classes of the addresses of nodes.
    pub(super) node_classes: BTreeMap<IpAddr, ClassId>,
}

impl Peers {
    pub(super) fn new(
        tables: &RuleTables,
        owners: &Owners,
        nodes: Vec<NodeGroup>,
    ) -> Result<Peers, RenderError> {
        let classes = Classes::new(tables);
        let reserved =
            [(HOST, "host"), (REMOTE, "remote-node"), (WORLD_IPV4, "world-ipv4"), (WORLD_IPV6, "world-ipv6")];
        let reserved = reserved.map(|(number, name)| (number, vec![format!("reserved:{name}")]));
        let hosts = owners.hosts.values().flatten().map(|&address| (address, classes.of(address)));
        let mut peers = Peers {
            identities: reserved.into_iter().collect(),
            ipcache: BTreeMap::new(),
            by_class: BTreeMap::new(),
            nodes: Vec::new(),
            node_classes: hosts.collect(),
        };
        peers.add_pods(pod_groups(owners, &classes))?;
        peers.add_nodes(nodes)?;
        peers.add_blocks(tables)?;
        peers.by_class.values_mut().for_each(|numbers| {
            numbers.sort_unstable();
            numbers.dedup();
        });
        match peers.ipcache.len() {
            found if found > IPCACHE_MAX => {
                Err(RenderError::MapTooLarge { map: "address-to-identity cache", found, max: IPCACHE_MAX })
            }
            _ => Ok(peers),
        }
    }

    /// Identity of an address of a pod.
    pub(super) fn identity_at(&self, address: IpAddr) -> u32 {
        let world = if address.is_ipv4() { WORLD_IPV4 } else { WORLD_IPV6 };
        self.ipcache.get(&IpNet::from(address)).copied().unwrap_or(world)
    }

    fn add_pods(&mut self, groups: Vec<PodGroup>) -> Result<(), RenderError> {
        let keys: Vec<String> = groups.iter().map(|group| group.labels.join("\0")).collect();
        let numbers = numbered(&keys, CLUSTER)?;
        for (group, number) in groups.into_iter().zip(numbers) {
            self.by_class.entry(group.class).or_default().push(number);
            self.identities.insert(number, group.labels);
            group.addresses.into_iter().for_each(|address| _ = self.ipcache.insert(address.into(), number));
        }
        Ok(())
    }

    /// Adds nodes. The first group has the reserved number.
    fn add_nodes(&mut self, groups: Vec<NodeGroup>) -> Result<(), RenderError> {
        let keys: Vec<String> = groups.iter().map(|group| group[0].0.to_string()).collect();
        let numbers = numbered(&keys[keys.len().min(1)..], REMOTE_NODE)?;
        for (place, (group, number)) in
            groups.into_iter().zip([REMOTE].into_iter().chain(numbers)).enumerate()
        {
            if place > 0 {
                let labels = vec![apart(group[0].0), "reserved:remote-node".to_owned()];
                self.identities.insert(number, labels);
            }
            group.iter().for_each(|&(address, _)| _ = self.ipcache.insert(address.into(), number));
            self.nodes.push((number, group));
        }
        Ok(())
    }

    /// Adds prefixes that are no address of a pod or node.
    fn add_blocks(&mut self, tables: &RuleTables) -> Result<(), RenderError> {
        let everything = [
            (IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0), WORLD_IPV4),
            (IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0), WORLD_IPV6),
        ];
        for (prefix, number) in everything {
            let class = tables.prefixes.get(&prefix).copied().unwrap_or(ClassId::WORLD);
            self.by_class.entry(class).or_default().push(number);
            self.ipcache.insert(prefix, number);
        }
        let blocks: Vec<(IpNet, ClassId)> = tables
            .prefixes
            .iter()
            .map(|(&prefix, &class)| (prefix, class))
            .filter(|(prefix, _)| !self.ipcache.contains_key(prefix))
            .collect();
        let keys: Vec<String> = blocks.iter().map(|(prefix, _)| format!("cidr:{prefix}")).collect();
        for (((prefix, class), number), label) in blocks.into_iter().zip(numbered(&keys, CIDR)?).zip(keys) {
            self.by_class.entry(class).or_default().push(number);
            let world = if prefix.addr().is_ipv4() { "reserved:world-ipv4" } else { "reserved:world-ipv6" };
            self.identities.insert(number, vec![label, world.to_owned()]);
            self.ipcache.insert(prefix, number);
        }
        Ok(())
    }
}

/// Addresses of pods with one label set and one class.
struct PodGroup {
    labels: Vec<String>,
    class: ClassId,
    addresses: Vec<IpAddr>,
}

/// Addresses with their first pods.
type Members<'a> = BTreeSet<(&'a PodName, IpAddr)>;

/// Groups of the addresses of pods. If policies tell addresses of one label set apart, all groups but the first have one
/// more label.
fn pod_groups(owners: &Owners, classes: &Classes) -> Vec<PodGroup> {
    let mut sets: BTreeMap<Vec<String>, BTreeMap<ClassId, Members>> = BTreeMap::new();
    for (&address, pods) in &owners.pods {
        let by_class = sets.entry(owners.labels(pods)).or_default();
        by_class.entry(classes.of(address)).or_default().insert((pods[0], address));
    }
    let mut groups = Vec::with_capacity(sets.len());
    for (labels, by_class) in sets {
        let mut of_set: Vec<(ClassId, Members)> = by_class.into_iter().collect();
        of_set.sort_unstable_by(|(_, left), (_, right)| left.first().cmp(&right.first()));
        for (place, (class, members)) in of_set.into_iter().enumerate() {
            let addresses: Vec<IpAddr> = members.into_iter().map(|(_, address)| address).collect();
            let mut labels = labels.clone();
            if place > 0 {
                labels.push(apart(addresses[0]));
            }
            groups.push(PodGroup { labels, class, addresses });
        }
    }
    groups
}

/// Label of an identity that policies tell apart from another with the same labels.
fn apart(address: IpAddr) -> String {
    format!("palisade:apart={address}")
}

/// Numbers of keys, in their order.
fn numbered(keys: &[String], range: Range) -> Result<Vec<u32>, RenderError> {
    let numbers: Option<HashMap<&str, u32>> = numbers::assign(keys.iter().map(String::as_str), range);
    let max = range.count as usize;
    let full = RenderError::MapTooLarge { map: "identity table", found: keys.len(), max };
    let numbers = numbers.ok_or(full)?;
    Ok(keys.iter().map(|key| numbers[key.as_str()]).collect())
}
