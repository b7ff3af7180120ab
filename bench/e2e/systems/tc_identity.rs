//! An eBPF program on the host ends (`bpf/identity.bpf.c`): addresses to identities, then identity and port
//! to a verdict.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use palisade::netlink::Interface;

use crate::bpf_loader::{attach, bpf_error, load, map};
use crate::common::policy::{PolicySpec, Ports, RuleGroup};
use crate::error::BenchError;
use crate::process::version;
use crate::rig::Rig;
use crate::system::{FlowMemory, Kind, PolicyToggle, Running, System};

const SOURCE: &str = include_str!("../bpf/identity.bpf.c");
/// Number of the receivers' policy.
const POLICY: u32 = 1;
/// Bits of a policy's key before the port.
const BEFORE_PORT: u32 = 80;

pub(super) struct TcIdentity;

/// Loaded program. The kernel frees the maps with the last program that uses them, and the programs with the
/// node's interfaces.
struct Loaded {
    bytes_per_flow: Option<f64>,
    policies: MapHandle,
    /// Identity of the client.
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

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        // The node's kernel answers ARP for the gateway. The program forwards before the kernel routes.
        rig.route_in_kernel()?;
        let rule_groups = shape.rule_groups(rig.client_v4()?);
        let receivers: Vec<String> =
            rig.receivers().iter().map(|pod| pod.plan().host_interface.clone()).collect();
        let (lab, node) = (rig.lab(), rig.node());
        let loaded: Result<Loaded, BenchError> = node.run(|| {
            let object = load(rig, "identity", SOURCE)?;
            let program =
                object.progs().next().ok_or_else(|| BenchError::Other("the object has no program".into()))?;
            // The last groups are the client's.
            let client = enter_policy(&object, &rule_groups)?;
            for pod in lab.pods() {
                let plan = pod.plan();
                let end = Interface::find(&plan.host_interface)
                    .map_err(|error| BenchError::Other(error.to_string()))?;
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

    fn policy_toggle<'a>(&'a self, rig: &'a Rig, _: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let ports = PolicySpec::change(rig.client_v4()?).ports;
        Ok(Box::new(move |open| {
            for key in policy_keys(self.client, ports) {
                if open {
                    put(&self.policies, &key, &[1])?;
                } else {
                    self.policies.delete(&key).map_err(bpf_error)?;
                }
            }
            Ok(())
        }))
    }

    fn flow_memory(&self, _: &Rig) -> Result<FlowMemory, BenchError> {
        let unknown = FlowMemory::Unknown("the kernel does not tell a map's memory");
        Ok(self.bytes_per_flow.map_or(unknown, FlowMemory::Reserved))
    }
}

/// Enters an identity for each block, and each range of ports as prefixes. Returns the identity of the last
/// block.
fn enter_policy(object: &Object, rule_groups: &[RuleGroup]) -> Result<u32, BenchError> {
    let mut last = 0;
    let (identities, policies) = (map(object, "identities")?, map(object, "policies")?);
    let mut known = std::collections::BTreeMap::new();
    for group in rule_groups {
        for block in &group.blocks {
            let next = known.len() as u32 + 1;
            let identity = *known.entry(*block).or_insert(next);
            let length = u32::from(block.prefix_len());
            let key = [&length.to_ne_bytes()[..], &block.network().octets()].concat();
            put(&identities, &key, &identity.to_ne_bytes())?;
            for key in policy_keys(identity, group.ports) {
                put(&policies, &key, &[1])?;
            }
            last = identity;
        }
    }
    Ok(last)
}

/// Returns the keys that allow an identity on these ports.
fn policy_keys(identity: u32, ports: Ports) -> impl Iterator<Item = Vec<u8>> {
    ports.prefixes().into_iter().map(move |(port, length)| {
        let length = BEFORE_PORT + u32::from(length);
        let numbers = [length, POLICY, identity].map(u32::to_ne_bytes);
        let rest = [ports.protocol.0, 0];
        [numbers.as_flattened(), &rest, &port.to_be_bytes()].concat()
    })
}

fn put(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
    map.update(key, value, MapFlags::ANY).map_err(bpf_error)
}

/// Returns the map's memory by entry, from the `fdinfo` of its descriptor; `None` if the kernel does not
/// report it.
fn bytes_per_entry(map: &MapHandle) -> Option<f64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).ok()?;
    let number = |field: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().parse::<f64>().ok()
    };
    Some(number("memlock:")? / number("max_entries:")?)
}
