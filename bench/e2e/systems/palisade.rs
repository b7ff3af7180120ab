//! This switch: the release binary, one worker on the system's core.

use palisade::lab::{LabError, Switch, SwitchSpec, manifests};
use palisade::limits::MTU_MAX;

use super::{FlowMemory, Kind, Running, System};
use crate::bed::Bed;
use crate::policy::PolicyShape;
use crate::tool::{Trouble, resident_bytes};

/// Flows that the switch is given room for: a million, and a quarter more.
const FLOWS: u64 = 1_250_000;

pub(super) struct Palisade;

struct Started {
    switch: Switch,
}

impl System for Palisade {
    fn name(&self) -> &'static str {
        "palisade"
    }

    fn kind(&self) -> Kind {
        Kind::Ours
    }

    fn versions(&self) -> Vec<String> {
        vec![format!("palisade {}", env!("CARGO_PKG_VERSION"))]
    }

    fn mtu_max(&self) -> u32 {
        MTU_MAX as u32
    }

    fn start(&self, bed: &mut Bed, shape: &PolicyShape) -> Result<Box<dyn Running>, Trouble> {
        let policy = shape.network_policy(bed.client_v4()?);
        let receivers: Vec<String> = bed.receivers().iter().map(|pod| pod.plan().pod.name.clone()).collect();
        let spec = SwitchSpec {
            config: format!("[conntrack]\nflows = {FLOWS}\npod_quota_percent = 100\n"),
            ..SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"))
        };
        let (lab, node) = bed.lab_and_node();
        // With one worker, it is on the last core: the system's.
        let switch = node.run(|| Switch::start(lab, &spec))??;
        switch.attach_all(lab)?;
        let pods = manifests(lab, |pod| {
            let role = if receivers.contains(&pod.pod.name) { "receiver" } else { "other" };
            vec![("role".to_owned(), role.to_owned())]
        });
        switch.apply(&format!("{pods}---\n{policy}"))?;
        Ok(Box::new(Started { switch }))
    }
}

impl Running for Started {
    fn pids(&self) -> Vec<u32> {
        vec![self.switch.pid()]
    }

    fn flows(&self, _: &Bed) -> Result<Option<u64>, Trouble> {
        let counters = self.switch.client().counters().map_err(LabError::from)?;
        Ok(Some(counters.workers.values().map(|worker| worker.flows_entered - worker.flows_ended).sum()))
    }

    fn flow_memory(&self) -> FlowMemory {
        resident_bytes(self.switch.pid())
            .map_or(FlowMemory::Unknown("its process is gone"), FlowMemory::Grows)
    }
}
