//! Operations of the control side.

use std::net::{IpAddr, SocketAddr};

use super::counters::{KernelCounters, shown};
use super::host_end::{self, examine};
use super::{KernelDataplane, Port, State};
use crate::dataplane::{
    Backend, Counters, DataplaneApi, DesiredState, FlowDecisions, FlowPath, PortError, PortHealth, PortKind,
    PortReport, PortSpec, PublishError, RouteReport, Workers,
};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;
use crate::netlink::Interface;

impl DataplaneApi for KernelDataplane {
    fn backend(&self) -> Backend {
        Backend::Nftables
    }

    fn workers(&self) -> Option<&dyn Workers> {
        None
    }

    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut state = self.state();
        let interface = examine(spec)?;
        if state.ports.values().any(|port| port.interface.index == interface.index) {
            return Err(PortError::Taken { interface: spec.interface.clone() });
        }
        let id = self.published.add_port(spec.kind, interface.mtu)?;
        let name = interface.name.clone();
        state.ports.insert(id, Port { spec: spec.clone(), interface });
        let was_blocked = state.blocked.remove(&name);
        self.open(&mut state, id).inspect_err(|_| {
            state.ports.remove(&id);
            self.published.remove_port(id);
            if was_blocked {
                state.blocked.insert(name);
            }
            let _ = self.apply(&mut state);
        })
    }

    fn reopen_port(&self, port: PortId, _spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut state = self.state();
        let before = &state.ports.get(&port).ok_or(PortError::Unknown(port))?.interface;
        let reopened = Interface::with_index(before.index).map_err(PortError::from).and_then(|interface| {
            host_end::check_name(&interface.name).inspect_err(|_| host_end::set_down(&interface.name))?;
            state.ports.get_mut(&port).ok_or(PortError::Unknown(port))?.interface = interface;
            self.open(&mut state, port)
        });
        reopened.inspect_err(|_| {
            // The error of the open says why.
            let _ = self.close(&mut state, port, false);
        })
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        let mut state = self.state();
        self.maintain(&mut state);
        host_end::check(&state.ports.get(&port).ok_or(PortError::Unknown(port))?.interface)
    }

    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        self.close(&mut self.state(), port, detach)
    }

    fn block_interface(&self, interface: &str) -> Result<(), PortError> {
        host_end::check_name(interface)?;
        let mut state = self.state();
        if state.blocked.insert(interface.to_owned()) {
            self.apply(&mut state).map_err(PortError::Kernel)?;
        }
        Ok(())
    }

    fn block_new_interface(&self, _index: u32, interface: &str) -> Result<(), PortError> {
        self.block_interface(interface)
    }

    fn unblock_interface(&self, interface: &str) -> Result<(), PortError> {
        let mut state = self.state();
        if state.blocked.remove(interface) {
            self.apply(&mut state).map_err(PortError::Kernel)?;
        }
        Ok(())
    }

    fn publish(&self, desired: DesiredState) -> Result<Generation, PublishError> {
        let mut state = self.state();
        let generation = self.published.publish(desired);
        let applied = self.apply(&mut state);
        applied.map(|()| generation).map_err(|reason| PublishError {
            generation,
            workers: Vec::new(),
            kernel: Some(reason),
        })
    }

    fn problems(&self) -> Vec<String> {
        let state = self.state();
        let failed = state.failed.iter().map(|reason| {
            format!(
                "the kernel has not taken the rules of the last change, and the earlier ones hold: {reason}"
            )
        });
        let gone = (state.times_gone > 0).then(|| {
            format!(
                "another program has removed the rules (times since the start: {}), and packets may have passed unchecked until they \
                 were loaded again: find what runs `nft flush ruleset`",
                state.times_gone
            )
        });
        failed.chain(gone).collect()
    }

    fn counters(&self) -> Counters {
        let state = self.state();
        let read = if state.has_taken_over {
            KernelCounters::read(&self.nft)
        } else {
            Ok(KernelCounters::default())
        };
        let counters = match read {
            Ok(counters) => counters,
            Err(error) => {
                tracing::warn!("the counters of the kernel cannot be read: {error}");
                return Counters::default();
            }
        };
        let mut decisions = state.retired.clone();
        if let Some(rules) = &state.loaded {
            counters.add_decisions(&rules.decisions(), &mut decisions);
        }
        let port = |(id, port): (&PortId, &Port)| (*id, counters.of_port(&port.interface.name));
        Counters {
            ports: state.ports.iter().map(port).collect(),
            decisions: shown(decisions),
            ..Counters::default()
        }
    }

    fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        // The kernel resolves neighbours itself.
        FlowPath { neighbor: None, ..self.published.path(flow, backend) }
    }

    fn decisions(&self, flow: &FlowKey) -> FlowDecisions {
        let FlowPath { generation, egress, ingress, .. } = self.path(flow, None);
        FlowDecisions { generation, egress, ingress }
    }

    fn routes(&self) -> Vec<RouteReport> {
        self.published.routes().into_iter().map(without_neighbor).collect()
    }

    fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.published.route_of(address).map(without_neighbor)
    }
}

impl KernelDataplane {
    /// Closes a port. Its interface stays closed by rules, unless it is detached.
    fn close(&self, state: &mut State, port: PortId, detach: bool) -> Result<(), PortError> {
        let open = state.ports.remove(&port).ok_or(PortError::Unknown(port))?;
        self.published.remove_port(port);
        let name = open.interface.name.clone();
        if open.spec.kind == PortKind::Pod {
            // An interface that comes back under the name of one that is gone is closed.
            let is_returned = detach && open.interface.is_there();
            if is_returned && state.has_taken_over {
                host_end::lower(&name, &self.published.desired())?;
            } else {
                KernelDataplane::block(state, name);
            }
        }
        self.apply(state).map_err(PortError::Kernel)
    }

    /// Closes the interface of a port by rules, and then makes the kernel forward its packets.
    fn open(&self, state: &mut State, id: PortId) -> Result<PortReport, PortError> {
        self.apply(state).map_err(PortError::Kernel)?;
        let Port { spec, interface } = &state.ports[&id];
        let mut warnings = Vec::new();
        if state.has_taken_over {
            warnings = host_end::raise(&interface.name, spec.kind, &self.published.desired())?;
        }
        Ok(PortReport::without_program(id, interface, warnings))
    }
}

/// The kernel resolves neighbours itself.
fn without_neighbor(mut route: RouteReport) -> RouteReport {
    route.neighbor = None;
    route
}
