//! Tests of the switch as a process: ports and interfaces, policy directory, failed starts, restarts, failed
//! workers.

mod interface_ownership;
mod interfaces;
mod policy_directory;
mod ports;
mod restart;
mod startup_errors;
mod without_xdp;
mod workers;
