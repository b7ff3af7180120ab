//! Filters of flows, and the names of their ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::control::ApiError;
use crate::control::protocol::FlowQuery;
use crate::control::state::State;
use crate::dataplane::{FlowFilter, flow_states};
use crate::ids::PortId;
use crate::net::flow::FlowKey;
use crate::tables::PodName;

/// Filter of flows, with the addresses of its pods.
#[derive(Debug)]
pub(in crate::control) struct Selection {
    flows: FlowFilter,
    /// Name of the state.
    state: Option<String>,
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
        Ok(Selection { flows: state.resolve(&query.filter)?, state: query.state.clone() })
    }

    /// Whether a flow has every property of the filter. `state` is its state, `None` for a packet without a flow.
    pub(in crate::control) fn selects(&self, key: &FlowKey, state: Option<&str>) -> bool {
        self.flows.selects(key) && self.state.as_deref().is_none_or(|wanted| state == Some(wanted))
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
    use crate::control::protocol::PacketFilter;
    use crate::ids::AclId;
    use crate::tables::{PodPolicy, RuleTables};

    #[test]
    fn a_filter_selects_by_pod_and_state() {
        let state = state("web");
        let key = FlowKey {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 1, 1].into(),
            protocol: crate::net::flow::Protocol::TCP,
            src_port: 4000,
            dst_port: 80,
        };
        let selects = |query: &FlowQuery, flow_state: Option<&str>| {
            [key, key.reversed()].map(|key| Selection::new(query, &state).unwrap().selects(&key, flow_state))
        };
        let of = |filter| FlowQuery::of(filter);
        assert_eq!(selects(&FlowQuery::default(), None), [true; 2]);
        assert_eq!(selects(&FlowQuery::of_pod(&PodName::new("a", "web")), None), [true; 2]);
        let web = Some("a/web".parse().unwrap());
        assert_eq!(
            selects(&of(PacketFilter { from: web.clone(), ..PacketFilter::default() }), None),
            [true, false]
        );
        assert_eq!(selects(&of(PacketFilter { to: web, ..PacketFilter::default() }), None), [false, true]);
        let established = FlowQuery { state: Some("established".to_owned()), ..FlowQuery::default() };
        assert_eq!(selects(&established, Some("established")), [true; 2]);
        assert_eq!(selects(&established, Some("reset")), [false; 2]);
        assert_eq!(selects(&established, None), [false; 2]);
    }

    #[test]
    fn unknown_states_and_pods_are_refused_with_what_there_is() {
        let refused = |query: FlowQuery| Selection::new(&query, &State::default()).unwrap_err().to_string();
        let state = refused(FlowQuery { state: Some("open\u{1b}".to_owned()), ..FlowQuery::default() });
        assert!(state.contains("udp-two-way") && !state.contains('\u{1b}'), "{state}");
        let unknown = PodName::new("a", "b");
        assert!(refused(FlowQuery::of_pod(&unknown)).contains("show pods"));
        let to = PacketFilter { to: Some("a/b".parse().unwrap()), ..PacketFilter::default() };
        assert!(refused(FlowQuery::of(to)).contains("show pods"));
    }

    /// State whose tables have one pod, with 10.0.0.1.
    fn state(name: &str) -> Arc<State> {
        let mut tables = RuleTables::default();
        let addresses = vec![[10, 0, 0, 1].into()];
        let policy = PodPolicy { addresses, ingress: AclId(0), egress: AclId(0) };
        tables.pods.insert(PodName::new("a", name), policy);
        Arc::new(State { tables: Some(Arc::new(tables)), ..State::default() })
    }

    #[test]
    fn names_stay_while_the_state_does() {
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
