//! Catalogue of the scenarios, in full and in smoke size.

mod flow_memory;
mod idle;
mod latency;
mod policy_update;
mod stream;
mod tcp_bulk;
mod tcp_connect;
mod tcp_connect_generated;
mod udp_throughput;

use palisade::pktgen::FrameSize;

use self::latency::LoadLevel;
use self::stream::StreamSpec;
use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::rig::PODS_MIN;
use crate::scenario::{Measures, Mtu, Scenario, Trial};
use crate::system::Kind;

/// Rules of scenarios that do not vary their number.
const RULES: usize = 1000;
/// Seed of policies.
const SEED: u64 = 5;
/// Minimum frame size of Ethernet.
const SMALL: FrameSize = FrameSize::Fixed(64);

/// Scenario that finds no-drop rates.
pub(crate) const NO_DROP: &str = "latency-no-drop";

/// Returns all scenarios in the order of a run.
pub(crate) fn all(smoke: bool) -> Vec<Scenario> {
    let mut scenarios = throughput(smoke);
    scenarios.extend(connections_and_bulk(smoke));
    scenarios.extend(latencies(smoke));
    scenarios.push(Scenario {
        more_is_better: false,
        is_for: Kind::enforces,
        ..default_scenario("update", "effective_p99_ms", smoke, policy_update::measure)
    });
    scenarios.extend(memory_and_idle(smoke));
    if !smoke {
        scenarios.extend(many_pods());
    }
    scenarios
}

/// Makes a scenario with the default policy.
fn default_scenario(
    name: &str,
    metric: &'static str,
    smoke: bool,
    measure: impl Fn(&Trial<'_>) -> Result<Measures, BenchError> + 'static,
) -> Scenario {
    Scenario {
        name: name.to_owned(),
        group: name.to_owned(),
        metric,
        more_is_better: true,
        shape: PolicySpec { rules: if smoke { 100 } else { RULES }, pods: PODS_MIN, seed: SEED },
        mtu: Mtu::Of(1500),
        outside: false,
        once: false,
        measure: Box::new(measure),
        is_for: |_| true,
    }
}

/// True if rules affect a kind of system. A cross-connect has none, and stays as the limit.
fn has_rules(kind: Kind) -> bool {
    kind != Kind::NoPolicy
}

/// Makes a scenario of UDP throughput.
fn packets(name: &str, flows: u32, size: FrameSize, smoke: bool) -> Scenario {
    let shape = StreamSpec { flows, size };
    let base = default_scenario(name, "mpps", smoke, move |trial| udp_throughput::measure(trial, shape));
    let group = if size == SMALL { "udp64" } else { name };
    Scenario { group: group.to_owned(), ..base }
}

fn throughput(smoke: bool) -> Vec<Scenario> {
    let mut scenarios = vec![packets("udp64-10k", 10_000, SMALL, smoke)];
    if smoke {
        return scenarios;
    }
    scenarios.extend([
        packets("udp64-1", 1, SMALL, smoke),
        packets("udp64-1M", 1_000_000, SMALL, smoke),
        packets("imix", 10_000, FrameSize::Imix, smoke),
    ]);
    for (name, rules) in [("rules-10", 10), ("rules-10k", 10_000), ("rules-100k", 100_000)] {
        let base = packets(name, 10_000, SMALL, smoke);
        let shape = PolicySpec { rules, ..base.shape };
        scenarios.push(Scenario { shape, is_for: has_rules, ..base });
    }
    scenarios
}

fn connections_and_bulk(smoke: bool) -> Vec<Scenario> {
    let bulk = |name: &str, mtu| Scenario { mtu, ..default_scenario(name, "gbps", smoke, tcp_bulk::measure) };
    // A few clients mostly wait for the hops of their connection; many keep all cores busy.
    let connect = |name: &str, clients| {
        default_scenario(name, "connections_per_s", smoke, move |trial| tcp_connect::measure(trial, clients))
    };
    let mut scenarios = vec![
        connect("tcp-connect", 4),
        default_scenario("tcp-connect-generated", "connections_per_s", smoke, tcp_connect_generated::measure),
        bulk("tcp-bulk-mtu1500", Mtu::Of(1500)),
        Scenario {
            mtu: Mtu::Of(1500),
            ..default_scenario("tcp-bulk-service", "gbps", smoke, tcp_bulk::measure_by_service)
        },
        Scenario {
            outside: true,
            ..default_scenario("tcp-bulk-outside", "gbps", smoke, tcp_bulk::measure_to_outside)
        },
        Scenario {
            outside: true,
            ..default_scenario("tcp-bulk-from-outside", "gbps", smoke, tcp_bulk::measure_from_outside)
        },
    ];
    if !smoke {
        scenarios.insert(1, connect("tcp-connect-64", 64));
        scenarios.extend([bulk("tcp-bulk-mtu9000", Mtu::Of(9000)), bulk("tcp-bulk-largest", Mtu::Largest)]);
    }
    scenarios
}

fn latencies(smoke: bool) -> Vec<Scenario> {
    let at = |name: &str, level: LoadLevel| {
        let base = default_scenario(name, "p99_us", smoke, move |trial| latency::measure(trial, level));
        Scenario { more_is_better: false, ..base }
    };
    let mut scenarios = vec![
        default_scenario(NO_DROP, "mpps", smoke, latency::no_drop),
        at("latency-50", LoadLevel::Own(0.5)),
    ];
    if !smoke {
        scenarios.extend([at("latency-90", LoadLevel::Own(0.9)), at("latency-common", LoadLevel::Common)]);
    }
    scenarios
}

/// Makes the scenarios of many pods. They run last, because their set-up takes most of a trial.
fn many_pods() -> [Scenario; 2] {
    [("pods-50", 50), ("pods-200", 200)].map(|(name, pods)| {
        let base = packets(name, 10_000, SMALL, false);
        Scenario { shape: PolicySpec { pods, ..base.shape }, ..base }
    })
}

fn memory_and_idle(smoke: bool) -> Vec<Scenario> {
    let mut scenarios = vec![];
    if !smoke {
        let memory = default_scenario("flow-memory", "bytes_per_flow", smoke, flow_memory::measure);
        scenarios.push(Scenario { more_is_better: false, once: true, ..memory });
    }
    let idle = default_scenario("idle", "cpu_percent", smoke, idle::measure);
    let shape = PolicySpec { pods: if smoke { 10 } else { 100 }, ..idle.shape };
    scenarios.push(Scenario { more_is_better: false, once: true, shape, ..idle });
    scenarios
}
