//! Policy tests: their format, and their probes as flows.

mod format;
mod placeholder_addresses;
mod probe_expansion;

pub use format::{Case, Cases, Endpoint, Probe, RefusedCase, read_cases};
pub use placeholder_addresses::{StandIns, give_addresses, give_addresses_of};
pub use probe_expansion::{ProbeError, Trial, flows_between};
