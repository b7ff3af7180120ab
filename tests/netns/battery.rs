//! Hostile frames: several hundred kinds, sent by two pods to a switch that denies them. None reaches the
//! target or the node's stack. Positive controls verify both captures: without a program every frame reaches
//! the node's stack, and without a policy every denied frame reaches the target.
//!
//! Groups of kinds share a reading of the counters, whose sums are compared. `tests/sim/hostile_frames.rs` compares
//! the verdict on each kind.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use palisade::dataplane::Gateway;
use palisade::lab::{GATEWAY_V4, GATEWAY_V6, Lab, LabSpec, POD_INTERFACE, Pod, PodPorts};
use palisade::netlink::Interface;

use crate::describe::describe;
use crate::hostile_frames::{self as kinds, Kind, Station, Topology};
use crate::support::namespace::run;
use crate::support::packet_socket::PacketSocket;
use crate::support::{PORT, Rig, TIMEOUT, eventually, isolated, only_from};

/// Addresses of the node.
const NODE_V4: &str = "192.0.2.77";
const NODE_V6: &str = "2001:db8::77";
/// Kind that the kernel drops before any capture (`skb_vlan_untag` of `net/core/skbuff.c`), with and without
/// a program.
const REFUSED_BY_THE_KERNEL: &str = "an 802.1Q tag cut short";
/// Drop reason of a fragment whose first one does not arrive in time.
const FRAGMENT_TIMEOUT: &str = "fragment-timeout";
/// Kinds whose sum of verdicts is compared.
const GROUP_KINDS: usize = 16;
/// Frames on their way at once: half of the fill target of a port that has just been opened, so that none is lost while
/// another process has the worker's core.
const FRAMES_ON_THEIR_WAY: usize = 32;
/// Bytes of the header that a segment of the friend's connection ends with.
const TCP_HEADER_BYTES: usize = 20;
/// Fewest kinds of a run.
const KINDS_MIN: usize = 200;

#[test]
fn no_hostile_frame_arrives_with_two_workers() {
    let Some(_isolated) = isolated() else { return };
    battery(2, PodPorts::Veth);
}

#[test]
fn no_hostile_frame_arrives_on_tap_devices_with_one_worker() {
    let Some(_isolated) = isolated() else { return };
    battery(1, PodPorts::Tap);
}

#[test]
fn no_hostile_frame_arrives_on_tap_devices_with_two_workers() {
    let Some(_isolated) = isolated() else { return };
    battery(2, PodPorts::Tap);
}

#[test]
fn no_hostile_frame_arrives_with_one_worker() {
    let Some(_isolated) = isolated() else { return };
    battery(1, PodPorts::Veth);
}

#[test]
fn no_hostile_frame_arrives_beside_offloaded_flows() {
    let Some(_isolated) = isolated() else { return };
    battery(1, PodPorts::Offload);
}

/// Sending pod with the capture behind its port.
struct Attacker {
    name: &'static str,
    topology: Topology,
    pod: Pod,
    socket: PacketSocket,
    /// Capture at the host end of the pod's link, behind the switch's program.
    node_tap: PacketSocket,
    kinds: Vec<Kind>,
    /// Kinds about a connection between the friend and the target.
    of_a_connection: Vec<Kind>,
    /// Kinds as above with other numbers.
    again: Vec<Kind>,
    /// Kinds as above with further numbers, in the same order, to find the one that makes the sum of a group wrong.
    spare: Vec<Kind>,
}

fn battery(workers: u16, ports: PodPorts) {
    let mut lab =
        Lab::up(&LabSpec { workers, ports, ..LabSpec::of(&["target", "friend", "stranger"]).unwrap() })
            .unwrap();
    let [target, friend, stranger] = ["target", "friend", "stranger"].map(|name| lab.pod(name).unwrap());
    for pod in [&target, &friend, &stranger] {
        silence(pod);
    }
    // The node forwards by its other card.
    let wire = PacketSocket::open("wire").unwrap();
    let attackers = [("friend", &friend, &stranger), ("stranger", &stranger, &friend)]
        .map(|(name, pod, other)| attacker(name, pod, other, &target));
    let services = [NODE_V4, NODE_V6].map(service);

    // Positive control of the captures at the node's stack: without a program they receive everything. A tap device
    // has no way to that stack.
    if ports == PodPorts::Veth {
        for attacker in &attackers {
            assert_node_hears_all(attacker);
        }
        for service in &services {
            eventually("a service of the node hears them without a program", || words(service) > 0);
        }
        eventually("the node forwards them without a program", || numbered(&wire) > 0);
    }

    let switch = Rig::start(&mut lab, "[conntrack]\ntcp_pickup = false\n");
    let rig = Rig { switch, lab };
    rig.apply(&closed_but_for("friend"));
    let tap = target.run(|| PacketSocket::open(POD_INTERFACE)).unwrap().unwrap();
    connect(&attackers[0], &tap);
    let before = transmitted(&rig, &target);
    let mut wrong = vec![];
    for attacker in &attackers {
        wrong.extend(groups(&rig, attacker, &attacker.kinds, &attacker.spare));
    }
    // The stranger's frames on the friend's connection come first, then the friend's own.
    let [friend, stranger] = &attackers;
    for attacker in [stranger, friend] {
        wrong.extend(send_all(&rig, attacker, &attacker.of_a_connection));
    }
    let arrived = tap.hear((transmitted(&rig, &target) - before) as usize, TIMEOUT);
    wrong.extend(unexpected(&arrived, &attackers));
    assert!(wrong.is_empty(), "{} of the frames' fates:\n{}", wrong.len(), wrong.join("\n"));

    // A connection ends once policy no longer allows it.
    rig.apply(&closed_but_for("nobody"));
    for kind in friend.of_a_connection.iter().filter(|kind| kind.name.contains(": an acknowledgement")) {
        let wrong = send_all(&rig, friend, &[kind.denied()]);
        assert!(wrong.is_empty(), "after its policy: {}", wrong.join("\n"));
    }

    // Positive control of the capture at the target: without a policy it receives the denied frames.
    rig.apply("");
    let mut open = 0;
    for attacker in &attackers {
        let [kinds, spare] = [&attacker.again, &attacker.spare]
            .map(|kinds| kinds.iter().filter_map(Kind::without_policy).collect::<Vec<_>>());
        open += kinds.len();
        wrong.extend(groups(&rig, attacker, &kinds, &spare));
        let mut arriving: Vec<Option<u16>> = kinds.iter().flat_map(Kind::delivered).collect();
        let heard = tap.hear(arriving.len(), TIMEOUT);
        let mut numbers: Vec<Option<u16>> = heard.iter().map(|frame| kinds::number(frame)).collect();
        arriving.sort_unstable();
        numbers.sort_unstable();
        if numbers != arriving {
            let name = attacker.name;
            wrong
                .push(format!("without a policy the target hears {numbers:?} from {name}, not {arriving:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of the frames' fates:\n{}", wrong.len(), wrong.join("\n"));

    // A packet socket hears what the tc program of an offloaded port takes before the node's stack.
    for attacker in attackers.iter().filter(|_| ports != PodPorts::Offload) {
        let leaked = attacker.node_tap.heard();
        assert!(
            leaked.is_empty(),
            "{} of {}'s frames reached the node's stack: {:#?}",
            leaked.len(),
            attacker.name,
            leaked.iter().map(|frame| describe(frame)).collect::<Vec<_>>()
        );
        assert_eq!(attacker.node_tap.lost(), 0);
    }
    assert_eq!((tap.lost(), wire.lost()), (0, 0));
    assert_eq!(numbered(&wire), 0, "the node has forwarded frames");
    assert_eq!(services.iter().map(words).sum::<usize>(), 0, "a service of the node heard something");
    let counters = rig.counters();
    assert!(counters.workers.values().all(|worker| worker.received > 100), "{:?}", counters.workers);
    let kinds = attackers[0].kinds.len() + attackers.iter().map(|of| of.of_a_connection.len()).sum::<usize>();
    eprintln!("{kinds} kinds, {} of them let in without a policy", open / 2);
    assert!(kinds >= KINDS_MIN);
}

/// Number of frames of the battery that a capture has heard.
fn numbered(capture: &PacketSocket) -> usize {
    capture.heard().iter().filter(|frame| kinds::number(frame).is_some()).count()
}

/// Policies for each pod. Only `friend` may reach the target.
fn closed_but_for(friend: &str) -> String {
    let rows = [("target", friend), ("friend", "nobody"), ("stranger", "nobody")];
    rows.map(|(to, from)| only_from(to, from)).join("---\n")
}

/// Opens the friend's connections. The capture socket sends the target's segments.
fn connect(friend: &Attacker, target: &PacketSocket) {
    for family in [0, 1] {
        for (frame, by_friend) in kinds::handshake(&friend.topology, family) {
            let (from, to) = if by_friend { (&friend.socket, target) } else { (target, &friend.socket) };
            to.heard();
            from.send(&frame).unwrap();
            // The switch may ask for a neighbour meanwhile.
            let header = &frame[frame.len() - TCP_HEADER_BYTES..];
            let arrives = || to.heard().iter().any(|heard| heard.ends_with(header));
            eventually("a segment of the friend's own connection arrives", arrives);
        }
    }
}

/// Removes a pod's addresses from its kernel, so that it sends neither replies nor resets.
fn silence(pod: &Pod) {
    pod.run(|| {
        fs::write(format!("/proc/sys/net/ipv6/conf/{POD_INTERFACE}/disable_ipv6"), "1").unwrap();
        run(&format!("ip address flush dev {POD_INTERFACE}"));
    })
    .unwrap();
}

fn attacker(name: &'static str, pod: &Pod, other: &Pod, target: &Pod) -> Attacker {
    let host_end = &pod.plan().host_interface;
    if !pod.plan().has_host_end() {
        // An interface in its place gives the node the same addresses and routes.
        run(&format!("ip link add {host_end} type veth peer name {host_end}x"));
        run(&format!("ip link set {host_end} up"));
    }
    // The node's stack accepts every packet, and has a service at addresses of its own.
    for (family, setting, value) in
        [(4, "rp_filter", "0"), (6, "accept_ra", "0"), (6, "accept_dad", "0"), (6, "disable_ipv6", "0")]
    {
        fs::write(format!("/proc/sys/net/ipv{family}/conf/{host_end}/{setting}"), value).unwrap();
    }
    run(&format!("ip address add {NODE_V4}/32 dev {host_end}"));
    run(&format!("ip address add {NODE_V6}/128 dev {host_end} nodad"));
    for address in pod.addresses() {
        run(&format!("ip route add {address} dev {host_end}"));
    }
    let station =
        |pod: &Pod| Station { mac: pod.plan().mac.0, addresses: [pod.v4().into(), pod.v6().into()] };
    let topology = Topology {
        own: station(pod),
        other: station(other),
        target: station(target),
        gateway: Station { mac: Gateway::default().mac.0, addresses: [GATEWAY_V4.into(), GATEWAY_V6.into()] },
        node: Station {
            mac: Interface::find(host_end).unwrap().mac.0,
            addresses: [NODE_V4.parse().unwrap(), NODE_V6.parse().unwrap()],
        },
        is_friend: name == "friend",
    };
    let first = if topology.is_friend { 0 } else { 20_000 };
    let all = |first| kinds::all(&topology, first).into_iter().filter_map(|kind| on(pod, kind)).collect();
    let of_a_connection = kinds::about_a_connection(&topology, first + 7000).into_iter();
    Attacker {
        name,
        topology,
        pod: pod.clone(),
        socket: pod.run(|| PacketSocket::open(POD_INTERFACE)).unwrap().unwrap(),
        node_tap: PacketSocket::open(host_end).unwrap(),
        kinds: all(first),
        of_a_connection: of_a_connection.filter_map(|kind| on(pod, kind)).collect(),
        again: all(first + 8000),
        spare: all(first + 12_000),
    }
}

/// The kind as a pod with its port sends it; `None` where the switch hears nothing of it. The kernel drops a tag cut short before
/// the program of an offloaded port.
fn on(pod: &Pod, kind: Kind) -> Option<Kind> {
    let is_heard = pod.plan().ports != PodPorts::Offload || !kind.name.ends_with(REFUSED_BY_THE_KERNEL);
    is_heard.then_some(kind)
}

fn service(address: &str) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let socket = UdpSocket::bind((address, PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Number of datagrams that a service has received since the last call.
fn words(service: &UdpSocket) -> usize {
    std::iter::from_fn(|| service.recv(&mut [0; 64]).ok()).count()
}

fn assert_node_hears_all(attacker: &Attacker) {
    attacker.node_tap.heard();
    let hears = |kinds: &[&Kind]| {
        let frames = kinds.iter().flat_map(|kind| &kind.frames);
        let sent = frames.map(|(frame, _)| attacker.socket.send(frame).unwrap()).count();
        attacker.node_tap.hear(sent, TIMEOUT).len() == sent
    };
    let kinds = attacker.kinds.iter().filter(|kind| !kind.name.ends_with(REFUSED_BY_THE_KERNEL));
    let kinds: Vec<&Kind> = kinds.collect();
    let groups = kinds.chunks(GROUP_KINDS);
    let unheard: Vec<&str> = groups
        .filter(|group| !hears(group))
        .flat_map(|group| group.iter().filter(|kind| !hears(&[**kind])).map(|kind| kind.name.as_str()))
        .collect();
    assert!(
        unheard.is_empty(),
        "the node's detector does not hear these from {}: {unheard:#?}",
        attacker.name
    );
}

/// Counters of a pod's port, and the number of fragments that wait or have waited in vain. A machine under
/// load takes longer for a battery than a fragment waits, so a timeout is no verdict on the frames of another
/// kind.
fn counted(rig: &Rig, pod: &Pod) -> BTreeMap<String, u64> {
    let counters = rig.counters();
    let port = &counters.ports[&pod.plan().host_interface];
    let mut counted = port.drops.clone();
    counted.remove(FRAGMENT_TIMEOUT);
    counted.insert("consumed".to_owned(), port.consumed);
    counted.insert("delivered".to_owned(), port.forwarded);
    let waiting: u64 = counters.workers.values().map(|worker| worker.fragments_waiting).sum();
    let in_vain: u64 = counters.ports.values().filter_map(|port| port.drops.get(FRAGMENT_TIMEOUT)).sum();
    counted.insert("waiting".to_owned(), waiting + in_vain);
    counted
}

fn transmitted(rig: &Rig, pod: &Pod) -> u64 {
    rig.counters().ports[&pod.plan().host_interface].transmitted
}

/// Sends the kinds in groups; returns the differences between counted and expected verdicts. The kinds of a group whose
/// sum is wrong are sent again from `spare`, one after the other.
fn groups(rig: &Rig, attacker: &Attacker, kinds: &[Kind], spare: &[Kind]) -> Vec<String> {
    let mut wrong = vec![];
    for (group, spare) in kinds.chunks(GROUP_KINDS).zip(spare.chunks(GROUP_KINDS)) {
        let of_group = Kind {
            name: format!("the kinds from {:?} to {:?}", group[0].name, group[group.len() - 1].name),
            frames: group.iter().flat_map(|kind| kind.frames.iter().cloned()).collect(),
        };
        let sum = send_all(rig, attacker, &[of_group]);
        if !sum.is_empty() {
            wrong.extend(sum);
            wrong.extend(send_all(rig, attacker, spare));
        }
    }
    wrong
}

/// Sends one kind after the other; returns the differences between counted and expected verdicts.
fn send_all(rig: &Rig, attacker: &Attacker, kinds: &[Kind]) -> Vec<String> {
    let mut wrong = vec![];
    let mut before = counted(rig, &attacker.pod);
    for kind in kinds {
        let expected = kind.verdicts();
        let (mut after, mut fates, mut sent) = (before.clone(), BTreeMap::new(), 0);
        for frames in kind.frames.chunks(FRAMES_ON_THEIR_WAY) {
            frames.iter().for_each(|(frame, _)| attacker.socket.send(frame).unwrap());
            sent += frames.len() as u64;
            (after, fates) = fates_of(rig, attacker, &before, sent);
        }
        if fates != expected {
            // A fragment of an earlier kind may have timed out while the counters were read: it is counted twice.
            (after, fates) = fates_of(rig, attacker, &before, sent);
        }
        if fates != expected {
            let lost = &rig.counters().ports[&attacker.pod.plan().host_interface].lost;
            let name = attacker.name;
            wrong.push(format!("{} from {name}: {fates:?}, not {expected:?}; lost: {lost:?}", kind.name));
        }
        before = after;
    }
    wrong
}

/// Waits until the counters account for this number of frames. Returns all counters and their increase.
fn fates_of(
    rig: &Rig,
    attacker: &Attacker,
    before: &BTreeMap<String, u64>,
    frames: u64,
) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let start = Instant::now();
    loop {
        let after = counted(rig, &attacker.pod);
        let added = |(name, count): (&String, &u64)| {
            let more = count - before.get(name).unwrap_or(&0).min(count);
            (more > 0).then(|| (name.clone(), more))
        };
        let fates: BTreeMap<String, u64> = after.iter().filter_map(added).collect();
        if fates.values().sum::<u64>() >= frames || start.elapsed() > TIMEOUT {
            return (after, fates);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Unexpected frames at the target, and missing ones.
fn unexpected(arrived: &[Vec<u8>], attackers: &[Attacker]) -> Vec<String> {
    let mut expected: BTreeMap<u16, String> = BTreeMap::new();
    for attacker in attackers {
        for kind in attacker.kinds.iter().chain(&attacker.of_a_connection) {
            let name = format!("{} from {}", kind.name, attacker.name);
            let number = |number: Option<u16>| number.unwrap_or_else(|| panic!("{name} has no mark"));
            expected.extend(kind.delivered().map(|of_frame| (number(of_frame), name.clone())));
        }
    }
    assert!(!expected.is_empty(), "the friend's connections arrive");
    let mut wrong = vec![];
    for frame in arrived {
        if kinds::number(frame).and_then(|number| expected.remove(&number)).is_none() {
            wrong.push(format!("the target hears {}", describe(frame)));
        }
    }
    wrong.extend(expected.into_values().map(|kind| format!("the target does not hear {kind}")));
    wrong
}
