//! The control side on a fake engine: the state machine, the socket, and the commands. Needs no privilege.

mod commands;
mod directory;
mod explain;
mod fixture;
mod fuzz;
#[path = "../common/fuzz_input.rs"]
mod fuzz_input;
#[path = "../common/small_tables.rs"]
mod small_tables;
mod socket;
mod state_machine;
