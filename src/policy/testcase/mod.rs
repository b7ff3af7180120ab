//! Policy tests: the case format, the expansion of probes into flows, and placeholder addresses.

mod destination;
mod endpoint;
mod endpoint_flows;
mod format;
mod placeholder_addresses;
mod probe_expansion;
mod service_flows;

pub use destination::Destination;
pub use endpoint::Endpoint;
pub use endpoint_flows::{ProbeError, expand_probe};
pub use format::{Case, CaseFile, Cases, InvalidCase, Probe, ReadFiles, parse_cases, parse_cases_with};
pub use placeholder_addresses::{
    PlaceholderRange, assign_placeholders, assign_placeholders_from, without_address,
};
pub use probe_expansion::ProbeExpansion;
pub use service_flows::expand_service;
