//! Packets: header views, checksums, and the flow key. No unsafe code, no allocation.

pub mod flow;
