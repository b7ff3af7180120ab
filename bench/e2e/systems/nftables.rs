//! nftables with the rendering of the policy: verdict maps by the pod's address, and a set for each list of blocks.

use palisade::render::{Format, Part};

use super::kernel_conntrack::KernelConntrack;
use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::manifests::Renderings;
use crate::outside;
use crate::process::version;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

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

    fn leads_outside(&self) -> bool {
        true
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        rig.route_in_kernel()?;
        let renderings = Renderings::new(Format::Nftables, rig, shape)?;
        load(rig, &renderings.whole()?)?;
        if rig.outside {
            rig.in_node("nft", &["-f", "-"], &outside::nftables_rules())?;
        }
        Ok(Box::new(KernelConntrack::with_capacity(renderings, load)?))
    }
}

fn load(rig: &Rig, parts: &[Part]) -> Result<(), BenchError> {
    parts.iter().try_for_each(|part| rig.in_node("nft", &["-f", "-"], &part.text).map(drop))
}
