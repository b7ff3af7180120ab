//! System under test: how it starts, and what a running one answers.

use std::net::Ipv4Addr;

use palisade::dataplane::Mac;
use palisade::lab::{Pod, PodPorts};

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::rig::{GATEWAY_MAC, Rig};

/// System that is not running.
pub(crate) trait System {
    /// Name in results.
    fn name(&self) -> &'static str;

    /// Kind, by which systems are compared.
    fn kind(&self) -> Kind;

    /// Versions of its programs; empty if they are not installed.
    fn versions(&self) -> Vec<String>;

    /// Interfaces of the pods.
    fn ports(&self) -> PodPorts {
        PodPorts::Veth
    }

    /// Largest MTU that it can carry.
    fn mtu_max(&self) -> u32 {
        // Limit of IPv4's total length, which is also that of a veth.
        65_535
    }

    /// Whether it connects pods with a host outside too, if the node has an uplink.
    fn leads_outside(&self) -> bool {
        false
    }

    /// Connects the pods and enforces the policy. The system ends when the result is dropped, or with the
    /// rig.
    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError>;
}

/// Kind of a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This switch.
    Palisade,
    /// Enforces the policy.
    Peer,
    /// Enforces no policy.
    NoPolicy,
    /// Enforces no policy and does not route: cross-connects pods in pairs.
    CrossConnect,
}

/// Running system.
pub(crate) trait Running {
    /// Processes of the system; none if the kernel does its work.
    fn pids(&self) -> Vec<u32>;

    /// Memory that flows take.
    fn flow_memory(&self, rig: &Rig) -> Result<FlowMemory, BenchError> {
        let _ = rig;
        Ok(FlowMemory::Unknown("it tracks no flows"))
    }

    /// Number of tracked flows, if the system reports it.
    fn flows(&self, rig: &Rig) -> Result<Option<u64>, BenchError> {
        let _ = rig;
        Ok(None)
    }

    /// Returns the Ethernet address that frames for a pod go to.
    fn next_hop(&self, to: &Pod) -> Mac {
        let _ = to;
        GATEWAY_MAC
    }

    /// True if it delivers to the pod of the destination address. Other systems deliver everything to one
    /// pod.
    fn routes(&self) -> bool {
        true
    }

    /// Returns a function that allows the client on [`CHANGED_PORT`](crate::common::policy::CHANGED_PORT), or
    /// no longer.
    fn policy_toggle<'a>(&'a self, rig: &'a Rig, shape: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let _ = (rig, shape);
        Err(BenchError::Other("it enforces no policy that could change".to_owned()))
    }

    /// Makes a port of a virtual address that of a pod's, as a Service does. Returns the virtual address.
    fn serve(&self, rig: &Rig, pod: &Pod, port: u16) -> Result<Ipv4Addr, BenchError> {
        let _ = (rig, pod, port);
        Err(BenchError::Other("it translates no Services here".to_owned()))
    }

    /// Frames that the kernel has dropped before the system, if the system reports them.
    fn dropped_before(&self) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    /// Remark for readers of the results.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Virtual address of [`Running::serve`].
pub(crate) const VIRTUAL: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Function that opens or closes [`CHANGED_PORT`](crate::common::policy::CHANGED_PORT). It returns when the
/// system's own tool reports success.
pub(crate) type PolicyToggle<'a> = Box<dyn FnMut(bool) -> Result<(), BenchError> + 'a>;

/// Memory of a system's flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FlowMemory {
    /// Allocated as flows come: bytes at this moment.
    Grows(u64),
    /// Allocated at the start: bytes for each slot.
    Reserved(f64),
    /// Unknown, with the reason.
    Unknown(&'static str),
}

impl Kind {
    /// True if it enforces a policy.
    pub(crate) fn enforces(self) -> bool {
        matches!(self, Kind::Palisade | Kind::Peer)
    }
}
