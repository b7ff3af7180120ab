//! Filters of flows, and the names of their ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::control::ApiError;
use crate::control::protocol::FlowQuery;
use crate::control::state::State;
use crate::dataplane::flow_states;
use crate::ids::PortId;
use crate::net::flow::FlowKey;
use crate::tables::PodName;

/// Filter of flows, with the addresses of its pod.
#[derive(Debug)]
pub(in crate::control) struct Selection {
    query: FlowQuery,
    addresses: Option<Vec<IpAddr>>,
}

impl Selection {
    /// Resolves the names of a query.
    pub(in crate::control) fn new(query: &FlowQuery, state: &State) -> Result<Selection, ApiError> {
        if let Some(name) = &query.state
            && !flow_states().any(|known| known == name)
        {
            let known: Vec<&str> = flow_states().collect();
            let reason = format!("no flow is ever in state {name:?}: the states are {}", known.join(", "));
            return Err(ApiError::Field { field: "state", reason });
        }
        let addresses = query.pod.as_ref().map(|pod| state.known_addresses(pod)).transpose()?;
        Ok(Selection { query: query.clone(), addresses })
    }

    /// Whether a flow has every property of the filter. `state` is its state, `None` for a packet without a flow.
    pub(in crate::control) fn selects(&self, key: &FlowKey, state: Option<&str>) -> bool {
        let FlowQuery { address, port, protocol, .. } = &self.query;
        let ends = [key.src, key.dst];
        let is_of_pod = |addresses: &Vec<IpAddr>| ends.iter().any(|end| addresses.contains(end));
        let has_port = key.protocol.has_ports();
        self.addresses.as_ref().is_none_or(is_of_pod)
            && address.is_none_or(|prefix| ends.iter().any(|end| prefix.0.contains(end)))
            && port.is_none_or(|range| {
                has_port && [key.src_port, key.dst_port].into_iter().any(|port| range.contains(port))
            })
            && protocol.is_none_or(|protocol| protocol == key.protocol)
            && self.query.state.as_deref().is_none_or(|wanted| state == Some(wanted))
    }
}

/// Pods by address: those that are attached, and those that the tables know.
pub(in crate::control) struct PodNames<'a> {
    state: &'a State,
    pods: HashMap<IpAddr, &'a PodName>,
}

impl PodNames<'_> {
    pub(in crate::control) fn new(state: &State) -> PodNames<'_> {
        let known = state.tables.iter().flat_map(|tables| tables.pods.iter());
        let known = known.flat_map(|(name, pod)| pod.addresses.iter().map(move |address| (*address, name)));
        let attached = state.pods.iter();
        let attached = attached
            .flat_map(|(name, pod)| pod.request.addresses.iter().map(move |address| (*address, name)));
        // An attached pod stands before one of the tables.
        PodNames { state, pods: known.chain(attached).collect() }
    }

    /// Pods at the source and at the destination.
    pub(in crate::control) fn ends(&self, key: &FlowKey) -> [Option<PodName>; 2] {
        [key.src, key.dst].map(|end| self.pods.get(&end).map(|name| (*name).clone()))
    }

    /// Port of the attached pod that has an address.
    pub(super) fn port_of(&self, address: IpAddr) -> Option<PortId> {
        let pod = self.state.pods.get(*self.pods.get(&address)?)?;
        Some(self.state.ports.get(&pod.request.port)?.report.id)
    }

    /// Pod behind a port.
    pub(super) fn behind(&self, port: PortId) -> Option<PodName> {
        self.state.pod_behind(self.state.port_name(port)?).cloned()
    }
}

/// Pods by address of a state, which stay while the state does.
#[derive(Default)]
pub(in crate::control) struct KeptNames {
    state: Option<Arc<State>>,
    pods: HashMap<IpAddr, PodName>,
}

impl KeptNames {
    /// Takes the names of a state. Those of the same state are there already.
    pub(in crate::control) fn update(&mut self, state: &Arc<State>) {
        if !self.state.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, state)) {
            let pods = PodNames::new(state).pods;
            self.pods = pods.into_iter().map(|(address, name)| (address, name.clone())).collect();
            self.state = Some(state.clone());
        }
    }

    /// Pods at the source and at the destination.
    pub(super) fn ends(&self, key: &FlowKey) -> [Option<PodName>; 2] {
        [key.src, key.dst].map(|end| self.pods.get(&end).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::{AddressPrefix, PortRange};
    use crate::ids::AclId;
    use crate::net::flow::Protocol;
    use crate::tables::{PodPolicy, RuleTables};

    #[allow(clippy::needless_pass_by_value)] // Each query is made for one call.
    fn selects(query: FlowQuery, flow: &str, state: Option<&str>) -> bool {
        let [protocol, src, dst] = flow.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let [src, dst]: [std::net::SocketAddr; 2] = [src, dst].map(|end| end.parse().unwrap());
        let key = FlowKey {
            src: src.ip(),
            dst: dst.ip(),
            protocol: protocol.parse().unwrap(),
            src_port: src.port(),
            dst_port: dst.port(),
        };
        Selection::new(&query, &State::default()).unwrap().selects(&key, state)
    }

    const TCP: &str = "TCP 10.0.0.1:4000 10.0.1.1:80";

    #[test]
    fn a_filter_selects_by_address_port_protocol_and_state() {
        let none = FlowQuery::default;
        assert!(selects(none(), TCP, None));
        let address =
            |text: &str| FlowQuery { address: Some(text.parse::<AddressPrefix>().unwrap()), ..none() };
        assert!(selects(address("10.0.1.0/24"), TCP, None) && selects(address("10.0.0.1"), TCP, None));
        assert!(!selects(address("10.0.2.0/24"), TCP, None) && !selects(address("::/0"), TCP, None));
        let port = |text: &str| FlowQuery { port: Some(text.parse::<PortRange>().unwrap()), ..none() };
        assert!(selects(port("80"), TCP, None) && selects(port("3000-4000"), TCP, None));
        assert!(!selects(port("81-3999"), TCP, None));
        assert!(!selects(port("7"), "ICMP 10.0.0.1:7 10.0.1.1:7", None), "an identifier is no port");
        let protocol = |protocol| FlowQuery { protocol: Some(protocol), ..none() };
        assert!(selects(protocol(Protocol::TCP), TCP, None) && !selects(protocol(Protocol::UDP), TCP, None));
        let state = || FlowQuery { state: Some("established".to_owned()), ..none() };
        assert!(selects(state(), TCP, Some("established")) && !selects(state(), TCP, Some("reset")));
        assert!(!selects(state(), TCP, None));
    }

    #[test]
    fn unknown_states_and_pods_are_refused_with_what_there_is() {
        let refused = |query: FlowQuery| Selection::new(&query, &State::default()).unwrap_err().to_string();
        let state = refused(FlowQuery { state: Some("open\u{1b}".to_owned()), ..FlowQuery::default() });
        assert!(state.contains("udp-two-way") && !state.contains('\u{1b}'), "{state}");
        assert!(refused(FlowQuery::of_pod(&PodName::new("a", "b"))).contains("show pods"));
    }

    #[test]
    fn names_stay_while_the_state_does() {
        let state = |name: &str| {
            let mut tables = RuleTables::default();
            let addresses = vec![[10, 0, 0, 1].into()];
            let policy = PodPolicy { addresses, ingress: AclId(0), egress: AclId(0) };
            tables.pods.insert(PodName::new("a", name), policy);
            Arc::new(State { tables: Some(Arc::new(tables)), ..State::default() })
        };
        let [first, second] = ["first", "second"].map(state);
        let mut names = KeptNames::default();
        let mut place = |state: &Arc<State>| {
            names.update(state);
            let name = &names.pods[&IpAddr::from([10, 0, 0, 1])].name;
            (name.clone(), name.as_ptr().addr())
        };
        let before = place(&first);
        assert_eq!(before.0, "first");
        assert_eq!(place(&first), before, "nothing is made again");
        assert_eq!(place(&second).0, "second");
    }
}
