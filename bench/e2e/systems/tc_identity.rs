//! A small eBPF program on the host ends (`bpf/identity.bpf.c`): addresses to identities, identities and ports to verdicts.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, TC_INGRESS, TcHookBuilder};
use palisade::xdp::Interface;

use super::{FlowMemory, Kind, Running, System};
use crate::bed::Bed;
use crate::policy::{Clause, PolicyShape};
use crate::tool::{Trouble, run, version};

const SOURCE: &str = include_str!("../bpf/identity.bpf.c");
/// The number of the receivers' policy.
const POLICY: u32 = 1;
/// Bits of a policy's key before the port.
const BEFORE_PORT: u32 = 80;

pub(super) struct TcIdentity;

/// The maps go with the last program that uses them, and these with the node's interfaces.
struct Loaded {
    bytes_per_flow: Option<f64>,
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
        let object = compile(bed)?;
        let clauses = shape.clauses(bed.client_v4()?);
        let receivers: Vec<String> =
            bed.receivers().iter().map(|pod| pod.plan().host_interface.clone()).collect();
        let (lab, node) = (bed.lab(), bed.node());
        let loaded: Result<Loaded, Trouble> = node.run(|| {
            let mut open = ObjectBuilder::default();
            let object = open.open_file(&object).and_then(OpenObject::load).map_err(refused)?;
            enter_policy(&object, &clauses)?;
            for pod in lab.pods() {
                let plan = pod.plan();
                let end = Interface::find(&plan.host_interface)
                    .map_err(|error| Trouble::Other(error.to_string()))?;
                let policy = if receivers.contains(&plan.host_interface) { POLICY } else { 0 };
                let value =
                    [&end.index.to_ne_bytes()[..], &policy.to_ne_bytes(), &plan.mac.0, &[0; 2]].concat();
                put(&map(&object, "endpoints")?, &pod.v4().octets(), &value)?;
                attach(&object, end.index.cast_signed())?;
            }
            Ok(Loaded { bytes_per_flow: bytes_per_entry(&map(&object, "connections")?) })
        })?;
        Ok(Box::new(loaded?))
    }
}

impl Running for Loaded {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }

    fn flow_memory(&self, _: &Bed) -> Result<FlowMemory, Trouble> {
        let unknown = FlowMemory::Unknown("the kernel does not tell a map's memory");
        Ok(self.bytes_per_flow.map_or(unknown, FlowMemory::Reserved))
    }
}

fn compile(bed: &Bed) -> Result<std::path::PathBuf, Trouble> {
    let object = bed.lab().directory().join("identity.bpf.o");
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"]);
    clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    clang.args(["-x", "c", "-c", "-", "-o"]).arg(&object);
    run(&mut clang, SOURCE)?;
    Ok(object)
}

/// One identity for each block; each port or range as the prefixes that make it up.
fn enter_policy(object: &Object, clauses: &[Clause]) -> Result<(), Trouble> {
    let (identities, policies) = (map(object, "identities")?, map(object, "policies")?);
    let mut known = std::collections::BTreeMap::new();
    for clause in clauses {
        let prefixes = clause.ports.prefixes();
        for block in &clause.blocks {
            let next = known.len() as u32 + 1;
            let identity = *known.entry(*block).or_insert(next);
            let length = u32::from(block.prefix_len());
            let key = [&length.to_ne_bytes()[..], &block.network().octets()].concat();
            put(&identities, &key, &identity.to_ne_bytes())?;
            for &(port, length) in &prefixes {
                let length = BEFORE_PORT + u32::from(length);
                let numbers = [length, POLICY, identity].map(u32::to_ne_bytes);
                let rest = [clause.ports.protocol.0, 0];
                let key = [numbers.as_flattened(), &rest, &port.to_be_bytes()].concat();
                put(&policies, &key, &[1])?;
            }
        }
    }
    Ok(())
}

fn attach(object: &Object, interface: i32) -> Result<(), Trouble> {
    let program = object.progs().next().ok_or_else(|| Trouble::Other("the object has no program".into()))?;
    let mut builder = TcHookBuilder::new(program.as_fd());
    let mut hook = builder.ifindex(interface).replace(true).handle(1).priority(1).hook(TC_INGRESS);
    hook.create().and_then(|mut hook| hook.attach()).map_err(refused)?;
    Ok(())
}

fn map(object: &Object, name: &str) -> Result<MapHandle, Trouble> {
    let found = object.maps().find(|map| map.name() == name);
    let found = found.ok_or_else(|| Trouble::Other(format!("the object has no map {name}")))?;
    MapHandle::try_from(&found).map_err(refused)
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

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
fn refused(error: libbpf_rs::Error) -> Trouble {
    Trouble::Refused { what: "the kernel's BPF".to_owned(), said: format!("{error:#}") }
}
