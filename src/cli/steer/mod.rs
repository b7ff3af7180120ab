//! Commands `palisade port`, `pod` and `route`: changes of the running switch.

pub(super) mod pod;
pub(super) mod port;
pub(super) mod reload;
pub(super) mod route;

use std::io;

use super::output::text;

/// Remark below the outcome of a change.
const UNWRITTEN: &str = "\
The configuration file is unchanged: a restart forgets this change (`palisade config export` prints it for the file). A
reload (SIGHUP) restores the ports, pods and routes of the file, and leaves others as they are.";

/// Prints the outcome of a change, with the remark on the configuration file.
fn changed(outcome: &str) -> io::Result<()> {
    text(&format!("{outcome}\n{UNWRITTEN}\n"))
}
