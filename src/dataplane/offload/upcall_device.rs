//! Upcall devices: the taps by which workers read what the program at a pod's interface does not forward.

use std::fs;

use crate::netlink::{Interface, NetlinkError, RouteSocket};

/// Beginning of the names of upcall devices. The index of the pod's interface follows.
const UPCALL_PREFIX: &str = "palup";

/// Names of the interfaces of the network namespace.
const INTERFACES: &str = "/sys/class/net";

/// Name of the upcall device of an interface.
pub(crate) fn upcall_device(index: u32) -> String {
    format!("{UPCALL_PREFIX}{index}")
}

/// Index of the interface whose upcall device has this name, if it is one's.
fn served_index(name: &str) -> Option<u32> {
    name.strip_prefix(UPCALL_PREFIX)?.parse().ok()
}

/// Whether an interface has the name of an upcall device.
pub(crate) fn is_upcall_device(name: &str) -> bool {
    served_index(name).is_some()
}

/// Removes the upcall devices of pods' interfaces that were removed while no switch ran.
pub(crate) fn remove_abandoned_devices() -> Result<(), NetlinkError> {
    let names = fs::read_dir(INTERFACES).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        let Some(index) = served_index(&name) else { continue };
        let is_gone = matches!(Interface::with_index(index), Err(NetlinkError::NoInterface { .. }));
        if is_gone && Interface::find(&name).is_ok_and(|device| device.kind.as_deref() == Some("tun")) {
            RouteSocket::open()?.remove_link(&name)?;
        }
    }
    Ok(())
}
