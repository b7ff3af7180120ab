//! One port of a Service, laid out for lookup.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::address_ranges::AddressRanges;
use super::local_addresses::LocalAddresses;
use super::maglev::Maglev;
use crate::dataplane::ServiceFlows;
use crate::net::address::{Address, pack, unpack};
use crate::tables::ServicePort;

/// Backends by address family: IPv4, IPv6.
type ByFamily = [BackendList; 2];

/// Packets that a list of backends is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendsFor {
    /// To an address inside the cluster.
    Cluster,
    /// To an external address or a node port, from outside.
    Outside,
    /// To an external address or a node port, from this node.
    ShortCircuit,
}

/// Port of a Service. Entries of later snapshots share its counters.
#[derive(Debug)]
pub(crate) struct PortEntry {
    /// Lists by [`BackendsFor`].
    lists: [Arc<ByFamily>; 3],
    /// Families in which clients outside may take backends elsewhere: IPv4, IPv6.
    carried: [bool; 2],
    /// Sources that reach the guarded addresses.
    sources: AddressRanges,
    /// Seconds for which a client keeps its backend.
    pub affinity_seconds: Option<u32>,
    /// Flows that the port has opened.
    opened: Arc<AtomicU64>,
}

#[derive(Debug)]
struct BackendList {
    /// Backends by address and port.
    backends: Arc<[Backend]>,
    maglev: Arc<Maglev>,
    /// Those of this node.
    local: LocalBackends,
}

/// Backends of this node: clients other than pods take no others.
#[derive(Debug)]
struct LocalBackends {
    /// Indices in the list of all, in order.
    indices: Box<[u16]>,
    maglev: Maglev,
    /// Whether one of them is a pod.
    has_pod: bool,
    /// Whether others are elsewhere.
    has_elsewhere: bool,
}

#[derive(Debug)]
struct Backend {
    address: Address,
    port: u16,
    /// Flows that have been opened to it.
    opened: Arc<AtomicU64>,
}

/// A backend that a flow may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
    /// Address of the backend.
    pub address: Address,
    /// Its target port.
    pub port: u16,
    /// Its index in its list.
    pub index: usize,
}

impl PortEntry {
    /// Lays out a port. Counters of backends that the entry `before` has go on.
    pub(super) fn new(port: &ServicePort, before: Option<&PortEntry>, local: &LocalAddresses) -> PortEntry {
        let mut counters: BTreeMap<(Address, u16), Arc<AtomicU64>> = BTreeMap::new();
        for backend in before.iter().flat_map(|before| before.backends()) {
            counters.insert((backend.address, backend.port), backend.opened.clone());
        }
        let mut lists = |addresses: &[SocketAddr], before: Option<&ByFamily>| {
            let list = |is_v4: bool| {
                let before = before.map(|before| &before[usize::from(!is_v4)]);
                BackendList::new(addresses, is_v4, before, &mut counters, local)
            };
            Arc::new([true, false].map(list))
        };
        let list_before = |of: BackendsFor| before.map(|before| &*before.lists[of as usize]);
        let internal = lists(&port.internal_backends, list_before(BackendsFor::Cluster));
        let external = if port.internal_backends == port.external_backends {
            internal.clone()
        } else {
            lists(&port.external_backends, list_before(BackendsFor::Outside))
        };
        let short_circuit = match &port.short_circuit_backends {
            None => external.clone(),
            Some(backends) if *backends == port.internal_backends => internal.clone(),
            Some(backends) => lists(backends, list_before(BackendsFor::ShortCircuit)),
        };
        // With the policy `Local` clients keep their addresses.
        let is_local = port.short_circuit_backends.is_some();
        PortEntry {
            sources: AddressRanges::new(&port.source_ranges),
            carried: if is_local { [false; 2] } else { local.carried() },
            lists: [internal, external, short_circuit],
            affinity_seconds: port.affinity_seconds,
            opened: before.map(|before| before.opened.clone()).unwrap_or_default(),
        }
    }

    fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.lists.iter().flat_map(|list| &**list).flat_map(|list| &*list.backends)
    }

    #[inline]
    fn list(&self, of: BackendsFor, is_v4: bool) -> &BackendList {
        &self.lists[of as usize][usize::from(!is_v4)]
    }

    /// The backend for a flow with this hash, of all or of this node. `None` without such backends of the family.
    #[inline]
    pub(crate) fn pick(&self, of: BackendsFor, is_v4: bool, is_local: bool, hash: u64) -> Option<Pick> {
        let list = self.list(of, is_v4);
        if is_local {
            list.at(usize::from(list.local.indices[list.local.maglev.pick(hash)?]))
        } else {
            list.at(list.maglev.pick(hash)?)
        }
    }

    /// The backend behind `pick` in the order of its list, from the last one to the first one.
    pub(crate) fn next(&self, of: BackendsFor, is_v4: bool, is_local: bool, pick: &Pick) -> Option<Pick> {
        let list = self.list(of, is_v4);
        if !is_local {
            return list.at((pick.index + 1) % list.backends.len().max(1));
        }
        let indices = &list.local.indices;
        let next = indices.partition_point(|index| usize::from(*index) <= pick.index);
        list.at(usize::from(*indices.get(next).or_else(|| indices.first())?))
    }

    /// Number of backends, of all or of this node.
    pub(crate) fn count(&self, of: BackendsFor, is_v4: bool, is_local: bool) -> usize {
        let list = self.list(of, is_v4);
        if is_local { list.local.indices.len() } else { list.backends.len() }
    }

    /// Whether packets from an address reach the guarded addresses.
    pub(crate) fn admits(&self, source: Address) -> bool {
        self.sources.contain(source)
    }

    /// Whether clients outside may take backends elsewhere.
    #[inline]
    pub(crate) fn is_carried(&self, is_v4: bool) -> bool {
        self.carried[usize::from(!is_v4)]
    }

    /// Whether there is a backend for clients outside: a pod of this node, or one elsewhere that they may take.
    pub(super) fn serves_outside(&self, is_v4: bool) -> bool {
        let local = &self.list(BackendsFor::Outside, is_v4).local;
        local.has_pod || local.has_elsewhere && self.is_carried(is_v4)
    }

    /// Whether a backend has one of these addresses.
    pub(super) fn has_backend_at(&self, addresses: &[Address]) -> bool {
        let has = |list: &BackendList, address: Address| {
            let first = list.backends.partition_point(|backend| backend.address < address);
            list.backends.get(first).is_some_and(|backend| backend.address == address)
        };
        let mut lists = self.lists.iter().flat_map(|list| &**list);
        lists.any(|list| addresses.iter().any(|address| has(list, *address)))
    }

    /// The backend with this address, if new flows may take it.
    pub(crate) fn find(&self, of: BackendsFor, is_v4: bool, address: Address, port: u16) -> Option<Pick> {
        let list = self.list(of, is_v4);
        let index =
            list.backends.binary_search_by_key(&(address, port), |backend| (backend.address, backend.port));
        list.at(index.ok()?)
    }

    /// Counts a flow to a backend.
    #[inline]
    pub(crate) fn count_opened(&self, of: BackendsFor, is_v4: bool, index: usize) {
        self.opened.fetch_add(1, Relaxed);
        if let Some(backend) = self.list(of, is_v4).backends.get(index) {
            backend.opened.fetch_add(1, Relaxed);
        }
    }

    /// Flows that the port has opened.
    pub(super) fn flows(&self) -> ServiceFlows {
        let count = |backend: &Backend| {
            (SocketAddr::new(unpack(backend.address), backend.port), backend.opened.load(Relaxed))
        };
        ServiceFlows { total: self.opened.load(Relaxed), backends: self.backends().map(count).collect() }
    }
}

impl BackendList {
    /// Lays out the backends of a family. If they are those of the list `before`, the two share them.
    fn new(
        addresses: &[SocketAddr],
        is_v4: bool,
        before: Option<&BackendList>,
        counters: &mut BTreeMap<(Address, u16), Arc<AtomicU64>>,
        local: &LocalAddresses,
    ) -> BackendList {
        let mut sorted: Vec<SocketAddr> =
            addresses.iter().filter(|address| address.is_ipv4() == is_v4).copied().collect();
        sorted.sort_by_key(|address| (pack(address.ip()), address.port()));
        sorted.dedup();
        let ends = sorted.iter().map(|address| (pack(address.ip()), address.port()));
        let is_same = |before: &&BackendList| {
            ends.clone().eq(before.backends.iter().map(|backend| (backend.address, backend.port)))
        };
        let (backends, maglev) = if let Some(before) = before.filter(is_same) {
            (before.backends.clone(), before.maglev.clone())
        } else {
            let backend = |(address, port)| {
                let opened = counters.entry((address, port)).or_default().clone();
                Backend { address, port, opened }
            };
            (ends.map(backend).collect(), Arc::new(Maglev::new(&sorted)))
        };
        BackendList { local: LocalBackends::new(&sorted, local), backends, maglev }
    }

    #[inline]
    fn at(&self, index: usize) -> Option<Pick> {
        let backend = self.backends.get(index)?;
        Some(Pick { address: backend.address, port: backend.port, index })
    }
}

impl LocalBackends {
    fn new(backends: &[SocketAddr], local: &LocalAddresses) -> LocalBackends {
        let has_pod = backends.iter().any(|backend| local.is_pod(pack(backend.ip())));
        let local = backends.iter().zip(0..).filter(|(backend, _)| local.may_have(backend.ip()));
        let (own, indices): (Vec<SocketAddr>, Vec<u16>) = local.unzip();
        let has_elsewhere = own.len() < backends.len();
        LocalBackends { indices: indices.into(), maglev: Maglev::new(&own), has_pod, has_elsewhere }
    }
}
