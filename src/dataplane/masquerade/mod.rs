//! Masquerading: flows of pods to destinations outside the cluster's networks leave with an address of the node (source NAT,
//! RFC 3022), and a port of a range that the node's own sockets do not use. So do flows of clients outside to backends of
//! Services elsewhere, whose replies must come back to the switch that translates them.
//!
//! A mapping depends on address and port of the destination (RFC 4787 section 4.1), so one external port serves as many flows
//! as there are destinations. The conntrack entry of a flow has the addresses of pod and destination; the external port lies
//! beside it ([`FrontEnd`](super::conntrack::FrontEnd)), and [`ExternalPorts`] leads from a reply to its flow.

mod external_ports;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

pub(crate) use self::external_ports::{Choice, ExternalEnd, ExternalPorts};
use super::{MasqueradeSettings, PortKind};
use crate::net::address::{Address, from_v4, is_v4, pack};
use crate::tables::RouteTable;

/// Masquerading, as the control side sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// External ends, those of [`Settings::masquerade`](super::Settings::masquerade).
    pub external: MasqueradeSettings,
    /// Destinations to which pods keep their addresses.
    pub except: BTreeSet<IpNet>,
    /// Whether no flow begins to be masqueraded yet, because other destinations may become exceptions: policies of other
    /// nodes would see the node in place of a pod.
    pub waits: bool,
    /// Whether clients of Services outside reach backends elsewhere, with the node's address: nobody else does it.
    pub serves_outside: bool,
}

impl Masquerade {
    /// Families in which clients of Services outside reach backends elsewhere: IPv4, IPv6.
    pub(super) fn carried_families(&self) -> [bool; 2] {
        let has = |v4: bool| self.external.addresses.iter().any(|address| address.is_ipv4() == v4);
        [true, false].map(|v4| self.serves_outside && has(v4))
    }

    /// Peers whose packets to external ports are the kernel's, which masquerades flows of its own to them.
    pub(super) fn kernel_peers(&self) -> Option<&BTreeSet<IpNet>> {
        static NONE: BTreeSet<IpNet> = BTreeSet::new();
        if self.serves_outside {
            return Some(&NONE);
        }
        // Those of an earlier run stay while the routes to other nodes are awaited.
        (!self.waits).then_some(&self.except)
    }
}

/// Number of the highest identifiers that masqueraded ICMP queries get. A query of the node itself with one of these has no
/// reply, so they are few.
const IDENTIFIERS: u16 = 1024;

/// Identifiers of masqueraded ICMP queries.
pub(crate) const EXTERNAL_IDENTIFIERS: RangeInclusive<u16> = u16::MAX - IDENTIFIERS + 1..=u16::MAX;

/// Masquerading in a snapshot.
pub(crate) struct MasqueradeView {
    source: Arc<Masquerade>,
    /// Addresses of IPv6 and IPv4; for a family without one, an address that no packet of that family has.
    addresses: [Address; 2],
    ports: RangeInclusive<u16>,
    except: RouteTable,
}

impl MasqueradeView {
    /// The view of the next snapshot; that of the last one where nothing has changed.
    pub(crate) fn next(
        last: Option<&Arc<MasqueradeView>>,
        masquerade: Option<&Arc<Masquerade>>,
    ) -> Option<Arc<MasqueradeView>> {
        let masquerade = masquerade?;
        let same = last.filter(|last| last.source == *masquerade);
        Some(same.cloned().unwrap_or_else(|| Arc::new(MasqueradeView::new(masquerade))))
    }

    fn new(masquerade: &Arc<Masquerade>) -> MasqueradeView {
        let first = |v4: bool| masquerade.external.addresses.iter().find(|address| address.is_ipv4() == v4);
        MasqueradeView {
            source: masquerade.clone(),
            addresses: [
                first(false).map_or(from_v4(0), |address| pack(*address)),
                first(true).map_or(0, |address| pack(*address)),
            ],
            ports: masquerade.external.ports.clone(),
            except: RouteTable::build(masquerade.except.iter().map(|prefix| (*prefix, 0))),
        }
    }

    /// Address of the node that flows of a family get.
    #[inline]
    pub(crate) fn address(&self, is_v4: bool) -> Option<Address> {
        let address = self.addresses[usize::from(is_v4)];
        (crate::net::address::is_v4(address) == is_v4).then_some(address)
    }

    /// Whether no flow of a pod begins to be masqueraded yet.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.source.waits
    }

    /// External ports of flows with ports.
    #[inline]
    pub(crate) fn ports(&self) -> &RangeInclusive<u16> {
        &self.ports
    }

    /// Whether a flow that has come by a port of this kind and leaves by an uplink gets the node's address. `by_service`: its
    /// destination was that of a Service.
    #[inline]
    pub(crate) fn covers(&self, from: PortKind, by_service: bool, src: Address, dst: Address) -> bool {
        match from {
            PortKind::Uplink => {
                by_service && self.source.serves_outside && self.address(is_v4(dst)).is_some()
            }
            kind => kind.has_pod() && self.applies(src, dst),
        }
    }

    /// Whether a flow of a pod with this source leaves with the node's address. IPv6 addresses that are not unique local ones
    /// are routable outside (RFC 4193).
    fn applies(&self, src: Address, dst: Address) -> bool {
        let is_local = is_v4(src) || src >> 121 == 0xfc >> 1;
        let is_excepted = if is_v4(dst) {
            self.except.next_hop_v4(dst as u32).is_some()
        } else {
            self.except.next_hop_v6(dst).is_some()
        };
        is_local && !is_excepted && self.address(is_v4(src)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_keep_their_addresses_within_the_cluster_and_where_these_are_routable() {
        let addresses = ["192.0.2.1", "2001:db8::1", "192.0.2.2"].map(|text| text.parse().unwrap());
        let view = MasqueradeView::new(&Arc::new(Masquerade {
            external: MasqueradeSettings { addresses: addresses.to_vec(), ports: 61_000..=65_535 },
            except: ["10.0.0.0/8", "fd00::/16", "192.0.2.7/32"].map(|text| text.parse().unwrap()).into(),
            waits: false,
            serves_outside: false,
        }));
        let address = |text: &str| pack(text.parse().unwrap());
        assert_eq!(
            [true, false].map(|v4| view.address(v4)),
            ["192.0.2.1", "2001:db8::1"].map(|a| Some(address(a)))
        );
        for (src, dst, applies) in [
            ("10.1.0.2", "198.51.100.1", true),
            ("10.1.0.2", "192.0.2.8", true),
            ("10.1.0.2", "192.0.2.7", false),
            ("10.1.0.2", "10.9.9.9", false),
            ("fd00::2", "2001:db8:99::1", true),
            ("fc00::2", "fd01::1", true),
            ("fd00::2", "fd00:1::1", false),
            ("2001:db8:1::2", "2001:db8:99::1", false),
        ] {
            assert_eq!(view.applies(address(src), address(dst)), applies, "{src} to {dst}");
        }
    }

    #[test]
    fn a_family_without_an_address_of_the_node_is_not_masqueraded() {
        let view = MasqueradeView::new(&Arc::new(Masquerade {
            external: MasqueradeSettings { addresses: vec![], ports: 1..=2 },
            except: BTreeSet::new(),
            waits: false,
            serves_outside: false,
        }));
        assert_eq!([true, false].map(|v4| view.address(v4)), [None, None]);
        assert!(!view.applies(pack("10.0.0.1".parse().unwrap()), pack("198.51.100.1".parse().unwrap())));
    }
}
