//! A small eBPF program on the host ends (`bpf/identity.bpf.c`): addresses to identities, identities and ports to verdicts.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use palisade::netlink::Interface;

use super::{Changer, FlowMemory, Kind, Running, System};
use crate::bed::Bed;
use crate::bpf::{attach, load, map, refused};
use crate::policy::{Clause, PolicyShape, Ports};
use crate::tool::{Trouble, version};

const SOURCE: &str = include_str!("../bpf/identity.bpf.c");
/// The number of the receivers' policy.
const POLICY: u32 = 1;
/// Bits of a policy's key before the port.
const BEFORE_PORT: u32 = 80;

pub(super) struct TcIdentity;

/// The maps go with the last program that uses them, and these with the node's interfaces.
struct Loaded {
    bytes_per_flow: Option<f64>,
    policies: MapHandle,
    /// The client's identity.
    client: u32,
}

impl System for TcIdentity {
    fn name(&self) -> &'static str {
        "tc-identity"
    }

    fn kind(&self) -> Kind {
        Kind::Peer
    }

    fn versions(&self) -> Vec<String> {
        version("clang", &["--version"]).into_iter().collect()
    }

    fn start(&self, bed: &mut Bed, shape: &PolicyShape) -> Result<Box<dyn Running>, Trouble> {
        // The node's kernel answers for the gateway; what is routed is the program's.
        bed.route_in_kernel()?;
        let clauses = shape.clauses(bed.client_v4()?);
        let receivers: Vec<String> =
            bed.receivers().iter().map(|pod| pod.plan().host_interface.clone()).collect();
        let (lab, node) = (bed.lab(), bed.node());
        let loaded: Result<Loaded, Trouble> = node.run(|| {
            let object = load(bed, "identity", SOURCE)?;
            let program =
                object.progs().next().ok_or_else(|| Trouble::Other("the object has no program".into()))?;
            // The client is who the last clauses are for.
            let client = enter_policy(&object, &clauses)?;
            for pod in lab.pods() {
                let plan = pod.plan();
                let end = Interface::find(&plan.host_interface)
                    .map_err(|error| Trouble::Other(error.to_string()))?;
                let policy = if receivers.contains(&plan.host_interface) { POLICY } else { 0 };
                let value =
                    [&end.index.to_ne_bytes()[..], &policy.to_ne_bytes(), &plan.mac.0, &[0; 2]].concat();
                put(&map(&object, "endpoints")?, &pod.v4().octets(), &value)?;
                attach(program.as_fd(), end.index)?;
            }
            let bytes_per_flow = bytes_per_entry(&map(&object, "connections")?);
            Ok(Loaded { bytes_per_flow, policies: map(&object, "policies")?, client })
        })?;
        Ok(Box::new(loaded?))
    }
}

impl Running for Loaded {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }

    fn changer<'a>(&'a self, bed: &'a Bed, _: &PolicyShape) -> Result<Changer<'a>, Trouble> {
        let ports = PolicyShape::change(bed.client_v4()?).ports;
        Ok(Box::new(move |open| {
            for key in policy_keys(self.client, ports) {
                if open {
                    put(&self.policies, &key, &[1])?;
                } else {
                    self.policies.delete(&key).map_err(refused)?;
                }
            }
            Ok(())
        }))
    }

    fn flow_memory(&self, _: &Bed) -> Result<FlowMemory, Trouble> {
        let unknown = FlowMemory::Unknown("the kernel does not tell a map's memory");
        Ok(self.bytes_per_flow.map_or(unknown, FlowMemory::Reserved))
    }
}

/// One identity for each block; each port or range as the prefixes that make it up. The last block's identity.
fn enter_policy(object: &Object, clauses: &[Clause]) -> Result<u32, Trouble> {
    let mut last = 0;
    let (identities, policies) = (map(object, "identities")?, map(object, "policies")?);
    let mut known = std::collections::BTreeMap::new();
    for clause in clauses {
        for block in &clause.blocks {
            let next = known.len() as u32 + 1;
            let identity = *known.entry(*block).or_insert(next);
            let length = u32::from(block.prefix_len());
            let key = [&length.to_ne_bytes()[..], &block.network().octets()].concat();
            put(&identities, &key, &identity.to_ne_bytes())?;
            for key in policy_keys(identity, clause.ports) {
                put(&policies, &key, &[1])?;
            }
            last = identity;
        }
    }
    Ok(last)
}

/// The keys under which an identity is let in on these ports.
fn policy_keys(identity: u32, ports: Ports) -> impl Iterator<Item = Vec<u8>> {
    ports.prefixes().into_iter().map(move |(port, length)| {
        let length = BEFORE_PORT + u32::from(length);
        let numbers = [length, POLICY, identity].map(u32::to_ne_bytes);
        let rest = [ports.protocol.0, 0];
        [numbers.as_flattened(), &rest, &port.to_be_bytes()].concat()
    })
}

fn put(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<(), Trouble> {
    map.update(key, value, MapFlags::ANY).map_err(refused)
}

/// What the kernel says that the map takes, by entry: `fdinfo` of its descriptor.
fn bytes_per_entry(map: &MapHandle) -> Option<f64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).ok()?;
    let number = |field: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().parse::<f64>().ok()
    };
    Some(number("memlock:")? / number("max_entries:")?)
}
