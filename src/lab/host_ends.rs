//! Moves of the host ends of the pods' veth pairs.

use std::os::fd::AsFd;

use super::LabError;
use super::journal::Journal;
use super::namespace::Namespace;
use crate::netlink::RouteSocket;

/// Moves the pods' host ends from the calling thread's namespace to another, and returns their names.
pub(super) fn move_host_ends<'a>(journal: &'a Journal, to: &Namespace) -> Result<Vec<&'a str>, LabError> {
    let inside = to.open()?;
    let names: Vec<&str> = journal.host_ends().collect();
    let kernel = RouteSocket::open()?;
    for name in &names {
        kernel.set_namespace(name, inside.as_fd())?;
    }
    Ok(names)
}
