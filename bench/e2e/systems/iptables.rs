//! iptables with ipset, with the rendering of the policy in the shape of Calico's Felix.

use palisade::render::{Format, Part};

use super::kernel_conntrack::KernelConntrack;
use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::manifests::Renderings;
use crate::outside;
use crate::process::version;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

/// Rules with which the node's chains call those of the rendering.
const HOOKS: [&[&str]; 3] = [
    &["-t", "raw", "-I", "PREROUTING", "-j", "palisade-guard"],
    &["-I", "FORWARD", "-j", "palisade-forward"],
    &["-I", "INPUT", "-j", "palisade-input"],
];

pub(super) struct Iptables;

impl System for Iptables {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn kind(&self) -> Kind {
        Kind::Peer
    }

    fn versions(&self) -> Vec<String> {
        version("iptables-legacy", &["--version"])
            .into_iter()
            .chain(version("ipset", &["--version"]))
            .collect()
    }

    fn leads_outside(&self) -> bool {
        true
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        rig.route_in_kernel()?;
        let renderings = Renderings::new(Format::Iptables, rig, shape)?;
        load(rig, &renderings.whole()?)?;
        if rig.outside {
            rig.in_node("iptables-legacy", &outside::IPTABLES_RULE, "")?;
        }
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            for hook in HOOKS {
                rig.in_node(program, hook, "")?;
            }
        }
        Ok(Box::new(KernelConntrack::with_capacity(renderings, load)?))
    }
}

/// Runs the program of each part that has commands.
fn load(rig: &Rig, parts: &[Part]) -> Result<(), BenchError> {
    let has_commands =
        |part: &&Part| part.text.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
    for part in parts.iter().filter(has_commands) {
        let file = part.file;
        let (program, arguments) = if file.starts_with("palisade.iptables") {
            ("iptables-legacy-restore", ["--wait", "--noflush"])
        } else if file.starts_with("palisade.ip6tables") {
            ("ip6tables-legacy-restore", ["--wait", "--noflush"])
        } else {
            ("ipset", ["-exist", "restore"])
        };
        rig.in_node(program, &arguments, &part.text)?;
    }
    Ok(())
}
