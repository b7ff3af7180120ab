//! Membership of pods, nodes and namespaces in groups, by name and label.

use crate::policy::store::{
    GroupId, Interner, NamespaceSlot, NodeSlot, PodSlot, PortUseId, Slot, Store, sorted,
};

use super::group::{AddressGroup, NamespaceScope, PodSet, PortName};

/// Address groups and their members.
#[derive(Debug, Clone, Default)]
pub(crate) struct Membership {
    /// Groups that rules refer to, and ports of pods that rules name.
    pub(crate) groups: Interner<GroupId, AddressGroup>,
    /// Named ports in rules: of pods in a group, or of any pod.
    pub(crate) port_uses: Interner<PortUseId, (Option<GroupId>, PortName)>,
    of_namespace: Vec<Vec<GroupId>>,
    of_pod: Vec<Vec<GroupId>>,
    of_node: Vec<Vec<GroupId>>,
    ports_of_pods: Vec<GroupId>,
    names_of: Vec<Vec<PortName>>,
    names_of_any_peer: Vec<PortName>,
}

/// Owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AddressOwner {
    /// Pod.
    Pod(PodSlot),
    /// Node.
    Node(NodeSlot),
}

impl Membership {
    /// Groups of an owner, sorted, without the blocks that contain its address.
    pub(crate) fn of(&self, owner: AddressOwner) -> &[GroupId] {
        match owner {
            AddressOwner::Pod(slot) => at(&self.of_pod, slot),
            AddressOwner::Node(slot) => at(&self.of_node, slot),
        }
    }

    /// Port names in rules about members of some groups.
    pub(crate) fn port_names<'a>(&'a self, groups: &'a [GroupId]) -> impl Iterator<Item = &'a PortName> {
        let asked = groups.iter().flat_map(|&group| at(&self.names_of, group));
        asked.chain(&self.names_of_any_peer)
    }

    /// Tests whether a group is a block of every address of a family.
    pub(crate) fn is_whole_block(&self, group: GroupId) -> bool {
        matches!(&**self.groups.key(group), AddressGroup::Block(block) if block.is_whole())
    }

    /// Tests whether a group is the pods with a container port.
    pub(crate) fn is_port_of_pods(&self, group: GroupId) -> bool {
        self.ports_of_pods.binary_search(&group).is_ok()
    }

    /// Groups of pods with a container port that rules name, sorted.
    pub(crate) fn ports_of_pods(&self) -> impl Iterator<Item = GroupId> {
        self.ports_of_pods.iter().copied()
    }

    /// Acquires the port groups of an added class.
    pub(crate) fn acquire_ports(&mut self, key: &[GroupId]) {
        for &group in key.iter().filter(|&&group| group != GroupId::OR) {
            if matches!(**self.groups.key(group), AddressGroup::Port { .. }) {
                self.groups.acquire(group);
                sorted::insert(&mut self.ports_of_pods, group);
            }
        }
    }

    /// Releases the port groups of a removed class.
    pub(crate) fn release_ports(&mut self, key: &[GroupId]) {
        for &group in key {
            if self.is_port_of_pods(group) {
                self.groups.release(group);
            }
        }
    }

    /// Frees the port groups that no class has.
    pub(crate) fn sweep_ports(&mut self) {
        for (group, _) in self.groups.sweep().removed {
            sorted::remove(&mut self.ports_of_pods, &group);
        }
    }

    /// Updates the groups of a namespace. Its pods must be refreshed afterwards.
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

    /// Updates the groups of a pod.
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

    /// Updates the groups of a node.
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

    /// Adds all members to an empty group. Returns them.
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

    /// Removes all members from a group. Returns them.
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

    /// Members of a group by name and label. Blocks have no members.
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

    /// Adds a port name to the rules about a group.
    pub(crate) fn add_port_name(&mut self, group: Option<GroupId>, name: PortName) {
        sorted::insert(self.names_for(group), name);
    }

    /// Removes a port name from the rules about a group.
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
