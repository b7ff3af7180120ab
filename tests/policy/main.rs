//! Tests of the policy compiler, from manifests to verdicts: golden texts, conformance cases, comparison with
//! the reference evaluator, and the commands about policies. They need no privilege.

mod arbitrary;

mod commands;
mod compiled_tables;
mod conformance;
mod diff;
mod incremental_compile;
mod kubernetes_files;
#[path = "../common/random.rs"]
#[allow(dead_code)] // Other tests use the rest.
mod random;
mod render;
mod schemas;
mod service_validation;
#[path = "../common/tools.rs"]
mod tools;
mod validation;
mod version;
#[path = "../common/yaml.rs"]
mod yaml;
