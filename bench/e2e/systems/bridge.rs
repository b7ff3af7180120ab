//! The kernel's bridge, without policy and without routing: all pods share one link.

use palisade::dataplane::Mac;
use palisade::lab::{POD_INTERFACE, Pod};

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::process::version;
use crate::rig::{POD_PREFIX, Rig};
use crate::system::{Kind, Running, System};

pub(super) struct Bridge;

struct Bridged;

impl System for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn kind(&self) -> Kind {
        Kind::NoPolicy
    }

    fn versions(&self) -> Vec<String> {
        version("uname", &["-sr"]).into_iter().collect()
    }

    fn start(&self, rig: &mut Rig, _: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        let ports: String = rig
            .host_ends()
            .iter()
            .map(|end| format!("link set {end} master br0"))
            .collect::<Vec<_>>()
            .join("\n");
        let script = format!("link add br0 type bridge\nlink set br0 up\n{ports}");
        rig.in_node("ip", &["-batch", "-"], &script)?;
        rig.in_pods("ip", |_| {
            ["route", "replace", POD_PREFIX, "dev", POD_INTERFACE, "scope", "link"].map(str::to_owned).into()
        })?;
        rig.enable_rps()?;
        Ok(Box::new(Bridged))
    }
}

impl Running for Bridged {
    fn pids(&self) -> Vec<u32> {
        vec![]
    }

    fn next_hop(&self, to: &Pod) -> Mac {
        to.plan().mac
    }

    fn routes(&self) -> bool {
        false
    }
}
