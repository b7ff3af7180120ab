//! Opening of a port: its queues, its XDP program, and warnings for the operator.

mod dry_run;
mod link;
mod offload;
mod tap;

pub use dry_run::DryRun;
pub use link::check_link;
pub use offload::{is_offloadable, offload_obstacle};

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::engine::{Dataplane, WORKER_TIMEOUT, worker_stuck};
use super::fib::layout;
use super::fib::port::PortView;
use super::masquerade::EXTERNAL_IDENTIFIERS;
use super::neighbor::resolver::Resolver;
use super::port_attachment::{OpenPort, PortAttachment};
use super::uplink::{self, Uplink};
use super::worker::handoff;
use super::worker::mailbox::Command;
use super::{MasqueradeSettings, PortError, PortKind, PortReport, PortSpec, TunnelSettings};
use crate::ids::PortId;
use crate::limits::MTU_MAX;
use crate::netlink::Interface;
use crate::xdp::offload::OffloadMaps;
use crate::xdp::{
    Binder, Mode, NodeMarker, PortQueue, Program, UplinkConstants, XdpError, check_mtu, one_frame,
};

impl Dataplane {
    /// Opens the port `id` on an interface, and gives its view to `announce` before the workers get its
    /// queues.
    pub(super) fn open_with_id(
        &self,
        ports: &mut BTreeMap<PortId, OpenPort>,
        id: PortId,
        spec: &PortSpec,
        announce: impl FnOnce(PortView, &Interface),
    ) -> Result<PortReport, PortError> {
        let interface = Interface::find(&spec.interface)?;
        let is_taken =
            |port: &OpenPort| port.attachment.is_on_node() && port.interface.index == interface.index;
        if ports.values().any(is_taken) {
            return Err(PortError::Taken { interface: spec.interface.clone() });
        }
        if !self.stuck_for(WORKER_TIMEOUT).is_empty() {
            return Err(worker_stuck());
        }
        check_link(spec.kind, &interface)?;
        let mut means = self.offload_means(spec, &interface);
        if spec.kind == PortKind::Pod
            && let Ok(Some(pod)) = &means
        {
            match self.prepare_offloaded(id, &interface, pod) {
                Ok(prepared) => return self.open_offloaded(ports, id, &interface, prepared, announce),
                Err(error) => means = Err(error.to_string()),
            }
        }
        let mtu_max = self.binders.iter().map(Binder::mtu_max).min().unwrap_or(MTU_MAX);
        let count = usable_queues(&interface, self.core.workers() as u16, mtu_max)?;
        let uplink_port = match spec.kind {
            PortKind::Uplink => Some(self.prepare_uplink(&interface, spec.vlan)?),
            PortKind::Pod | PortKind::Host | PortKind::Tap => None,
        };
        let (mut program, means) = self.load_with_records(id, spec, &interface, count, means)?;
        // The queues are opened before the program is attached. If they belong to another running switch,
        // opening fails and that switch's program stays.
        let opened: Result<Vec<PortQueue>, XdpError> = (0..count)
            .zip(&self.binders)
            .map(|(queue, binder)| PortQueue::open(binder, id, &interface, queue, &program))
            .collect();
        let mut queues = opened?;
        // The queues are opened by the interface's name, and the program is attached by its index.
        if Interface::find(&spec.interface)?.index != interface.index {
            return Err(XdpError::Changed { interface: spec.interface.clone() }.into());
        }
        let (mode, forwarder) = self.attach_programs(id, &interface, &mut program, means)?;
        let (uplink_program, not_offloaded) = match forwarder {
            Ok(forwarder) => (forwarder, None),
            Err(reason) => (None, Some(reason)),
        };
        self.count_losses(id, &interface, &queues, None)?;
        if self.is_started.load(Ordering::Relaxed) {
            program.keep();
        }
        let busy_poll = if self.prefer_busy_poll { enable_busy_poll(&interface, &mut queues) } else { None };
        let computes_checksums = queues.iter().all(PortQueue::computes_checksums);
        let zero_copy = queues.iter().all(PortQueue::zero_copy);
        let nic = uplink_port.as_ref().map(|uplink_port| uplink_port.mac);
        let mtu = interface.mtu.min(65_535) as u16;
        let marker = (spec.kind == PortKind::Host).then(|| {
            NodeMarker::attach(&interface, self.pins.as_ref().ok()).map_err(|error| error.to_string())
        });
        let is_marked = matches!(marker, Some(Ok(_)));
        let view = PortView::new(spec.kind, spec.vlan, mtu, nic).with_marked_node_sockets(is_marked);
        announce(view, &interface);
        // Workers with a queue come first, so that a frame handed off to them finds a worker that sends it.
        let accesses = handoff::accesses(self.core.workers(), queues, mtu.into());
        for (mailbox, access) in self.core.shared.mailboxes.iter().zip(accesses) {
            Self::send_command(mailbox, Command::Open(id, access))?;
        }
        let not_linked = self.not_linked(&interface, &program);
        let (interface_index, attached) = (interface.index, program.id().unwrap_or(0));
        let attachment = PortAttachment::Program(program);
        let offloaded = uplink_program.is_some();
        let mut open = OpenPort {
            interface: interface.clone(),
            attachment,
            marker,
            uplink_program,
            lacking: BTreeMap::new(),
        };
        self.set_services(&mut open);
        self.set_port_problem(id, open.problem());
        ports.insert(id, open);
        let mut warnings = warnings(&interface, count, self.core.workers() as u16, &mode);
        warnings.extend(busy_poll);
        warnings.extend(not_offloaded.as_ref().map(|reason| not_offloaded_warning(&interface, reason)));
        warnings.extend(not_linked);
        let missing = |binder| missing_features(&spec.interface, binder, computes_checksums);
        warnings.extend(self.binders.first().and_then(missing));
        if let Some(Uplink { device, warning, .. }) = uplink_port {
            if let Some(resolver) = &*self.resolver() {
                resolver.add_uplink(id, device);
                resolver.keep_resolved(layout::next_hops(&self.core.desired()));
            }
            warnings.extend((!zero_copy).then(|| uplink::copy_mode_warning(&spec.interface)));
            warnings.extend(warning);
        }
        let (mtu, native) = (interface.mtu, mode.native);
        Ok(PortReport {
            id,
            interface_index,
            program: attached,
            mtu,
            queues: count,
            native,
            zero_copy,
            offloaded,
            not_offloaded,
            warnings,
        })
    }

    /// Describes a port whose program no link holds, though one could.
    fn not_linked(&self, interface: &Interface, program: &Program) -> Option<String> {
        (self.pins.is_ok() && !program.is_linked()).then(|| {
            format!(
                "interface {0}: an earlier start has attached its XDP program without a BPF link, and it is not moved while pods are \
                 closed by it: `ip link set dev {0} xdp off` takes it off; to have a link, stop the switch, run that, and start again",
                interface.name
            )
        })
    }

    /// Reads the Ethernet address and the link of a NIC, and starts the neighbour resolver with the first uplink.
    fn prepare_uplink(&self, interface: &Interface, vlan: Option<u16>) -> Result<Uplink, PortError> {
        let uplink_port = uplink::probe(interface, vlan)?;
        let mut resolver = self.resolver();
        if resolver.is_none() {
            let started = Resolver::start(&self.core.shared.neighbors, &self.core.shared.solicit_queue)
                .map_err(|error| {
                    PortError::Kernel(format!("the kernel's neighbour table cannot be followed: {error}"))
                })?;
            *resolver = Some(started);
        }
        Ok(uplink_port)
    }

    /// Loads the XDP program. The program of an uplink has its prefixes before the first frame arrives, and leaves packets of the
    /// flows in `offload` to the kernel.
    fn load(
        &self,
        spec: &PortSpec,
        interface: &Interface,
        queues: u16,
        offload: Option<(&OffloadMaps, PortId)>,
    ) -> Result<Program, PortError> {
        if spec.kind != PortKind::Uplink {
            return Ok(Program::load(interface, queues)?);
        }
        let prefixes = self.core.desired().uplink_prefixes();
        uplink::check_prefixes(&spec.interface, &prefixes)?;
        let mut constants = UplinkConstants::of_tag(spec.vlan.unwrap_or(0));
        if let Some(MasqueradeSettings { addresses, ports }) = &self.masquerade {
            (constants.external, constants.ports) = (addresses.clone(), ports.clone());
            constants.identifiers = EXTERNAL_IDENTIFIERS;
        }
        if let Some(TunnelSettings { addresses, port, .. }) = &self.tunnel {
            (constants.tunnel_ends, constants.tunnel_port) = (addresses.clone(), *port);
        }
        Ok(Program::load_uplink(interface, queues, &constants, &prefixes, offload)?)
    }
}

/// Number of queues that a port of `workers` workers gets. Fails on an interface that no port can use.
fn usable_queues(interface: &Interface, workers: u16, mtu_max: usize) -> Result<u16, PortError> {
    check_mtu(interface, mtu_max)?;
    match interface.queues().min(workers) {
        0 => Err(PortError::NoQueue {
            interface: interface.name.clone(),
            rx: interface.rx_queues,
            tx: interface.tx_queues,
        }),
        count => Ok(count),
    }
}

/// Enables busy polling of the driver, or returns the reason against it. Sockets on veth have no NAPI
/// instance to poll (their `SO_INCOMING_NAPI_ID` is 0, Linux 6.18), so each call would have no effect.
fn enable_busy_poll(interface: &Interface, queues: &mut [PortQueue]) -> Option<String> {
    if interface.kind.as_deref() == Some("veth") {
        return None;
    }
    let refused = queues.iter_mut().find_map(|queue| queue.prefer_busy_poll().err())?;
    Some(format!(
        "interface {}: workers do not poll its driver, though `prefer_busy_poll` is set: the kernel refuses it: {refused} \
         (it takes Linux 5.11 and CAP_NET_ADMIN)",
        interface.name
    ))
}

fn not_offloaded_warning(interface: &Interface, reason: &str) -> String {
    format!("interface {}: its flows are not offloaded: {reason}", interface.name)
}

fn warnings(interface: &Interface, queues: u16, workers: u16, mode: &Mode) -> Vec<String> {
    let name = &interface.name;
    let slow = |reason| format!("interface {name}: XDP runs in the generic hook, which is slower: {reason}");
    mode.fallback.iter().map(slow).chain(missing_queues(interface, queues, workers)).collect()
}

/// Warnings about queues that workers lack, and that no worker serves.
fn missing_queues(interface: &Interface, queues: u16, workers: u16) -> Vec<String> {
    let Interface { name, rx_queues, tx_queues, .. } = interface;
    let mut warnings = Vec::new();
    if queues < workers {
        warnings.push(format!(
            "interface {name} has {rx_queues} receive and {tx_queues} transmit queues for {workers} workers: what it receives is \
             the work of the first {queues} alone, and the others hand what leaves by it over to these, at the price of a \
             copy; create a veth with `numrxqueues {workers} numtxqueues {workers}` at both ends, set a NIC's with \
             `ethtool -L {name} combined {workers}`, or run fewer workers"
        ));
    }
    if *rx_queues > queues {
        warnings.push(format!(
            "interface {name} has {rx_queues} receive queues, of which the switch serves {queues}: frames of the others are \
             dropped; give the interface as many receive as transmit queues, and the switch as many workers"
        ));
    }
    warnings
}

/// Describes the AF_XDP features that the kernel or the driver of a port lacks.
fn missing_features(name: &str, binder: &Binder, computes_checksums: bool) -> Option<String> {
    let max = binder.mtu_max();
    if max < MTU_MAX {
        return Some(format!("interface {name} can have an MTU of {max} at most{}", one_frame(max)));
    }
    let reason = match (binder.leaves_checksums(), computes_checksums) {
        (true, true) => return None,
        (true, false) => "its driver is not known to compute those that transmit metadata asks for",
        (false, _) => "this kernel's AF_XDP takes no transmit metadata (Linux 6.8 does)",
    };
    Some(format!(
        "interface {name}: transport checksums are computed by the switch, which is slower: {reason}"
    ))
}
