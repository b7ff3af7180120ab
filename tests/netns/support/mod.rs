//! Labs with a running switch, and steps and assertions that several tests share.

pub(crate) mod capture;
pub(crate) mod closed;
pub(crate) mod connection;
mod isolation;
pub(crate) mod namespace;
pub(crate) mod packet_log;
pub(crate) mod packet_socket;
pub(crate) mod verdict;
pub(crate) mod veth;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use palisade::control::protocol::{CountersReport, FlowQuery};
use palisade::dataplane::FlowInfo;
use palisade::lab::{Lab, LabSpec, Pod, Switch, SwitchSpec, manifests};

pub(crate) use self::isolation::{add_card, isolated};
pub(crate) use self::verdict::{
    EGRESS, INGRESS, assert_allowed, assert_denied, assert_pings, assert_protocol_denied, assert_udp,
};

/// Longest wait for an event.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);
/// Port of the servers.
pub(crate) const PORT: u16 = 6379;

/// Lab with a running switch. Every pod is in the tables, with its own name as the label `app`.
pub(crate) struct Rig {
    pub(crate) switch: Switch,
    pub(crate) lab: Lab,
}

impl Rig {
    pub(crate) fn up(pods: &[&str], workers: u16) -> Rig {
        Rig::with(pods, workers, "")
    }

    /// Starts lab and switch with additional configuration.
    pub(crate) fn with(pods: &[&str], workers: u16, config: &str) -> Rig {
        Rig::of(&LabSpec { workers, ..spec_of(pods) }, config)
    }

    /// Starts lab and switch from a lab's description.
    pub(crate) fn of(spec: &LabSpec, config: &str) -> Rig {
        let mut lab = Lab::up(spec).unwrap();
        let switch = Rig::start(&mut lab, config);
        Rig { switch, lab }
    }

    /// Starts a switch for the lab, with all pods attached and no policy.
    pub(crate) fn start(lab: &mut Lab, config: &str) -> Switch {
        let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
        spec.stay_closed = true;
        spec.config.push_str(config);
        let switch = Switch::start(lab, &spec).unwrap();
        switch.attach_all(lab).unwrap();
        switch.apply(&pods_manifest(lab)).unwrap();
        switch
    }

    /// Loads the pods with these policies.
    pub(crate) fn apply(&self, policies: &str) {
        self.switch.apply(&format!("{}---\n{policies}", pods_manifest(&self.lab))).unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.lab.pod(name).unwrap()
    }

    pub(crate) fn counters(&self) -> CountersReport {
        self.switch.client().counters().unwrap()
    }

    /// Up to `max` flows.
    pub(crate) fn flows(&self, max: usize) -> Vec<FlowInfo> {
        let report = self.switch.client().flows(&FlowQuery::first(max)).unwrap();
        report.flows.into_iter().map(|record| record.flow).collect()
    }

    /// Drops of all ports, by reason.
    pub(crate) fn drops(&self) -> BTreeMap<String, u64> {
        let mut sum = BTreeMap::new();
        for port in self.counters().ports.values() {
            for (reason, count) in &port.drops {
                *sum.entry(reason.clone()).or_default() += count;
            }
        }
        sum
    }
}

/// Lab of these pods on veth pairs with the MTU of an Ethernet.
pub(crate) fn spec_of(pods: &[&str]) -> LabSpec {
    LabSpec { mtu: 1500, ..LabSpec::of(pods).unwrap() }
}

pub(crate) fn pods_manifest(lab: &Lab) -> String {
    manifests(lab, |plan| [("app".to_owned(), plan.pod.name.clone())].into())
}

/// A policy that isolates `app` for ingress and lets `from` reach it on TCP [`PORT`].
pub(crate) fn only_from(app: &str, from: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: to-{app}, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: {app}}}}}
  ingress:
  - from: [{{podSelector: {{matchLabels: {{app: {from}}}}}}}]
    ports: [{{protocol: TCP, port: {PORT}}}]
"
    )
}

/// Asserts that every received frame has one verdict.
pub(crate) fn assert_accounted(counters: &CountersReport) {
    for (name, port) in &counters.ports {
        let drops: u64 = port.drops.values().sum();
        assert_eq!(port.received, port.forwarded + port.consumed + drops, "{name}: {port:?}");
    }
}

/// Waits until `done`; fails after a long wait.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
