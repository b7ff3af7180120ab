//! Checks of the interfaces that a configuration names.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};

use super::check::{AS_ROOT, Check, SEEING_ALL, start_or};
use crate::config::{Config, PortConfig};
use crate::control::protocol::PortInfo;
use crate::dataplane::{PortKind, check_link, is_offloadable, is_upcall_device, offload_obstacle};
use crate::limits::MTU_MAX;
use crate::net::mac::Mac;
use crate::netlink::{Interface, NetlinkError, NetworkNamespace, VethPeer};
use crate::xdp::{
    PinUse, XdpError, check_tcx, has_program_of_switch, is_on_bpf_file_system, offload_pin, program_pin,
};

/// Least MTU of a link with IPv6. RFC 8200 section 5: "1280 octets or greater".
const IPV6_MTU_MIN: u32 = 1280;

/// Checks the interfaces of all ports. `running` has the ports of the running switch, or where none answers the use of the pins.
pub(super) fn checks(config: &Config, running: Result<&[PortInfo], &PinUse>) -> Vec<Check> {
    let workers = config.dataplane_settings().map_or(1, |settings| settings.cores.len());
    let of_port = |port: &PortConfig| match &port.namespace {
        Some(namespace) => vec![tap_namespace(port, namespace)],
        None => of_interface(port, workers, running, config),
    };
    let mut checks: Vec<Check> = config.ports.iter().flat_map(of_port).collect();
    if let Ok(running) = running {
        checks.extend(running.iter().filter_map(not_offloaded_by_switch));
    } else {
        checks.extend(offload(config));
        checks.extend(config.ports.iter().filter_map(|port| not_offloaded(port, config)));
    }
    checks.extend(other_interfaces(config, running.unwrap_or_default()));
    checks
}

/// Finds a port of the running switch whose flows are not offloaded, though the configuration says so.
fn not_offloaded_by_switch(port: &PortInfo) -> Option<Check> {
    let reason = port.report.not_offloaded.as_ref()?;
    Some(offload_refused(&format!("interface {}", port.spec.interface), reason))
}

/// Checks that the kernel can offload flows; `None` where the configuration has none offloaded.
fn offload(config: &Config) -> Option<Check> {
    let subject = "kernel";
    config.offload.is_on().then(|| match check_tcx() {
        Ok(()) => Check::ok(subject, "has tcx, by which it forwards established flows"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Check::unseen(subject, format!("tcx: {error}"), AS_ROOT)
        }
        Err(error) => Check::finding(
            subject,
            format!("offloads no flows: {error}"),
            "boot Linux 6.6 or later, or set [offload] mode = \"off\"",
        ),
    })
}

/// Finds a port whose flows a start would not offload.
fn not_offloaded(port: &PortConfig, config: &Config) -> Option<Check> {
    if !config.offload.is_on() || !is_offloadable(port.kind) {
        return None;
    }
    let name = port.interface.as_deref().unwrap_or(&port.name);
    let reason = offload_obstacle(port.kind, port.vlan, &Interface::find(name).ok()?)?;
    Some(offload_refused(&format!("interface {name}"), &reason))
}

/// Whether a start would offload the flows of a port, as far as this process may see.
fn would_offload(port: &PortConfig, config: &Config, interface: &Interface) -> bool {
    let may_have_tcx =
        check_tcx().map_or_else(|error| error.kind() == ErrorKind::PermissionDenied, |()| true);
    config.offload.is_on()
        && may_have_tcx
        && is_on_bpf_file_system(&config.xdp.pin_directory)
        && offload_obstacle(port.kind, port.vlan, interface).is_none()
}

fn offload_refused(subject: &str, reason: &str) -> Check {
    Check::finding(
        subject,
        format!("its flows are not offloaded: {reason}"),
        "end that and open the port again; until then workers forward its packets, which is slower",
    )
}

/// Settings by which the node forwards packets of IPv4 and IPv6.
const FORWARDING: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];

/// Names the interfaces that are no ports, whose packets for pods the node forwards to its host port.
fn other_interfaces(config: &Config, running: &[PortInfo]) -> Option<Check> {
    let forwards = |file| fs::read_to_string(file).is_ok_and(|text| text.trim() != "0");
    let has_host = config.ports.iter().any(|port| port.kind == PortKind::Host);
    if !has_host || !FORWARDING.into_iter().any(forwards) {
        return None;
    }
    let name = |port: &PortConfig| port.interface.clone().unwrap_or_else(|| port.name.clone());
    let ports: Vec<Interface> =
        config.ports.iter().filter_map(|port| Interface::find(&name(port)).ok()).collect();
    let node_ends = ports.iter().filter_map(|port| VethPeer::of(port).ok());
    let node_ends = node_ends.filter(|end| end.namespace.is_none()).map(|end| end.index);
    let open = running.iter().map(|open| open.report.interface_index);
    let known: Vec<u32> = ports.iter().map(|port| port.index).chain(node_ends).chain(open).collect();
    let is_other = |other: &Interface| {
        other.is_up
            && other.mac != Mac::default()
            && !known.contains(&other.index)
            && !is_upcall_device(&other.name)
    };
    let others = Interface::all().ok()?.into_iter().filter(is_other).map(|other| other.name);
    let others: Vec<String> = others.collect();
    let are = if others.len() == 1 { "is no port" } else { "are no ports" };
    (!others.is_empty()).then(|| {
        let what = "policy treats packets that the node forwards from there to pods as from outside";
        Check::ok("other interfaces", format!("{} {are}: {what}", others.join(", ")))
    })
}

fn tap_namespace(port: &PortConfig, namespace: &str) -> Check {
    let subject = format!("port {}", port.name);
    match fs::metadata(NetworkNamespace::path_of(namespace)) {
        Ok(_) => Check::ok(&subject, format!("network namespace {namespace} is there")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Check::unseen(&subject, format!("network namespace {namespace}: {error}"), AS_ROOT)
        }
        Err(error) => Check::finding(
            &subject,
            format!("network namespace {namespace} is not there: {error}"),
            format!("ip netns add {namespace}, or correct the port's namespace"),
        ),
    }
}

fn of_interface(
    port: &PortConfig,
    workers: usize,
    running: Result<&[PortInfo], &PinUse>,
    config: &Config,
) -> Vec<Check> {
    let pins = &config.xdp.pin_directory;
    let name = port.interface.as_deref().unwrap_or(&port.name);
    let subject = &format!("interface {name}");
    let interface = match Interface::find(name) {
        Ok(interface) => interface,
        Err(NetlinkError::NoInterface { .. }) => {
            let remedy = "create it before the switch starts, or correct its name ([[ports]] interface)";
            return vec![Check::finding(subject, "does not exist", remedy)];
        }
        Err(error) => return vec![Check::unseen(subject, error.to_string(), AS_ROOT)],
    };
    let mut checks = vec![state(subject, port, &interface), mtu(subject, port, &interface)];
    if let Err(error) = check_link(port.kind, &interface) {
        checks.push(Check::finding(subject, error.to_string(), "no port opens on it as it is"));
    }
    let open = running.into_iter().flatten().find(|open| open.report.interface_index == interface.index);
    let is_offloaded =
        open.map_or_else(|| would_offload(port, config, &interface), |open| open.report.offloaded);
    // Workers read an offloaded port by a device of the switch.
    if port.kind != PortKind::Pod || !is_offloaded {
        checks.push(queues(subject, &interface, workers));
    }
    if port.kind == PortKind::Host {
        checks.push(node_end(subject, &interface));
    }
    checks.push(match open {
        Some(open) if open.report.offloaded && port.kind == PortKind::Pod => {
            Check::ok(subject, "offloaded by the running switch: the kernel forwards established flows")
        }
        Some(open) => {
            let mode = if open.report.native { "in the driver" } else { "in the generic hook" };
            let copies = if open.report.zero_copy { "zero-copy" } else { "with a copy" };
            let offload = if open.report.offloaded { "; the kernel forwards established flows" } else { "" };
            Check::ok(subject, format!("XDP {mode}, {copies}, by the running switch{offload}"))
        }
        None => match (running, offload_pin(pins, interface.index)) {
            (Err(used), Some(pin)) if port.kind == PortKind::Pod => {
                of_no_answer(subject, used, " when its lease is over", &format!("rm {}", pin.display()))
            }
            _ => program(subject, &interface, running.err(), pins),
        },
    });
    checks
}

fn state(subject: &str, port: &PortConfig, interface: &Interface) -> Check {
    let name = &interface.name;
    let driver = fs::read_link(format!("/sys/class/net/{name}/device/driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let kind = interface.kind.clone().or(driver).unwrap_or_else(|| "unknown driver".to_owned());
    if !interface.is_up {
        return Check::finding(subject, format!("{kind}, is down"), format!("ip link set {name} up"));
    }
    let peer = match port.kind {
        PortKind::Uplink => "check its cable, or the other end",
        _ => "set the other end up (`ip -n NAMESPACE link set eth0 up`)",
    };
    let what = if interface.has_carrier { "is up" } else { "is up and has no carrier" };
    Check::unless(!interface.has_carrier, subject, format!("{kind}, {what}"), peer)
}

/// Checks that the switch finds the node's end of a host port, at which it marks what the node's sockets send.
fn node_end(subject: &str, interface: &Interface) -> Check {
    match VethPeer::of(interface) {
        Ok(_) => Check::ok(subject, "its other end is found: the node's own packets are marked there"),
        Err(error) => Check::finding(
            subject,
            format!("policy applies to the node's own packets, kubelet's probes too: {error}"),
            "make it an end of a veth pair, whose other end is in this network namespace or in a named one (`ip netns`)",
        ),
    }
}

fn mtu(subject: &str, port: &PortConfig, interface: &Interface) -> Check {
    let (name, mtu) = (&interface.name, interface.mtu);
    let has_ipv6 = port.pod_addresses.iter().chain(&port.addresses).any(IpAddr::is_ipv6);
    if mtu as usize > MTU_MAX {
        let what = format!("MTU {mtu} exceeds the switch's {MTU_MAX}");
        return Check::finding(subject, what, format!("ip link set {name} mtu {MTU_MAX}, at both ends"));
    }
    let too_small = has_ipv6 && mtu < IPV6_MTU_MIN;
    let what = if too_small { format!("MTU {mtu} carries no IPv6") } else { format!("MTU {mtu}") };
    Check::unless(too_small, subject, what, format!("ip link set {name} mtu 1500, at both ends"))
}

fn queues(subject: &str, interface: &Interface, workers: usize) -> Check {
    let (name, queues) = (&interface.name, interface.queues());
    let (received, served) = (usize::from(interface.rx_queues), workers.min(queues.into()));
    if served > 0 && received > served {
        let what = format!(
            "{received} receive queues, of which workers serve {served}: frames of the others are dropped"
        );
        let remedy =
            format!("as many workers.cores and transmit queues, or `ethtool -L {name} combined {served}`");
        return Check::finding(subject, what, remedy);
    }
    let what = format!("{queues} queues for {workers} workers");
    let remedy = match interface.kind.as_deref() {
        Some("veth") => format!(
            "make the pair anew with `numrxqueues {workers} numtxqueues {workers}` at both ends: other workers copy"
        ),
        _ => format!("ethtool -L {name} combined {workers}, or fewer workers.cores: other workers copy"),
    };
    Check::unless(usize::from(queues) < workers, subject, what, remedy)
}

/// Whether this process sees the names of programs (`bpf_capable()` of the kernel).
fn sees_programs() -> bool {
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    held.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::BPF)
}

/// Checks an interface with the program of a switch where none answers at the control socket. `step` takes the program off.
fn of_no_answer(subject: &str, used: &PinUse, when: &str, step: &str) -> Check {
    match used {
        PinUse::Open => Check::ok(subject, "has the program of a running switch with another control socket"),
        PinUse::Left => Check::finding(
            subject,
            format!("has the program of a switch that does not run: every frame is dropped{when}"),
            start_or(step),
        ),
        PinUse::Unseen(reason) => {
            let what = format!("has the program of a switch; whether that runs is not seen: {reason}");
            Check::unseen(subject, what, SEEING_ALL)
        }
    }
}

/// Checks the XDP program of an interface. `used` is the use of the pins where no switch answers.
fn program(subject: &str, interface: &Interface, used: Option<&PinUse>, pins: &Path) -> Check {
    let name = &interface.name;
    match has_program_of_switch(interface) {
        Ok(false) => Check::ok(subject, "no XDP program"),
        Ok(true) => {
            let Some(used) = used else { return Check::ok(subject, "has an XDP program of a switch") };
            let pin = program_pin(pins, interface.index);
            let step =
                pin.map_or(format!("ip link set dev {name} xdp off"), |pin| format!("rm {}", pin.display()));
            of_no_answer(subject, used, "", &step)
        }
        Err(XdpError::ForeignProgram { id, .. }) if !sees_programs() => {
            Check::unseen(subject, format!("has an XDP program (id {id}) of an unknown owner"), AS_ROOT)
        }
        Err(error @ XdpError::ForeignProgram { .. }) => Check::finding(
            subject,
            error.to_string().split(": ").next().unwrap_or_default(),
            format!("stop the program that has attached it, or `ip link set dev {name} xdp off`"),
        ),
        Err(error) => Check::unseen(subject, error.to_string(), AS_ROOT),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn receive_queues_that_no_worker_serves_are_a_finding() {
        let of = |rx_queues, tx_queues, workers| {
            queues("interface x0", &Interface { rx_queues, tx_queues, ..Interface::default() }, workers)
        };
        assert!(of(2, 2, 2).state == State::Ok && of(1, 1, 1).state == State::Ok);
        for (rx, tx, workers, served) in [(2, 2, 1, 1), (3, 3, 2, 2), (3, 1, 2, 1)] {
            let Check { state, what, .. } = of(rx, tx, workers);
            assert_eq!(state, State::Finding);
            assert!(what.contains(&format!("serve {served}: frames of the others are dropped")), "{what}");
        }
        assert!(of(1, 1, 2).what.contains("1 queues for 2 workers"));
    }
}
