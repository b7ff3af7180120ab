//! Types that the dataplane and the control side exchange.

mod counters;
mod drop_reason;
mod error;
mod flow_info;
mod port;
mod settings;

pub use counters::{Counters, DecisionCount, LOSSES, PortCounters, WorkerCounters};
pub use drop_reason::DropReason;
pub use error::{NotTaken, PortError, StartError};
pub use flow_info::FlowInfo;
pub use port::{PortHealth, PortKind, PortReport, PortSpec, StuckWorker};
pub use settings::{
    ConntrackSettings, FlowMemory, Polling, SHARED_MEMORY, Settings, Timeouts,
    flow_directory_in_shared_memory,
};
