//! A pod that has reached itself by its own Service, and replies of that pod to others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{DesiredState, DropReason, FlowPath};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::tables::{PolicyKind, PolicyRef, RuleOrigin, RuleTables, Verdict};

use super::errors::error;
use super::fixture::{
    SERVICE, TARGET, becomes, exchange, external_address, packet, port, seen_by_client, services_at,
    transport, virtual_address, with_backends,
};
use super::fragments::{cut, send};
use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, CLIENT, decisions, is_dropped};
use crate::rig::rule_lists::{PodRules, Rule};
use crate::rig::{HOST, Rig, Setting, UPLINK, addressed, forwarded, ip, node_address, pod_address};

/// Lets pod 1 send one packet to the Service that it backs alone.
fn reach_itself(rig: &mut Rig, family: usize) {
    let sent = seen_by_client(Protocol::UDP, family, 0, 1, CLIENT);
    let service = virtual_address()[family];
    let seen = packet(service, pod_address(1)[family], transport(Protocol::UDP, 0, [CLIENT, TARGET]));
    becomes(rig, B, &sent, B, &seen);
}

#[test]
fn replies_to_clients_whose_addresses_may_be_virtual_reach_these() {
    for family in [0, 1] {
        let services = Some(services_at(&port(&[1]), &node_address()));
        let mut rig = Rig::new(1, &Setting { services, ..Setting::open() });
        reach_itself(&mut rig, family);
        // The node's addresses pass the filter of virtual addresses.
        for client in CLIENT..CLIENT + 3 {
            let (node, service) = (node_address()[family], virtual_address()[family]);
            let backend = pod_address(1)[family];
            for step in 0..3 {
                let ports = [client, SERVICE];
                let (src, dst) = if step == 1 { (service, node) } else { (node, service) };
                let at_client = packet(src, dst, transport(Protocol::UDP, step, ports));
                let (src, dst) = if step == 1 { (backend, node) } else { (node, backend) };
                let at_backend = packet(src, dst, transport(Protocol::UDP, step, [client, TARGET]));
                if step == 1 {
                    becomes(&mut rig, B, &at_backend, HOST, &at_client);
                } else {
                    becomes(&mut rig, HOST, &at_client, B, &at_backend);
                }
            }
        }
        exchange(&mut rig, Protocol::UDP, family, [0, 1], CLIENT);
        reach_itself(&mut rig, family);
    }
}

#[test]
fn replies_reach_every_client_though_the_filter_lets_some_by_chance_pass() {
    let services = Some(services_at(&port(&[1]), &[]));
    let mut rig = Rig::new(1, &Setting { services, ..Setting::open() });
    reach_itself(&mut rig, 1);
    for number in 1..800 {
        if number % 50 == 0 {
            // Their flows end.
            rig.wait(Duration::from_hours(1));
            reach_itself(&mut rig, 1);
        }
        let (client, service, backend) =
            (ip(&format!("2001:db8::{number:x}")), external_address()[1], pod_address(1)[1]);
        let sent = packet(client, service, Transport::Udp { ports: [CLIENT, SERVICE] });
        let seen = packet(client, backend, Transport::Udp { ports: [CLIENT, TARGET] });
        becomes(&mut rig, UPLINK, &sent, B, &seen);
        let sent = packet(backend, client, Transport::Udp { ports: [TARGET, CLIENT] });
        let seen = packet(service, client, Transport::Udp { ports: [SERVICE, CLIENT] });
        becomes(&mut rig, B, &sent, UPLINK, &seen);
    }
    exchange(&mut rig, Protocol::UDP, 1, [0, 1], CLIENT);
}

/// Packet `step` of pod 1 to its own Service as it sends it, and as it gets it back.
fn to_itself(family: usize, step: usize, payload: &[u8]) -> [Spec; 2] {
    let (own, service) = (pod_address(1)[family], virtual_address()[family]);
    let [sent, seen] =
        if step == 1 { [[TARGET, CLIENT], [SERVICE, CLIENT]] } else { [[CLIENT, SERVICE], [CLIENT, TARGET]] };
    [(own, service, sent), (service, own, seen)].map(|(src, dst, ports)| Spec {
        payload: payload.to_vec(),
        ..packet(src, dst, Transport::Udp { ports })
    })
}

#[test]
fn a_pod_gets_fragments_of_its_own_datagrams_back() {
    let payload: Vec<u8> = (0..200).collect();
    for family in [0, 1] {
        for workers in [1, 2] {
            let mut rig = Rig::new(workers, &with_backends(&Setting::open(), &[1]));
            for step in [0, 1, 2] {
                let [sent, seen] = to_itself(family, step, &payload);
                let out = send(&mut rig, B, &cut(&addressed(B, &sent).bytes(), family, 64));
                let expected = cut(&forwarded(B, &seen), family, 64).map(|fragment| (B, fragment));
                assert_eq!(out, expected, "step {step}");
            }
            rig.check();
        }
    }
}

#[test]
fn errors_of_a_pod_about_its_own_packets_quote_what_it_has_sent() {
    for family in [0, 1] {
        for bytes in [[28, 48][family], usize::MAX] {
            let mut rig = Rig::new(1, &with_backends(&Setting::open(), &[1]));
            let [exchanges @ .., _] = [0, 1, 2].map(|step| to_itself(family, step, b"some data"));
            for [sent, seen] in &exchanges {
                becomes(&mut rig, B, sent, B, seen);
            }
            let (own, service) = (pod_address(1)[family], virtual_address()[family]);
            for [sent, seen] in &exchanges {
                // Each end reports about the packet that it has got, to the Service; the other end gets the report from there.
                becomes(&mut rig, B, &error(own, seen, bytes), B, &error(service, sent, bytes));
            }
            // A pod reports nothing in the name of another one, and about no packet that was not sent.
            let [_, seen] = to_itself(family, 0, b"some data");
            is_dropped(
                &mut rig,
                A,
                &error(pod_address(0)[family], &seen, bytes),
                DropReason::ServiceNoBackend,
            );
            let other = packet(service, own, Transport::Udp { ports: [CLIENT + 1, TARGET] });
            is_dropped(&mut rig, B, &error(own, &other, bytes), DropReason::ServiceNoBackend);
        }
    }
}

/// State of a setting whose rules are those of policies of the cluster.
fn of_cluster(setting: &Setting) -> DesiredState {
    let mut desired = setting.desired();
    let mut tables = RuleTables::clone(desired.tables.as_ref().unwrap());
    for (id, origin) in &desired.tables.as_ref().unwrap().rules {
        let mut origin = origin.clone();
        if let RuleOrigin::Rule { policy, .. } = &mut origin {
            *policy = PolicyRef {
                kind: PolicyKind::ClusterNetworkPolicy,
                namespace: String::new(),
                name: policy.name.clone(),
            };
        }
        tables.rules.insert(*id, origin);
    }
    desired.tables = Some(Arc::new(tables));
    desired
}

#[test]
fn policies_of_the_cluster_apply_to_a_pod_that_reaches_itself() {
    let deny = Rule { verdict: Verdict::Deny, ..Rule::port(Protocol::UDP, TARGET) };
    let denied = Some(vec![deny, Rule::ALL]);
    let open = with_backends(&Setting::open(), &[1]);
    let with = |rules: PodRules| with_backends(&Setting::open().with(1, rules), &[1]);
    let [ingress, egress] = [
        with(PodRules { ingress: denied.clone(), egress: None }),
        with(PodRules { ingress: None, egress: denied }),
    ];
    let isolated = with(PodRules { ingress: Some(Vec::new()), egress: Some(Vec::new()) });
    for family in [0, 1] {
        let [request, reply] = [0, 1].map(|step| to_itself(family, step, b"some data"));
        // A policy of the namespace keeps no pod from itself.
        for setting in [&ingress, &egress, &isolated] {
            let mut rig = Rig::new(1, setting);
            becomes(&mut rig, B, &request[0], B, &request[1]);
            becomes(&mut rig, B, &reply[0], B, &reply[1]);
        }
        let mut rig = Rig::new(1, &open);
        becomes(&mut rig, B, &request[0], B, &request[1]);
        for (setting, reason) in [(&ingress, DropReason::PolicyIngress), (&egress, DropReason::PolicyEgress)]
        {
            let before = decisions(&rig, Verdict::Deny).values().sum::<u64>();
            rig.sim.publish(of_cluster(setting));
            // The exchange that has begun ends too.
            is_dropped(&mut rig, B, &request[0], reason);
            is_dropped(&mut rig, B, &reply[0], reason);
            let path = explained(&rig, family);
            assert_eq!(path.dropped, Some(reason));
            let side = if reason == DropReason::PolicyEgress { path.egress } else { path.ingress };
            assert!(side.is_some_and(|side| side.verdict == Verdict::Deny), "the policy is named");
            let path = explained(&rig, family);
            assert_eq!(path.dropped, Some(reason));
            let side = if reason == DropReason::PolicyEgress { path.egress } else { path.ingress };
            assert!(side.is_some_and(|side| side.verdict == Verdict::Deny), "the policy is named");
            assert_eq!(decisions(&rig, Verdict::Deny).values().sum::<u64>(), before + 2);
        }
        rig.sim.publish(of_cluster(&with(PodRules { ingress: Some(vec![Rule::ALL]), egress: None })));
        becomes(&mut rig, B, &reply[0], B, &reply[1]);
        becomes(&mut rig, B, &request[0], B, &request[1]);
        assert_eq!(explained(&rig, family).dropped, None);
    }
}

/// Explanation of a datagram of the second pod to its own Service.
fn explained(rig: &Rig, family: usize) -> FlowPath {
    let [src, dst] = [pod_address(1)[family], virtual_address()[family]];
    let flow = FlowKey { src, dst, protocol: Protocol::UDP, src_port: CLIENT, dst_port: SERVICE };
    let own = SocketAddr::new(src, TARGET);
    let path = rig.sim.path_by(&flow, Some(own));
    assert_eq!(path.backend, Some(own));
    path
}
