//! Status of the switch, with the problems that its operator should know.

use super::Switch;
use crate::control::protocol::{IpfixReport, PortState, Status};
use crate::control::state::State;
use crate::dataplane::Backend;
use crate::limits::UPLINK_SERVICE_PORTS_MAX;
use crate::threads;

impl Switch {
    /// Reports the status of the switch.
    pub fn status(&self) -> Status {
        let state = self.state.load();
        let source = self.source();
        let followed = source.iter().flat_map(|source| &source.report.pod_prefixes);
        let mut pod_prefixes = self.settings.pod_prefixes.clone();
        pod_prefixes.extend(followed.filter(|prefix| !self.settings.pod_prefixes.contains(prefix)));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            backend: self.dataplane.backend(),
            cores: self.settings.cores.clone(),
            generation: state.generation,
            tables_loaded: state.tables.is_some(),
            problems: self.problems(&state),
            flow_table: self.dataplane.flow_table(),
            policy: state.policy_status(),
            rejected_reload: self.rejected_reload.load().as_deref().cloned(),
            source,
            gateway: self.settings.gateway.addresses.clone(),
            uplink_mtu: state.uplink_mtu(),
            pod_prefixes,
            ipfix: self.ipfix_report(),
        }
    }

    fn ipfix_report(&self) -> Option<IpfixReport> {
        self.settings.ipfix.as_ref().map(|settings| self.ipfix.report(settings))
    }

    /// Lists problems for the operator.
    fn problems(&self, state: &State) -> Vec<String> {
        let ports = state.ports.iter().filter_map(|(name, port)| {
            let reason = port.reason.as_ref()?;
            Some(match port.state {
                PortState::Up => format!("port {name}: {reason}"),
                PortState::Down => format!("port {name} is down: {reason}"),
                PortState::Unguarded => format!("port {name} is UNGUARDED: {reason}"),
            })
        });
        let stuck = self.dataplane.stuck_workers().into_iter().map(|stuck| {
            format!(
                "worker {} (core {}) has not come to the end of a batch for {} s: changes do not reach it; restart the switch",
                stuck.worker,
                stuck.core,
                stuck.since.as_secs()
            )
        });
        let links = self.dataplane.without_links().map(|why| {
            format!(
                "XDP programs are attached without BPF links ({why}): `ip link set dev NAME xdp off` takes them off; mount a \
                 BPF file system there (`mount -t bpf bpf /sys/fs/bpf`) and restart the switch"
            )
        });
        let without_xdp = self.dataplane.without_xdp().map(|reason| {
            format!("only tap ports open, because the switch has started without AF_XDP: {reason}")
        });
        let draining = state.pods.iter().filter(|(_, pod)| pod.draining).map(|(name, pod)| {
            let port = &pod.request.port;
            format!(
                "port {port} is draining: no flow from or to pod {name} begins, until `palisade port drain {port} --undo`"
            )
        });
        let panics = match threads::panics() {
            0 => None,
            count => Some(format!("{count} panics have been contained since the start: the log says where")),
        };
        let ipfix = self.ipfix_report().and_then(|report| {
            let (error, collector) = (report.error?, report.collector);
            Some(format!("flows do not reach the collector {collector}: {error}"))
        });
        let services = match self.dataplane.services_left_out() {
            0 => None,
            count => Some(format!(
                "{count} ports of Services stay with the kernel: an uplink takes {UPLINK_SERVICE_PORTS_MAX} of them"
            )),
        };
        let waits = self.settings.masquerade.as_ref().is_some_and(|masquerade| masquerade.waits);
        let masquerade = (waits && !state.has_node_routes).then(|| {
            "pods open no flows to the outside: masquerading waits for the agent's routes to other nodes"
                .to_owned()
        });
        let (audited, audit) = self.audit.policies(state);
        let is_unseen = self.dataplane.backend() != Backend::AfXdp && !audited.is_empty();
        let audit = audit
            .or_else(|| is_unseen.then(|| "the kernel forwards, and the switch sees no flow".to_owned()));
        let audit = audit.map(|reason| {
            let audited = match audited.len() {
                1 => "1 policy is in audit mode".to_owned(),
                count => format!("{count} policies are in audit mode"),
            };
            format!("{audited}, and no flow is judged: {reason}")
        });
        ports
            .chain(self.dataplane.problems())
            .chain(masquerade)
            .chain(self.node_problems.iter().filter_map(|problem| problem.load().as_deref().cloned()))
            .chain(draining)
            .chain(stuck)
            .chain(links)
            .chain(without_xdp)
            .chain(panics)
            .chain(ipfix)
            .chain(services)
            .chain(audit)
            .collect()
    }
}
