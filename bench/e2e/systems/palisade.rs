//! The switch itself: the binary of this build, with one worker on the system's core.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use palisade::control::protocol::TablesPatch;
use palisade::control::{Client, ClientError};
use palisade::lab::{Pod, PodPorts, Switch, SwitchSpec};
use palisade::limits::MTU_MAX;
use palisade::net::flow::Protocol;
use palisade::policy::{Compiler, Options};
use palisade::tables::{ServicePort, ServicePortName, ServiceTable};

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::manifests;
use crate::outside;
use crate::process::{Daemon, resident_bytes};
use crate::rig::Rig;
use crate::system::{FlowMemory, Kind, PolicyToggle, Running, System, VIRTUAL};

/// Size of the flow table: a million, and a quarter more.
const FLOWS: u64 = 1_250_000;
/// Size of the smaller table, with a million slots fewer.
const FEWER_FLOWS: u64 = FLOWS - 1_000_000;
/// Path of the binary.
const PROGRAM: &str = env!("CARGO_BIN_EXE_palisade");
/// Longest wait for the start.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The switch.
pub(super) struct Palisade {
    /// Interfaces of the pods.
    pub(super) ports: PodPorts,
    /// Whether its worker has a real-time policy.
    pub(super) real_time: bool,
    /// Whether packets from the pods are steered to the system's core, as those of the kernel's systems are. Without it the
    /// sender's core forwards what is offloaded.
    pub(super) rps: bool,
}

impl Palisade {
    pub(super) fn of(ports: PodPorts) -> Palisade {
        Palisade { ports, real_time: false, rps: false }
    }
}

struct Started {
    switch: Switch,
    /// Manifests of pods and policy.
    manifests: String,
}

impl System for Palisade {
    fn name(&self) -> &'static str {
        match (self.ports, self.real_time) {
            (PodPorts::Offload, false) if self.rps => "palisade-offload-rps",
            (PodPorts::Veth, false) => "palisade",
            (PodPorts::Tap, false) => "palisade-tap",
            (PodPorts::Offload, false) => "palisade-offload",
            (PodPorts::Veth, true) => "palisade-real-time",
            (PodPorts::Tap, true) => "palisade-tap-real-time",
            (PodPorts::Offload, true) => "palisade-offload-real-time",
        }
    }

    fn ports(&self) -> PodPorts {
        self.ports
    }

    fn kind(&self) -> Kind {
        Kind::Palisade
    }

    fn versions(&self) -> Vec<String> {
        vec![format!("palisade {}", env!("CARGO_PKG_VERSION"))]
    }

    fn mtu_max(&self) -> u32 {
        MTU_MAX as u32
    }

    fn leads_outside(&self) -> bool {
        true
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        let scheduling = if self.real_time { "real-time" } else { "fair" };
        let outside = if rig.outside { outside::switch_config() } else { String::new() };
        let spec = SwitchSpec {
            small: false,
            config: format!(
                "{outside}[workers]\nscheduling = \"{scheduling}\"\n[conntrack]\nflows = {FLOWS}\npod_quota_percent = 100\n"
            ),
            ..SwitchSpec::of(PROGRAM)
        };
        if self.rps {
            rig.enable_rps()?;
        }
        let (lab, node) = rig.lab_and_node();
        // One worker runs on the last core, which is the system's.
        let switch = node.run(|| Switch::start(lab, &spec))??;
        switch.attach_all(lab)?;
        let ports = switch.client().ports().map_err(client_error)?;
        if self.ports == PodPorts::Offload && !ports.iter().all(|port| port.report.offloaded) {
            let reason = ports.into_iter().flat_map(|port| port.report.warnings).next();
            return Err(BenchError::Other(reason.unwrap_or_else(|| "no port is offloaded".to_owned())));
        }
        let manifests = manifests::text(rig, shape)?;
        switch.apply(&manifests)?;
        Ok(Box::new(Started { switch, manifests }))
    }
}

impl Running for Started {
    fn serve(&self, _: &Rig, pod: &Pod, port: u16) -> Result<Ipv4Addr, BenchError> {
        let name = ServicePortName {
            namespace: "default".to_owned(),
            name: "bench".to_owned(),
            port: None,
            protocol: Protocol::TCP,
        };
        let service = ServicePort {
            cluster: vec![SocketAddr::new(VIRTUAL.into(), port)],
            internal_backends: vec![SocketAddr::new(pod.v4().into(), port)],
            ..ServicePort::default()
        };
        let table = ServiceTable { node_addresses: Vec::new(), ports: [(name, service)].into() };
        self.switch.client().put_services(&table).map_err(client_error)?;
        Ok(VIRTUAL)
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.switch.pid()]
    }

    fn dropped_before(&self) -> Result<Option<u64>, BenchError> {
        let counters = self.switch.client().counters().map_err(client_error)?;
        Ok(Some(counters.ports.values().flat_map(|port| port.lost.values()).sum()))
    }

    /// Compiles the change of a policy, and sends the difference as a patch.
    fn policy_toggle<'a>(&'a self, rig: &'a Rig, _: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let mut compiler = Compiler::from_objects(manifests::objects(&self.manifests)?, Options::default());
        let changes = manifests::changes(rig)?;
        let client = self.switch.client();
        let mut base = client.put_tables(compiler.tables()).map_err(client_error)?.generation;
        Ok(Box::new(move |open| {
            let patch = TablesPatch { base, diff: compiler.apply(changes[usize::from(open)].clone()) };
            base = client.patch_tables(&patch).map_err(client_error)?.generation;
            Ok(())
        }))
    }

    /// Compares the memory with that of a second switch with a smaller table, because the table is reserved
    /// at the start.
    fn flow_memory(&self, rig: &Rig) -> Result<FlowMemory, BenchError> {
        let directory = rig.lab().directory();
        let (config, socket) = (directory.join("small.toml"), directory.join("small.sock"));
        let text =
            format!("[control]\nsocket = \"{}\"\n[conntrack]\nflows = {FEWER_FLOWS}\n", socket.display());
        std::fs::write(&config, text)?;
        let mut command = rig.node_command(PROGRAM);
        command.args(["run", "--config"]).arg(&config);
        let mut small = Daemon::start(&mut command, "palisade", directory.join("small.log"))?;
        let client = Client::new(socket);
        small.wait_for(TIMEOUT, |_| client.status().is_ok())?;
        let more = resident_bytes(self.switch.pid())?.saturating_sub(small.resident_bytes()?);
        Ok(FlowMemory::Reserved(more as f64 / (FLOWS - FEWER_FLOWS) as f64))
    }
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
fn client_error(error: ClientError) -> BenchError {
    BenchError::Other(error.to_string())
}
