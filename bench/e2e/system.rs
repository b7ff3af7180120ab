//! A system under test: how to start it, and a running one.

use palisade::dataplane::Mac;
use palisade::lab::Pod;

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::rig::{GATEWAY_MAC, Rig};

/// A system, not yet started.
pub(crate) trait System {
    /// Its name in results.
    fn name(&self) -> &'static str;

    /// What a system is compared as.
    fn kind(&self) -> Kind;

    /// What it is made of, with versions; empty where that is not installed.
    fn versions(&self) -> Vec<String>;

    /// Largest MTU that it can be expected to carry.
    fn mtu_max(&self) -> u32 {
        // IP's own limit, and what a veth takes.
        65_535
    }

    /// Connects the pods and enforces the policy. Whatever it makes goes when the answer is dropped, or with the rig.
    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError>;
}

/// What a system is compared as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This switch.
    Palisade,
    /// Enforces the policy.
    Peer,
    /// Enforces nothing, between any pods.
    NoPolicy,
    /// Enforces nothing, and knows no addresses: joins pods in pairs.
    CrossConnect,
}

/// A system that runs.
pub(crate) trait Running {
    /// Processes that do its work; none where the kernel does.
    fn pids(&self) -> Vec<u32>;

    /// Memory that flows take, where that can be told.
    fn flow_memory(&self, rig: &Rig) -> Result<FlowMemory, BenchError> {
        let _ = rig;
        Ok(FlowMemory::Unknown("it tracks no flows"))
    }

    /// Flows that it tracks, where that can be told.
    fn flows(&self, rig: &Rig) -> Result<Option<u64>, BenchError> {
        let _ = rig;
        Ok(None)
    }

    /// The Ethernet address that a pod sends frames for the other one to.
    fn next_hop(&self, to: &Pod) -> Mac {
        let _ = to;
        GATEWAY_MAC
    }

    /// Whether it brings each pod what is for it. What does not brings everything to one.
    fn routes(&self) -> bool {
        true
    }

    /// What lets the client in on [`CHANGED_PORT`](crate::common::policy::CHANGED_PORT), or no longer.
    fn policy_toggle<'a>(&'a self, rig: &'a Rig, shape: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let _ = (rig, shape);
        Err(BenchError::Other("it enforces no policy that could change".to_owned()))
    }

    /// Frames that the kernel has dropped before the system had them, where the system tells.
    fn dropped_before(&self) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    /// Anything that a reader of its results should know.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Opens the port that is changed, or closes it; back when the system's own tool says that it is done.
pub(crate) type PolicyToggle<'a> = Box<dyn FnMut(bool) -> Result<(), BenchError> + 'a>;

/// How a system's memory for flows is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FlowMemory {
    /// Taken as flows come: bytes at this moment.
    Grows(u64),
    /// Taken at the start: bytes for each flow that there is room for.
    Reserved(f64),
    /// Not to be told, and why.
    Unknown(&'static str),
}

impl Kind {
    /// Whether it enforces the policy.
    pub(crate) fn enforces(self) -> bool {
        matches!(self, Kind::Palisade | Kind::Peer)
    }
}
