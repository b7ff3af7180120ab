//! Argument `--socket` of the commands that talk to the running switch.

use std::path::PathBuf;

use clap::Args;

use crate::control::{Client, DEFAULT_SOCKET};

/// Location of the running switch.
#[derive(Debug, Args)]
pub struct SocketArguments {
    /// Control socket of the switch
    #[arg(
        long,
        value_name = "PATH",
        env = "PALISADE_SOCKET",
        hide_env_values = true,
        default_value = DEFAULT_SOCKET,
        global = true
    )]
    socket: PathBuf,
}

impl SocketArguments {
    /// Creates a client of the switch.
    pub fn client(&self) -> Client {
        Client::new(&self.socket)
    }
}
