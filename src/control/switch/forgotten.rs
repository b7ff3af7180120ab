//! Ports, pods and routes that a restart forgets: added by command, and not in the configuration file.

use std::sync::Arc;

use super::Switch;
use crate::control::protocol::{PodRequest, PortRequest};
use crate::control::settings::{Configured, PortRoute};
use crate::control::state::State;
use crate::control::validation::is_container_port;
use crate::tables::PodName;

impl Switch {
    /// Records the parts of the configuration file that is in force.
    pub fn set_configured(&self, configured: Configured) {
        self.configured.store(Some(Arc::new(configured)));
    }

    /// Ports, pods and routes that a restart forgets, a few words each. None before the configuration is known.
    pub(super) fn forgotten(&self, state: &State) -> Vec<String> {
        let configured = self.configured.load();
        let Some(configured) = configured.as_deref() else { return Vec::new() };
        let has_agent = self.source.load().is_some();
        let ports = state.ports.keys().filter(|name| !is_container_port(name));
        let ports = ports.filter_map(|name| match configured.ports.get(name) {
            None => Some(format!("port {name}")),
            Some(port) if self.is_as_configured(state, name, port) => None,
            Some(_) => Some(format!("changes of port {name}")),
        });
        let is_kept = |route: &&PortRoute| configured.routes.contains(*route) || has_agent && route.node;
        let routes = state.routes.iter().filter(|route| !is_kept(route));
        ports.chain(routes.map(|route| format!("route {}", route.prefix))).collect()
    }

    /// Whether a port and the pod behind it are those of the configuration.
    fn is_as_configured(
        &self,
        state: &State,
        name: &str,
        (port, pod): &(PortRequest, Option<(PodName, PodRequest)>),
    ) -> bool {
        let has_bandwidth = |(name, request): &(PodName, PodRequest)| {
            state.pods.get(name).is_some_and(|record| record.request.bandwidth == request.bandwidth)
        };
        self.has_port(name, port, pod.as_ref()) && pod.as_ref().is_none_or(has_bandwidth)
    }
}
