//! Parts of a soak.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::output::Output;
use crate::programs::assignments;

/// Environment variables of a run.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// Kinds of tests, by the variables that set their seeds and their numbers of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Histories of `tests/common/random.rs`.
    Histories,
    /// Property tests of proptest.
    Cases,
    /// This number of fuzz targets of bolero, which share the time. Only the first input has the seed.
    Fuzz(u32),
    /// Places at which `cni::kills` kills the plugin.
    Kills,
    /// Tests without random input, one of them in each run.
    Tests,
}

/// Part: tests of one program that share a seed and a number of inputs.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Test program, as `cargo test` names it, or `lib`.
    pub(crate) program: &'static str,
    /// Beginnings of the tests' names.
    filters: &'static [&'static str],
    pub(crate) kind: Kind,
    /// Number of inputs of the first run, which takes seconds.
    pub(crate) first_inputs: u64,
    /// Share of the time, in proportion to the others.
    pub(crate) share: u32,
    pub(crate) needs_root: bool,
}

const fn part(
    name: &'static str,
    program: &'static str,
    (kind, first_inputs): (Kind, u64),
    share: u32,
    filters: &'static [&'static str],
) -> Part {
    Part { name, program, filters, kind, first_inputs, share, needs_root: false }
}

const fn as_root(part: &Part) -> Part {
    Part { needs_root: true, ..*part }
}

pub(crate) const PARTS: &[Part] = &[
    part(
        "policy-histories",
        "policy",
        (Kind::Histories, 1_000),
        3,
        &["incremental_compile::tables_and_reference_agree"],
    ),
    part("policy-compile", "lib", (Kind::Cases, 200), 3, &["policy::compile::"]),
    part("policy-documents", "policy", (Kind::Cases, 200), 1, &["diff::a_flow_is", "validation::"]),
    part(
        "renderings",
        "policy",
        (Kind::Histories, 20),
        2,
        &["render::random_clusters", "render::reload::a_reload"],
    ),
    part(
        "conntrack",
        "lib",
        (Kind::Histories, 10_000),
        3,
        &["dataplane::conntrack::tests::reference_model::"],
    ),
    part(
        "services",
        "lib",
        (Kind::Cases, 200),
        2,
        &[
            "policy::services::tests::histories::",
            "dataplane::service::bindings::tests::",
            "dataplane::service::fib::",
            "dataplane::service::maglev::",
            "tables::services::",
        ],
    ),
    part(
        "properties",
        "lib",
        (Kind::Cases, 500),
        2,
        &[
            "net::checksum::",
            "net::ipv4::",
            "mem::simd::",
            "tables::acl_store::",
            "tables::affected_acls::",
            "tables::classifier::",
            "tables::document::",
            "tables::exact_table::",
            "tables::prefix_table::",
            "tables::row_store::",
            "policy::connectivity::",
            "policy::lint::subsumption::prefixes::",
            "render::security_groups::ranges::",
            "dataplane::conntrack::storage::",
            "dataplane::conntrack::tests::entries::",
            "dataplane::conntrack::tests::map_model::",
            "dataplane::fib::snapshot::",
            "dataplane::fragments::coverage::",
            "dataplane::neighbor::table::",
            "dataplane::pipeline::",
        ],
    ),
    part(
        "switch",
        "sim",
        (Kind::Cases, 50),
        4,
        &[
            "random_packets::",
            "backpressure::any_bytes",
            "jumbo::no_frame_is_lost",
            "taps::a_stream",
            "taps::any_header",
        ],
    ),
    part("virtio-headers", "sim", (Kind::Histories, 20), 1, &["taps::headers_of_a_stranger"]),
    part("fuzz", "sim", (Kind::Fuzz(6), 1), 3, &["fuzz::"]),
    part("fuzz-requests", "control", (Kind::Fuzz(1), 1), 1, &["fuzz::"]),
    part("policy-directory", "control", (Kind::Histories, 2), 1, &["directory::after_any_edits"]),
    part("kubernetes", "kubernetes", (Kind::Histories, 2), 2, &["histories::"]),
    as_root(&part("plugin-kills", "netns", (Kind::Kills, 8), 3, &["cni::kills::"])),
    as_root(&part(
        "switch-kills",
        "netns",
        (Kind::Tests, 1),
        2,
        &[
            "process::restart::running_connections_outlive",
            "process::ports::a_killed_switch",
            "traffic::tap::a_killed_switch",
            "kernel_dataplane::life::a_killed_switch_leaves_policy",
            "kernel_dataplane::life::a_killed_switch_leaves_denied",
            "uplink::a_connection_to_the_node_lives_on",
            "uplink::services::connections_from_outside_outlive",
        ],
    )),
    as_root(&part("churn", "netns", (Kind::Histories, 1), 3, &["traffic::churn::"])),
    as_root(&part(
        "floods",
        "netns",
        (Kind::Tests, 1),
        2,
        &[
            "traffic::connection_flood::a_flood_fills",
            "traffic::tap::virtio_net_headers",
            "process::interfaces::a_runtime_that_remakes",
            "cni::twenty_containers",
        ],
    )),
    as_root(&part("hostile-frames", "netns", (Kind::Tests, 1), 2, &["battery::no_hostile_frame_arrives"])),
];

/// Seed that differs in each run.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0_u8) >> 32
}

impl Part {
    /// Beginnings of the names of the tests of a run.
    pub(crate) fn filters_of_run(&self, run: u64) -> &'static [&'static str] {
        match self.kind {
            Kind::Tests => {
                let number = run as usize % self.filters.len();
                &self.filters[number..=number]
            }
            _ => self.filters,
        }
    }

    pub(crate) fn variables(&self, seed: u64, inputs: u64, wanted: Duration) -> Variables {
        let (seed, inputs) = (seed.to_string(), inputs.to_string());
        match self.kind {
            Kind::Histories => vec![("PALISADE_HISTORIES", inputs), ("PALISADE_SEED", seed)],
            Kind::Kills => vec![("PALISADE_KILLS", inputs), ("PALISADE_SEED", seed)],
            Kind::Cases => vec![
                ("PROPTEST_CASES", inputs),
                ("PROPTEST_RNG_SEED", seed),
                // The record has the seed, and the sources stay as they are.
                ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1".to_owned()),
            ],
            Kind::Fuzz(targets) => vec![
                ("BOLERO_RANDOM_SEED", seed),
                ("BOLERO_RANDOM_ITERATIONS", u32::MAX.to_string()),
                ("BOLERO_RANDOM_TEST_TIME_MS", (wanted / targets).as_millis().to_string()),
            ],
            Kind::Tests => vec![],
        }
    }

    /// Command that repeats a failure.
    pub(crate) fn repeat(&self, filters: &[&str], variables: &Variables, output: &Output) -> String {
        let seed = output.seed.clone();
        let variables = match (self.kind, seed) {
            (Kind::Histories, Some(seed)) => {
                vec![("PALISADE_HISTORIES", "1".to_owned()), ("PALISADE_SEED", seed)]
            }
            (Kind::Fuzz(_), Some(seed)) => vec![("BOLERO_RANDOM_SEED", seed)],
            _ => variables.clone(),
        };
        let target =
            if self.program == "lib" { "--lib".to_owned() } else { format!("--test {}", self.program) };
        let tests = if output.failed.is_empty() {
            filters.join(" ")
        } else {
            format!("--exact {}", output.failed.join(" "))
        };
        let command = format!("cargo test --locked --profile soak {target} -- {tests}");
        format!("{} {command}", assignments(&variables)).trim().to_owned()
    }
}
