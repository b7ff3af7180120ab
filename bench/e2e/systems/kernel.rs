//! Routing by the node's kernel, without policy.

use super::{InKernel, Kind, Running, System};
use crate::common::policy::PolicyShape;
use crate::process::{Trouble, version};
use crate::rig::Bed;

pub(super) struct Kernel;

impl System for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn kind(&self) -> Kind {
        Kind::Open
    }

    fn versions(&self) -> Vec<String> {
        version("uname", &["-sr"]).into_iter().collect()
    }

    fn start(&self, bed: &mut Bed, _: &PolicyShape) -> Result<Box<dyn Running>, Trouble> {
        bed.route_in_kernel()?;
        Ok(Box::new(InKernel))
    }
}
