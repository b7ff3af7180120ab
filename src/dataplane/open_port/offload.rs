//! Opening of a pod's port whose established flows the kernel forwards: its upcall device, and the programs.
//!
//! The upcall device is a tap in the namespace of the switch. A worker reads the packets from it that the program at the pod's
//! interface does not forward, whole segments and all, and writes those for the pod to it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::dataplane::engine::Dataplane;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::offload::{Offload, upcall_device};
use crate::dataplane::port_attachment::{OffloadedPort, OpenPort, PortAttachment};
use crate::dataplane::worker::handoff;
use crate::dataplane::worker::mailbox::Command;
use crate::dataplane::{PortError, PortKind, PortReport, PortSpec};
use crate::ids::PortId;
use crate::limits::MTU_MAX;
use crate::netlink::{Interface, RouteSocket, VethPeer};
use crate::tap::{TapDevice, TapSpec};
use crate::xdp::offload::{OffloadProgram, Placement};
use crate::xdp::{Pins, PortQueue, XdpError, remove_program_of_switch};

/// Parts of the dataplane that an offloaded port needs.
pub(super) struct Means<'a> {
    offload: &'a Offload,
    pins: &'a Pins,
}

/// A port whose packets are upcalls already, which no worker reads yet.
pub(super) struct Prepared {
    queues: Vec<PortQueue>,
    attached: OffloadedPort,
}

impl Dataplane {
    /// Whether the flows of a port are offloaded: with the reason where the settings want it and it cannot be.
    pub(super) fn offload_means(
        &self,
        spec: &PortSpec,
        interface: &Interface,
    ) -> Result<Option<Means<'_>>, String> {
        if spec.kind != PortKind::Pod {
            return Ok(None);
        }
        let refused = |reason: &str| Err(reason.to_owned());
        let Some(offload) = &self.core.shared.offload else {
            return self.core.offload_refused.clone().map_or(Ok(None), Err);
        };
        let pins = self.pins.as_ref().map_err(Clone::clone)?;
        if spec.vlan.is_some() {
            return refused("its frames have a VLAN tag");
        }
        match VethPeer::is_elsewhere(interface) {
            Ok(true) => Ok(Some(Means { offload, pins })),
            Ok(false) => refused("both ends of its veth pair are in one network namespace"),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes the upcall device of the port `id` on a pod's veth pair, and attaches the programs. Changes nothing where that fails,
    /// as on a kernel without tcx.
    pub(super) fn prepare_offloaded(
        &self,
        id: PortId,
        interface: &Interface,
        means: &Means<'_>,
    ) -> Result<Prepared, PortError> {
        let Means { offload, pins } = means;
        let tap = TapSpec {
            namespace: String::new(),
            namespace_cookie: None,
            interface: upcall_device(interface.index),
            mtu: Some(interface.mtu),
            mac: None,
            queues: self.core.workers() as u16,
            is_silent: true,
        };
        let (mut upcalls, queues) = TapDevice::open(&tap)?;
        let open = |(binder, queue)| PortQueue::tap(binder, id, queue);
        let queues: Result<Vec<_>, XdpError> = self.binders.iter().zip(queues).map(open).collect();
        let queues = queues?;
        let unread = upcalls.take_unread();
        self.count_losses(id, interface, &queues, unread)?;
        offload.open_port(id, interface.index);
        let at = Placement { port: id, pod_index: interface.index, upcall_index: upcalls.interface().index };
        // The program comes before an XDP program goes that drops what the pod sends.
        match self.attach(offload, at, pins, interface) {
            Ok((program, was_closed)) => {
                // Undone, the port is as closed as before.
                if was_closed {
                    upcalls.keep();
                }
                Ok(Prepared { queues, attached: OffloadedPort { program, upcalls } })
            }
            Err(error) => {
                offload.close_port(id);
                self.release_losses(id);
                if !upcalls.was_there() {
                    upcalls.remove()?;
                }
                Err(error)
            }
        }
    }

    /// Gives the view of a prepared port to `announce`, and then its queues to the workers.
    pub(super) fn open_offloaded(
        &self,
        ports: &mut BTreeMap<PortId, OpenPort>,
        id: PortId,
        interface: &Interface,
        prepared: Prepared,
        announce: impl FnOnce(PortView, &Interface),
    ) -> Result<PortReport, PortError> {
        let Prepared { queues, mut attached } = prepared;
        if self.is_started.load(Ordering::Relaxed) {
            attached.upcalls.keep();
        }
        let mtu = interface.mtu.min(MTU_MAX as u32) as u16;
        announce(PortView::new(PortKind::Pod, None, mtu, None).with_upcalls(), interface);
        let count = queues.len() as u16;
        let accesses = handoff::accesses(self.core.workers(), queues, interface.mtu as usize);
        for (mailbox, access) in self.core.shared.mailboxes.iter().zip(accesses) {
            Self::send_command(mailbox, Command::Open(id, access))?;
        }
        let report = PortReport {
            id,
            interface_index: interface.index,
            program: attached.program.id(),
            mtu: interface.mtu,
            queues: count,
            native: false,
            zero_copy: false,
            offloaded: true,
            warnings: Vec::new(),
        };
        let attachment = PortAttachment::Offloaded(Box::new(attached));
        ports.insert(
            id,
            OpenPort { interface: interface.clone(), attachment, marker: None, lacking: BTreeMap::new() },
        );
        Ok(report)
    }

    /// Closes an interface by an XDP program, unless a port has it that needs none. That port may be opened meanwhile: it is
    /// known before its opening removes such a program.
    pub(in crate::dataplane) fn block_unless_offloaded(
        &self,
        index: u32,
        close: impl FnOnce() -> Result<(), XdpError>,
    ) -> Result<(), PortError> {
        let is_offloaded =
            || self.core.shared.offload.as_ref().is_some_and(|offload| offload.serves_interface(index));
        if is_offloaded() {
            return Ok(());
        }
        close()?;
        if is_offloaded() {
            self.forget_guard(index);
            remove_program_of_switch(&Interface::with_index(index)?, self.pins.as_ref().ok())?;
        }
        Ok(())
    }

    /// Attaches the programs, and removes the XDP program of a switch. Returns whether an earlier run has left that.
    fn attach(
        &self,
        offload: &Offload,
        at: Placement,
        pins: &Pins,
        interface: &Interface,
    ) -> Result<(OffloadProgram, bool), PortError> {
        let program = OffloadProgram::attach(offload.maps(), at, pins)?;
        let is_own = self.forget_guard(interface.index);
        match remove_program_of_switch(interface, Some(pins)) {
            Ok(was_there) => Ok((program, was_there && !is_own)),
            Err(error) => {
                program.detach()?;
                Err(error.into())
            }
        }
    }
}

/// Removes what an earlier run with flow offload has left at an interface that has an XDP program now.
pub(super) fn remove_leftovers(interface: &Interface, pins: Option<&Pins>) -> Result<(), PortError> {
    let Some(pins) = pins else { return Ok(()) };
    if OffloadProgram::remove_from(interface.index, pins)? {
        let kernel = RouteSocket::open()?;
        if let Ok(upcalls) = Interface::find(&upcall_device(interface.index)) {
            kernel.remove_link_with_index(upcalls.index)?;
        }
    }
    Ok(())
}
