//! Rig of a trial: pods as namespaces, and a node of their own with the host ends of their links.
//!
//! Traffic comes from core 0, and the system under test runs on core 1. Receive packet steering (RPS) sends
//! the receive work of the node's kernel there too.

use std::net::Ipv4Addr;
use std::process::Command;

use palisade::dataplane::Mac;
use palisade::lab::{Lab, LabError, LabSpec, Node, POD_INTERFACE, Pod, PodPorts};
use palisade::limits::MTU_MAX;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::BenchError;
use crate::outside;
use crate::process::run;

/// Core of the traffic.
pub(crate) const TRAFFIC_CORE: usize = 0;
/// Core of the system under test.
pub(crate) const SYSTEM_CORE: usize = 1;
/// Ethernet address of every pod's gateway.
pub(crate) const GATEWAY_MAC: Mac = Mac([0x02, 0x50, 0x41, 0x4c, 0x00, 0x01]);
/// Least number of pods: client, server, outsider.
pub(crate) const PODS_MIN: usize = 3;
/// Prefix of all pods' addresses.
pub(crate) const POD_PREFIX: &str = "10.77.0.0/16";

/// Pods and their node.
pub(crate) struct Rig {
    // The fields drop in this order: the links go with the node's namespace.
    node: Node,
    lab: Lab,
    /// Whether the node has an uplink to a host outside.
    pub(crate) outside: bool,
}

impl Rig {
    /// Sets up pods and node, and a host outside, with this MTU on all links.
    pub(crate) fn up(pods: usize, mtu: u32, ports: PodPorts, outside: bool) -> Result<Rig, BenchError> {
        let named = ["client", "server", "outsider"].map(str::to_owned);
        let names: Vec<String> =
            named.into_iter().chain((PODS_MIN..pods).map(|pod| format!("receiver{pod}"))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // The lab's plan refuses an MTU beyond an AF_XDP frame; systems in the kernel take more.
        let lab = Lab::up(&LabSpec { ports, mtu: mtu.min(MTU_MAX as u32), ..LabSpec::of(&names)? })?;
        let node = lab.node()?;
        let rig = Rig { node, lab, outside };
        if outside {
            outside::connect(&rig.lab, &rig.node, mtu)?;
        }
        if mtu > MTU_MAX as u32 {
            rig.set_mtu(mtu)?;
        }
        Ok(rig)
    }

    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn lab_and_node(&mut self) -> (&mut Lab, &Node) {
        (&mut self.lab, &self.node)
    }

    pub(crate) fn pod(&self, name: &str) -> Result<Pod, LabError> {
        self.lab.pod(name)
    }

    /// Returns the pods that the policy isolates.
    pub(crate) fn receivers(&self) -> Vec<Pod> {
        let others = ["client", "outsider"];
        self.lab.pods().filter(|pod| !others.contains(&pod.plan().pod.name.as_str())).collect()
    }

    /// Returns the address that the policy allows.
    pub(crate) fn client_v4(&self) -> Result<Ipv4Addr, LabError> {
        Ok(self.pod("client")?.v4())
    }

    /// Returns the host ends of the pods' links, in the node.
    pub(crate) fn host_ends(&self) -> Vec<String> {
        self.lab.pods().map(|pod| pod.plan().host_interface.clone()).collect()
    }

    /// Builds a command that runs inside the node, with the node's view of `/sys`.
    pub(crate) fn node_command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.node.namespace().name(), program]);
        command
    }

    /// Runs a program inside the node.
    pub(crate) fn in_node(
        &self,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, BenchError> {
        self.node.run(|| run(Command::new(program).args(arguments), input))?
    }

    /// Runs lines of a shell inside the node, with the node's view of `/sys`.
    pub(crate) fn shell_in_node(&self, script: &str) -> Result<String, BenchError> {
        run(self.node_command("sh").args(["-eu"]), script)
    }

    /// Runs a program inside every pod, with arguments that may depend on the pod.
    pub(crate) fn in_pods(
        &self,
        program: &str,
        arguments: impl Fn(&Pod) -> Vec<String>,
    ) -> Result<(), BenchError> {
        for pod in self.lab.pods() {
            let arguments = arguments(&pod);
            pod.run(|| run(Command::new(program).args(&arguments), ""))??;
        }
        Ok(())
    }

    /// Makes the node's kernel the router of the pods, with its receive work on the system's core.
    pub(crate) fn route_in_kernel(&self) -> Result<(), BenchError> {
        self.node.route(GATEWAY_MAC)?;
        self.enable_rps()
    }

    /// Steers packets from the pods to the system's core (RPS).
    pub(crate) fn enable_rps(&self) -> Result<(), BenchError> {
        let mask = format!("{:x}", 1 << SYSTEM_CORE);
        let write = |end: &String| format!("echo {mask} > /sys/class/net/{end}/queues/rx-0/rps_cpus\n");
        self.shell_in_node(&self.host_ends().iter().map(write).collect::<String>())?;
        Ok(())
    }

    /// Sets the gateway's Ethernet address in the pods, for systems that do not answer ARP for it.
    pub(crate) fn set_gateway_neighbor(&self, mac: impl Fn(&Pod) -> Mac) -> Result<(), BenchError> {
        self.in_pods("ip", |pod| {
            let mac = mac(pod).to_string();
            let words = ["neigh", "replace", "169.254.1.1", "lladdr", &mac, "dev", POD_INTERFACE];
            words.map(str::to_owned).into_iter().chain(["nud".to_owned(), "permanent".to_owned()]).collect()
        })
    }

    /// Disables transmit checksum offload in the pods, for systems that forward unfinished checksums.
    pub(crate) fn disable_tx_offload_in_pods(&self) -> Result<(), BenchError> {
        let words = ["-K", POD_INTERFACE, "tx", "off"];
        self.in_pods("ethtool", |_| words.map(str::to_owned).into())
    }

    /// Tears everything down, and returns errors and leftovers.
    pub(crate) fn down(self) -> Vec<String> {
        let Rig { node, lab, .. } = self;
        drop(node);
        let teardown = lab.remove();
        teardown.errors.into_iter().chain(teardown.spared).collect()
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), BenchError> {
        let mtu = mtu.to_string();
        self.in_pods("ip", |_| ["link", "set", POD_INTERFACE, "mtu", &mtu].map(str::to_owned).into())?;
        for end in self.host_ends() {
            self.in_node("ip", &["link", "set", &end, "mtu", &mtu], "")?;
        }
        Ok(())
    }
}

/// Pins the calling thread to one core, if the machine has it.
pub(crate) fn pin_to_core(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    if sched_getaffinity(None).is_ok_and(|allowed| allowed.is_set(core)) {
        // Without the core the measurement is noisier, and still right.
        let _ = sched_setaffinity(None, &cores);
    }
}
