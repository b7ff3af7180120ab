//! Reachability among many pods. `tests/sim/connection_floods.rs` has 250, the maximum of many nodes.

use palisade::lab::{Lab, LabSpec, Pod, PodPorts};

use crate::support::{Rig, assert_accounted, assert_pings, isolated};

/// More than the events that a worker takes from the kernel at once. Three of four have tap devices: the kernel takes a
/// tenth of a second and more for each port of a veth pair.
const PODS: usize = 66;

#[test]
fn of_many_pods_each_finds_another_also_after_its_port_has_been_idle() {
    let Some(_isolated) = isolated() else { return };
    let names: Vec<String> = (0..PODS).map(|pod| format!("pod{pod}")).collect();
    let on_taps = names.iter().enumerate().filter(|(number, _)| number % 4 > 0);
    let on_taps = on_taps.map(|(_, name)| (name.clone(), PodPorts::Tap));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut lab = Lab::up(&LabSpec { ports_of: on_taps.collect(), ..LabSpec::of(&names).unwrap() }).unwrap();
    let switch = Rig::start(&mut lab, "");
    let rig = Rig { switch, lab };
    let pods: Vec<Pod> = names.iter().map(|name| rig.pod(name)).collect();
    // The second round reaches ports that have been idle since the first.
    for round in [1, PODS / 2] {
        for (number, pod) in pods.iter().enumerate() {
            let other = &pods[(number + round) % pods.len()];
            assert_pings(pod, other.v4().into());
        }
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    assert_eq!(counters.ports.len(), pods.len());
    assert!(counters.ports.values().all(|port| port.forwarded >= 4), "each asks twice and answers twice");
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
}
