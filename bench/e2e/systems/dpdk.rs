//! DPDK's `testpmd` between AF_XDP ports: a second limit. It forwards without reading the frames.

use std::time::Duration;

use super::cross_connect::{CrossConnect, cross_connect_pods};
use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::process::{Daemon, version};
use crate::rig::{Rig, SYSTEM_CORE, TRAFFIC_CORE};
use crate::system::{Kind, Running, System};

/// Longest wait for the start.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Memory in megabytes, of ordinary pages: huge ones are the host's to grant.
const MEMORY_MB: &str = "256";

pub(super) struct Dpdk;

impl System for Dpdk {
    fn name(&self) -> &'static str {
        "dpdk"
    }

    fn kind(&self) -> Kind {
        Kind::CrossConnect
    }

    fn versions(&self) -> Vec<String> {
        version("dpdk-testpmd", &["--version", "--no-huge", "--no-pci"]).into_iter().collect()
    }

    fn mtu_max(&self) -> u32 {
        1500
    }

    fn start(&self, rig: &mut Rig, _: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        cross_connect_pods(rig)?;
        rig.disable_tx_offload_in_pods()?;
        let directory = rig.lab().directory();
        let mut command = rig.node_command("dpdk-testpmd");
        command.env("XDG_RUNTIME_DIR", &directory).env("RUNTIME_DIRECTORY", &directory);
        command.args(["-l", &format!("{TRAFFIC_CORE},{SYSTEM_CORE}"), "--main-lcore"]);
        command.arg(TRAFFIC_CORE.to_string());
        command.args(["--no-huge", "-m", MEMORY_MB, "--no-pci", "--no-telemetry"]);
        // testpmd pairs ports 0 and 1, 2 and 3, and so on; it would pair a last odd port with itself.
        let ends = rig.host_ends();
        for (number, end) in ends[..ends.len() & !1].iter().enumerate() {
            command.arg(format!("--vdev=net_af_xdp{number},iface={end},start_queue=0,queue_count=1"));
        }
        command.args(["--", "--forward-mode=io", "--auto-start", "--nb-cores=1", "--total-num-mbufs=32768"]);
        let mut testpmd = Daemon::start(&mut command, "dpdk-testpmd", directory.join("testpmd.log"))?;
        rig.lab_and_node().0.note_process(testpmd.pid())?;
        // The last lines stay in its buffer. The ports are up when it checks their links.
        testpmd.wait_for(TIMEOUT, |said| said.contains("Checking link statuses"))?;
        Ok(Box::new(CrossConnect(testpmd)))
    }
}
