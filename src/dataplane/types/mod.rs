//! Types that the dataplane and the control side exchange.

mod bandwidth;
mod capture;
mod counters;
mod drop_reason;
mod drop_sample;
mod error;
mod flow_count;
mod flow_event;
mod flow_filter;
mod flow_info;
mod port;
mod route_report;
mod service_flows;
mod settings;
mod worker_times;

pub use bandwidth::{Bandwidth, Bits, RateLimit};
pub use capture::{CaptureFilter, CapturedPacket, PacketVerdict};
pub use counters::{Counters, DecisionCount, LOSSES, OffloadCounters, PortCounters, WorkerCounters};
pub use drop_reason::DropReason;
pub use drop_sample::{DropSample, DropSamples, SAMPLE_BYTES_MAX};
pub use error::{FlowsLeft, PortError, PublishError, StartError};
pub use flow_count::{EndedFlow, EndedFlows, FlowCount, FlowCounters};
pub use flow_event::{FlowEnd, FlowEvent, FlowEventKind, FlowEvents};
pub use flow_filter::{FlowFilter, PortRange};
pub use flow_info::FlowInfo;
pub use port::{PortHealth, PortKind, PortReport, PortSpec, StuckWorker};
pub use route_report::{NeighborState, PathHop, PathNeighbor, RouteOrigin, RouteReport};
pub use service_flows::ServiceFlows;
pub use settings::{
    Backend, ConntrackSettings, FlowMemory, MasqueradeSettings, OffloadSettings, Polling, SHARED_MEMORY,
    Scheduling, Settings, Timeouts, TunnelMode, TunnelSettings, flow_directory_in_shared_memory,
};
pub use worker_times::{StageTime, TimeCounts, WorkerTimes};
