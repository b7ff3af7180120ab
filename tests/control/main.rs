//! Tests of the control side on a fake dataplane: state machine, socket, commands, configuration, policy
//! directory. They
//! need no privilege.

mod access;
mod audit;
#[path = "../common/browser.rs"]
mod browser;
mod cni;
mod commands;
mod configuration;
mod dashboard;
mod directory;
mod explain;
mod fixture;
mod flows;
mod fuzz;
#[path = "../common/fuzz_input.rs"]
mod fuzz_input;
mod http;
mod in_force;
mod ipfix;
#[path = "../common/ipfix.rs"]
mod ipfix_collector;
mod metrics;
mod packaging;
mod port_mappings;
mod problems;
mod protocol;
#[path = "../common/random.rs"]
#[allow(dead_code)] // Tests of policies and of conntrack use the rest.
mod random;
mod reference;
mod screens;
mod service_objects;
mod services;
#[path = "../common/small_tables.rs"]
mod small_tables;
mod socket;
mod state_machine;
mod steering;
#[path = "../common/tools.rs"]
mod tools;
mod top;
