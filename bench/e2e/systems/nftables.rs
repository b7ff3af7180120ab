//! nftables as an expert writes it: established connections first, a verdict map by the pod's address, and
//! one set of concatenations with intervals for all rules.

use std::fmt::Write;

use super::kernel_conntrack::KernelConntrack;
use crate::common::policy::{CHANGED_PORT, PolicySpec};
use crate::error::BenchError;
use crate::process::version;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

/// Name of the table.
const TABLE: &str = "palisade_e2e";

pub(super) struct Nftables;

impl System for Nftables {
    fn name(&self) -> &'static str {
        "nftables"
    }

    fn kind(&self) -> Kind {
        Kind::Peer
    }

    fn versions(&self) -> Vec<String> {
        version("nft", &["--version"]).into_iter().collect()
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        rig.route_in_kernel()?;
        rig.enable_rp_filter()?;
        rig.in_node("nft", &["-f", "-"], &ruleset(rig, shape)?)?;
        let element = format!("{{ {} . udp . {CHANGED_PORT}-{CHANGED_PORT} }}", rig.client_v4()?);
        Ok(Box::new(KernelConntrack::with_capacity(move |rig, open| {
            let verb = if open { "add" } else { "delete" };
            rig.in_node("nft", &[verb, "element", "ip", TABLE, "allowed", &element], "")?;
            Ok(())
        })?))
    }
}

fn ruleset(rig: &Rig, shape: &PolicySpec) -> Result<String, BenchError> {
    let mut elements = String::new();
    for group in shape.rule_groups(rig.client_v4()?) {
        let (protocol, first, last) = (group.ports.protocol_name(), group.ports.first, group.ports.last);
        for block in &group.blocks {
            // Writing to a string cannot fail.
            let _ = writeln!(elements, "{block} . {protocol} . {first}-{last},");
        }
    }
    let pods: String = rig
        .receivers()
        .iter()
        .map(|pod| format!("{} : goto receiver", pod.v4()))
        .collect::<Vec<_>>()
        .join(", ");
    Ok(format!(
        "table ip {TABLE} {{
    set allowed {{
        type ipv4_addr . inet_proto . inet_service
        flags interval
        elements = {{ {elements} }}
    }}
    chain receiver {{
        ip saddr . ip protocol . th dport @allowed accept
        drop
    }}
    map isolated {{
        type ipv4_addr : verdict
        elements = {{ {pods} }}
    }}
    chain forward {{
        type filter hook forward priority filter; policy accept;
        ct state vmap {{ established : accept, related : accept, invalid : drop }}
        ip daddr vmap @isolated
    }}
}}
"
    ))
}
