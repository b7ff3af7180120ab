//! Tests of the control side on a fake dataplane: state machine, socket, commands, policy directory. They
//! need no privilege.

mod commands;
mod directory;
mod explain;
mod fixture;
mod fuzz;
#[path = "../common/fuzz_input.rs"]
mod fuzz_input;
mod protocol;
#[path = "../common/small_tables.rs"]
mod small_tables;
mod socket;
mod state_machine;
