//! Ports, pods and routes that a restart forgets: added by command, and not in the configuration file.

use std::sync::Arc;

use super::Switch;
use crate::control::settings::Configured;
use crate::control::state::State;
use crate::control::validation::is_container_port;

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
        let ports = ports.filter(|name| !configured.ports.contains_key(*name));
        let pods = state.pods.iter().filter(|(pod, record)| {
            let of_port = configured.ports.get(&record.request.port);
            of_port.is_some_and(|of_port| of_port.as_ref() != Some(*pod))
        });
        let routes = state
            .routes
            .iter()
            .filter(|route| !(configured.routes.contains(&route.prefix) || has_agent && route.node));
        let ports = ports.map(|name| format!("port {name}"));
        let pods = pods.map(|(pod, record)| format!("pod {pod} on port {}", record.request.port));
        ports.chain(pods).chain(routes.map(|route| format!("route {}", route.prefix))).collect()
    }
}
