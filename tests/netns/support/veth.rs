//! Veth pairs that are deleted, made again or renamed, as by a container runtime.

use std::process::{Command, Output};

use palisade::control::protocol::{PortInfo, PortState};
use palisade::lab::{Lab, Pod, Switch};

use crate::support::eventually;

/// Runs `ip` and asserts that it succeeds.
pub(crate) fn ip(arguments: &str) {
    let output = try_ip(arguments);
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn try_ip(arguments: &str) -> Output {
    Command::new("ip").args(arguments.split_whitespace()).output().unwrap()
}

/// Id of the XDP program on an interface.
pub(crate) fn program_on(interface: &str) -> Option<u32> {
    let output = try_ip(&format!("-details link show dev {interface}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, after) = text.split_once("prog/xdp id ")?;
    after.split_whitespace().next()?.parse().ok()
}

/// Host end of a pod's veth pair.
pub(crate) fn host_end(pod: &Pod) -> String {
    pod.plan().host_interface.clone()
}

/// Makes a pod's veth pair again, with this number of queues and the lab's mark. The host end stays down.
pub(crate) fn make_again(lab: &Lab, pod: &Pod, queues: u16) {
    let (host, plan) = (host_end(pod), pod.plan());
    let q = format!("numrxqueues {queues} numtxqueues {queues}");
    let (mac, netns) = (plan.mac, &plan.netns);
    ip(&format!("link add {host} {q} type veth peer name eth0 address {mac} {q} netns {netns}"));
    let mark = lab.journal().mark();
    assert!(
        Command::new("ip").args(["link", "set", "dev", &host, "alias", &mark]).status().unwrap().success()
    );
    for address in &plan.addresses {
        let nodad = if address.is_ipv6() { "nodad" } else { "" };
        ip(&format!("-n {netns} address add {address} dev eth0 {nodad}"));
    }
    ip(&format!("-n {netns} link set eth0 up"));
    ip(&format!("-n {netns} route add default via 169.254.1.1 dev eth0 onlink"));
}

/// Port of a pod, as the switch reports it.
pub(crate) fn port_of(switch: &Switch, pod: &Pod) -> PortInfo {
    let (ports, name) = (switch.client().ports().unwrap(), host_end(pod));
    ports.into_iter().find(|port| port.name == name).expect("the port is configured")
}

/// Waits until the port of a pod is in a state with a reason that contains this text.
pub(crate) fn wait_for(switch: &Switch, pod: &Pod, state: PortState, says: &str) -> PortInfo {
    eventually(&format!("the port is {state:?} and says {says:?}"), || {
        let port = port_of(switch, pod);
        port.state == state && port.reason.unwrap_or_default().contains(says)
    });
    port_of(switch, pod)
}
