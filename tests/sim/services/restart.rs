//! Translated flows over a restart of the switch.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{ConntrackSettings, DropReason, FlowMemory, Settings};
use palisade::net::flow::Protocol;
use palisade::tables::{ServiceSet, ServiceTable};

use super::fixture::{
    TARGET, becomes, exchange, packet, seen_by_backend, seen_by_client, transport, virtual_address,
    with_backends,
};
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped, passes};
use crate::rig::{Rig, Setting, UPLINK, pod_address};

/// Directory that is removed at the end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings(directory: &Directory) -> Settings {
    let memory = FlowMemory::Directory { path: directory.0.clone(), fallback: None };
    let conntrack = ConntrackSettings { flows_max: 1024, memory, ..ConntrackSettings::default() };
    Settings { frames_per_worker: 1024, huge_pages: false, conntrack, ..Settings::default() }
}

#[test]
fn translated_flows_go_on_with_their_backend_even_if_it_has_left() {
    let name = format!("/dev/shm/palisade-sim-services-{}", std::process::id());
    let directory = Directory(PathBuf::from(name));
    let mut rig = Rig::with_settings(&settings(&directory), &with_backends(&Setting::open(), &[1]));
    for protocol in [Protocol::TCP, Protocol::UDP] {
        for family in [0, 1] {
            exchange(&mut rig, protocol, family, [0, 1], CLIENT);
        }
    }
    drop(rig);
    // No Services are loaded yet.
    let mut rig = Rig::with_settings(&settings(&directory), &Setting::open());
    let sent = seen_by_client(Protocol::TCP, 0, 2, 0, CLIENT);
    becomes(&mut rig, A, &sent, B, &seen_by_backend(Protocol::TCP, 0, 2, [0, 1], CLIENT));
    let reply = seen_by_backend(Protocol::TCP, 0, 1, [0, 1], CLIENT);
    becomes(&mut rig, B, &reply, A, &seen_by_client(Protocol::TCP, 0, 1, 0, CLIENT));
    drop(rig);
    // The connection's backend takes no new flows any more.
    let mut rig = Rig::with_settings(&settings(&directory), &with_backends(&Setting::open(), &[2]));
    assert_eq!(flows(&rig).iter().filter(|flow| flow.service.is_some()).count(), 4);
    for family in [0, 1] {
        let reply = seen_by_backend(Protocol::TCP, family, 1, [0, 1], CLIENT);
        becomes(&mut rig, B, &reply, A, &seen_by_client(Protocol::TCP, family, 1, 0, CLIENT));
        let sent = seen_by_client(Protocol::TCP, family, 2, 0, CLIENT);
        becomes(&mut rig, A, &sent, B, &seen_by_backend(Protocol::TCP, family, 2, [0, 1], CLIENT));
    }
    drop(rig);
    // A file of another table, and one that is cut, are replaced.
    let file = directory.0.join("services");
    std::fs::write(&file, b"bindings").unwrap();
    let mut rig = Rig::with_settings(&settings(&directory), &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT + 7);
}

#[test]
fn without_services_live_flows_alone_are_translated_and_for_a_while_only() {
    let name = format!("/dev/shm/palisade-sim-awaits-{}", std::process::id());
    let directory = Directory(PathBuf::from(name));
    let by_service = seen_by_client(Protocol::UDP, 0, 2, 0, CLIENT);
    let mut rig = Rig::with_settings(&settings(&directory), &with_backends(&Setting::open(), &[1]));
    exchange(&mut rig, Protocol::UDP, 0, [0, 1], CLIENT);
    rig.wait(Duration::from_hours(1));
    assert_eq!(flows(&rig), []);
    exchange(&mut rig, Protocol::TCP, 0, [0, 1], CLIENT);
    drop(rig);
    let mut rig = Rig::with_settings(&settings(&directory), &Setting::open());
    // The datagram's flow has ended: the address is one like any other.
    passes(&mut rig, A, UPLINK, &by_service);
    let sent = seen_by_client(Protocol::TCP, 0, 2, 0, CLIENT);
    becomes(&mut rig, A, &sent, B, &seen_by_backend(Protocol::TCP, 0, 2, [0, 1], CLIENT));
    rig.wait(Duration::from_millis(u64::from(palisade::limits::AWAITED_PODS_MS) + 2000));
    is_dropped(&mut rig, A, &sent, DropReason::InvalidState);
    drop(rig);
    // The process before has left Services that nobody has any more.
    let mut rig = Rig::with_settings(&settings(&directory), &Setting::open());
    becomes(&mut rig, A, &sent, B, &seen_by_backend(Protocol::TCP, 0, 2, [0, 1], CLIENT));
    let none = ServiceSet::new(&ServiceTable::default()).unwrap();
    rig.publish(&Setting { services: Some(Arc::new(none)), ..Setting::open() });
    is_dropped(&mut rig, A, &sent, DropReason::InvalidState);
}

#[test]
fn a_pod_reaches_itself_after_a_restart_too() {
    let name = format!("/dev/shm/palisade-sim-itself-{}", std::process::id());
    let directory = Directory(PathBuf::from(name));
    for protocol in [Protocol::TCP, Protocol::UDP] {
        let mut rig = Rig::with_settings(&settings(&directory), &with_backends(&Setting::open(), &[0]));
        let (own, service) = (pod_address(0)[0], virtual_address()[0]);
        let send = |rig: &mut Rig, step: usize| {
            let at_client = seen_by_client(protocol, 0, step, 0, CLIENT);
            let (src, dst) = if step == 1 { (own, service) } else { (service, own) };
            let at_backend = packet(src, dst, transport(protocol, step, [CLIENT, TARGET]));
            let (sent, seen) = if step == 1 { (at_backend, at_client) } else { (at_client, at_backend) };
            becomes(rig, A, &sent, A, &seen);
        };
        send(&mut rig, 0);
        drop(rig);
        // No Services are loaded yet.
        let mut rig = Rig::with_settings(&settings(&directory), &Setting::open());
        send(&mut rig, 1);
        send(&mut rig, 2);
    }
}
