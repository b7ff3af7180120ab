//! Policy tests: the case format, the expansion of probes into flows, and placeholder addresses.

mod format;
mod placeholder_addresses;
mod probe_expansion;

pub use format::{Case, Cases, Endpoint, InvalidCase, Probe, parse_cases};
pub use placeholder_addresses::{PlaceholderRange, assign_placeholders, assign_placeholders_from};
pub use probe_expansion::{ProbeError, ProbeExpansion, expand_probe};
