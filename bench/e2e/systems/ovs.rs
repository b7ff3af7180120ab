//! Open vSwitch with its userspace datapath: AF_XDP ports on one PMD thread, the rendering of the policy, and the
//! signature match cache (SMC) on.

use std::fmt::Write;
use std::io;

use palisade::render::{Format, Part};

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::manifests::Renderings;
use crate::open_vswitch::{BRIDGE, OpenVswitch};
use crate::process::{resident_bytes, version};
use crate::rig::{GATEWAY_MAC, Rig, SYSTEM_CORE};
use crate::system::{FlowMemory, Kind, PolicyToggle, Running, System};

/// Table that routes, behind those of the rendering.
const ROUTES: u8 = 20;

pub(super) struct Ovs;

struct Bridged {
    switch: OpenVswitch,
    renderings: Renderings,
    ports: &'static str,
}

impl System for Ovs {
    fn name(&self) -> &'static str {
        "ovs"
    }

    fn kind(&self) -> Kind {
        Kind::Peer
    }

    fn versions(&self) -> Vec<String> {
        version("ovs-vswitchd", &["--version"]).into_iter().collect()
    }

    fn mtu_max(&self) -> u32 {
        // `FRAME_SIZE` of its AF_XDP ports is 2,048, headroom included.
        1500
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        rig.set_gateway_neighbor(|_| GATEWAY_MAC)?;
        rig.disable_tx_offload_in_pods()?;
        let mask = format!("other_config:pmd-cpu-mask=0x{:x}", 1 << SYSTEM_CORE);
        let settings = [mask.as_str(), "other_config:smc-enable=true"];
        let (lab, node) = rig.lab_and_node();
        let switch = OpenVswitch::start(node.namespace().name(), &lab.directory(), &settings, |pid| {
            lab.note_process(pid).map_err(io::Error::other)
        })?;
        let ports = add_ports(&switch, rig)?;
        let renderings = Renderings::new(Format::Openflow, rig, shape)?;
        for part in renderings.whole()? {
            switch.flows(&["--bundle", "replace-flows", BRIDGE, "-"], &(routed(&part) + &routes(rig)))?;
        }
        Ok(Box::new(Bridged { switch, renderings, ports }))
    }
}

impl Running for Bridged {
    fn pids(&self) -> Vec<u32> {
        vec![self.switch.switch_pid()]
    }

    fn flow_memory(&self, _: &Rig) -> Result<FlowMemory, BenchError> {
        resident_bytes(self.switch.switch_pid()).map(FlowMemory::Grows)
    }

    fn policy_toggle<'a>(&'a self, _: &'a Rig, _: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let changes = self.renderings.changes()?.map(|parts| parts.iter().map(routed).collect::<String>());
        Ok(Box::new(move |open| {
            self.switch.flows(&["--bundle", "add-flows", BRIDGE, "-"], &changes[usize::from(open)])?;
            Ok(())
        }))
    }

    fn note(&self) -> Option<String> {
        Some(format!("{}; checksums are finished in the pods", self.ports))
    }
}

/// Adds the host ends as AF_XDP ports, or as packet sockets if those are refused.
fn add_ports(switch: &OpenVswitch, rig: &Rig) -> Result<&'static str, BenchError> {
    let ends = rig.host_ends();
    switch.add_ports(&ends, &["type=afxdp", "options:n_rxq=1", "options:xdp-mode=best-effort"])?;
    let refused = switch.configure(&["--bare", "--columns=error", "find", "interface", "type=afxdp"])?;
    if refused.trim().is_empty() {
        return Ok("AF_XDP ports");
    }
    let remove: Vec<&str> = ends.iter().flat_map(|end| ["--", "del-port", BRIDGE, end]).collect();
    switch.configure(&remove[1..])?;
    switch.add_ports(&ends, &[])?;
    Ok("packet sockets: AF_XDP ports were refused")
}

/// Flows of a rendering that route where they would switch: the pods share no link.
fn routed(part: &Part) -> String {
    part.text.replace("NORMAL", &format!("resubmit(,{ROUTES})"))
}

/// Flows that route to the pods, of which port N is the Nth.
fn routes(rig: &Rig) -> String {
    let mut text = String::new();
    for (number, pod) in (1..).zip(rig.lab().pods()) {
        let (mac, to) = (pod.plan().mac, pod.v4());
        let addresses = format!("set_field:{GATEWAY_MAC}->eth_src,set_field:{mac}->eth_dst");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "table={ROUTES},ip,nw_dst={to},actions=dec_ttl,{addresses},output:{number}");
    }
    text
}
