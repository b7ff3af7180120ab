//! Export of flows to a collector by IPFIX (RFC 7011), as biflows (RFC 5103), over UDP.
//!
//! The workers hand over each flow that has ended, with its final counters. A periodic walk over the flow table reports
//! flows that go on. So a flow whose end is lost on the way costs one record, and never a wrong count.

mod deltas;
mod exporter;
mod message;
mod output;
mod ports;
mod session;
mod shared;
mod templates;

pub(super) use self::exporter::Exporter;
pub(super) use self::shared::Shared;
