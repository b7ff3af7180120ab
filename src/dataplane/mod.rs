//! The dataplane: workers that receive frames from AF_XDP rings, decide on each, and transmit it.
//!
//! [`Dataplane`] is the handle of the control side. It knows neither Kubernetes nor sockets other than AF_XDP:
//! the control side opens ports, and publishes a [`DesiredState`] with the pods behind them and the policy.

// In reading order: the packet path, its tables, the worker, the control side's half, primitives.
mod packet;
mod pipeline;

mod conntrack;
mod fragments;
mod service;

mod masquerade;
mod offload;

mod fib;
mod neighbor;

mod capture;
mod worker;

mod api;
mod core;
mod endpoints;
mod engine;
mod flow_table;
mod open_port;
mod path;
mod port_attachment;
mod uplink;

mod simulation;

mod eventfd;
mod parts;
mod stats;
mod types;
mod waiting;

#[cfg(test)]
mod loom_tests;

/// Frames that the tests of the packet path build and check.
#[cfg(test)]
#[path = "../../tests/common/frames/mod.rs"]
mod frames;

pub use self::core::published_state::PublishedState;
pub use self::core::rehearsal::{Candidate, Disagreement, Judgement};
pub use self::core::{FlowTableReport, flow_memory_bytes, flow_state_is_final, flow_states};
pub use api::{CandidateTables, DataplaneApi, Flows, PacketCaptures, Workers};
pub use capture::Capture;
pub(crate) use engine::WORKER_TIMEOUT;
pub use engine::{Dataplane, ShutdownMode};
pub use fib::desired_state::{
    DesiredState, GATEWAY_V4, GATEWAY_V6, Gateway, Mac, NodeAttachment, PodAttachment, Route,
};
pub(crate) use fib::tunnel::Underlay;
pub use flow_table::FlowTable;
pub use masquerade::Masquerade;
pub(crate) use offload::is_upcall_device;
pub use open_port::{DryRun, check_link, is_offloadable, offload_obstacle};
pub use path::{FlowDecisions, FlowPath, PathSide, PathSpan};
pub use simulation::{Publisher, SimulatedPort, Simulation};
pub use types::*;
