//! Opening of a port whose established flows the kernel forwards: a pod's upcall device, and the programs.
//!
//! The upcall device is a tap in the namespace of the switch. A worker reads the packets from it that the program at the pod's
//! interface does not forward, whole segments and all, and writes those for the pod to it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

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
use crate::xdp::offload::{OffloadMaps, OffloadProgram, Placement};
use crate::xdp::{Mode, Pins, PortQueue, Program, XdpError, has_program_of_switch, remove_program_of_switch};

/// Longest time for which the kernel keeps packets to put them together (GRO), where nobody has set more.
const COALESCED: Duration = Duration::from_millis(20);

/// Parts of the dataplane that an offloaded port needs.
pub(super) struct Means<'a> {
    offload: &'a Offload,
    pins: &'a Pins,
}

impl Means<'_> {
    /// Maps of the programs.
    fn maps(&self) -> &OffloadMaps {
        self.offload.maps()
    }
}

/// A port whose packets are upcalls already, which no worker reads yet.
pub(super) struct Prepared {
    queues: Vec<PortQueue>,
    attached: OffloadedPort,
}

/// Whether flow offload is for ports of this kind.
pub fn is_offloadable(kind: PortKind) -> bool {
    matches!(kind, PortKind::Pod | PortKind::Uplink)
}

/// Property of a pod's interface, or of an uplink, for which its flows are not offloaded.
pub fn offload_obstacle(kind: PortKind, vlan: Option<u16>, interface: &Interface) -> Option<String> {
    if vlan.is_some() {
        return Some("its frames have a VLAN tag".to_owned());
    }
    if kind == PortKind::Uplink {
        return None;
    }
    match VethPeer::is_elsewhere(interface) {
        Ok(true) => None,
        Ok(false) => Some("both ends of its veth pair are in one network namespace".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

impl Dataplane {
    /// Whether the flows of a port are offloaded: with the reason where the settings want it and it cannot be.
    pub(super) fn offload_means(
        &self,
        spec: &PortSpec,
        interface: &Interface,
    ) -> Result<Option<Means<'_>>, String> {
        if !is_offloadable(spec.kind) {
            return Ok(None);
        }
        let Some(offload) = &self.core.shared.offload else {
            return self.core.offload_refused.clone().map_or(Ok(None), Err);
        };
        let pins = self.pins.as_ref().map_err(Clone::clone)?;
        offload_obstacle(spec.kind, spec.vlan, interface).map_or(Ok(Some(Means { offload, pins })), Err)
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
        offload.open_port(id, interface.index, false);
        let upcall_index = Some(upcalls.interface().index);
        let at = Placement { port: id, index: interface.index, upcall_index };
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
            not_offloaded: None,
            warnings: Vec::new(),
        };
        let attachment = PortAttachment::Offloaded(Box::new(attached));
        ports.insert(
            id,
            OpenPort {
                interface: interface.clone(),
                attachment,
                marker: None,
                uplink_program: None,
                lacking: BTreeMap::new(),
            },
        );
        Ok(report)
    }

    /// Loads the program of a port, which knows the records of offloaded flows if there are means. Without them, and with the
    /// reason, where the kernel refuses that program.
    pub(super) fn load_with_records<'a>(
        &self,
        id: PortId,
        spec: &PortSpec,
        interface: &Interface,
        queues: u16,
        means: Result<Option<Means<'a>>, String>,
    ) -> Result<(Program, Result<Option<Means<'a>>, String>), PortError> {
        let Ok(Some(found)) = &means else {
            return Ok((self.load(spec, interface, queues, None)?, means));
        };
        match self.load(spec, interface, queues, Some((found.maps(), id))) {
            Ok(program) => Ok((program, means)),
            Err(error) => Ok((self.load(spec, interface, queues, None)?, Err(error.to_string()))),
        }
    }

    /// Attaches the XDP program of a port, and to an uplink the program that forwards established flows: with the reason where that
    /// cannot be, and all packets stay the workers'.
    pub(super) fn attach_programs(
        &self,
        id: PortId,
        interface: &Interface,
        program: &mut Program,
        means: Result<Option<Means<'_>>, String>,
    ) -> Result<(Mode, Result<Option<OffloadProgram>, String>), PortError> {
        // The program that forwards packets comes before the one that leaves them to it.
        let forwarder =
            means.and_then(|means| means.map(|means| attach_to_uplink(id, interface, &means)).transpose());
        let pins = self.pins.as_ref().ok();
        let mode = match program.take(pins) {
            Ok(mode) => mode,
            Err(error) => {
                if let Ok(Some(forwarder)) = forwarder {
                    self.detach_from_uplink(id, interface, forwarder)?;
                }
                return Err(self.with_pins(error).into());
            }
        };
        let forwarder = match forwarder {
            // The kernel has put packets together before the program sees them.
            Ok(Some(forwarder)) if !mode.native => {
                self.detach_from_uplink(id, interface, forwarder)?;
                Err("its XDP program is in generic mode".to_owned())
            }
            forwarder => forwarder,
        };
        if !matches!(forwarder, Ok(Some(_))) {
            remove_leftovers(interface, pins)?;
        }
        Ok((mode, forwarder))
    }

    /// Adds to an error of an attachment the reason for which this process reads no pins.
    pub(in crate::dataplane) fn with_pins(&self, error: XdpError) -> XdpError {
        match (error, &self.pins) {
            (XdpError::HeldElsewhere { interface }, Err(reason)) => {
                XdpError::PinUnseen { interface, reason: reason.clone() }
            }
            (error, _) => error,
        }
    }

    /// Detaches the program of an uplink, unless the XDP program of an earlier run stays, which may leave packets to it.
    fn detach_from_uplink(
        &self,
        id: PortId,
        interface: &Interface,
        forwarder: OffloadProgram,
    ) -> Result<(), PortError> {
        if let Some(offload) = &self.core.shared.offload {
            offload.close_port(id);
        }
        let is_left_to = has_program_of_switch(interface).unwrap_or(true);
        Ok(if is_left_to { Ok(()) } else { forwarder.detach() }?)
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

fn attach_to_uplink(id: PortId, interface: &Interface, means: &Means<'_>) -> Result<OffloadProgram, String> {
    let Means { offload, pins } = means;
    offload.open_port(id, interface.index, true);
    let at = Placement { port: id, index: interface.index, upcall_index: None };
    OffloadProgram::attach(offload.maps(), at, pins).map_err(|error| {
        offload.close_port(id);
        error.to_string()
    })
}

/// Removes what an earlier run with flow offload has left at an interface that has an XDP program now.
fn remove_leftovers(interface: &Interface, pins: Option<&Pins>) -> Result<(), PortError> {
    let Some(pins) = pins else { return Ok(()) };
    let upcalls = Interface::find(&upcall_device(interface.index)).ok();
    let pause = if upcalls.is_some() { Duration::ZERO } else { COALESCED };
    if OffloadProgram::remove_from(interface.index, pins, pause)?
        && let Some(upcalls) = upcalls
    {
        RouteSocket::open()?.remove_link_with_index(upcalls.index)?;
    }
    Ok(())
}
