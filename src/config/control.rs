//! Section `[control]`: the control socket, and the read-only one beside it.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::values;
use crate::control::{DEFAULT_SOCKET, SocketPlace};

/// `[control]`: the control socket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Permissions of the socket.
    #[serde(deserialize_with = "values::mode")]
    pub mode: u32,
    /// Group of the socket; that of the process where absent.
    pub group: Option<String>,
    /// Path of the read-only socket; none where absent.
    pub read_only_socket: Option<PathBuf>,
    /// Permissions of the read-only socket.
    #[serde(deserialize_with = "values::mode")]
    pub read_only_mode: u32,
    /// Group of the read-only socket; that of the process where absent.
    pub read_only_group: Option<String>,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            socket: DEFAULT_SOCKET.into(),
            mode: 0o660,
            group: None,
            read_only_socket: None,
            read_only_mode: 0o660,
            read_only_group: None,
        }
    }
}

impl Control {
    /// Place of the control socket.
    pub fn place(&self) -> SocketPlace {
        SocketPlace { path: self.socket.clone(), mode: self.mode, group: self.group.clone() }
    }

    /// Place of the read-only socket, if there is one.
    pub fn read_only_place(&self) -> Option<SocketPlace> {
        let (mode, group) = (self.read_only_mode, self.read_only_group.clone());
        self.read_only_socket.clone().map(|path| SocketPlace { path, mode, group })
    }
}

/// Deserializes the section, and rejects settings of two sockets that contradict each other.
pub(super) fn section<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Control, D::Error> {
    let control = Control::deserialize(deserializer)?;
    match &control.read_only_socket {
        Some(path) if *path == control.socket => {
            Err(D::Error::custom("read_only_socket: is the control socket too: give it another path"))
        }
        Some(path) if path.as_os_str().is_empty() => {
            Err(D::Error::custom("read_only_socket: is empty: leave the key out for no such socket"))
        }
        None if control.read_only_group.is_some() => {
            Err(D::Error::custom("read_only_group: there is no read_only_socket for it: add one"))
        }
        _ => Ok(control),
    }
}
