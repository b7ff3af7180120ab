//! Drained ports: no flow begins there, and established ones go on.

use std::time::Duration;

use palisade::dataplane::{DropReason, FlowPath};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::tables::Verdict;

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{
    A, B, C, CLIENT, SERVER, connect, decisions, flows, is_dropped, mute, passes, serves, tcp, udp, udp_of,
};
use crate::rig::model::{ACK, RST, SYN};
use crate::rig::{HOST, Rig, Setting, UPLINK, node_address, outside_address, pod_address};

fn draining(setting: &Setting) -> Setting {
    Setting { draining: [B].into(), ..setting.clone() }
}

#[test]
fn no_flow_from_or_to_a_drained_port_begins_and_established_flows_go_on() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    for family in [0, 1] {
        passes(&mut rig, A, B, &udp_of(family, 0, 1, [1000, 53]));
        passes(&mut rig, B, C, &udp_of(family, 1, 2, [1000, 53]));
    }
    rig.publish(&draining(&Setting::open()));
    for _ in 0..3 {
        passes(&mut rig, A, B, &tcp(ACK, true));
        passes(&mut rig, B, A, &tcp(ACK, false));
        for family in [0, 1] {
            passes(&mut rig, B, A, &udp_of(family, 1, 0, [53, 1000]));
            passes(&mut rig, B, C, &udp_of(family, 1, 2, [1000, 53]));
            is_dropped(&mut rig, A, &udp_of(family, 0, 1, [1001, 53]), DropReason::Draining);
            is_dropped(&mut rig, B, &udp_of(family, 1, 2, [1001, 53]), DropReason::Draining);
            passes(&mut rig, A, C, &udp_of(family, 0, 2, [1001, 53]));
        }
        rig.wait(Duration::from_secs(5));
    }
    let node = Spec::new(node_address()[0], pod_address(1)[0], Transport::Udp { ports: [9, 9] });
    is_dropped(&mut rig, HOST, &node, DropReason::Draining);
    let outside = Spec::new(outside_address(1)[0], pod_address(1)[0], Transport::Udp { ports: [9, 9] });
    is_dropped(&mut rig, UPLINK, &outside, DropReason::Draining);
    rig.publish(&Setting::open());
    passes(&mut rig, A, B, &udp(0, 1, [1001, 53]));
    passes(&mut rig, HOST, B, &node);
}

#[test]
fn a_port_pair_used_again_is_a_new_flow() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    passes(&mut rig, A, B, &tcp(RST | ACK, true));
    rig.publish(&draining(&Setting::open()));
    let syn = Transport::Tcp {
        ports: [CLIENT, SERVER],
        flags: SYN,
        sequence: 9000,
        acknowledgement: 0,
        window: 1000,
    };
    let syn = Spec { payload: Vec::new(), ..Spec::new(pod_address(0)[0], pod_address(1)[0], syn) };
    is_dropped(&mut rig, A, &syn, DropReason::Draining);
    rig.publish(&Setting::open());
    passes(&mut rig, A, B, &syn);
}

#[test]
fn a_drain_outlives_other_tables_and_policy_is_the_first_reason() {
    let mut rig = Rig::new(1, &draining(&Setting::open()));
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::Draining);
    let denies = draining(&Setting::open().with(1, serves(Protocol::TCP, 443)));
    rig.publish(&denies);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::PolicyIngress);
    assert_eq!(decisions(&rig, Verdict::Deny).into_values().collect::<Vec<_>>(), [1]);
    // The tables alone change: the layout stays, and the drain with it.
    rig.publish(&draining(&Setting::open().with(1, serves(Protocol::TCP, SERVER))));
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::Draining);
    rig.publish(&draining(&Setting { loaded: false, ..Setting::open() }));
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::UnknownPod);
    rig.publish(&draining(&Setting { loaded: false, fail_open: true, ..Setting::open() }));
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::Draining);
}

#[test]
fn policy_still_cuts_an_established_flow_of_a_drained_port() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    rig.publish(&draining(&Setting::open()));
    passes(&mut rig, A, B, &tcp(ACK, true));
    // The pod at the other end may open nothing any more.
    rig.publish(&draining(&Setting::open().with(0, mute())));
    is_dropped(&mut rig, A, &tcp(ACK, true), DropReason::PolicyEgress);
    assert!(flows(&rig).is_empty());
}

#[test]
fn the_explanation_of_a_new_connection_tells_of_the_drain_beside_the_rules() {
    let rig = Rig::new(1, &draining(&Setting::open().with(1, serves(Protocol::TCP, SERVER))));
    let key = |[from, to]: [usize; 2]| FlowKey {
        src: pod_address(from)[0],
        dst: pod_address(to)[0],
        protocol: Protocol::TCP,
        src_port: CLIENT,
        dst_port: SERVER,
    };
    for ends in [[0, 1], [1, 0]] {
        let FlowPath { dropped, egress, ingress, .. } = rig.sim.path(&key(ends));
        assert_eq!(dropped, Some(DropReason::Draining));
        assert!([egress, ingress].into_iter().flatten().all(|side| side.verdict == Verdict::Allow));
    }
    assert_eq!(rig.sim.path(&key([0, 2])).dropped, None);
}
