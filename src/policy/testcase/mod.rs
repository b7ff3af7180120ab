//! Policy tests: their format, and their probes as flows.

mod format;
mod placeholder_addresses;
mod probe_expansion;

pub use format::{Case, Cases, Endpoint, InvalidCase, Probe, read_cases};
pub use placeholder_addresses::{PlaceholderRange, give_addresses, give_addresses_of};
pub use probe_expansion::{ProbeError, ProbeExpansion, flows_between};
