//! Policy of the pods at both ends of a flow, also after a change of the tables.

use std::collections::BTreeMap;

use palisade::dataplane::DropReason;
use palisade::net::flow::Protocol;
use palisade::tables::{Direction, RuleOrigin, Verdict};

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{
    A, B, C, SERVER, connect, decisions, flows, is_dropped, mute, passes, serves, tcp, udp,
};
use crate::rig::model::{ACK, SYN};
use crate::rig::rule_lists::{PodRules, Rule};
use crate::rig::{
    HOST, Rig, Setting, addressed, forwarded, forwarded_by_node, ip, node_address, pod_address,
};

#[test]
fn what_policy_denies_is_counted_by_direction_and_by_rule() {
    let mut rig = Rig::new(1, &Setting::open().with(1, serves(Protocol::TCP, 443)).with(2, mute()));
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::PolicyIngress);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::PolicyIngress);
    is_dropped(&mut rig, C, &udp(2, 0, [1, 2]), DropReason::PolicyEgress);
    let denied: Vec<_> = decisions(&rig, Verdict::Deny).into_iter().collect();
    let is_of = |origin: &RuleOrigin, wanted: Direction, pod: &str| {
        matches!(origin, RuleOrigin::DefaultDeny { direction, policies }
            if *direction == wanted && policies[0].name == format!("for-{pod}"))
    };
    assert_eq!(denied.iter().map(|(_, packets)| *packets).collect::<Vec<_>>(), [2, 1]);
    assert!(is_of(&denied[0].0, Direction::Ingress, "b") && is_of(&denied[1].0, Direction::Egress, "c"));
    assert_eq!(rig.sim.flows_len(), 0);
}

#[test]
fn reply_passes_after_the_policy_that_denies_its_own_direction_is_loaded() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    rig.publish(&Setting::open().with(1, mute()));
    passes(&mut rig, B, A, &tcp(ACK, false));
    let flow = &flows(&rig)[0];
    assert_eq!((&*flow.state, flow.packets, flow.reply_packets), ("established", 2, 2));
}

#[test]
fn an_established_flow_that_a_new_policy_denies_is_closed_on_its_next_packet_from_either_side() {
    for (port, packet) in [(A, tcp(ACK, true)), (B, tcp(ACK, false))] {
        let mut rig = Rig::new(1, &Setting::open());
        connect(&mut rig);
        let denies =
            PodRules { ingress: Some(vec![Rule { verdict: Verdict::Deny, ..Rule::ALL }]), egress: None };
        rig.publish(&Setting::open().with(1, denies));
        is_dropped(&mut rig, port, &packet, DropReason::PolicyIngress);
        let denied = decisions(&rig, Verdict::Deny);
        let [(RuleOrigin::Rule { policy, direction, index, .. }, 1)] =
            &denied.into_iter().collect::<Vec<_>>()[..]
        else {
            panic!("one rule has decided once")
        };
        assert_eq!((policy.name.as_str(), *direction, *index), ("for-b", Direction::Ingress, 0));
        assert_eq!(rig.sim.flows_len(), 0);
    }
}

#[test]
fn a_policy_loaded_again_costs_an_allowed_flow_nothing() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    for round in 0..5u64 {
        rig.publish(&Setting::open().with(1, serves(Protocol::TCP, SERVER)));
        passes(&mut rig, A, B, &tcp(ACK, true));
        passes(&mut rig, B, A, &tcp(ACK, false));
        let flow = &flows(&rig)[0];
        assert_eq!((&*flow.state, flow.packets, flow.reply_packets), ("established", 3 + round, 2 + round));
    }
}

#[test]
fn of_a_pod_with_several_addresses_rules_see_the_one_of_the_packet_also_after_other_rules_are_loaded() {
    let first = pod_address(0);
    let second = [ip("10.0.0.6"), ip("fd00::6")];
    let mut rig = Rig::new(1, &Setting::open());
    // Each step changes rule tables only, and with them the classes of most addresses.
    for (round, named) in [first, second, first].into_iter().enumerate() {
        let with_named = Some(vec![Rule { peers: Some(named.to_vec()), ..Rule::ALL }]);
        let setting = Setting::open()
            .with(1, PodRules { ingress: with_named.clone(), egress: None })
            .with(2, PodRules { ingress: None, egress: with_named });
        let mut desired = setting.desired();
        desired.pods[0].addresses.extend(second);
        rig.sim.publish(desired);
        rig.sim.step();
        let transport = Transport::Udp { ports: [1000 + round as u16, 53] };
        for (family, address) in [first, second].into_iter().flat_map(|pair| pair.into_iter().enumerate()) {
            let to_b = Spec::new(address, pod_address(1)[family], transport);
            let from_c = Spec::new(pod_address(2)[family], address, transport);
            if named.contains(&address) {
                passes(&mut rig, A, B, &to_b);
                passes(&mut rig, C, A, &from_c);
            } else {
                is_dropped(&mut rig, A, &to_b, DropReason::PolicyIngress);
                is_dropped(&mut rig, C, &from_c, DropReason::PolicyEgress);
            }
        }
    }
}

#[test]
fn without_tables_nothing_of_a_pod_passes_unless_it_is_wanted_so() {
    let closed = Setting { loaded: false, ..Setting::open() };
    let mut rig = Rig::new(1, &closed);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::UnknownPod);
    let from_node = Spec::new(node_address()[0], pod_address(0)[0], Transport::Udp { ports: [1, 2] });
    is_dropped(&mut rig, HOST, &from_node, DropReason::UnknownPod);
    let open = Setting { fail_open: true, ..closed };
    rig.publish(&open);
    passes(&mut rig, A, B, &tcp(SYN, true));
}

#[test]
fn a_pod_that_the_tables_do_not_know_is_closed_and_the_others_are_not() {
    let mut setting = Setting::open();
    setting.rules[1] = None;
    let mut rig = Rig::new(1, &setting);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::UnknownPod);
    is_dropped(&mut rig, B, &udp(1, 0, [1, 2]), DropReason::UnknownPod);
    passes(&mut rig, A, C, &udp(0, 2, [1, 2]));
    rig.publish(&Setting { fail_open: true, ..setting });
    passes(&mut rig, A, B, &tcp(SYN, true));
}

#[test]
fn a_pod_port_without_a_pod_is_closed_even_where_unknown_pods_are_open() {
    let mut setting = Setting { fail_open: true, ..Setting::open() };
    setting.attachments[0] = None;
    let mut rig = Rig::new(1, &setting);
    is_dropped(&mut rig, A, &udp(0, 1, [1, 2]), DropReason::Spoofed);
}

#[test]
fn a_pod_reaches_itself_through_the_switch_whatever_its_rules_say() {
    let nothing = PodRules { ingress: Some(Vec::new()), egress: Some(Vec::new()) };
    let mut rig = Rig::new(1, &Setting::open().with(0, nothing));
    passes(&mut rig, A, A, &udp(0, 0, [1000, 53]));
    passes(&mut rig, A, A, &udp(0, 0, [53, 1000]));
    assert_eq!(decisions(&rig, Verdict::Deny), BTreeMap::new());
    is_dropped(&mut rig, A, &udp(0, 0, [53, 53]), DropReason::Spoofed);
}

#[test]
fn the_pods_own_node_is_let_in_but_not_every_packet_behind_its_port_nor_the_way_back_out() {
    let nothing = PodRules { ingress: Some(Vec::new()), egress: Some(Vec::new()) };
    let mut rig = Rig::new(1, &Setting::open().with(0, nothing));
    let transport = Transport::Udp { ports: [1000, 53] };
    let (node, pod) = (node_address()[0], pod_address(0)[0]);
    passes(&mut rig, HOST, A, &Spec::new(node, pod, transport));
    passes(&mut rig, A, HOST, &Spec::new(pod, node, Transport::Udp { ports: [53, 1000] }));
    assert_eq!(flows(&rig)[0].ingress, Some(RuleOrigin::OwnNode));
    let container = Spec::new(ip("172.17.0.2"), pod, transport);
    is_dropped(&mut rig, HOST, &container, DropReason::PolicyIngress);
    is_dropped(
        &mut rig,
        A,
        &Spec::new(pod, node, Transport::Udp { ports: [9, 9] }),
        DropReason::PolicyEgress,
    );
}

#[test]
fn packets_that_the_node_forwards_may_have_its_address_and_never_its_privilege() {
    let nothing = PodRules { ingress: Some(Vec::new()), egress: None };
    let setting = Setting::open().with(0, nothing);
    let mut rig = Rig::new(1, &setting);
    for family in [0, 1] {
        let packet = |from| {
            Spec::new(node_address()[family], pod_address(0)[family], Transport::Udp { ports: [from, 53] })
        };
        let send = |rig: &mut Rig, from| rig.send_on(0, HOST, &[forwarded_by_node(&packet(from))]);
        let denied =
            |rig: &Rig| rig.counters(HOST).drops.get(DropReason::PolicyIngress.name()).copied().unwrap_or(0);
        // In one batch with the node's own packet.
        let before = denied(&rig);
        let own = rig.send_on(0, HOST, &[forwarded_by_node(&packet(1)), addressed(HOST, &packet(2)).bytes()]);
        assert_eq!((own, denied(&rig)), (vec![(A, forwarded(A, &packet(2)))], before + 1));
        assert_eq!(flows(&rig).len(), 1 + 2 * family);

        // A flow remembers who has opened it.
        rig.publish(&Setting::open());
        assert_eq!(send(&mut rig, 3), [(A, forwarded(A, &packet(3)))]);
        passes(&mut rig, HOST, A, &packet(3));
        passes(&mut rig, HOST, A, &packet(2));
        rig.publish(&setting);
        // The node does not forward into a flow of its sockets, one way or two.
        let invalid = |rig: &Rig| rig.counters(HOST).drops.get("invalid-state").copied().unwrap_or(0);
        let before = invalid(&rig);
        assert_eq!(send(&mut rig, 2), []);
        let reply = Transport::Udp { ports: [53, 2] };
        passes(&mut rig, A, HOST, &Spec::new(pod_address(0)[family], node_address()[family], reply));
        assert_eq!(send(&mut rig, 2), []);
        assert_eq!(invalid(&rig), before + 2);
        let before = denied(&rig);
        is_dropped(&mut rig, HOST, &packet(3), DropReason::PolicyIngress);
        assert_eq!(denied(&rig), before + 1);
        passes(&mut rig, HOST, A, &packet(2));
        // The flow has ended: a socket opens the next one.
        passes(&mut rig, HOST, A, &packet(3));
        assert_eq!(flows(&rig).len(), 2 + 2 * family);
    }
    assert!(flows(&rig).iter().all(|flow| flow.ingress == Some(RuleOrigin::OwnNode)));
}
