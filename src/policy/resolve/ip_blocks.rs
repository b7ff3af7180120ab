//! Index of `ipBlock` peers: from an address to the groups of the blocks that contain it.
//!
//! Every `cidr` and every `except` of a block is a prefix of the index. The longest prefix of an address
//! determines all blocks that contain the address. An `except` ends the block that it belongs to; it never
//! denies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::ids::ClassId;
use crate::policy::objects::IpBlock;
use crate::policy::store::{GroupId, sorted};

/// Prefixes of all blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct IpBlockIndex {
    prefixes: BTreeMap<IpNet, Prefix>,
    /// Number of prefixes by length, for IPv4 and IPv6.
    lengths: [BTreeMap<u8, usize>; 2],
    stale: Vec<IpNet>,
}

/// Prefix: blocks that begin and end with it, and the groups of its addresses.
#[derive(Debug, Clone)]
struct Prefix {
    begins: Vec<GroupId>,
    ends: Vec<GroupId>,
    groups: Arc<[GroupId]>,
    class: ClassId,
}

/// Changes that [`IpBlockIndex::refresh`] found.
#[derive(Debug, Default)]
pub(crate) struct IpBlockChanges {
    /// Prefixes that have other groups or may have another parent.
    pub(crate) prefixes: Vec<IpNet>,
    /// Removed prefixes with their class.
    pub(crate) removed: Vec<(IpNet, ClassId)>,
    /// First and last address of spans whose groups changed.
    pub(crate) spans: Vec<(IpAddr, IpAddr)>,
}

impl IpBlockIndex {
    /// Adds a block. The change takes effect with [`IpBlockIndex::refresh`].
    pub(crate) fn insert(&mut self, id: GroupId, block: &IpBlock) {
        sorted::insert(&mut self.prefix(block.cidr).begins, id);
        for &except in &block.except {
            sorted::insert(&mut self.prefix(except).ends, id);
        }
        self.stale.push(block.cidr);
    }

    /// Removes a block. The change takes effect with [`IpBlockIndex::refresh`].
    pub(crate) fn remove(&mut self, id: GroupId, block: &IpBlock) {
        sorted::remove(&mut self.prefix(block.cidr).begins, &id);
        for &except in &block.except {
            sorted::remove(&mut self.prefix(except).ends, &id);
        }
        self.stale.push(block.cidr);
    }

    /// Groups of an address, sorted.
    pub(crate) fn groups_of(&self, address: IpAddr) -> &[GroupId] {
        self.longest(IpNet::from(address), false).map_or(&[], |(_, prefix)| &prefix.groups)
    }

    /// Class of an address without an owner.
    pub(crate) fn class_of(&self, address: IpAddr) -> ClassId {
        self.longest(IpNet::from(address), false).map_or(ClassId::WORLD, |(_, prefix)| prefix.class)
    }

    /// Groups of a prefix of the index.
    pub(crate) fn groups(&self, prefix: IpNet) -> Option<&Arc<[GroupId]>> {
        self.prefixes.get(&prefix).map(|prefix| &prefix.groups)
    }

    /// Class of a prefix of the index.
    pub(crate) fn class(&self, prefix: IpNet) -> Option<ClassId> {
        self.prefixes.get(&prefix).map(|prefix| prefix.class)
    }

    /// Sets the class of a prefix of the index.
    pub(crate) fn set_class(&mut self, prefix: IpNet, class: ClassId) {
        if let Some(prefix) = self.prefixes.get_mut(&prefix) {
            prefix.class = class;
        }
    }

    /// Class of the longest shorter prefix that contains this one.
    pub(crate) fn class_above(&self, prefix: IpNet) -> ClassId {
        self.longest(prefix, true).map_or(ClassId::WORLD, |(_, prefix)| prefix.class)
    }

    /// Computes the groups of every prefix within added and removed blocks.
    pub(crate) fn refresh(&mut self) -> IpBlockChanges {
        let mut stale = std::mem::take(&mut self.stale);
        stale.sort_unstable();
        stale.dedup();
        let mut refreshed = IpBlockChanges::default();
        let mut done: Option<IpNet> = None;
        for range in stale {
            if done.is_none_or(|done| !done.contains(&range)) {
                self.refresh_range(range, &mut refreshed);
                done = Some(range);
            }
        }
        refreshed
    }

    fn refresh_range(&mut self, range: IpNet, refreshed: &mut IpBlockChanges) {
        let outside: Arc<[GroupId]> =
            self.longest(range, true).map_or_else(|| Arc::from([]), |(_, above)| above.groups.clone());
        let mut open: Vec<OpenPrefix> = Vec::new();
        let mut removed = Vec::new();
        for (&net, prefix) in self.prefixes.range_mut(range..).take_while(|(net, _)| range.contains(*net)) {
            while let Some(top) = open.pop_if(|top| !top.net.contains(&net)) {
                top.close(refreshed);
            }
            if let Some(top) = open.last_mut() {
                top.skip(net, refreshed);
            }
            let above = open.last().map_or(&outside, |top| &top.groups);
            let groups = within(above, &prefix.begins, &prefix.ends);
            let changed = *groups != *prefix.groups;
            if changed {
                prefix.groups = groups;
            }
            if prefix.begins.is_empty() && prefix.ends.is_empty() {
                removed.push(net);
                refreshed.removed.push((net, prefix.class));
            } else {
                refreshed.prefixes.push(net);
            }
            open.push(OpenPrefix {
                net,
                groups: prefix.groups.clone(),
                changed,
                next: Some(bits(net.network())),
            });
        }
        for top in open.into_iter().rev() {
            top.close(refreshed);
        }
        for net in removed {
            self.drop_prefix(net);
        }
    }

    /// Prefix of the index; added with the groups of its parent if absent.
    fn prefix(&mut self, net: IpNet) -> &mut Prefix {
        if !self.prefixes.contains_key(&net) {
            let above = self.longest(net, true).map(|(_, above)| above.groups.clone());
            let groups = above.unwrap_or_else(|| Arc::from([]));
            let prefix = Prefix { begins: Vec::new(), ends: Vec::new(), groups, class: ClassId::WORLD };
            self.prefixes.insert(net, prefix);
            *self.lengths[family(net)].entry(net.prefix_len()).or_default() += 1;
        }
        self.prefixes.get_mut(&net).expect("just inserted")
    }

    fn drop_prefix(&mut self, net: IpNet) {
        self.prefixes.remove(&net);
        let lengths = &mut self.lengths[family(net)];
        let count = lengths.get_mut(&net.prefix_len()).expect("a prefix that is there is counted");
        *count -= 1;
        if *count == 0 {
            lengths.remove(&net.prefix_len());
        }
    }

    /// Longest prefix that contains `net`; with `above`, shorter than `net`.
    fn longest(&self, net: IpNet, above: bool) -> Option<(IpNet, &Prefix)> {
        let limit = if above { net.prefix_len() } else { net.prefix_len() + 1 };
        self.lengths[family(net)].range(..limit).rev().find_map(|(&length, _)| {
            let net = IpNet::new_assert(net.addr(), length).trunc();
            Some((net, self.prefixes.get(&net)?))
        })
    }
}

/// Prefix whose range is being traversed.
struct OpenPrefix {
    net: IpNet,
    groups: Arc<[GroupId]>,
    changed: bool,
    /// First address that no inner prefix covers.
    next: Option<u128>,
}

impl OpenPrefix {
    /// Skips the addresses of an inner prefix.
    fn skip(&mut self, inside: IpNet, refreshed: &mut IpBlockChanges) {
        self.span_until(bits(inside.network()), refreshed);
        self.next = (inside.broadcast() != self.net.broadcast()).then(|| bits(inside.broadcast()) + 1);
    }

    fn close(mut self, refreshed: &mut IpBlockChanges) {
        if let Some(next) = self.next.take()
            && self.changed
        {
            refreshed.spans.push((self.address(next), self.net.broadcast()));
        }
    }

    fn span_until(&self, end: u128, refreshed: &mut IpBlockChanges) {
        if let Some(next) = self.next
            && self.changed
            && next < end
        {
            refreshed.spans.push((self.address(next), self.address(end - 1)));
        }
    }

    fn address(&self, bits: u128) -> IpAddr {
        match self.net {
            IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn family(net: IpNet) -> usize {
    usize::from(matches!(net, IpNet::V6(_)))
}

/// Groups of a prefix: those of its parent and those that begin with it, without those that end with it.
fn within(above: &[GroupId], begins: &[GroupId], ends: &[GroupId]) -> Arc<[GroupId]> {
    let mut groups: Vec<GroupId> = above.iter().chain(begins).copied().collect();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|group| ends.binary_search(group).is_err());
    groups.into()
}
