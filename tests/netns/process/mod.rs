//! The switch as a process: ports and interfaces that come and go, its policy directory, failed starts, restarts and failed workers.

mod interface_ownership;
mod interfaces;
mod policy_directory;
mod ports;
mod restart;
mod startup_errors;
mod workers;
