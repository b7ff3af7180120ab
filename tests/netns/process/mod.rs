//! Tests of the switch as a process: ports and interfaces, policy directory, service, failed starts, restarts, failed
//! workers.

mod audit;
mod capture;
mod dashboard;
mod doctor;
mod flows;
mod hardening;
mod http;
mod interface_ownership;
mod interfaces;
mod ipfix;
mod kubernetes_node;
mod load;
mod observation;
mod policy_directory;
mod ports;
mod questions;
mod real_time;
mod restart;
mod service;
mod shadow;
mod startup_errors;
mod steering;
mod tables;
mod without_xdp;
mod workers;
