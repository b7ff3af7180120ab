//! The kernel's bridge, without policy: the pods share a link, and nothing is routed.

use palisade::dataplane::Mac;
use palisade::lab::{POD_INTERFACE, Pod};

use super::{Kind, Running, System};
use crate::common::policy::PolicyShape;
use crate::process::{Trouble, version};
use crate::rig::{Bed, POD_PREFIX};

pub(super) struct Bridge;

struct Bridged;

impl System for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn kind(&self) -> Kind {
        Kind::Open
    }

    fn versions(&self) -> Vec<String> {
        version("uname", &["-sr"]).into_iter().collect()
    }

    fn start(&self, bed: &mut Bed, _: &PolicyShape) -> Result<Box<dyn Running>, Trouble> {
        let ports: String = bed
            .host_ends()
            .iter()
            .map(|end| format!("link set {end} master br0"))
            .collect::<Vec<_>>()
            .join("\n");
        let script = format!("link add br0 type bridge\nlink set br0 up\n{ports}");
        bed.in_node("ip", &["-batch", "-"], &script)?;
        bed.in_pods("ip", |_| {
            ["route", "replace", POD_PREFIX, "dev", POD_INTERFACE, "scope", "link"].map(str::to_owned).into()
        })?;
        bed.steer()?;
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
