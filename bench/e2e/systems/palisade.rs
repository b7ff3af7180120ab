//! This switch: the release binary, one worker on the system's core.

use std::time::Duration;

use palisade::control::Client;
use palisade::lab::{Switch, SwitchSpec, manifests};
use palisade::limits::MTU_MAX;

use super::{FlowMemory, Kind, Running, System};
use crate::bed::Bed;
use crate::policy::PolicyShape;
use crate::tool::{Daemon, Trouble, resident_bytes};

/// Flows that the switch is given room for: a million, and a quarter more.
const FLOWS: u64 = 1_250_000;
/// A million fewer.
const FEWER_FLOWS: u64 = FLOWS - 1_000_000;
/// The switch.
const PROGRAM: &str = env!("CARGO_BIN_EXE_palisade");
/// Longest wait for a start.
const PATIENCE: Duration = Duration::from_secs(20);

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
            ..SwitchSpec::of(PROGRAM)
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

    /// The table is reserved at the start: what a second switch with a smaller one needs less.
    fn flow_memory(&self, bed: &Bed) -> Result<FlowMemory, Trouble> {
        let directory = bed.lab().directory();
        let (config, socket) = (directory.join("small.toml"), directory.join("small.sock"));
        let text =
            format!("[control]\nsocket = \"{}\"\n[conntrack]\nflows = {FEWER_FLOWS}\n", socket.display());
        std::fs::write(&config, text)?;
        let mut command = bed.node_command(PROGRAM);
        command.args(["run", "--config"]).arg(&config);
        let mut small = Daemon::start(&mut command, "palisade", directory.join("small.log"))?;
        let client = Client::new(socket);
        small.wait_for(PATIENCE, |_| client.status().is_ok())?;
        let more = resident_bytes(self.switch.pid())?.saturating_sub(small.resident_bytes()?);
        Ok(FlowMemory::Reserved(more as f64 / (FLOWS - FEWER_FLOWS) as f64))
    }
}
