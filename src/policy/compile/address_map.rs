//! Address map: the owners of each address, and the class of every address and prefix that needs one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::ids::ClassId;
use crate::policy::objects::{ContainerPort, IpBlock};
use crate::policy::resolve::{AddressGroup, AddressOwner, IpBlockIndex, Membership};
use crate::policy::store::{GroupId, Store};

use super::classes::{Classes, class_key};
use super::output::TablesOutput;

/// Addresses and prefixes with their classes.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressMap {
    blocks: IpBlockIndex,
    hosts: BTreeMap<IpAddr, Host>,
    addresses_of: BTreeMap<AddressOwner, Vec<IpAddr>>,
    dirty: BTreeSet<IpAddr>,
}

/// Address with owners.
#[derive(Debug, Clone, Default)]
struct Host {
    owners: Vec<AddressOwner>,
    class: ClassId,
}

impl AddressMap {
    /// Sets all addresses of an owner. Marks them and the former ones as dirty.
    pub(crate) fn set_addresses(&mut self, owner: AddressOwner, addresses: &[IpAddr]) {
        let before = self.addresses_of.remove(&owner).unwrap_or_default();
        for &address in before.iter().filter(|address| !addresses.contains(address)) {
            if let Some(host) = self.hosts.get_mut(&address) {
                host.owners.retain(|&other| other != owner);
            }
        }
        for &address in addresses {
            let owners = &mut self.hosts.entry(address).or_default().owners;
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        self.dirty.extend(before.iter().chain(addresses));
        if !addresses.is_empty() {
            self.addresses_of.insert(owner, addresses.to_vec());
        }
    }

    /// Marks the addresses of an owner as dirty.
    pub(crate) fn mark(&mut self, owner: AddressOwner) {
        self.dirty.extend(self.addresses_of.get(&owner).into_iter().flatten());
    }

    /// Marks the addresses in a prefix as dirty.
    pub(crate) fn mark_prefix(&mut self, prefix: IpNet) {
        let hosts = self.hosts.range(prefix.network()..=prefix.broadcast());
        self.dirty.extend(hosts.map(|(&address, _)| address));
    }

    /// Marks every address as dirty.
    pub(crate) fn mark_all(&mut self) {
        self.dirty.extend(self.hosts.keys());
    }

    /// Adds the block of a group.
    pub(crate) fn insert_block(&mut self, id: GroupId, block: &IpBlock) {
        self.blocks.insert(id, block);
    }

    /// Removes the block of a group.
    pub(crate) fn remove_block(&mut self, id: GroupId, block: &IpBlock) {
        self.blocks.remove(id, block);
    }

    /// Class of an address.
    pub(crate) fn class_of(&self, address: IpAddr) -> ClassId {
        self.hosts.get(&address).map_or_else(|| self.blocks.class_of(address), |host| host.class)
    }

    /// Computes the classes of dirty addresses and prefixes, and writes changes to the output.
    pub(crate) fn update(
        &mut self,
        store: &Store,
        members: &mut Membership,
        classes: &mut Classes,
        output: &mut TablesOutput,
    ) {
        let refreshed = self.blocks.refresh();
        for (first, last) in refreshed.spans {
            let hosts = self.hosts.range(first..=last);
            self.dirty.extend(hosts.map(|(&address, _)| address));
        }
        for &prefix in &refreshed.prefixes {
            if prefix.prefix_len() == prefix.max_prefix_len() {
                self.dirty.insert(prefix.addr());
            } else {
                self.update_prefix(classes, prefix);
            }
        }
        for &(_, class) in &refreshed.removed {
            classes.release(class);
        }
        let dirty = std::mem::take(&mut self.dirty);
        for &address in &dirty {
            self.update_host(store, members, classes, address);
        }
        let removed = refreshed.removed.into_iter().map(|(prefix, _)| prefix);
        for prefix in removed.chain(refreshed.prefixes).chain(dirty.into_iter().map(IpNet::from)) {
            self.publish(prefix, output);
        }
    }

    fn update_host(
        &mut self,
        store: &Store,
        members: &mut Membership,
        classes: &mut Classes,
        address: IpAddr,
    ) {
        if let Some(host) = self.hosts.get_mut(&address) {
            if host.owners.is_empty() {
                classes.release(host.class);
                self.hosts.remove(&address);
            } else {
                let groups = key(store, members, self.blocks.groups_of(address), &host.owners);
                classes.reassign(&mut host.class, &groups);
            }
        }
        self.update_prefix(classes, IpNet::from(address));
    }

    /// Updates the class of a prefix of a block. A single address with an owner has no class of its own as a
    /// prefix.
    fn update_prefix(&mut self, classes: &mut Classes, prefix: IpNet) {
        let Some(mut class) = self.blocks.class(prefix) else { return };
        let groups = match self.host(prefix) {
            Some(_) => Arc::from([]),
            None => self.blocks.groups(prefix).expect("it has a class").clone(),
        };
        classes.reassign(&mut class, &groups);
        self.blocks.set_class(prefix, class);
    }

    /// Host whose address is the prefix.
    fn host(&self, prefix: IpNet) -> Option<&Host> {
        if prefix.prefix_len() == prefix.max_prefix_len() { self.hosts.get(&prefix.addr()) } else { None }
    }

    /// Publishes the entry of a prefix, which exists only if its class differs from that of its parent.
    fn publish(&self, prefix: IpNet, output: &mut TablesOutput) {
        let class = self.host(prefix).map(|host| host.class).or_else(|| self.blocks.class(prefix));
        output.set_prefix(prefix, class.filter(|&class| class != self.blocks.class_above(prefix)));
    }
}

/// Class key of an address with these blocks and owners: see [`Classes`].
fn key(store: &Store, members: &mut Membership, around: &[GroupId], owners: &[AddressOwner]) -> Vec<GroupId> {
    match owners {
        [owner] => key_of(store, members, around, *owner),
        owners => class_key(owners.iter().map(|&owner| key_of(store, members, around, owner)).collect()),
    }
}

fn key_of(store: &Store, members: &mut Membership, around: &[GroupId], owner: AddressOwner) -> Vec<GroupId> {
    let own = members.of(owner);
    let pod = match owner {
        AddressOwner::Pod(slot) => store.live_pod(slot).map(|stored| &stored.pod),
        AddressOwner::Node(_) => None,
    };
    let mut groups = Vec::with_capacity(around.len() + own.len());
    if pod.is_some_and(|pod| pod.placeholder) {
        groups.extend(around.iter().filter(|group| members.is_whole_block(**group)));
    } else {
        groups.extend_from_slice(around);
    }
    groups.extend_from_slice(own);
    if let Some(pod) = pod {
        let asked = asked_ports(members, &groups, &pod.ports);
        groups.extend(asked.into_iter().map(|port| members.groups.intern(port)));
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Ports of a pod that rules about some groups name.
fn asked_ports(members: &Membership, groups: &[GroupId], ports: &[ContainerPort]) -> Vec<AddressGroup> {
    let mut asked = Vec::new();
    for port in ports {
        if let Some(name) = &port.name
            && members.port_names(groups).any(|asked| asked.is_of(port))
        {
            asked.push(AddressGroup::Port { name: name.clone(), protocol: port.protocol, number: port.port });
        }
    }
    asked
}
