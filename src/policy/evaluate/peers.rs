//! Clauses M1 to M7, B1 to B4 and C9 to C13: the peers of a rule.

use std::net::IpAddr;

use ipnet::IpNet;

use super::object_index::ObjectIndex;
use super::query::{AddressOwner, PeerAddress};
use super::selectors::selects;
use crate::policy::objects::{ClusterPeer, IpBlock, LabelSelector, Peer, Peers, Pod, PodScope};

impl ObjectIndex<'_> {
    /// Clause M1: an absent list matches every peer. Clause M5: entries are alternatives.
    pub(in crate::policy) fn network_peers_match(
        &self,
        namespace: &str,
        peers: &Peers,
        end: &PeerAddress<'_>,
    ) -> bool {
        match peers {
            Peers::Everyone => true,
            Peers::Any(entries) => entries.iter().any(|peer| self.network_peer_matches(namespace, peer, end)),
        }
    }

    pub(in crate::policy) fn network_peer_matches(
        &self,
        namespace: &str,
        peer: &Peer,
        end: &PeerAddress<'_>,
    ) -> bool {
        match (peer, end.owner) {
            (Peer::IpBlock(block), owner) => {
                block_contains(block, end.address) && (is_certain(owner) || is_whole_block(block))
            }
            // Clause M2: without a namespace selector, pods of the namespace of the policy.
            (Peer::Pods { namespaces: None, pods }, AddressOwner::Pod(pod)) => {
                pod.name.namespace == namespace && selects(pods, &pod.labels)
            }
            // Clauses M3 and M4: both selectors hold.
            (Peer::Pods { namespaces: Some(namespaces), pods }, AddressOwner::Pod(pod)) => {
                self.pod_is_in(namespaces, pods, pod)
            }
            // Clause M6: selectors match pods only.
            (Peer::Pods { .. }, AddressOwner::Node(_) | AddressOwner::External) => false,
        }
    }

    /// Tests the entries, which are alternatives.
    pub(in crate::policy) fn cluster_peers_match(
        &self,
        peers: &[ClusterPeer],
        end: &PeerAddress<'_>,
    ) -> bool {
        peers.iter().any(|peer| self.cluster_peer_matches(peer, end))
    }

    pub(in crate::policy) fn cluster_peer_matches(&self, peer: &ClusterPeer, end: &PeerAddress<'_>) -> bool {
        match (peer, end.owner) {
            // Clause C9.
            (ClusterPeer::Pods(scope), AddressOwner::Pod(pod)) => self.scope_selects(scope, pod),
            // Clause C10: every address in the prefix, those of pods included.
            (ClusterPeer::Network(cidr), owner) => {
                prefix_contains(*cidr, end.address) && (is_certain(owner) || cidr.prefix_len() == 0)
            }
            // Clause C11.
            (ClusterPeer::Nodes(selector), AddressOwner::Node(node)) => selects(selector, &node.labels),
            // Clause C13.
            (ClusterPeer::Everyone, _) => true,
            // Clause C12: no address is known to belong to a name.
            (ClusterPeer::DomainName(_) | ClusterPeer::Pods(_) | ClusterPeer::Nodes(_), _) => false,
        }
    }

    /// Clause C8 for subjects, C9 for peers.
    pub(in crate::policy) fn scope_selects(&self, scope: &PodScope, pod: &Pod) -> bool {
        self.pod_is_in(&scope.namespaces, &scope.pods, pod)
    }

    fn pod_is_in(&self, namespaces: &LabelSelector, pods: &LabelSelector, pod: &Pod) -> bool {
        selects(namespaces, &self.namespace_labels(&pod.name.namespace)) && selects(pods, &pod.labels)
    }
}

/// Clause B7: tests whether the owner certainly has the address: not a pod with a placeholder, or without
/// addresses.
pub(super) fn is_certain(owner: AddressOwner<'_>) -> bool {
    match owner {
        AddressOwner::Pod(pod) => !pod.placeholder && !pod.addresses.is_empty(),
        AddressOwner::Node(_) | AddressOwner::External => true,
    }
}

/// Clause B7: block of every address of the family, without exceptions.
fn is_whole_block(block: &IpBlock) -> bool {
    block.cidr.prefix_len() == 0 && block.except.is_empty()
}

/// Clause B1: inside the prefix and outside of its exceptions, which affect this block only.
fn block_contains(block: &IpBlock, address: IpAddr) -> bool {
    prefix_contains(block.cidr, address)
        && !block.except.iter().any(|except| prefix_contains(*except, address))
}

/// Clauses B3 and B4: equal family, and equal bits of the prefix.
pub(in crate::policy) fn prefix_contains(prefix: IpNet, address: IpAddr) -> bool {
    let (network, address, width) = match (prefix.addr(), address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (u128::from(network.to_bits()), u128::from(address.to_bits()), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
        _ => return false,
    };
    let host_bits = width - u32::from(prefix.prefix_len());
    // `checked_shr` returns `None` for a shift by all 128 bits: the prefix of length 0 contains every
    // address.
    network.checked_shr(host_bits) == address.checked_shr(host_bits)
}
