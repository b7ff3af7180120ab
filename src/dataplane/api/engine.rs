//! Operations of the dataplane on AF_XDP.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::{CandidateTables, DataplaneApi, Flows, PacketCaptures, Workers};
use crate::dataplane::engine::{Dataplane, Guards, link_of};
use crate::dataplane::fib::layout;
use crate::dataplane::port_attachment::{PortAttachment, check_tap};
use crate::dataplane::{
    Backend, Counters, DesiredState, DropSamples, FlowDecisions, FlowPath, PortError, PortHealth, PortKind,
    PortReport, PortSpec, PublishError, RouteReport, StuckWorker, WorkerTimes,
};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;
use crate::netlink::{Interface, NetlinkError};
use crate::xdp::{Guard, Pins, Program};

impl DataplaneApi for Dataplane {
    fn backend(&self) -> Backend {
        Backend::AfXdp
    }

    fn workers(&self) -> Option<&dyn Workers> {
        Some(self)
    }

    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        if spec.kind == PortKind::Tap {
            return self.open_tap(&mut ports, spec);
        }
        if let Some(reason) = &self.without_xdp {
            let interface = &spec.interface;
            return Err(PortError::Kernel(format!(
                "interface {interface} needs AF_XDP, and the switch has started without it: {reason}"
            )));
        }
        let link = link_of(&Interface::find(&spec.interface)?);
        let id = self.core.free_port(link.as_ref())?;
        self.open_with_id(&mut ports, id, spec, |view, interface| {
            self.core.add_port(id, view, link_of(interface), &self.wait_for_workers());
        })
    }

    fn reopen_port(&self, port: PortId, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        let reopened = self.close_queues(port).and_then(|()| {
            let interface = Interface::with_index(open.interface.index)?.name;
            let spec = PortSpec { interface, ..spec.clone() };
            self.open_with_id(&mut ports, port, &spec, |view, _| {
                self.core.change_port(port, view, &self.wait_for_workers());
            })
        });
        if reopened.is_err() {
            self.forget_port(port);
            // The interface is blocked like any without a port. If that fails its own program stays, which
            // drops every frame too.
            if let Ok(interface) = Interface::with_index(open.interface.index) {
                let _ = self.close_interface(&interface, open.attachment.program().and_then(Program::id));
            }
        }
        reopened
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        let mut ports = self.ports();
        let open = ports.get_mut(&port).ok_or(PortError::Unknown(port))?;
        self.release_services(open);
        let was = &open.interface;
        if let PortAttachment::Tap(device, namespace) = &open.attachment {
            return check_tap(device, namespace);
        }
        let is = match Interface::with_index(was.index) {
            Ok(is) => is,
            Err(NetlinkError::NoInterface { .. }) => return Ok(PortHealth::Gone),
            Err(error) => return Err(error.into()),
        };
        if !open.attachment.holds() {
            // The interface is blocked first, because opening the port again takes time. An uplink stays
            // open, because the kernel uses it too.
            if !open.attachment.has_prefixes()
                && let Err(error) = self.close_interface(&is, None)
            {
                tracing::error!(interface = is.name, "the interface has lost its XDP program: {error}");
            }
            return Ok(PortHealth::Unguarded);
        }
        let changed = |what: &str, was: &dyn std::fmt::Display, is: &dyn std::fmt::Display| {
            Ok(PortHealth::Changed(format!("{what} {is}, and was {was}")))
        };
        if is.mtu != was.mtu {
            return changed("its MTU is", &was.mtu, &is.mtu);
        }
        if is.queues() != was.queues() || is.rx_queues != was.rx_queues {
            let count =
                |of: &Interface| format!("{} receive and {} transmit queues", of.rx_queues, of.tx_queues);
            return changed("it has", &count(was), &count(&is));
        }
        if is.mac != was.mac && open.attachment.has_prefixes() {
            return changed("its Ethernet address is", &was.mac, &is.mac);
        }
        if let PortAttachment::Offloaded(port) = &open.attachment
            && let Some(what) = port.change()?
        {
            return Ok(PortHealth::Changed(what.to_owned()));
        }
        if open.uplink_program.as_ref().is_some_and(|program| !program.holds()) {
            return Ok(PortHealth::Changed("its tc program was taken off".to_owned()));
        }
        let has_changed = open.has_changed_marker(self.pins.as_ref().ok());
        self.set_port_problem(port, open.problem());
        if has_changed {
            return Ok(PortHealth::Changed("the marks of the node's sockets have come or gone".to_owned()));
        }
        let obstacle = match (is.is_up, is.has_carrier) {
            (false, _) => Some(format!("interface {0} is set down: `ip link set {0} up`", is.name)),
            (true, false) => Some(format!(
                "interface {} has no carrier: its other end is down, or no cable is in it",
                is.name
            )),
            (true, true) => None,
        };
        Ok(PortHealth::Good { interface: is.name, obstacle })
    }

    fn block_interface(&self, interface: &str) -> Result<(), PortError> {
        let interface = Interface::find(interface)?;
        self.block_unless_offloaded(interface.index, || self.close_interface(&interface, None))
    }

    fn block_new_interface(&self, index: u32, name: &str) -> Result<(), PortError> {
        let close = |guard: &Guard, pins: Option<&Pins>| guard.close_new(index, name, pins);
        self.block_unless_offloaded(index, || self.close_with(index, close))
    }

    fn unblock_interface(&self, interface: &str) -> Result<(), PortError> {
        let mut guards = self.guards();
        let (Ok(interface), Some(Guards { guard, on })) = (Interface::find(interface), &mut *guards) else {
            return Ok(());
        };
        if on.remove(&interface.index) {
            guard.open(&interface, self.pins.as_ref().ok())?;
        }
        Ok(())
    }

    fn problems(&self) -> Vec<String> {
        let problems = self.port_problems().values().cloned().collect::<Vec<_>>().into_iter();
        problems.chain(self.core.save_problem.get()).chain(self.core.offload_problem()).collect()
    }

    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        self.close_queues(port)?;
        self.forget_port(port);
        if detach {
            open.detach()?;
        }
        Ok(())
    }

    fn publish(&self, desired: DesiredState) -> Result<Generation, PublishError> {
        let mut ports = self.ports();
        let before = self.core.desired();
        let wait = self.wait_for_workers();
        let publish =
            |desired| self.check_observed(self.core.publish(&mut self.core.state(), Some(desired), &wait));
        let uplinks = ports.iter_mut().filter(|(_, port)| port.attachment.has_prefixes());
        let mut uplinks: Vec<_> = uplinks.collect();
        if uplinks.is_empty() {
            return publish(desired);
        }
        let wanted = desired.uplink_prefixes();
        let both: BTreeSet<IpNet> = wanted.union(&before.uplink_prefixes()).copied().collect();
        if let Some(resolver) = &*self.resolver() {
            resolver.keep_resolved(layout::next_hops(&desired));
        }
        uplinks.iter_mut().for_each(|(_, port)| port.set_prefixes(&both));
        let masquerade = desired.masquerade.clone();
        let generation = publish(desired)?;
        for (id, port) in uplinks {
            if let Some(peers) = masquerade.as_ref().and_then(|masquerade| masquerade.kernel_peers()) {
                port.set_exceptions(peers);
            }
            port.set_prefixes(&wanted);
            self.set_services(port);
            self.set_port_problem(*id, port.problem());
        }
        Ok(generation)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.core.counters();
        for (id, losses) in &mut *self.losses() {
            if let Some(port) = counters.ports.get_mut(id) {
                port.lost = losses.read().by_name();
            }
        }
        counters
    }

    fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        self.core.path(flow, backend)
    }

    fn decisions(&self, flow: &FlowKey) -> FlowDecisions {
        self.core.decisions(flow)
    }

    fn routes(&self) -> Vec<RouteReport> {
        self.core.routes()
    }

    fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.core.route_of(address)
    }
}

impl Workers for Dataplane {
    fn flows(&self) -> &dyn Flows {
        &self.core
    }

    fn candidates(&self) -> &dyn CandidateTables {
        &self.core
    }

    fn captures(&self) -> &dyn PacketCaptures {
        &self.core
    }

    fn times(&self) -> Vec<WorkerTimes> {
        self.core.worker_times()
    }

    fn stuck_for(&self, timeout: Duration) -> Vec<StuckWorker> {
        Dataplane::stuck_for(self, timeout)
    }

    fn take_drop_samples(&self) -> DropSamples {
        self.core.take_drop_samples()
    }

    fn offloads(&self) -> bool {
        self.core.shared.offload.is_some()
    }

    fn without_links(&self) -> Option<&str> {
        self.pins.as_ref().err().map(String::as_str)
    }

    fn without_xdp(&self) -> Option<&str> {
        self.without_xdp.as_deref()
    }

    fn services_left_out(&self) -> usize {
        self.core.services_left_out()
    }
}
