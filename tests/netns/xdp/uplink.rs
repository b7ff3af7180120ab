//! XDP program of an uplink, run by the kernel on frames made for it, and attached to an interface.

use std::collections::BTreeSet;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, Xdp, XdpFlags};
use palisade::netlink::Interface;
use palisade::xdp::Program;

use super::namespace::Pod;
use crate::support::namespace::in_namespace;

/// Verdicts of `linux/bpf.h`. No socket is registered, so the program drops packets for pods.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));

/// Loads the program with prefixes 10.1.0.0/16 and `fd00:1::/64`.
fn loaded(vlan: u16) -> Object {
    let mut open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
    for mut map in open.maps_mut() {
        match map.name().to_str().unwrap() {
            "prefixes_v4" | "prefixes_v6" => map.set_max_entries(8).unwrap(),
            name if name.ends_with(".rodata.port") => map.set_initial_value(&vlan.to_ne_bytes()).unwrap(),
            _ => {}
        }
    }
    let object = open.load().unwrap();
    let put = |name: &str, bits: u32, address: &[u8]| {
        let map = object.maps().find(|map| map.name() == name).unwrap();
        let key = [&bits.to_ne_bytes()[..], address].concat();
        map.update(&key, &[1, 0, 0, 0], MapFlags::ANY).unwrap();
    };
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

/// Keys of a prefix map of the attached program, as bpftool shows them.
fn attached_prefixes(interface: &str, map: &str) -> BTreeSet<Vec<u8>> {
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
        let (program, mode) = Program::attach_uplink(&interface, 1, 0, &first).unwrap();
        assert!(mode.native, "{mode:?}");
        assert_eq!(attached_prefixes("up0", "prefixes_v6").len(), 1);
        // A process that dies detaches nothing.
        drop(program);

        let (mut program, _) = Program::attach_uplink(&interface, 1, 0, &nets(&["10.2.0.0/16"])).unwrap();
        let [one, two] = [key(32, [10, 1, 0, 2]), key(32, [10, 1, 0, 3])];
        let configured = key(16, [10, 2, 0, 0]);
        let seen = attached_prefixes("up0", "prefixes_v4");
        assert_eq!(seen, [one.clone(), two.clone(), configured.clone()].into(), "10.0.0.0/8 was configured");
        assert_eq!(attached_prefixes("up0", "prefixes_v6").len(), 1);

        // One pod is added again and removed; the other one is not added again.
        program.set_prefixes(&nets(&["10.2.0.0/16", "10.1.0.2/32"])).unwrap();
        program.set_prefixes(&nets(&["10.2.0.0/16"])).unwrap();
        assert_eq!(attached_prefixes("up0", "prefixes_v4"), [two, configured].into());
        program.detach().unwrap();
        let (program, _) = Program::attach_uplink(&interface, 1, 0, &BTreeSet::new()).unwrap();
        assert!(attached_prefixes("up0", "prefixes_v4").is_empty(), "what was detached is forgotten");
        program.detach().unwrap();
    });
}
