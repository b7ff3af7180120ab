//! The lab: network namespaces as pods, on one machine, for the demo, tests and benchmarks.
//!
//! A [`Lab`] is a guard: it makes namespaces and interfaces by a [`LabSpec`], and removes them when it is
//! dropped. A [`Journal`] names them before they are made, and each carries a mark, so that [`clean`] removes
//! the labs of processes that were killed, and nothing else. Three things connect the host ends of the pods'
//! veth pairs: the switch as a child process ([`Switch`]), the kernel's bridge as a baseline ([`Bridge`]), or
//! a node of the lab's own ([`Node`]). [`traffic`] has real connections between pods. [`demo`] runs the
//! standard scenario with them, [`live`] the cases of policy tests.

mod error;
mod host_ends;
mod journal;
mod namespace;
mod plan;
mod process;

mod bridge;
mod node;
mod pod;
mod teardown;
mod topology;

mod manifests;
mod switch;

pub mod traffic;

pub mod demo;
pub mod live;

pub use crate::dataplane::{GATEWAY_V4, GATEWAY_V6};
pub use bridge::Bridge;
pub use error::LabError;
pub use journal::Journal;
pub use manifests::manifests;
pub use namespace::Namespace;
pub use node::Node;
pub use plan::{LabSpec, POD_INTERFACE, PodPlan, PodPorts};
pub use pod::{Pod, PodChild};
pub use process::Process;
pub use switch::{Switch, SwitchSpec};
pub use teardown::{Teardown, clean, require_root};
pub use topology::Lab;
