//! Routing by the node's kernel, without policy.

use super::kernel_conntrack::InKernel;
use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::process::version;
use crate::rig::Rig;
use crate::system::{Kind, Running, System};

pub(super) struct Kernel;

impl System for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn kind(&self) -> Kind {
        Kind::NoPolicy
    }

    fn versions(&self) -> Vec<String> {
        version("uname", &["-sr"]).into_iter().collect()
    }

    fn start(&self, rig: &mut Rig, _: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        rig.route_in_kernel()?;
        Ok(Box::new(InKernel))
    }
}
