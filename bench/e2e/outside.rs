//! Network outside: a host behind an uplink of the node, to which the node masquerades its pods.
//!
//! The host is a further interface of the outsider's namespace. It sends packets of one MTU, as a wire carries them, and the
//! uplink puts them together (GRO), as a NIC does.

use std::net::Ipv4Addr;

use palisade::lab::{Lab, Node};

use crate::error::BenchError;
use crate::process::run;
use crate::rig::{POD_PREFIX, SYSTEM_CORE};

/// Uplink of the node.
const UPLINK: &str = "up0";
/// Interface of the host.
const PEER: &str = "out0";
/// Address of the node on the uplink.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of the host.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Makes the link between the node and the host.
pub(crate) fn connect(lab: &Lab, node: &Node, mtu: u32) -> Result<(), BenchError> {
    let host = lab.pod("outsider")?;
    let namespace = host.namespace().name();
    let script = format!(
        "ip link add {UPLINK} mtu {mtu} type veth peer name {PEER} mtu {mtu} netns {namespace}\n\
         ip address add {NODE}/24 dev {UPLINK}\n\
         ip link set {UPLINK} up\n\
         ethtool -K {UPLINK} gro on\n\
         echo {:x} > /sys/class/net/{UPLINK}/queues/rx-0/rps_cpus\n",
        1 << SYSTEM_CORE,
    );
    let mut shell = std::process::Command::new("ip");
    run(shell.args(["netns", "exec", node.namespace().name(), "sh", "-eu"]), &script)?;
    let script = format!(
        "ip address add {HOST}/24 dev {PEER}\n\
         ip link set {PEER} up\n\
         ethtool -K {PEER} tso off gso off\n"
    );
    host.run(|| run(std::process::Command::new("sh").arg("-eu"), &script))??;
    Ok(())
}

/// Configuration of the switch for pods that reach the host.
pub(crate) fn switch_config() -> String {
    format!(
        "pod_prefixes = [\"{POD_PREFIX}\"]\n[masquerade]\naddresses = [\"{NODE}\"]\n\
         [[ports]]\nname = \"uplink\"\nkind = \"uplink\"\ninterface = \"{UPLINK}\"\n\
         [[routes]]\nprefix = \"192.0.2.0/24\"\nport = \"uplink\"\n"
    )
}

/// Rules of nftables by which the node's kernel masquerades.
pub(crate) fn nftables_rules() -> String {
    format!(
        "table ip outside {{\nchain after {{\ntype nat hook postrouting priority srcnat;\n\
         oifname \"{UPLINK}\" masquerade\n}}\n}}\n"
    )
}

/// Rule of iptables by which the node's kernel masquerades.
pub(crate) const IPTABLES_RULE: [&str; 8] =
    ["-t", "nat", "-A", "POSTROUTING", "-o", UPLINK, "-j", "MASQUERADE"];
