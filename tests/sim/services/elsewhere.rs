//! Backends elsewhere, for clients outside: they see the node's address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{DropReason, Masquerade, Settings};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::tables::ServicePort;

use super::errors::error;
use super::fixture::{
    PROTOCOLS, SERVICE, TARGET, becomes, external_address, packet, port, services_at, transport,
};
use crate::frames::{Spec, Transport};
use crate::masquerade::{self, FIRST, PORTS, open};
use crate::rig::assertions::{A, B, CLIENT, flows, is_dropped, mute};
use crate::rig::{Rig, Setting, UPLINK, addressed, forwarded, node_address, outside_address, pod_address};

const NODE_PORT: u16 = 30_080;
/// The host outside that is a backend.
const BACKEND: usize = 7;

fn datagram(src: IpAddr, dst: IpAddr, ports: [u16; 2]) -> Spec {
    packet(src, dst, Transport::Udp { ports })
}

/// Port of a Service with these pods and a host outside as backends.
fn shared(pods: &[usize]) -> ServicePort {
    let mut shared = ServicePort { node_port: Some(NODE_PORT), ..port(pods) };
    for address in outside_address(BACKEND) {
        shared.internal_backends.push(SocketAddr::new(address, TARGET));
        shared.external_backends.push(SocketAddr::new(address, TARGET));
    }
    shared
}

fn with(port: &ServicePort) -> Setting {
    let masquerade = masquerade::setting().masquerade.map(|set| Masquerade {
        // Backends get the node's address though pods keep theirs to them.
        except: outside_address(BACKEND).map(ipnet::IpNet::from).into(),
        serves_outside: true,
        waits: true,
        ..Masquerade::clone(&set)
    });
    Setting {
        services: Some(services_at(port, &node_address())),
        masquerade: masquerade.map(Arc::new),
        ..Setting::open()
    }
}

fn rig(settings: &Settings, pods: &[usize]) -> Rig {
    Rig::with_settings(settings, &with(&shared(pods)))
}

/// Destinations of clients outside.
fn destinations(family: usize) -> [SocketAddr; 2] {
    [(node_address(), NODE_PORT), (external_address(), SERVICE)]
        .map(|(address, port)| SocketAddr::new(address[family], port))
}

#[test]
fn clients_outside_reach_backends_elsewhere_with_the_nodes_address() {
    for (workers, family) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        let mut rig = rig(&masquerade::settings(workers), &[]);
        let [client, node, backend] =
            [outside_address(5)[family], node_address()[family], outside_address(BACKEND)[family]];
        for (n, to) in destinations(family).into_iter().enumerate() {
            let from = CLIENT + n as u16;
            for protocol in PROTOCOLS {
                let first = packet(client, to.ip(), transport(protocol, 0, [from, to.port()]));
                let external = open(&mut rig, UPLINK, &first);
                assert!((FIRST..FIRST + PORTS).contains(&external), "{external}");
                for (n, step) in [1, 2, 2, 1, 2].into_iter().enumerate() {
                    if n == 3 {
                        // Flows are evaluated again.
                        rig.publish(&with(&shared(&[])).with(0, mute()));
                        rig.publish(&with(&shared(&[])));
                    }
                    let at_client = transport(protocol, step, [from, to.port()]);
                    let at_backend = transport(protocol, step, [external, TARGET]);
                    if step == 1 {
                        let sent = packet(backend, node, at_backend);
                        becomes(&mut rig, UPLINK, &sent, UPLINK, &packet(to.ip(), client, at_client));
                    } else {
                        let sent = packet(client, to.ip(), at_client);
                        becomes(&mut rig, UPLINK, &sent, UPLINK, &packet(node, backend, at_backend));
                    }
                }
            }
        }
        let all = flows(&rig);
        assert!(all.iter().all(|flow| flow.masquerade.is_some_and(|end| end.ip() == node)), "{all:?}");
        assert_eq!(all.len(), 6);
    }
}

#[test]
fn explain_names_the_address_that_a_flow_leaves_with() {
    let (on, off) = (with(&shared(&[])), Setting { masquerade: None, ..with(&shared(&[])) });
    for family in [0, 1] {
        let [client, pod, node, backend, server] = [
            outside_address(5)[family],
            pod_address(0)[family],
            node_address()[family],
            outside_address(BACKEND)[family],
            outside_address(6)[family],
        ];
        let mut rig = Rig::with_settings(&masquerade::settings(1), &on);
        let to = destinations(family)[0];
        let path = |rig: &Rig, src, dst, dst_port| {
            let path =
                rig.sim.path(&FlowKey { protocol: Protocol::UDP, src, dst, src_port: CLIENT, dst_port });
            (path.masquerade, path.dropped)
        };
        assert_eq!(path(&rig, client, to.ip(), to.port()), (Some(node), None));
        assert_eq!(path(&rig, client, backend, TARGET), (None, Some(DropReason::NoRoute)));
        assert_eq!(path(&rig, client, backend, TARGET + 1), (None, Some(DropReason::NoRoute)));
        assert_eq!(path(&rig, pod, backend, TARGET), (None, None));
        assert_eq!(path(&rig, pod, server, 53), (Some(node), Some(DropReason::Masquerade)));
        rig.publish(&off);
        assert_eq!(path(&rig, client, to.ip(), to.port()), (None, Some(DropReason::ServiceRemote)));
        assert_eq!(path(&rig, pod, server, 53), (None, None));
    }
}

#[test]
fn errors_about_a_flow_to_a_backend_elsewhere_reach_both_ends() {
    for family in [0, 1] {
        let mut rig = rig(&masquerade::settings(1), &[]);
        let [client, node, backend, router] = [
            outside_address(5)[family],
            node_address()[family],
            outside_address(BACKEND)[family],
            outside_address(6)[family],
        ];
        for to in destinations(family) {
            let sent = datagram(client, to.ip(), [CLIENT, to.port()]);
            let external = open(&mut rig, UPLINK, &sent);
            let seen = datagram(node, backend, [external, TARGET]);
            let whole = usize::MAX;
            becomes(&mut rig, UPLINK, &error(backend, &seen, whole), UPLINK, &error(to.ip(), &sent, whole));
            becomes(&mut rig, UPLINK, &error(router, &seen, whole), UPLINK, &error(router, &sent, whole));
            let reply = datagram(backend, node, [TARGET, external]);
            let at_client = datagram(to.ip(), client, [to.port(), CLIENT]);
            becomes(&mut rig, UPLINK, &reply, UPLINK, &at_client);
            let about_reply = error(client, &at_client, whole);
            becomes(&mut rig, UPLINK, &about_reply, UPLINK, &error(node, &reply, whole));
        }
    }
}

#[test]
fn fragments_of_clients_outside_reach_backends_elsewhere() {
    for family in [0, 1] {
        let mut rig = rig(&masquerade::settings(1), &[]);
        let [client, node, backend] =
            [outside_address(5)[family], node_address()[family], outside_address(BACKEND)[family]];
        let to = destinations(family)[0];
        let external = open(&mut rig, UPLINK, &datagram(client, to.ip(), [CLIENT, to.port()]));
        let ways = [
            ((client, to.ip(), [CLIENT, to.port()]), (node, backend, [external, TARGET])),
            ((backend, node, [TARGET, external]), (to.ip(), client, [to.port(), CLIENT])),
        ];
        for (sent, seen) in ways {
            let [first, later] = masquerade::fragments(UPLINK, sent.0, sent.1, sent.2);
            let out = rig.send_on(0, UPLINK, &[first, later]);
            let expected = forwarded(UPLINK, &datagram(seen.0, seen.1, seen.2));
            let ends: Vec<_> =
                out.iter().map(|(port, frame)| masquerade::addresses(*port, frame, family)).collect();
            assert_eq!(ends, [masquerade::addresses(UPLINK, &expected, family); 2]);
        }
    }
}

#[test]
fn pods_of_this_node_see_the_client_and_share_the_flows_with_backends_elsewhere() {
    for family in [0, 1] {
        let mut rig = rig(&masquerade::settings(1), &[1]);
        let client = outside_address(5)[family];
        let mut seen = [0, 0];
        for n in 0..64 {
            let to = destinations(family)[usize::from(n) % 2];
            let sent = datagram(client, to.ip(), [CLIENT + n, to.port()]);
            let out = rig.send(UPLINK, &sent);
            match out.as_slice() {
                [(B, frame)] => {
                    let at_pod = datagram(client, pod_address(1)[family], [CLIENT + n, TARGET]);
                    assert_eq!(*frame, forwarded(B, &at_pod));
                    seen[0] += 1;
                }
                [(UPLINK, _)] => seen[1] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
    }
}

#[test]
fn clients_keep_their_addresses_with_the_traffic_policy_local() {
    let local = ServicePort { short_circuit_backends: Some(vec![]), ..shared(&[]) };
    let unset =
        Masquerade { serves_outside: false, ..Masquerade::clone(with(&local).masquerade.as_ref().unwrap()) };
    let beside = Setting { masquerade: Some(Arc::new(unset)), ..with(&shared(&[])) };
    for setting in [with(&local), beside] {
        let mut rig = Rig::with_settings(&masquerade::settings(1), &setting);
        for (family, client) in outside_address(5).into_iter().enumerate() {
            for to in destinations(family) {
                let sent = datagram(client, to.ip(), [CLIENT, to.port()]);
                is_dropped(&mut rig, UPLINK, &sent, DropReason::ServiceRemote);
            }
        }
    }
}

#[test]
fn a_backend_does_not_reach_itself_by_another_node() {
    for family in [0, 1] {
        let mut rig = rig(&masquerade::settings(1), &[1]);
        let backend = outside_address(BACKEND)[family];
        for n in 0..16 {
            let sent = datagram(backend, node_address()[family], [CLIENT + n, NODE_PORT]);
            let at_pod = datagram(backend, pod_address(1)[family], [CLIENT + n, TARGET]);
            becomes(&mut rig, UPLINK, &sent, B, &at_pod);
        }
    }
}

#[test]
fn nothing_of_a_client_passes_to_a_backend_that_has_left_the_node() {
    for family in [0, 1] {
        let settings = masquerade::settings(1);
        // The pod's address is elsewhere once the pod is gone.
        let moved = pod_address(1)[family];
        let mut rig = rig(&settings, &[1]);
        let to = destinations(family)[0];
        let client = outside_address(5)[family];
        // A connection to the pod of this node.
        let segment = |step, port| packet(client, to.ip(), transport(Protocol::TCP, step, [port, to.port()]));
        let mut ports = CLIENT..;
        let port = ports
            .find(|port| {
                let out = rig.send(UPLINK, &segment(0, *port));
                out.first().is_some_and(|(out, _)| *out == B)
            })
            .unwrap();
        let mut setting = with(&shared(&[1]));
        setting.attachments[1] = None;
        let mut desired = setting.desired();
        desired.pod_prefixes.clear();
        desired.routes.push(palisade::dataplane::Route {
            node: false,
            prefix: ipnet::IpNet::from(moved),
            port: UPLINK,
            next_hop: None,
        });
        rig.sim.publish(desired);
        rig.sim.step();
        for step in [2, 0, 2] {
            for (out, frame) in rig.send(UPLINK, &segment(step, port)) {
                let with_client = [&segment(step, port)].map(|spec| forwarded(out, spec));
                let source = |frame: &[u8]| match family {
                    0 => frame[18 + 12..18 + 16].to_vec(),
                    _ => frame[18 + 8..18 + 24].to_vec(),
                };
                assert!(out != UPLINK || source(&frame) != source(&with_client[0]), "step {step}");
            }
        }
    }
}

#[test]
fn no_flow_begins_with_the_clients_address_when_clients_get_the_nodes_no_more() {
    for family in [0, 1] {
        let mut rig = rig(&masquerade::settings(1), &[]);
        let setting = with(&shared(&[]));
        let set = Masquerade::clone(setting.masquerade.as_ref().unwrap());
        let to = destinations(family)[0];
        let sent = datagram(outside_address(5)[family], to.ip(), [CLIENT, to.port()]);
        open(&mut rig, UPLINK, &sent);
        rig.publish(&Setting {
            masquerade: Some(Arc::new(Masquerade { serves_outside: false, ..set })),
            ..setting
        });
        open(&mut rig, UPLINK, &sent);
        // The flow ends, at one of the next sweeps, and its binding does not.
        let ended = (0..10).any(|_| {
            rig.wait(Duration::from_secs(40));
            flows(&rig).is_empty()
        });
        assert!(ended, "{:?}", flows(&rig));
        is_dropped(&mut rig, UPLINK, &sent, DropReason::NoRoute);
    }
}

#[test]
fn a_client_outside_that_takes_all_ports_leaves_pods_theirs() {
    let mut rig = rig(&masquerade::settings(1), &[]);
    let server = outside_address(BACKEND)[0];
    let mut setting = with(&shared(&[]));
    let open_to_all = Masquerade {
        except: [].into(),
        waits: false,
        ..Masquerade::clone(setting.masquerade.as_ref().unwrap())
    };
    setting.masquerade = Some(Arc::new(open_to_all));
    rig.publish(&setting);
    for client in 1024..1024 + 2 * PORTS {
        let sent = datagram(outside_address(5)[0], node_address()[0], [client, NODE_PORT]);
        rig.send_on(0, UPLINK, &[addressed(UPLINK, &sent).bytes()]);
    }
    assert!(rig.counters(UPLINK).drops["masquerade"] > u64::from(PORTS));
    open(&mut rig, A, &datagram(pod_address(0)[0], server, [CLIENT, TARGET]));
}
