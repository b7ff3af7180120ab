//! Status of the switch.

use super::Switch;
use crate::control::protocol::{IpfixReport, Status};
use crate::dataplane::Workers;

impl Switch {
    /// Reports the status of the switch.
    pub fn status(&self) -> Status {
        let state = self.state.load();
        let source = self.source();
        let followed = source.iter().flat_map(|source| &source.report.pod_prefixes);
        let mut pod_prefixes = self.settings.pod_prefixes.clone();
        pod_prefixes.extend(followed.filter(|prefix| !self.settings.pod_prefixes.contains(prefix)));
        let workers = self.dataplane.workers();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            backend: self.dataplane.backend(),
            offloads: workers.is_some_and(Workers::offloads),
            cores: self.settings.cores.clone(),
            generation: state.generation,
            tables_loaded: state.tables.is_some(),
            problems: self.problems(&state),
            forgotten: self.forgotten(&state),
            flow_table: workers.map(|workers| workers.flows().report()).unwrap_or_default(),
            policy: state.policy_status(),
            rejected_reload: self.rejected_reload.load().as_deref().cloned(),
            source,
            configuration: self.configuration.load().as_deref().cloned(),
            gateway: self.settings.gateway.addresses.clone(),
            uplink_mtu: state.uplink_mtu(),
            pod_prefixes,
            ipfix: self.ipfix_report(),
        }
    }

    pub(super) fn ipfix_report(&self) -> Option<IpfixReport> {
        self.settings.ipfix.as_ref().map(|settings| self.ipfix.report(settings))
    }
}
