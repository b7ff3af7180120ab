//! XDP program of an uplink, run by the kernel on frames made for it, and attached to an interface.

use std::collections::BTreeSet;
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, Xdp, XdpFlags};
use palisade::net::flow::Protocol;
use palisade::netlink::Interface;
use palisade::xdp::{Program, ServiceDestinations, UplinkConstants};

use super::namespace::Pod;
use crate::support::namespace::in_namespace;

/// Verdicts of `linux/bpf.h`. No socket is registered, so the program drops packets for pods.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));

fn octets(address: &str) -> [u8; 16] {
    address.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

/// Constants of a port with this tag, whose masqueraded flows have the node's addresses 192.0.2.5 and `fd00:2::5`.
fn constants(vlan: u16) -> UplinkConstants {
    UplinkConstants {
        external: ["192.0.2.5", "fd00:2::5"].map(|text| text.parse().unwrap()).to_vec(),
        ports: 61_000..=61_999,
        identifiers: 65_000..=65_535,
        ..UplinkConstants::of_tag(vlan)
    }
}

/// Loads the program with prefixes 10.1.0.0/16 and `fd00:1::/64`, exceptions 10.2.0.0/16 and `fd02::/16`, a Service at TCP port 80 of 203.0.113.9 and `fd00:9::9`,
/// and one at UDP node port 30080 of 192.0.2.5 and `fd00:2::5`.
fn loaded(vlan: u16) -> Object {
    let mut open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
    for mut map in open.maps_mut() {
        match map.name().to_str().unwrap() {
            "prefixes_v4" | "prefixes_v6" | "exceptions_v4" | "exceptions_v6" | "addresses"
            | "service_ports" => {
                map.set_max_entries(8).unwrap();
            }
            name if name.ends_with(".rodata.port") => {
                map.set_initial_value(&constants(vlan).bytes()).unwrap();
            }
            _ => {}
        }
    }
    let object = open.load().unwrap();
    let put = |name: &str, bits: u32, address: &[u8]| {
        let map = object.maps().find(|map| map.name() == name).unwrap();
        let key = [&bits.to_ne_bytes()[..], address].concat();
        map.update(&key, &[1, 0, 0, 0], MapFlags::ANY).unwrap();
    };
    let serve = |map: &str, key: &[u8], value: u32| {
        let map = object.maps().find(|found| found.name() == map).unwrap();
        map.update(key, &value.to_ne_bytes(), MapFlags::ANY).unwrap();
    };
    let port = |address: &str, port: u16, protocol: u8| {
        [&octets(address)[..], &port.to_be_bytes(), &[protocol, 0]].concat()
    };
    for (external, node, any) in
        [("::ffff:203.0.113.9", "::ffff:192.0.2.5", "::ffff:0.0.0.0"), ("fd00:9::9", "fd00:2::5", "::")]
    {
        serve("addresses", &octets(external), 1);
        serve("addresses", &octets(node), 2);
        serve("service_ports", &port(external, 80, 6), 1);
        serve("service_ports", &port(any, 30080, 17), 1);
    }
    put("exceptions_v4", 16, &[10, 2, 0, 0]);
    put("exceptions_v6", 16, &[&[0xfd, 2][..], &[0; 14]].concat());
    put("prefixes_v4", 16, &[10, 1, 0, 0]);
    put("prefixes_v6", 64, &[0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    object
}

fn verdict(object: &mut Object, frame: &[u8]) -> u32 {
    let program = object.progs_mut().next().unwrap();
    program.test_run(ProgramInput { data_in: Some(frame), ..ProgramInput::default() }).unwrap().return_value
}

fn ethernet(tags: &[u16], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for tag in tags {
        frame.extend([&0x8100u16.to_be_bytes()[..], &tag.to_be_bytes()].concat());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

fn v4(dst: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x45;
    packet[16..20].copy_from_slice(&dst);
    packet
}

fn v6(dst: &str) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[0] = 0x60;
    packet[24..40].copy_from_slice(&dst.parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet
}

#[test]
fn an_uplink_takes_what_is_for_pods_and_passes_everything_else() {
    in_namespace(|| {
        let mut object = loaded(0);
        let (ours, theirs) = (v4([10, 1, 2, 3]), v4([10, 2, 2, 3]));
        // Later fragments and packets with extension headers have the destination at the same offset.
        let fragment = {
            let mut packet = ours.clone();
            packet[6..8].copy_from_slice(&[0, 99]);
            packet
        };
        let extended = {
            let mut packet = v6("fd00:1::7");
            packet[6] = 44;
            packet
        };
        for (what, frame, expected) in [
            ("IPv4 for a pod", ethernet(&[], 0x0800, &ours), XDP_DROP),
            ("its later fragment", ethernet(&[], 0x0800, &fragment), XDP_DROP),
            ("IPv4 for the node", ethernet(&[], 0x0800, &theirs), XDP_PASS),
            ("IPv6 for a pod", ethernet(&[], 0x86dd, &extended), XDP_DROP),
            ("IPv6 for the node", ethernet(&[], 0x86dd, &v6("fd00:2::7")), XDP_PASS),
            ("neighbour discovery", ethernet(&[], 0x86dd, &v6("ff02::1:ff00:7")), XDP_PASS),
            ("ARP that speaks of a pod", ethernet(&[], 0x0806, &ours), XDP_PASS),
            ("something else", ethernet(&[], 0x88b5, &ours), XDP_PASS),
            ("a priority and no tag", ethernet(&[0xe000], 0x0800, &ours), XDP_DROP),
            ("another network", ethernet(&[7], 0x0800, &ours), XDP_PASS),
            ("a network in a network", ethernet(&[0, 7], 0x0800, &ours), XDP_PASS),
            ("cut before its destination", ethernet(&[], 0x86dd, &v6("fd00:1::7")[..39]), XDP_PASS),
            ("cut within its type", ethernet(&[7], 0x0800, &[])[..17].to_vec(), XDP_PASS),
        ] {
            assert_eq!(verdict(&mut object, &frame), expected, "{what}");
        }
    });
}

/// Packet of a peer outside to an address of the node, IPv4 or IPv6, with the bytes behind its IP header. `fragment` is the
/// word of offset and flags of IPv4.
fn to_node(is_v4: bool, protocol: u8, fragment: u16, upper: &[u8]) -> Vec<u8> {
    let mut packet = if is_v4 { v4([192, 0, 2, 5])[..20].to_vec() } else { v6("fd00:2::5")[..40].to_vec() };
    if is_v4 {
        packet[9] = protocol;
        packet[4..6].copy_from_slice(&[7, 7]);
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[12..16].copy_from_slice(&[198, 51, 100, 1]);
    } else {
        packet[6] = protocol;
        packet[8..24].copy_from_slice(&octets("2001:db8::1"));
    }
    packet.extend(upper);
    ethernet(&[], if is_v4 { 0x0800 } else { 0x86dd }, &packet)
}

#[test]
fn an_uplink_takes_external_ports_errors_about_them_and_fragments_behind_their_first_ones() {
    in_namespace(|| {
        let mut object = loaded(0);
        let ports = |src: u16, dst: u16| [src.to_be_bytes(), dst.to_be_bytes(), [0; 2], [0; 2]].concat();
        let echo =
            |kind: u8, identifier: u16| [&[kind, 0, 0, 0][..], &identifier.to_be_bytes(), &[0; 2]].concat();
        for is_v4 in [true, false] {
            let (icmp, request, reply) = if is_v4 { (1, 8, 0) } else { (58, 128, 129) };
            let unreachable = if is_v4 { 3 } else { 1 };
            // The same from a pod of another node, to which the node's kernel may masquerade.
            let from_pod = |mut frame: Vec<u8>| {
                let source = if is_v4 { 26..30 } else { 22..38 };
                let pod = if is_v4 { vec![10, 2, 0, 9] } else { octets("fd02::9").to_vec() };
                frame[source].copy_from_slice(&pod);
                frame
            };
            // An error quotes a packet from the node.
            let error = |protocol: u8, upper: &[u8]| {
                let mut quoted = to_node(is_v4, protocol, 0, upper).split_off(14);
                let ends = if is_v4 { &mut quoted[12..20] } else { &mut quoted[8..40] };
                let (source, destination) = ends.split_at_mut(ends.len() / 2);
                source.swap_with_slice(destination);
                to_node(is_v4, icmp, 0, &[vec![unreachable, 0, 0, 0, 0, 0, 0, 0], quoted].concat())
            };
            for (what, frame, expected) in [
                ("TCP to an external port", to_node(is_v4, 6, 0, &ports(443, 61_000)), XDP_DROP),
                ("UDP to the last one", to_node(is_v4, 17, 0, &ports(53, 61_999)), XDP_DROP),
                ("SCTP", to_node(is_v4, 132, 0, &ports(53, 61_500)), XDP_DROP),
                ("the port before", to_node(is_v4, 6, 0, &ports(61_500, 60_999)), XDP_PASS),
                ("the port behind", to_node(is_v4, 6, 0, &ports(61_500, 62_000)), XDP_PASS),
                ("another protocol", to_node(is_v4, 47, 0, &ports(443, 61_000)), XDP_PASS),
                ("a reply", to_node(is_v4, icmp, 0, &echo(reply, 65_000)), XDP_DROP),
                ("a reply to the node", to_node(is_v4, icmp, 0, &echo(reply, 64_999)), XDP_PASS),
                ("a request", to_node(is_v4, icmp, 0, &echo(request, 65_000)), XDP_PASS),
                ("TCP of an exception", from_pod(to_node(is_v4, 6, 0, &ports(80, 61_000))), XDP_PASS),
                ("its reply", from_pod(to_node(is_v4, icmp, 0, &echo(reply, 65_000))), XDP_PASS),
                ("an error of one", from_pod(error(17, &ports(61_000, 53))), XDP_DROP),
                ("an error about one", error(17, &ports(61_000, 53)), XDP_DROP),
                ("an error about a query", error(icmp, &echo(request, 65_535)), XDP_DROP),
                ("an error about the node's", error(17, &ports(60_999, 61_000)), XDP_PASS),
                ("an error about its query", error(icmp, &echo(request, 4)), XDP_PASS),
            ] {
                assert_eq!(verdict(&mut object, &frame), expected, "{what}, IPv4: {is_v4}");
            }
        }
        // Fragments: word of the offset, or extension header.
        let first_v4 = to_node(true, 17, 0x2000, &ports(53, 61_000));
        let later_v4 = to_node(true, 17, 0x2004, &ports(1, 2));
        let extension = |word: u16| [&[17, 0][..], &word.to_be_bytes(), &[0, 0, 0, 9]].concat();
        let first_v6 = to_node(false, 44, 0, &[extension(1), ports(53, 61_000)].concat());
        let later_v6 = to_node(false, 44, 0, &[extension(0x21), ports(1, 2)].concat());
        for (first, later) in [(first_v4, later_v4), (first_v6, later_v6)] {
            assert_eq!(verdict(&mut object, &later), XDP_PASS, "the node's own");
            assert_eq!(verdict(&mut object, &first), XDP_DROP);
            assert_eq!(verdict(&mut object, &later), XDP_DROP);
        }
    });
}

#[test]
fn an_uplink_with_a_tag_takes_what_carries_it_too() {
    in_namespace(|| {
        let mut object = loaded(7);
        for (tags, expected) in [
            (&[7][..], XDP_DROP),
            (&[0x6007], XDP_DROP),
            (&[], XDP_DROP),
            (&[8], XDP_PASS),
            (&[0x1007], XDP_DROP),
        ] {
            assert_eq!(
                verdict(&mut object, &ethernet(tags, 0x0800, &v4([10, 1, 2, 3]))),
                expected,
                "{tags:x?}"
            );
            assert_eq!(
                verdict(&mut object, &ethernet(tags, 0x86dd, &v6("fd00:1::7"))),
                expected,
                "{tags:x?}"
            );
            assert_eq!(
                verdict(&mut object, &ethernet(tags, 0x0800, &v4([10, 2, 2, 3]))),
                XDP_PASS,
                "{tags:x?}"
            );
        }
    });
}

/// Packet of IPv4 or IPv6 with this upper-layer protocol and content.
fn packet(src: &str, dst: &str, protocol: u8, content: &[u8]) -> Vec<u8> {
    if let Ok(dst) = dst.parse::<std::net::Ipv4Addr>() {
        let mut packet = v4(dst.octets())[..20].to_vec();
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&src.parse::<std::net::Ipv4Addr>().unwrap().octets());
        packet.extend(content);
        return packet;
    }
    let mut packet = v6(dst)[..40].to_vec();
    packet[6] = protocol;
    packet[8..24].copy_from_slice(&octets(src));
    packet.extend(content);
    packet
}

fn ports(src: u16, dst: u16) -> Vec<u8> {
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &[0; 16]].concat()
}

#[test]
fn an_uplink_takes_the_ports_of_services_and_errors_about_their_replies() {
    in_namespace(|| {
        let [tcp, udp, icmp_v4, icmp_v6] = [6, 17, 1, 58];
        let mut object = loaded(0);
        let cases = [
            (0x0800, "198.51.100.7", "203.0.113.9", "192.0.2.5", "192.0.2.6", icmp_v4, [3, 8]),
            (0x86dd, "fd00:7::7", "fd00:9::9", "fd00:2::5", "fd00:2::6", icmp_v6, [2, 128]),
        ];
        for (ethertype, client, external, node, other, icmp, [unreachable, echo]) in cases {
            let error = |kind: u8, quoted: Vec<u8>| [&[kind, 4, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
            let reply = |from: &str, port| packet(from, client, tcp, &ports(port, 999));
            for (what, packet, expected) in [
                ("the port of a Service", packet(client, external, tcp, &ports(999, 80)), XDP_DROP),
                ("another port", packet(client, external, tcp, &ports(999, 22)), XDP_PASS),
                ("another protocol", packet(client, external, udp, &ports(999, 80)), XDP_PASS),
                ("a node port", packet(client, node, udp, &ports(999, 30080)), XDP_DROP),
                (
                    "its number at an external address",
                    packet(client, external, udp, &ports(999, 30080)),
                    XDP_PASS,
                ),
                ("its number elsewhere", packet(client, other, udp, &ports(999, 30080)), XDP_PASS),
                ("ssh", packet(client, node, tcp, &ports(999, 22)), XDP_PASS),
                ("a Service's port at the node", packet(client, node, tcp, &ports(999, 80)), XDP_PASS),
                ("a source port", packet(client, node, udp, &ports(30080, 999)), XDP_PASS),
                ("echo", packet(client, external, icmp, &error(echo, Vec::new())), XDP_PASS),
                (
                    "an error about a reply",
                    packet(other, external, icmp, &error(unreachable, reply(external, 80))),
                    XDP_DROP,
                ),
                (
                    "one about another port",
                    packet(other, external, icmp, &error(unreachable, reply(external, 22))),
                    XDP_PASS,
                ),
                (
                    "one about another sender",
                    packet(other, external, icmp, &error(unreachable, reply(node, 80))),
                    XDP_PASS,
                ),
                (
                    "an echo that quotes",
                    packet(other, external, icmp, &error(echo, reply(external, 80))),
                    XDP_PASS,
                ),
                ("cut before the port", packet(client, external, tcp, &[0, 9, 0]), XDP_DROP),
            ] {
                assert_eq!(
                    verdict(&mut object, &ethernet(&[], ethertype, &packet)),
                    expected,
                    "{what}: {external}"
                );
            }
        }
    });
}

#[test]
fn options_extension_headers_and_fragments_hide_no_port_of_a_service_from_an_uplink() {
    in_namespace(|| {
        let tcp = 6;
        let mut object = loaded(0);
        let mut options = packet("198.51.100.7", "203.0.113.9", tcp, &[]);
        options[0] = 0x47;
        options.extend([&[1; 8][..], &ports(999, 80)].concat());
        let extended = |count: usize, kind: u8, end: &[u8]| {
            let mut packet = packet("fd00:7::7", "fd00:9::9", if count > 0 { kind } else { tcp }, &[]);
            for n in 0..count {
                packet.extend([if n + 1 < count { kind } else { tcp }, 0, 1, 4, 0, 0, 0, 0]);
            }
            packet.extend(end);
            packet
        };
        let (service, ssh) = (ports(999, 80), ports(999, 22));
        let fragment = |offset: u8, end: &[u8]| {
            let mut packet = packet("fd00:7::7", "fd00:9::9", 44, &[tcp, 0, 0, offset | 1, 0, 0, 0, 7]);
            packet.extend(end);
            packet
        };
        let v4_fragment = |flags: [u8; 2]| {
            let mut packet = packet("198.51.100.7", "203.0.113.9", tcp, &service);
            packet[6..8].copy_from_slice(&flags);
            packet
        };
        for (what, ethertype, packet, expected) in [
            ("IPv4 options", 0x0800, options, XDP_DROP),
            ("destination options", 0x86dd, extended(8, 60, &service), XDP_DROP),
            ("and another port behind them", 0x86dd, extended(8, 60, &ssh), XDP_PASS),
            ("more than the switch reads", 0x86dd, extended(9, 60, &ssh), XDP_DROP),
            (
                "an authentication header",
                0x86dd,
                extended(1, 51, &[&[0; 4][..], &service].concat()),
                XDP_PASS,
            ),
            ("a first fragment", 0x86dd, fragment(0, &service), XDP_DROP),
            (
                "a first fragment with half of the headers",
                0x86dd,
                extended(3, 60, &[])[..60].to_vec(),
                XDP_DROP,
            ),
            ("a later fragment behind it", 0x86dd, fragment(8, &service), XDP_DROP),
            ("a first IPv4 fragment", 0x0800, v4_fragment([0x20, 0]), XDP_DROP),
            ("a later IPv4 fragment behind it", 0x0800, v4_fragment([0x20, 1]), XDP_DROP),
            ("the last IPv4 fragment", 0x0800, v4_fragment([0x1f, 0]), XDP_DROP),
        ] {
            assert_eq!(verdict(&mut object, &ethernet(&[], ethertype, &packet)), expected, "{what}");
        }
    });
}

#[test]
fn ports_of_services_of_the_last_run_stay_until_those_of_this_run_are_set() {
    in_namespace(|| {
        let node = Pod::new("up0", 1, 1);
        let interface = Interface::find(node.host).unwrap();
        let services = |ports: &[&str]| {
            let ports = ports.iter().map(|at| (Protocol::TCP, at.parse().unwrap())).collect();
            let node_addresses = ["192.0.2.5", "fd00:2::5"].map(|text| text.parse().unwrap()).into();
            Arc::new(ServiceDestinations { ports, node_addresses })
        };
        let counts = || ["addresses", "service_ports"].map(|map| attached_entries("up0", map).len());
        let (mut program, _) =
            Program::attach_uplink(&interface, 1, &UplinkConstants::default(), &BTreeSet::new()).unwrap();
        program.set_services(&services(&["203.0.113.9:80", "0.0.0.0:30080", "[::]:30080"]), false).unwrap();
        assert_eq!(counts(), [3, 3]);
        program.set_services(&services(&["203.0.113.9:80", "0.0.0.0:30080"]), false).unwrap();
        assert_eq!(counts(), [2, 2]);
        drop(program);

        let (mut program, _) =
            Program::attach_uplink(&interface, 1, &UplinkConstants::default(), &BTreeSet::new()).unwrap();
        assert_eq!(counts(), [2, 2]);
        // Ports of this run beside them.
        program.set_services(&services(&["192.0.2.5:8080"]), true).unwrap();
        assert_eq!(counts(), [2, 3]);
        program.set_services(&services(&["203.0.113.9:80"]), false).unwrap();
        assert_eq!(counts(), [1, 1]);
        program.set_services(&Arc::default(), false).unwrap();
        assert_eq!(counts(), [0, 0]);
        program.detach().unwrap();
    });
}

/// Keys of a map of the attached program, as bpftool shows them.
fn attached_entries(interface: &str, map: &str) -> BTreeSet<Vec<u8>> {
    use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
    let index = Interface::find(interface).unwrap().index.cast_signed();
    // The kernel answers for the interface; the descriptor does not matter.
    let anything = std::fs::File::open("/dev/null").unwrap();
    let id = Xdp::new(std::os::fd::AsFd::as_fd(&anything)).query_id(index, XdpFlags::NONE).unwrap();
    let mut programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let program = programs.find(|info| info.id == id).unwrap();
    assert_eq!(program.name.to_str().unwrap(), "palisade_uplink");
    let maps = program.map_ids.into_iter().map(|id| libbpf_rs::MapHandle::from_map_id(id).unwrap());
    maps.filter(|found| found.name() == map).flat_map(|map| map.keys().collect::<Vec<_>>()).collect()
}

#[test]
fn the_next_run_keeps_addresses_of_pods_closed_until_they_are_back_and_forgets_prefixes() {
    in_namespace(|| {
        let node = Pod::new("up0", 1, 1);
        let interface = Interface::find(node.host).unwrap();
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<_>>();
        let key = |bits: u32, address: [u8; 4]| [&bits.to_ne_bytes()[..], &address].concat();
        let first = nets(&["10.0.0.0/8", "10.1.0.2/32", "10.1.0.3/32", "fd00:1::2/128"]);
        let (program, mode) =
            Program::attach_uplink(&interface, 1, &UplinkConstants::default(), &first).unwrap();
        assert!(mode.native, "{mode:?}");
        assert_eq!(attached_entries("up0", "prefixes_v6").len(), 1);
        // A process that dies detaches nothing.
        drop(program);

        let (mut program, _) =
            Program::attach_uplink(&interface, 1, &UplinkConstants::default(), &nets(&["10.2.0.0/16"]))
                .unwrap();
        let [one, two] = [key(32, [10, 1, 0, 2]), key(32, [10, 1, 0, 3])];
        let configured = key(16, [10, 2, 0, 0]);
        let seen = attached_entries("up0", "prefixes_v4");
        assert_eq!(seen, [one.clone(), two.clone(), configured.clone()].into(), "10.0.0.0/8 was configured");
        assert_eq!(attached_entries("up0", "prefixes_v6").len(), 1);

        // One pod is added again and removed; the other one is not added again.
        program.set_prefixes(&nets(&["10.2.0.0/16", "10.1.0.2/32"])).unwrap();
        program.set_prefixes(&nets(&["10.2.0.0/16"])).unwrap();
        assert_eq!(attached_entries("up0", "prefixes_v4"), [two, configured].into());
        program.detach().unwrap();
        let (program, _) =
            Program::attach_uplink(&interface, 1, &UplinkConstants::default(), &BTreeSet::new()).unwrap();
        assert!(attached_entries("up0", "prefixes_v4").is_empty(), "what was detached is forgotten");
        program.detach().unwrap();
    });
}
