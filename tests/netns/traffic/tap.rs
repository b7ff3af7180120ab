//! Pods on tap devices: whole segments between kernel stacks, and devices that outlive the switch.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

use palisade::control::protocol::{PortRequest, PortState};
use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{Lab, LabSpec, POD_INTERFACE, Pod, PodPorts};

use crate::support::packet_socket::PacketSocket;
use crate::support::{
    PORT, Rig, TIMEOUT, assert_accounted, assert_allowed, assert_pings, assert_udp, eventually, isolated,
    only_from,
};

const MEGABYTES: u64 = 2 << 20;

/// Lab of pods on tap devices, with an MTU that makes TCP send segments.
fn spec(pods: &[&str]) -> LabSpec {
    LabSpec { ports: PodPorts::Tap, mtu: 1500, ..LabSpec::of(pods).unwrap() }
}

fn rig(pods: &[&str]) -> Rig {
    Rig::of(&spec(pods), "")
}

/// Lab with a pod on a tap device, `tap`, and one on a veth pair, `veth`.
fn mixed() -> Rig {
    let mut lab = Lab::up(&LabSpec {
        ports_of: [("tap".to_owned(), PodPorts::Tap)].into(),
        mtu: 1500,
        ..LabSpec::of(&["tap", "veth"]).unwrap()
    })
    .unwrap();
    let switch = Rig::start(&mut lab, "");
    Rig { switch, lab }
}

fn output(pod: &Pod, command: &str) -> String {
    let mut words = command.split(' ');
    let output = pod.output(Command::new(words.next().unwrap()).args(words)).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tcp_udp_and_ping_cross_intact_between_tap_devices_in_whole_segments() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for address in server.addresses() {
        transfer(&client, address, PORT, MEGABYTES, TIMEOUT).unwrap();
        assert_udp(&client, address);
        assert_pings(&client, address);
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    assert!(rig.drops().is_empty(), "{:?}", rig.drops());
    for (name, port) in &counters.ports {
        assert!(port.received_bytes > 2 * MEGABYTES, "{name}: {port:?}");
        // Acknowledgements among them: without segments a packet has 1,514 bytes at most.
        assert!(port.received_bytes / port.received > 3000, "{name}: {port:?}");
    }
    for worker in counters.workers.values() {
        assert!(worker.frames_free > 8_000, "tap devices keep no frames: {worker:?}");
    }
}

#[test]
fn segments_are_cut_for_a_veth_pair_and_cross_intact_both_ways() {
    let Some(_isolated) = isolated() else { return };
    let rig = mixed();
    let (tap, veth) = (rig.pod("tap"), rig.pod("veth"));
    let _veth_server = Server::start(&veth, &[PORT], Services::Both).unwrap();
    let _tap_server = Server::start(&tap, &[PORT], Services::Both).unwrap();
    for (from, to) in [(&tap, &veth), (&veth, &tap)] {
        for address in to.addresses() {
            transfer(from, address, PORT, MEGABYTES, TIMEOUT).unwrap();
            assert_udp(from, address);
            assert_pings(from, address);
        }
    }
    let counters = rig.counters();
    assert_accounted(&counters);
    let of = |pod: &Pod| counters.ports[&pod.plan().host_interface].clone();
    let (tap, veth) = (of(&tap), of(&veth));
    assert!(tap.received_bytes / tap.received > 3000, "{tap:?}");
    assert!(veth.transmitted_bytes / veth.transmitted < 1514, "{veth:?}");
    assert!(veth.transmitted > 2 * tap.forwarded, "{} packets from {}", veth.transmitted, tap.forwarded);
    // A veth pair carries what would be on the wire.
    assert_eq!((veth.received_on_wire, veth.transmitted_on_wire), (veth.received, veth.transmitted));
    let forwarded_on_wire = tap.received_on_wire - tap.received + tap.forwarded;
    // The switch itself sends some ARP and neighbour discovery.
    let own = veth.transmitted.checked_sub(forwarded_on_wire);
    assert!(own.is_some_and(|frames| frames < 100), "{own:?} of {veth:?} from {tap:?}");
    assert!(tap.transmitted_on_wire > 2 * tap.transmitted, "segments are coalesced: {tap:?}");
}

/// Socket that sends a datagram as segments of a thousand bytes (`UDP_SEGMENT` of udp(7)).
fn sender_of_segments(pod: &Pod, to: IpAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = pod.run(|| UdpSocket::bind((any, 0))).unwrap().unwrap();
    socket.connect((to, PORT)).unwrap();
    let bytes: libc::c_int = 1000;
    // SAFETY: the option's value is one `int`, which outlives the call.
    let done = unsafe {
        let (value, len) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, len)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    socket
}

#[test]
fn segments_of_udp_cross_whole_and_arrive_as_the_datagrams_that_were_sent() {
    let Some(_isolated) = isolated() else { return };
    for rig in [rig(&["tap", "veth"]), mixed()] {
        let (from, to) = (rig.pod("tap"), rig.pod("veth"));
        for address in to.addresses() {
            // Sockets drop datagrams that wait for the Ethernet address of the gateway.
            assert_pings(&from, address);
            let receiver = to.run(|| UdpSocket::bind(SocketAddr::new(address, PORT))).unwrap().unwrap();
            receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
            let sender = sender_of_segments(&from, address);
            (0..6).for_each(|n: u8| assert_eq!(sender.send(&[n; 10_500]).unwrap(), 10_500));
            let mut datagram = [0; 2000];
            for n in 0..6_u8 {
                for segment in 0..11 {
                    let bytes = receiver.recv(&mut datagram).unwrap();
                    assert_eq!(bytes, if segment < 10 { 1000 } else { 500 });
                    assert!(
                        datagram[..bytes].iter().all(|byte| *byte == n),
                        "datagram {n}, segment {segment}, and is of {}: {:?}",
                        datagram[0],
                        rig.drops()
                    );
                }
            }
        }
        let port = &rig.counters().ports[&from.plan().host_interface];
        assert!(port.received < 60, "segments of UDP come whole: {port:?}");
        assert_accounted(&rig.counters());
    }
}

/// Connection that writes a byte and reads it again.
fn echo_works(connection: &mut TcpStream) -> bool {
    connection.write_all(b"x").is_ok() && connection.read_exact(&mut [0]).is_ok()
}

fn echo_server(pod: &Pod) -> SocketAddr {
    let listener = pod.run(|| TcpListener::bind((pod.v4(), PORT))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let (mut from, mut to) = (connection.try_clone().unwrap(), connection);
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    address
}

#[test]
fn a_killed_switch_leaves_a_pod_without_a_carrier_and_the_next_one_continues_its_connection() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let address = echo_server(&server);
    let mut connection = client.run(|| TcpStream::connect(address)).unwrap().unwrap();
    connection.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert!(echo_works(&mut connection));
    let link = |pod: &Pod| output(pod, "ip -o link show eth0");
    let before = link(&client);
    assert!(before.contains("LOWER_UP"), "{before}");
    let Rig { switch, mut lab } = rig;
    switch.kill().unwrap();
    eventually("the carrier goes with the switch", || link(&client).contains("NO-CARRIER"));
    let switch = Rig::start(&mut lab, "");
    assert!(link(&client).contains("LOWER_UP"));
    let rig = Rig { switch, lab };
    assert!(
        echo_works(&mut connection),
        "the connection goes on: {:?}, {}",
        rig.drops(),
        rig.switch.log().unwrap()
    );
    assert!(output(&client, "ip -o addr show eth0").contains(&client.v4().to_string()), "its addresses stay");
}

#[test]
fn a_device_that_is_removed_or_whose_namespace_is_made_again_is_made_again() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["one", "two"]);
    let (one, two) = (rig.pod("one"), rig.pod("two"));
    assert_pings(&one, two.v4().into());
    let state = |pod: &Pod| {
        let ports = rig.switch.client().ports().unwrap();
        ports.into_iter().find(|port| port.name == pod.plan().host_interface).unwrap()
    };
    let index = state(&one).report.interface_index;
    assert!(output(&one, "ip link del eth0").is_empty());
    eventually("the device is made again", || {
        let now = state(&one);
        now.state == PortState::Up && now.report.interface_index != index
    });
    assert!(output(&one, "ip -o link show eth0").contains("LOWER_UP"));
    // The pod's interface set down is told, and what the switch gives it meanwhile is counted.
    output(&two, "ip link set eth0 down");
    eventually("the port is down", || {
        state(&two).reason.is_some_and(|reason| reason.contains("set eth0 up"))
    });
    output(&two, "ip link set eth0 up");
    eventually("the port is up", || state(&two).state == PortState::Up);
    // A namespace without its name is gone, though descriptors keep it.
    let netns = two.plan().netns.clone();
    let run = |command: &[&str]| assert!(Command::new("ip").args(command).status().unwrap().success());
    run(&["netns", "del", &netns]);
    eventually("the port is down", || state(&two).reason.is_some_and(|reason| reason.contains("is gone")));
    run(&["netns", "add", &netns]);
    eventually("the port is up in the new namespace", || state(&two).state == PortState::Up);
    run(&["netns", "del", &netns]);
}

#[test]
fn errors_name_the_namespace_and_the_owner() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["one"]);
    let client = rig.switch.client();
    let refused = |name: &str, request: &PortRequest| client.put_port(name, request).unwrap_err().to_string();
    let netns = rig.pod("one").plan().netns.clone();
    let said = refused("x", &PortRequest::tap("no-such-namespace", POD_INTERFACE));
    assert!(said.contains("network namespace no-such-namespace does not exist"), "{said}");
    let said = refused("x", &PortRequest::tap(&netns, POD_INTERFACE));
    assert!(said.contains("already"), "{said}");
    let said = refused("x", &PortRequest::tap(&netns, "lo"));
    assert!(said.contains("is no tap device of this switch"), "{said}");
    // The other switch has a socket of its own, and no way to the device of this one.
    let mut other = Lab::up(&LabSpec::of(&["unused"]).unwrap()).unwrap();
    let second = Rig::start(&mut other, "");
    let said =
        second.client().put_port("x", &PortRequest::tap(&netns, POD_INTERFACE)).unwrap_err().to_string();
    assert!(said.contains("in use by another process"), "{said}");
    let one = rig.pod("one");
    assert_pings(&one, IpAddr::V4(palisade::lab::GATEWAY_V4));
}

/// IPv4 packet of TCP data in a frame from `from` to `to`, with the sum over the pseudo-header as its checksum.
fn tcp_frame(from: &Pod, to: &Pod, flags: u8, payload: usize) -> Vec<u8> {
    let bytes = (40 + payload) as u16;
    let mut ip = vec![0x45, 0, (bytes >> 8) as u8, bytes as u8, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(from.v4().octets());
    ip.extend(to.v4().octets());
    let sum = !ones_sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = [&ip[12..20], &[0, 6], &(bytes - 20).to_be_bytes()].concat();
    let mut tcp = vec![0x12, 0x34, (PORT >> 8) as u8, PORT as u8, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0];
    tcp.extend(ones_sum(&pseudo).to_be_bytes());
    tcp.extend([0, 0]);
    let ethernet = [&[2, 0x50, 0x41, 0x4c, 0, 1], &from.plan().mac.0[..], &[8, 0]].concat();
    [ethernet, ip, tcp, MARK.repeat(payload / MARK.len()), vec![0; payload % MARK.len()]].concat()
}

/// Start of a payload that no other packet has.
const MARK: &[u8] = b"hostile!";

#[test]
fn virtio_net_headers_of_a_hostile_pod_cost_its_own_packets_alone() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["server", "friend", "stranger"]);
    let (server, friend, stranger) = (rig.pod("server"), rig.pod("friend"), rig.pod("stranger"));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    for pod in [&friend, &stranger] {
        assert_allowed(pod, server.v4().into());
    }
    rig.apply(&only_from("server", "friend"));
    let socket = stranger.run(|| PacketSocket::open(POD_INTERFACE)?.with_virtio_headers()).unwrap().unwrap();
    let capture = server.run(|| PacketSocket::open(POD_INTERFACE)).unwrap().unwrap();
    let is_marked = |frame: &[u8]| frame.windows(MARK.len()).any(|window| window == MARK);
    // A linear congruential generator (Numerical Recipes): any sequence serves.
    let mut state = 7_u32;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut sent = 0;
    let mut send = |count: u32| {
        for _ in 0..count {
            let frame =
                tcp_frame(&stranger, &server, [2, 16, 24, 17][random(4) as usize], random(9000) as usize);
            let any = |random: &mut dyn FnMut(u32) -> u32| [random(256) as u8, random(256) as u8];
            let likely = [random(3) as u8, [0, 1, 3, 4, 5, 0x81][random(6) as usize], 54, 0];
            let near = |value: u32| ((value + random(3)).saturating_sub(1) as u16).to_ne_bytes();
            let mut fields = [[100, 0], [34, 0], [16, 0]]
                .map(|field: [u8; 2]| u32::from(u16::from_ne_bytes(field)))
                .map(near);
            for field in &mut fields {
                if random(4) == 0 {
                    *field = any(&mut random);
                }
            }
            // The kernel refuses some headers itself.
            sent += u32::from(socket.send(&[&likely[..], &fields.concat(), &frame].concat()).is_ok());
        }
        sent
    };
    let first = send(2000);
    assert!(first > 100, "the kernel takes {first} headers");
    // Most are lost before the switch, as many as the sender is faster.
    eventually("the switch has decided on the packets", || {
        let drops = rig.drops();
        let is_enough = drops.get("policy-ingress").is_some_and(|drops| *drops > 100)
            && drops.get("malformed").is_some_and(|drops| *drops > 0);
        if !is_enough {
            send(200);
        }
        is_enough
    });
    assert!(!capture.heard().iter().any(|frame| is_marked(frame)), "a denied packet has arrived");
    assert_accounted(&rig.counters());
    for address in server.addresses() {
        transfer(&friend, address, PORT, MEGABYTES, TIMEOUT).unwrap();
    }
    // Positive control: without the policy the packets arrive.
    rig.apply("");
    let header = [1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0];
    eventually("packets arrive without the policy", || {
        socket.send(&[&header[..], &tcp_frame(&stranger, &server, 16, 5000)].concat()).unwrap();
        socket.send(&[&[0; 10][..], &tcp_frame(&stranger, &server, 2, 0)].concat()).unwrap();
        capture
            .heard()
            .iter()
            .any(|frame| frame.len() > 54 && frame[23] == 6 && frame[26..30] == stranger.v4().octets())
    });
}

fn ones_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn a_device_that_another_process_opens_is_made_again_without_it() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig(&["one"]);
    let one = rig.pod("one");
    let index = || rig.switch.client().ports().unwrap()[0].report.interface_index;
    let before = index();
    // TUNSETIFF with IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI and IFF_VNET_HDR; the descriptor stays open.
    let script = "import fcntl,os,struct,time; f=os.open('/dev/net/tun',os.O_RDWR); \
                  fcntl.ioctl(f,0x400454ca,struct.pack('16sH22x',b'eth0',0x5102)); time.sleep(60)";
    let _intruder = one.spawn(Command::new("python3").args(["-c", script])).unwrap();
    eventually("the device is made again", || index() != before);
    assert!(rig.switch.log().unwrap().contains("another process has opened the pod's tap device"));
    assert!(output(&one, "ip -o link show eth0").contains("LOWER_UP"));
}
