//! Attachment of an open port to its interface: an XDP program on an interface of the node, or a tap device in the
//! network namespace of a pod; at the other end of a host port, the program that marks the node's sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use ipnet::IpNet;

use super::{PortError, PortHealth, PortSpec};
use crate::netlink::{Interface, NetworkNamespace};
use crate::tap::TapDevice;
use crate::xdp::offload::OffloadProgram;
use crate::xdp::{NodeMarker, Pins, Program, ServiceDestinations, XdpError};

/// An open port.
pub(super) struct OpenPort {
    /// Properties of the interface when the port was opened.
    pub(super) interface: Interface,
    pub(super) attachment: PortAttachment,
    /// Program that marks the node's sockets, of a host port, or the reason why there is none.
    pub(super) marker: Option<Result<NodeMarker, String>>,
    /// Program that forwards established flows, of an uplink.
    pub(super) uplink_program: Option<OffloadProgram>,
    /// Problems of an uplink's program, by the part that it lacks.
    pub(super) lacking: BTreeMap<Lacking, String>,
}

/// Part of what the program of an uplink takes from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lacking {
    Prefixes,
    Exceptions,
    Services,
}

impl Lacking {
    fn says(self) -> &'static str {
        match self {
            Lacking::Prefixes => "does not take all that is for its pods",
            Lacking::Exceptions => "may take from the kernel what other nodes answer it",
            Lacking::Services => "does not take all that is for Services",
        }
    }
}

impl OpenPort {
    /// Sets the prefixes that an uplink takes from the kernel.
    pub(super) fn set_prefixes(&mut self, prefixes: &BTreeSet<IpNet>) {
        let result = self.attachment.set_prefixes(prefixes);
        self.note(Lacking::Prefixes, result);
    }

    /// Sets the destinations to which pods keep their addresses.
    pub(super) fn set_exceptions(&mut self, exceptions: &BTreeSet<IpNet>) {
        let PortAttachment::Program(program) = &mut self.attachment else { return };
        let result = program.set_exceptions(exceptions);
        self.note(Lacking::Exceptions, result);
    }

    /// Sets the ports of Services that an uplink takes from the kernel. With `keeps_others` those of the process before stay beside
    /// them.
    pub(super) fn set_services(&mut self, services: &Arc<ServiceDestinations>, keeps_others: bool) {
        let result = self.attachment.set_services(services, keeps_others);
        self.note(Lacking::Services, result);
    }

    /// Notes whether the program of an uplink has taken over a part of what it takes from the kernel.
    fn note(&mut self, part: Lacking, result: Result<(), XdpError>) {
        let interface = &self.interface.name;
        let Err(error) = result else { return drop(self.lacking.remove(&part)) };
        let problem = format!("uplink {interface} {}: {error}", part.says());
        if self.lacking.get(&part) != Some(&problem) {
            tracing::error!("{problem}");
        }
        self.lacking.insert(part, problem);
    }

    /// Keeps the program that marks the node's sockets attached. Returns whether it is where it was not before, or the
    /// reverse: then the port has to be opened again.
    pub(super) fn has_changed_marker(&mut self, pins: Option<&Pins>) -> bool {
        let Some(marker) = &mut self.marker else { return false };
        if marker.as_ref().is_ok_and(NodeMarker::holds) {
            return false;
        }
        let was_attached = marker.is_ok();
        *marker = NodeMarker::attach(&self.interface, pins).map_err(|error| error.to_string());
        if was_attached {
            let result = if marker.is_ok() { "it is attached again" } else { "it cannot be attached again" };
            tracing::error!(
                interface = self.interface.name,
                "the program that marks the node's sockets was taken off: {result}"
            );
        }
        was_attached != marker.is_ok()
    }

    /// Problem of the port for the operator.
    pub(super) fn problem(&self) -> Option<String> {
        let interface = &self.interface.name;
        let marker = self.marker.as_ref().and_then(|marker| marker.as_ref().err()).map(|reason| {
            format!(
                "host port {interface}: the node's own packets are not told from those that it forwards, and policy applies to \
                 them (kubelet's probes too): {reason}"
            )
        });
        let all: Vec<String> = marker.into_iter().chain(self.lacking.values().cloned()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Detaches the port's programs, or removes its tap device.
    pub(super) fn detach(self) -> Result<(), PortError> {
        let marker = self.marker.and_then(Result::ok).map_or(Ok(()), NodeMarker::detach);
        self.attachment.detach()?;
        // The program that leaves packets to it is gone.
        self.uplink_program.map_or(Ok(()), OffloadProgram::detach)?;
        Ok(marker?)
    }

    /// Restores the state before the opening, unless it was kept.
    pub(super) fn undo(self) -> Result<(), PortError> {
        let marker = self.marker.and_then(Result::ok).map_or(Ok(()), NodeMarker::undo);
        // That program may leave packets to it.
        let is_left_to = self.attachment.program().is_some_and(Program::has_earlier);
        self.attachment.undo()?;
        self.uplink_program.filter(|_| !is_left_to).map_or(Ok(()), OffloadProgram::detach)?;
        Ok(marker?)
    }
}

/// Attachment of a port.
pub(super) enum PortAttachment {
    /// Program on the interface.
    Program(Program),
    /// Tap device, with the name or path of its network namespace.
    Tap(TapDevice, String),
    /// Programs that forward established flows, on the interface and on its upcall device.
    Offloaded(Box<OffloadedPort>),
}

/// Port of a pod whose established flows the kernel forwards.
pub(super) struct OffloadedPort {
    pub(super) program: OffloadProgram,
    /// Upcall device.
    pub(super) upcalls: TapDevice,
}

impl OffloadedPort {
    /// Change for which the port has to be opened again.
    pub(super) fn change(&self) -> Result<Option<&'static str>, PortError> {
        if self.upcalls.current()?.is_none_or(|device| !device.is_up) {
            return Ok(Some("its upcall device is gone or down"));
        }
        Ok(self.upcalls.has_other_queues()?.then_some("another process has opened its upcall device"))
    }

    fn detach(self) -> Result<(), PortError> {
        self.program.detach()?;
        Ok(self.upcalls.remove()?)
    }
}

impl PortAttachment {
    /// Program on the interface; `None` for a tap device.
    pub(super) fn program(&self) -> Option<&Program> {
        match self {
            PortAttachment::Program(program) => Some(program),
            PortAttachment::Tap(..) | PortAttachment::Offloaded(_) => None,
        }
    }

    /// Whether its programs are still where they were attached; true for a tap device.
    pub(super) fn holds(&self) -> bool {
        match self {
            PortAttachment::Program(program) => program.holds(),
            PortAttachment::Tap(..) => true,
            PortAttachment::Offloaded(port) => port.program.holds(),
        }
    }

    /// Whether the port is on an interface of the node.
    pub(super) fn is_on_node(&self) -> bool {
        !matches!(self, PortAttachment::Tap(..))
    }

    /// Whether the port is an uplink, whose program has the prefixes of this node's pods.
    pub(super) fn has_prefixes(&self) -> bool {
        self.program().is_some_and(Program::has_prefixes)
    }

    /// Sets the prefixes that an uplink takes from the kernel.
    pub(super) fn set_prefixes(&mut self, prefixes: &BTreeSet<IpNet>) -> Result<(), XdpError> {
        match self {
            PortAttachment::Program(program) => program.set_prefixes(prefixes),
            PortAttachment::Tap(..) | PortAttachment::Offloaded(_) => Ok(()),
        }
    }

    /// Sets the ports of Services that an uplink takes from the kernel. With `keeps_others` those of the process before stay beside
    /// them.
    pub(super) fn set_services(
        &mut self,
        services: &Arc<ServiceDestinations>,
        keeps_others: bool,
    ) -> Result<(), XdpError> {
        match self {
            PortAttachment::Program(program) => program.set_services(services, keeps_others),
            PortAttachment::Tap(..) | PortAttachment::Offloaded(_) => Ok(()),
        }
    }

    /// Keeps what the opening has changed, whatever fails later.
    pub(super) fn keep(&mut self) {
        match self {
            PortAttachment::Program(program) => program.keep(),
            PortAttachment::Tap(device, _) => device.keep(),
            PortAttachment::Offloaded(port) => port.upcalls.keep(),
        }
    }

    /// Detaches the program, or removes the tap device.
    pub(super) fn detach(self) -> Result<(), PortError> {
        match self {
            PortAttachment::Program(program) => Ok(program.detach()?),
            PortAttachment::Tap(device, _) => Ok(device.remove()?),
            PortAttachment::Offloaded(port) => port.detach(),
        }
    }

    /// Restores the state before the opening, unless it was kept.
    pub(super) fn undo(self) -> Result<(), PortError> {
        match self {
            PortAttachment::Program(program) => Ok(program.undo()?),
            PortAttachment::Tap(device, _) if device.was_there() => Ok(()),
            PortAttachment::Tap(device, _) => Ok(device.remove()?),
            PortAttachment::Offloaded(port) if port.upcalls.was_there() => Ok(()),
            PortAttachment::Offloaded(port) => port.detach(),
        }
    }
}

/// Compares an open tap device with the kernel. A namespace that has lost its name counts as gone: the device's
/// descriptors would keep it.
pub(super) fn check_tap(device: &TapDevice, namespace: &str) -> Result<PortHealth, PortError> {
    match NetworkNamespace::open(namespace).and_then(|namespace| namespace.inode()) {
        Ok(inode) if inode == device.namespace() => {}
        Ok(_) => return Ok(PortHealth::Gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PortHealth::Gone),
        Err(error) => {
            return Err(PortError::Kernel(format!(
                "network namespace {namespace} cannot be opened: {error}"
            )));
        }
    }
    let was = device.interface();
    let Some(is) = device.current()? else { return Ok(PortHealth::Gone) };
    if device.has_other_queues()? {
        // The process could read packets for the pod, and change the form of those that the switch reads.
        tracing::error!(
            namespace,
            interface = is.name,
            "another process has opened the pod's tap device: it is removed"
        );
        return Ok(PortHealth::Gone);
    }
    let obstacle = (!is.is_up)
        .then(|| format!("the pod has set its interface down: `ip -n {namespace} link set {} up`", is.name));
    Ok(PortHealth::Good { interface: was.name.clone(), obstacle })
}

/// Description of the place of a port's interface, for messages.
pub(super) fn place_of(spec: &PortSpec) -> String {
    match &spec.namespace {
        Some(namespace) => format!("{} of network namespace {namespace}", spec.interface),
        None => spec.interface.clone(),
    }
}
