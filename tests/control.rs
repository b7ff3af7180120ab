//! The control side on a fake engine: the state machine, the socket, and the commands. Needs no privilege.

#[path = "control/commands.rs"]
mod commands;
#[path = "control/directory.rs"]
mod directory;
#[path = "control/explain.rs"]
mod explain;
#[path = "control/fixture.rs"]
mod fixture;
#[path = "control/socket.rs"]
mod socket;
#[path = "control/state_machine.rs"]
mod state_machine;
