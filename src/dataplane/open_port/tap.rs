//! Opening of a tap port: its device and its queues.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::dataplane::endpoints::Link;
use crate::dataplane::engine::{Dataplane, WORKER_TIMEOUT, worker_stuck};
use crate::dataplane::fib::port::PortView;
use crate::dataplane::port_attachment::{OpenPort, PortAttachment, place_of};
use crate::dataplane::worker::handoff;
use crate::dataplane::worker::mailbox::Command;
use crate::dataplane::{PortError, PortReport, PortSpec};
use crate::ids::PortId;
use crate::limits::MTU_MAX;
use crate::tap::{TapDevice, TapError, TapQueue, TapSpec};
use crate::xdp::{PortQueue, XdpError};

impl Dataplane {
    /// Makes or opens the tap device of a port, and gives its queues to the workers.
    pub(in crate::dataplane) fn open_tap(
        &self,
        ports: &mut BTreeMap<PortId, OpenPort>,
        spec: &PortSpec,
    ) -> Result<PortReport, PortError> {
        if !self.stuck_for(WORKER_TIMEOUT).is_empty() {
            return Err(worker_stuck());
        }
        let namespace = spec.namespace.clone().unwrap_or_default();
        let tap = TapSpec {
            namespace: namespace.clone(),
            namespace_cookie: spec.namespace_cookie,
            interface: spec.interface.clone(),
            mtu: spec.requested_mtu,
            mac: spec.requested_mac,
            queues: self.core.workers() as u16,
            is_silent: false,
        };
        let (mut device, queues) = TapDevice::open(&tap)?;
        let (id, queues) = match self.prepare(&mut device, queues, spec) {
            Ok(prepared) => prepared,
            Err(error) => {
                // A device of an earlier run stays as it was.
                if !device.was_there() {
                    device.remove()?;
                }
                return Err(error);
            }
        };
        if self.is_started.load(Ordering::Relaxed) {
            device.keep();
        }
        let (link, mtu) = (link_of(&device), device.interface().mtu);
        let view = PortView::new(spec.kind, None, mtu.min(MTU_MAX as u32) as u16, None);
        self.core.add_port(id, view, Some(link), &self.wait_for_workers());
        let count = queues.len() as u16;
        let accesses = handoff::accesses(self.core.workers(), queues, mtu as usize);
        for (mailbox, access) in self.core.shared.mailboxes.iter().zip(accesses) {
            Self::send_command(mailbox, Command::Open(id, access))?;
        }
        let interface = device.interface().clone();
        let warnings = warnings(&device, spec);
        let report = PortReport {
            id,
            interface_index: interface.index,
            program: 0,
            mtu,
            queues: count,
            native: false,
            zero_copy: false,
            offloaded: false,
            not_offloaded: None,
            warnings,
        };
        let attachment = PortAttachment::Tap(device, namespace);
        ports.insert(
            id,
            OpenPort { interface, attachment, marker: None, uplink_program: None, lacking: BTreeMap::new() },
        );
        Ok(report)
    }

    /// Gives a device its number, the form of the workers' queues, and counters.
    fn prepare(
        &self,
        device: &mut TapDevice,
        queues: Vec<TapQueue>,
        spec: &PortSpec,
    ) -> Result<(PortId, Vec<PortQueue>), PortError> {
        let mtu = device.interface().mtu;
        if mtu as usize > MTU_MAX {
            return Err(PortError::Mtu { interface: place_of(spec), mtu, max: MTU_MAX as u32 });
        }
        let id = self.core.free_port(Some(&link_of(device)))?;
        let open = |(binder, queue)| PortQueue::tap(binder, id, queue);
        let queues = self.binders.iter().zip(queues).map(open).collect::<Result<Vec<_>, XdpError>>()?;
        let unread = device.take_unread();
        self.count_losses(id, device.interface(), &queues, unread)?;
        Ok((id, queues))
    }
}

/// Identity of a tap device, unlike that of any later one.
fn link_of(device: &TapDevice) -> Link {
    let interface = device.interface();
    Link {
        interface: interface.name.clone(),
        index: interface.index,
        mac: interface.mac,
        namespace: device.namespace(),
    }
}

fn warnings(device: &TapDevice, spec: &PortSpec) -> Vec<String> {
    let segments = (!device.takes_udp_segments()).then(|| {
        format!(
            "interface {}: this kernel cuts segments of UDP before the switch (Linux 6.2 hands them over whole)",
            place_of(spec)
        )
    });
    segments.into_iter().collect()
}

impl From<TapError> for PortError {
    fn from(error: TapError) -> PortError {
        match error {
            TapError::NoNamespace { namespace } => PortError::NoNamespace { namespace },
            TapError::Netlink(error) => error.into(),
            error @ (TapError::Replaced { .. } | TapError::Other { .. } | TapError::InUse { .. }) => {
                PortError::Foreign { reason: error.to_string() }
            }
            error @ (TapError::NoDriver { .. } | TapError::Refused { .. }) => {
                PortError::Kernel(error.to_string())
            }
        }
    }
}
