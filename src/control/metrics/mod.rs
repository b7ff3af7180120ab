//! Metrics of the switch, for Prometheus and other collectors.
//!
//! The number of series is bounded: per worker, per port with the drop reasons that have occurred, for
//! [`METRICS_POLICIES_MAX`] policies, and for [`METRICS_SERVICES_MAX`] ports of Services. No series belongs to a rule,
//! a flow or an address.

mod exposition;
mod ipfix;
mod policies;
mod ports;
mod services;
mod source;
mod workers;

use self::exposition::Exposition;
use self::exposition::Kind::{Counter, Gauge, Info};
use super::Switch;
use super::protocol::{CountersReport, PolicyStatus, Status};
use crate::dataplane::{Backend, WorkerCounters};
#[cfg(doc)]
use crate::limits::{METRICS_POLICIES_MAX, METRICS_SERVICES_MAX};
use crate::threads;

pub use exposition::Format;

impl Switch {
    /// Reports all metrics as text.
    pub fn metrics(&self, format: Format) -> String {
        let (status, counters) = (self.status(), self.counters());
        let mut out = Exposition::new(format);
        describe_switch(&mut out, &status);
        self.describe_policy(&mut out, &status);
        // Without workers, their series are absent.
        if status.backend == Backend::AfXdp {
            self.describe_workers(&mut out, &counters);
            describe_flow_table(&mut out, &status, &counters);
        }
        status.source.iter().for_each(|source| source::describe(&mut out, source));
        status.ipfix.iter().for_each(|report| ipfix::describe(&mut out, report));
        ports::describe(&mut out, &self.ports(), &counters.ports, status.backend);
        policies::describe(&mut out, &counters.decisions);
        let (audited, problem) = self.audit.policies(&self.state.load());
        policies::describe_audit(&mut out, audited, problem.is_none());
        services::describe(&mut out, &self.services_report());
        out.finish()
    }

    /// Tables in force, the watched directory, and pods.
    fn describe_policy(&self, out: &mut Exposition, status: &Status) {
        out.family(Gauge, "palisade_tables_loaded", "", "Whether rule tables are loaded.")
            .sample(&[], status.tables_loaded.into());
        let policy = status.policy.as_ref();
        let mut in_force = |name, unit, help, value: fn(&PolicyStatus) -> u64| {
            let mut family = out.family(Gauge, name, unit, help);
            policy.iter().for_each(|policy| _ = family.sample(&[], value(policy)));
        };
        in_force("palisade_tables_rules", "rules", "Rules of the loaded tables.", |policy| {
            policy.rules as u64
        });
        in_force(
            "palisade_policy_loaded_timestamp_seconds",
            "seconds",
            "Time at which the loaded tables came into force, since 1970.",
            |policy| policy.since_unix_s,
        );
        let rejected = status.rejected_reload.as_ref();
        out.family(
            Gauge,
            "palisade_policy_reload_rejected",
            "",
            "Whether the last reload of the policy directory was rejected: the tables before stay in force.",
        )
        .sample(&[], rejected.is_some().into());
        let mut at = out.family(
            Gauge,
            "palisade_policy_rejected_timestamp_seconds",
            "seconds",
            "Time at which that reload was rejected, since 1970.",
        );
        rejected.iter().for_each(|rejected| _ = at.sample(&[], rejected.at_unix_s));
        let (state, help) =
            (self.state.load(), "Pods: attached, attached and unknown to the tables, or in the tables only.");
        let is_known = |pod| state.tables.as_ref().is_some_and(|tables| tables.pods.contains_key(pod));
        let known = state.pods.keys().filter(|pod| is_known(pod)).count();
        let in_tables = state.tables.as_ref().map_or(0, |tables| tables.pods.len());
        out.family(Gauge, "palisade_pods", "pods", help)
            .sample(&[("state", "attached")], known as u64)
            .sample(&[("state", "unknown")], (state.pods.len() - known) as u64)
            .sample(&[("state", "not-attached")], (in_tables - known) as u64);
    }

    fn describe_workers(&self, out: &mut Exposition, counters: &CountersReport) {
        let stuck: Vec<String> = self.halted_workers().iter().map(|stuck| stuck.worker.to_string()).collect();
        let mut info = out.family(Info, "palisade_worker", "", "Core of the worker.");
        for (worker, values) in &counters.workers {
            info.sample(&[("worker", worker), ("core", &values.core.to_string())], 1);
        }
        let mut up = out.family(
            Gauge,
            "palisade_worker_up",
            "",
            "Whether the worker has come to the end of a batch within the last second.",
        );
        for worker in counters.workers.keys() {
            up.sample(&[("worker", worker)], (!stuck.contains(worker)).into());
        }
        workers::describe(out, &counters.workers, &self.worker_times());
    }
}

fn describe_switch(out: &mut Exposition, status: &Status) {
    out.family(Info, "palisade_build", "", "Version and commit of the program.")
        .sample(&[("version", &status.version), ("commit", env!("PALISADE_COMMIT"))], 1);
    out.family(Info, "palisade_backend", "", "Program that forwards the packets of pods.")
        .sample(&[("backend", &status.backend.to_string())], 1);
    out.family(Gauge, "palisade_uptime_seconds", "seconds", "Time since the start.")
        .sample(&[], status.uptime_s);
    out.family(Gauge, "palisade_generation", "", "Generation that the workers use.")
        .sample(&[], status.generation.0.into());
    out.family(Gauge, "palisade_problems", "problems", "Problems that `palisade show status` describes.")
        .sample(&[], status.problems.len() as u64);
    out.family(
        Counter,
        "palisade_contained_panics",
        "panics",
        "Panics of requests that the switch has survived.",
    )
    .sample(&[], threads::panics());
}

fn describe_flow_table(out: &mut Exposition, status: &Status, counters: &CountersReport) {
    let table = &status.flow_table;
    let sum = |value: fn(&WorkerCounters) -> u64| counters.workers.values().map(value).sum::<u64>();
    // The counters of the workers are not read at one moment.
    let flows = (table.restored + sum(|worker| worker.flows_entered))
        .saturating_sub(sum(|worker| worker.flows_ended));
    out.family(Gauge, "palisade_conntrack_flows", "flows", "Flows in the flow table.").sample(&[], flows);
    if let Some(offload) = &counters.offload {
        let rows = [
            (Gauge, "palisade_offload_flows", "Flows whose packets the kernel forwards.", offload.flows),
            (Counter, "palisade_offload_recorded_flows", "Flows that were offloaded.", offload.recorded),
            (
                Counter,
                "palisade_offload_refused_flows",
                "Times that a flow stayed with the workers for want of a place.",
                offload.refused,
            ),
        ];
        for (kind, name, help, value) in rows {
            out.family(kind, name, "flows", help).sample(&[], value);
        }
        out.family(
            Counter,
            "palisade_offload_lost_packets",
            "packets",
            "Packets from uplinks whose flow had ended for another one since the kernel took them.",
        )
        .sample(&[], offload.lost);
    }
    out.family(Gauge, "palisade_conntrack_capacity_flows", "flows", "Most flows that the flow table holds.")
        .sample(&[], table.capacity as u64);
    out.family(
        Gauge,
        "palisade_conntrack_restored_flows",
        "flows",
        "Flows of the process before that the start has restored.",
    )
    .sample(&[], table.restored);
    out.family(
        Counter,
        "palisade_conntrack_evicted_flows",
        "flows",
        "Unassured flows that were evicted for others before their timeout.",
    )
    .sample(&[], sum(|worker| worker.flows_evicted));
}
