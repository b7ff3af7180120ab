//! Flow offload for the control side: the policy epochs that a publication gives the kernel, and counters.

use super::Core;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::offload::OffloadPort;
use crate::dataplane::service::{SERVICE_PAGES, ServiceFib};
use crate::dataplane::{OffloadCounters, PortCounters, PortKind};
use crate::ids::{AttachmentId, PortId};
use crate::limits::PORTS_MAX;
use crate::xdp::Pins;
use crate::xdp::offload::MapPins;
use crate::xdp::offload::layout::UNCHANGED;

const _: () = assert!(SERVICE_PAGES == UNCHANGED as usize, "each page has an epoch");

impl Core {
    /// Has the kernel forward nothing that an earlier snapshot than the published one has evaluated and this one has not.
    pub(super) fn publish_to_offload(&self) {
        let Some(offload) = &self.shared.offload else { return };
        let snapshot = self.shared.snapshot.current();
        for id in (0..PORTS_MAX).map(|id| PortId(id as u16)).filter(|id| offload.serves(*id)) {
            let values = snapshot.port(id).map(|port| OffloadPort {
                // A policer counts each packet.
                epoch: (port.ingress_policer().is_none() && port.egress_policer().is_none())
                    .then(|| snapshot.policy_epoch(id, id)),
                own_mac: port.own_mac,
            });
            offload.set_port(id, values.unwrap_or_default());
        }
        offload.set_services(snapshot.services().map(ServiceFib::page_epochs));
        // Flows of the process before go on until all ports of its pods have them again, and a policy.
        let has_pod = |port: &PortView| port.attachment != AttachmentId::NONE;
        let is_known =
            |id| snapshot.port(id).is_some_and(|port| port.kind == PortKind::Uplink || has_pod(port));
        if snapshot.rules().is_some() && offload.held_ports().all(is_known) {
            offload.release_held();
        }
    }

    /// Flows that go on under the policy of the process before.
    pub(in crate::dataplane) fn offload_problem(&self) -> Option<String> {
        let held = self.shared.offload.as_ref()?.held_ports().count();
        (held > 0).then(|| {
            format!(
                "flows of {held} ports go on under the policy of the process before, until tables are loaded and all pods \
                 attached, for the lease of [offload] at most"
            )
        })
    }

    /// Removes what keeps the maps for the next process.
    pub(in crate::dataplane) fn remove_offload_maps(&self, pins: &Pins) {
        if let Some(directory) = &self.flow_table.directory {
            MapPins::of(pins, directory).remove();
        }
    }

    /// Has the ports count what the kernel has forwarded.
    pub(super) fn count_offloaded(&self) -> Option<OffloadCounters> {
        let offload = self.shared.offload.as_ref()?;
        offload.count_ports();
        Some(offload.counters())
    }

    /// Adds what the kernel has forwarded from and to a port.
    pub(super) fn add_offloaded(&self, port: PortId, sum: &mut PortCounters) {
        let Some(offload) = &self.shared.offload else { return };
        let [received, transmitted] = offload.totals_of(port);
        sum.offloaded = received.packets;
        sum.received += received.packets;
        sum.received_bytes += received.bytes;
        sum.received_on_wire += received.packets + received.segments;
        sum.forwarded += received.packets;
        sum.transmitted += transmitted.packets;
        sum.transmitted_bytes += transmitted.bytes;
        sum.transmitted_on_wire += transmitted.packets + transmitted.segments;
    }
}
