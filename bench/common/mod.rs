//! Parts that several benchmarks share: statistics, JSON lines, random numbers, the time-stamp counter,
//! policies and rule tables from a seed, and a node in memory with its traffic.

#![allow(dead_code)] // Each benchmark uses some of them.

pub(crate) mod compiled_rules;
pub(crate) mod frame;
pub(crate) mod json_lines;
pub(crate) mod latency;
pub(crate) mod policy;
pub(crate) mod random;
pub(crate) mod rule_tables;
pub(crate) mod simulated_node;
pub(crate) mod statistics;
pub(crate) mod time_stamp_counter;
pub(crate) mod traffic;
