//! Membership: which groups a pod, a node and a namespace are in by name and label.

use crate::policy::store::{
    GroupId, Interner, NamespaceSlot, NodeSlot, PodSlot, PortUseId, Slot, Store, sorted,
};

use super::{AddressGroup, NamespaceScope, PodSet, PortName};

/// The groups, and who is in them.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// The groups that rules name, and the ports of pods that they ask for.
    pub(crate) groups: Interner<GroupId, AddressGroup>,
    /// Where rules ask for ports by name: of pods in a group, or of every pod.
    pub(crate) port_uses: Interner<PortUseId, (Option<GroupId>, PortName)>,
    of_namespace: Vec<Vec<GroupId>>,
    of_pod: Vec<Vec<GroupId>>,
    of_node: Vec<Vec<GroupId>>,
    ports_of_pods: Vec<GroupId>,
    names_of: Vec<Vec<PortName>>,
    names_of_any_peer: Vec<PortName>,
}

/// Who has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AddressOwner {
    /// A pod.
    Pod(PodSlot),
    /// A node.
    Node(NodeSlot),
}

impl Membership {
    /// The groups that a owner is in, but for the blocks that its address is in. Sorted.
    pub(crate) fn of(&self, owner: AddressOwner) -> &[GroupId] {
        match owner {
            AddressOwner::Pod(slot) => at(&self.of_pod, slot),
            AddressOwner::Node(slot) => at(&self.of_node, slot),
        }
    }

    /// The names by which rules about members of some groups ask for ports.
    pub(crate) fn port_names<'a>(&'a self, groups: &'a [GroupId]) -> impl Iterator<Item = &'a PortName> {
        let asked = groups.iter().flat_map(|&group| at(&self.names_of, group));
        asked.chain(&self.names_of_any_peer)
    }

    /// Whether a group is a block of every address of a family.
    pub(crate) fn is_whole_block(&self, group: GroupId) -> bool {
        matches!(&**self.groups.key(group), AddressGroup::Block(block) if block.is_whole())
    }

    /// Whether a group is the pods with some container port.
    pub(crate) fn is_port_of_pods(&self, group: GroupId) -> bool {
        self.ports_of_pods.binary_search(&group).is_ok()
    }

    /// The groups of pods with some container port that rules ask for. Sorted.
    pub(crate) fn ports_of_pods(&self) -> impl Iterator<Item = GroupId> {
        self.ports_of_pods.iter().copied()
    }

    /// A class added: its pods' ports are in use.
    pub(crate) fn acquire_ports(&mut self, key: &[GroupId]) {
        for &group in key.iter().filter(|&&group| group != GroupId::OR) {
            if matches!(**self.groups.key(group), AddressGroup::Port { .. }) {
                self.groups.acquire(group);
                sorted::insert(&mut self.ports_of_pods, group);
            }
        }
    }

    /// A class dropped.
    pub(crate) fn release_ports(&mut self, key: &[GroupId]) {
        for &group in key {
            if self.is_port_of_pods(group) {
                self.groups.release(group);
            }
        }
    }

    /// Gives back the ports of pods that no class has.
    pub(crate) fn sweep_ports(&mut self) {
        for (group, _) in self.groups.sweep().removed {
            sorted::remove(&mut self.ports_of_pods, &group);
        }
    }

    /// Sees a namespace as it stands. Its pods are to be refreshed after it.
    pub(crate) fn refresh_namespace(&mut self, store: &Store, slot: NamespaceSlot) {
        let groups = store.namespace(slot).map_or_else(Vec::new, |namespace| {
            let covering = self.groups.iter().filter(|(_, group)| match &***group {
                AddressGroup::Pods(set) => set.namespaces.covers(&namespace.name, &namespace.labels),
                _ => false,
            });
            covering.map(|(id, _)| id).collect()
        });
        *at_mut(&mut self.of_namespace, slot) = groups;
    }

    /// Sees a pod as it stands.
    pub(crate) fn refresh_pod(&mut self, store: &Store, slot: PodSlot) {
        let groups = store.live_pod(slot).map_or_else(Vec::new, |stored| {
            let covering = at(&self.of_namespace, stored.namespace).iter().copied();
            let selects = |id: &GroupId| match &**self.groups.key(*id) {
                AddressGroup::Pods(set) => set.pods.matches(&stored.pod.labels),
                _ => false,
            };
            covering.filter(selects).collect()
        });
        *at_mut(&mut self.of_pod, slot) = groups;
    }

    /// Sees a node as it stands.
    pub(crate) fn refresh_node(&mut self, store: &Store, slot: NodeSlot) {
        let groups = store.node(slot).map_or_else(Vec::new, |node| {
            let covering = self.groups.iter().filter(|(_, group)| match &***group {
                AddressGroup::Nodes(selector) => selector.matches(&node.labels),
                AddressGroup::OwnNode(name) => *name == node.name,
                _ => false,
            });
            covering.map(|(id, _)| id).collect()
        });
        *at_mut(&mut self.of_node, slot) = groups;
    }

    /// Enters everyone who belongs into a group without members, and tells who.
    pub(crate) fn add_members(
        &mut self,
        store: &Store,
        id: GroupId,
        group: &AddressGroup,
    ) -> Vec<AddressOwner> {
        self.each_member(store, group, |groups| {
            sorted::insert(groups, id);
        })
    }

    /// Takes everyone who belongs out of a group, and tells who.
    pub(crate) fn remove_members(
        &mut self,
        store: &Store,
        id: GroupId,
        group: &AddressGroup,
    ) -> Vec<AddressOwner> {
        self.each_member(store, group, |groups| {
            sorted::remove(groups, &id);
        })
    }

    fn each_member(
        &mut self,
        store: &Store,
        group: &AddressGroup,
        change: impl Fn(&mut Vec<GroupId>),
    ) -> Vec<AddressOwner> {
        match group {
            AddressGroup::Pods(set) => {
                let namespaces = namespaces_of(store, set);
                for &slot in &namespaces {
                    change(at_mut(&mut self.of_namespace, slot));
                }
                let pods = store.pods_matching(&namespaces, &set.pods);
                for &slot in &pods {
                    change(at_mut(&mut self.of_pod, slot));
                }
                pods.into_iter().map(AddressOwner::Pod).collect()
            }
            AddressGroup::Nodes(_) | AddressGroup::OwnNode(_) => {
                let nodes = nodes_of(store, group);
                for &slot in &nodes {
                    change(at_mut(&mut self.of_node, slot));
                }
                nodes.into_iter().map(AddressOwner::Node).collect()
            }
            AddressGroup::Block(_) | AddressGroup::Port { .. } => Vec::new(),
        }
    }

    /// Who is in a group by name and label. IpBlockIndex have no members.
    pub(crate) fn members(store: &Store, group: &AddressGroup) -> Vec<AddressOwner> {
        match group {
            AddressGroup::Pods(set) => {
                let pods = store.pods_matching(&namespaces_of(store, set), &set.pods);
                pods.into_iter().map(AddressOwner::Pod).collect()
            }
            AddressGroup::Nodes(_) | AddressGroup::OwnNode(_) => {
                nodes_of(store, group).into_iter().map(AddressOwner::Node).collect()
            }
            AddressGroup::Block(_) | AddressGroup::Port { .. } => Vec::new(),
        }
    }

    /// Rules begin to ask for a port name.
    pub(crate) fn add_port_name(&mut self, group: Option<GroupId>, name: PortName) {
        sorted::insert(self.names_for(group), name);
    }

    /// Rules no longer ask for a port name.
    pub(crate) fn remove_port_name(&mut self, group: Option<GroupId>, name: &PortName) {
        sorted::remove(self.names_for(group), name);
    }

    fn names_for(&mut self, group: Option<GroupId>) -> &mut Vec<PortName> {
        match group {
            Some(group) => at_mut(&mut self.names_of, group),
            None => &mut self.names_of_any_peer,
        }
    }
}

fn namespaces_of(store: &Store, set: &PodSet) -> Vec<NamespaceSlot> {
    match &set.namespaces {
        NamespaceScope::Named(name) => store.namespace_slot(name).into_iter().collect(),
        NamespaceScope::Matching(selector) => store.namespaces_matching(selector),
    }
}

fn nodes_of(store: &Store, group: &AddressGroup) -> Vec<NodeSlot> {
    match group {
        AddressGroup::OwnNode(name) => store.node_slot(name).into_iter().collect(),
        AddressGroup::Nodes(selector) => {
            let nodes = store.nodes().filter(|(_, node)| selector.matches(&node.labels));
            nodes.map(|(slot, _)| slot).collect()
        }
        _ => Vec::new(),
    }
}

fn at<S: Slot, T>(lists: &[Vec<T>], slot: S) -> &[T] {
    lists.get(slot.position()).map_or(&[], Vec::as_slice)
}

fn at_mut<S: Slot, T>(lists: &mut Vec<Vec<T>>, slot: S) -> &mut Vec<T> {
    if lists.len() <= slot.position() {
        lists.resize_with(slot.position() + 1, Vec::new);
    }
    &mut lists[slot.position()]
}
