//! This switch: the release binary, one worker on the system's core.

use std::time::Duration;

use palisade::control::protocol::TablesPatch;
use palisade::control::{Client, ClientError};
use palisade::lab::{Switch, SwitchSpec, manifests};
use palisade::limits::MTU_MAX;
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, read_all};
use palisade::policy::{Change, Compiler, ObjectName, Options};

use super::{Changer, FlowMemory, Kind, Running, System};
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
    /// Pods and policy, as the switch was told.
    manifests: String,
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
        let manifests = format!("{pods}---\n{policy}");
        switch.apply(&manifests)?;
        Ok(Box::new(Started { switch, manifests }))
    }
}

impl Running for Started {
    fn pids(&self) -> Vec<u32> {
        vec![self.switch.pid()]
    }

    fn lost_before(&self) -> Result<Option<u64>, Trouble> {
        let counters = self.switch.client().counters().map_err(refused)?;
        Ok(Some(counters.ports.values().flat_map(|port| port.lost.values()).sum()))
    }

    /// A policy more or less: compiled as a change, and sent as the difference that it makes.
    fn changer<'a>(&'a self, bed: &'a Bed, _: &PolicyShape) -> Result<Changer<'a>, Trouble> {
        let mut compiler = Compiler::from_objects(objects(&self.manifests)?, Options::default());
        let changed = objects(&PolicyShape::changed_policy(bed.client_v4()?))?;
        let client = self.switch.client();
        let mut base = client.put_tables(compiler.tables()).map_err(refused)?.generation;
        Ok(Box::new(move |open| {
            for object in &changed {
                let change = if open {
                    Change::Upsert(object.clone())
                } else {
                    Change::Remove(ObjectName::of(object))
                };
                let patch = TablesPatch { base, diff: compiler.apply(change) };
                base = client.patch_tables(&patch).map_err(refused)?.generation;
            }
            Ok(())
        }))
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

fn objects(manifests: &str) -> Result<Vec<Object>, Trouble> {
    let parsed = read_all(&[Source::new("manifests", manifests)]);
    let refused = |errors: Vec<_>| Trouble::Other(format!("{} errors in the rig's manifests", errors.len()));
    Ok(parsed.map_err(refused)?.objects.into_iter().map(|(object, _)| object).collect())
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
fn refused(error: ClientError) -> Trouble {
    Trouble::Other(error.to_string())
}
