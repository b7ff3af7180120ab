//! Guard against forged addresses, and the packets that need no policy: ARP and neighbour discovery.

use super::tables::{self, Table};
use super::{Flows, ZONE};
use crate::render::output::RenderOptions;
use crate::render::plan::{Family, Plan};

/// Link-local addresses (RFC 4291, section 2.5.6).
const LINK_LOCAL: &str = "fe80::/10";

impl Flows {
    /// Adds the flows of one family. A named interface carries the addresses of its pod alone, and no other
    /// interface but the node's own (`LOCAL`) carries those.
    pub(super) fn add_guard(&mut self, plan: &Plan, family: Family, options: &RenderOptions) {
        self.add_kinds(family);
        let word = tables::word(family);
        let [source, _] = tables::address_fields(family);
        // A neighbour's advertisement has hop limit 255, or takes no part in discovery.
        let (claim, own_claim) = match family {
            Family::V4 => ("arp,arp_spa=", "arp,arp_spa="),
            Family::V6 => ("icmp6,icmp_type=136,nd_target=", "icmp6,nw_ttl=255,icmp_type=136,nd_target="),
        };
        let chosen =
            options.interfaces.iter().filter(|(pod, _)| options.pod.as_ref().is_none_or(|only| only == *pod));
        for (pod, interface) in chosen {
            let (port, pod) = (format!("in_port=\"{interface}\""), pod.to_string());
            self.add(Table::Guard, 40, &port, &tables::goto(Table::LinkLocal), &pod);
            if family == Family::V6 {
                // Router advertisements, redirects, and advertisements of neighbours with another address.
                for kind in [134, 136, 137] {
                    let matches = format!("{port},icmp6,icmp_type={kind}");
                    self.add(Table::Guard, 60, &matches, &tables::goto(Table::LinkLocal), "");
                }
            }
        }
        for (address, endpoint) in &plan.endpoints {
            let named: Vec<&String> =
                endpoint.pods.iter().filter_map(|pod| options.interfaces.get(pod)).collect();
            for interface in &named {
                let port = format!("in_port=\"{interface}\"");
                let next = tables::goto(Table::Kind);
                self.add(Table::Guard, 50, &format!("{port},{word},{source}={address}"), &next, "");
                self.add(Table::Guard, 70, &format!("{port},{own_claim}{address}"), &next, "");
            }
            if named.len() == endpoint.pods.len() {
                self.add(Table::Guard, 30, &format!("{word},{source}={address}"), "drop", "");
                self.add(Table::Guard, 30, &format!("{claim}{address}"), "drop", "");
            }
        }
    }

    /// Adds the flows for kinds of packets. Packets of IP go to connection tracking, others than ARP are dropped.
    fn add_kinds(&mut self, family: Family) {
        let word = tables::word(family);
        let track = format!("ct(table={},zone={ZONE})", Table::State as u8);
        self.add(Table::Guard, 100, "in_port=LOCAL", &tables::goto(Table::Kind), "The node");
        self.add(Table::Guard, 0, "", &tables::goto(Table::Kind), "");
        self.add(Table::LinkLocal, 0, "", "drop", "");
        self.add(Table::Kind, 10, word, &track, "");
        self.add(Table::Kind, 0, "", "drop", "Neither ARP nor IP");
        if family == Family::V4 {
            self.add(Table::Kind, 20, "arp", "NORMAL", "");
            let probe = "arp,arp_op=1,arp_spa=0.0.0.0";
            self.add(Table::LinkLocal, 10, probe, "NORMAL", "Probe of an address (RFC 5227)");
            return;
        }
        // Neighbour discovery has hop limit 255 (RFC 4861), reports of multicast listeners have 1 (RFC 2710, 3810).
        for kind in 133..=137 {
            self.add(Table::Kind, 20, &format!("icmp6,nw_ttl=255,icmp_type={kind}"), "NORMAL", "");
        }
        for kind in [130, 131, 132, 143] {
            let matches = format!("icmp6,ipv6_dst=ff00::/8,nw_ttl=1,icmp_type={kind}");
            self.add(Table::Kind, 20, &matches, "NORMAL", "");
        }
        let next = tables::goto(Table::Kind);
        let target = format!("icmp6,nw_ttl=255,icmp_type=136,nd_target={LINK_LOCAL}");
        self.add(Table::LinkLocal, 10, &target, &next, "");
        for source in [LINK_LOCAL, "::"] {
            for kind in [133, 135] {
                let matches = format!("icmp6,ipv6_src={source},nw_ttl=255,icmp_type={kind}");
                self.add(Table::LinkLocal, 10, &matches, &next, "");
            }
            for kind in [131, 132, 143] {
                let matches = format!("icmp6,ipv6_src={source},ipv6_dst=ff00::/8,nw_ttl=1,icmp_type={kind}");
                self.add(Table::LinkLocal, 10, &matches, &next, "");
            }
        }
    }
}
