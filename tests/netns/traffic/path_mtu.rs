//! Path MTU discovery: the switch reports the smaller MTU of a port, and senders continue with smaller
//! packets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{GATEWAY_V4, GATEWAY_V6, Lab, LabSpec, POD_INTERFACE, Pod};

use crate::support::{PORT, Rig, TIMEOUT, assert_accounted, eventually, isolated};

/// MTU of the port behind which the server is; the client's is 1500.
const NARROW: u32 = 1400;
/// Size of the transfer in each direction, bytes.
const BYTES: u64 = 1 << 20;

/// Starts two pods, `near` with MTU 1500 and `far` with [`NARROW`]. `far` announces the segment size of MTU
/// 1500, as a host does behind a narrower link: only the switch reports the smaller MTU.
fn narrow_rig() -> Rig {
    let mut lab = Lab::up(&LabSpec { mtu: 1500, ..LabSpec::of(&["near", "far"]).unwrap() }).unwrap();
    let far = lab.pod("far").unwrap();
    let mtu = NARROW.to_string();
    let host_interface = far.plan().host_interface.clone();
    let ip = |arguments: &str| Command::new("ip").args(arguments.split(' ')).status().unwrap().success();
    assert!(ip(&format!("link set {host_interface} mtu {mtu}")));
    assert!(pod_ip(&far, &format!("link set {POD_INTERFACE} mtu {mtu}")));
    for (family, gateway, segment) in
        [("-4", IpAddr::from(GATEWAY_V4), 1460), ("-6", GATEWAY_V6.into(), 1440)]
    {
        let route = format!("default via {gateway} dev {POD_INTERFACE} onlink advmss {segment}");
        assert!(pod_ip(&far, &format!("{family} route replace {route}")), "{route}");
    }
    let switch = Rig::start(&mut lab, "");
    Rig { switch, lab }
}

fn pod_ip(pod: &Pod, arguments: &str) -> bool {
    pod.status(Command::new("ip").args(arguments.split(' '))).unwrap().success()
}

/// Tells whether the pod's kernel has learned the MTU of the path to `to`.
fn has_learned(pod: &Pod, to: IpAddr) -> bool {
    let output = pod.output(Command::new("ip").args(["route", "get", &to.to_string()])).unwrap();
    String::from_utf8(output.stdout).unwrap().contains(&format!("mtu {NARROW} "))
}

fn too_big(rig: &Rig) -> u64 {
    rig.drops().get("too-big").copied().unwrap_or(0)
}

#[test]
fn tcp_learns_the_path_mtu_from_the_switch_and_the_transfer_arrives_intact() {
    let Some(_isolated) = isolated() else { return };
    let rig = narrow_rig();
    let (near, far) = (rig.pod("near"), rig.pod("far"));
    let _server = Server::start(&far, &[PORT], Services::Tcp).unwrap();
    for address in far.addresses() {
        let before = too_big(&rig);
        assert!(!has_learned(&near, address), "{address}");
        transfer(&near, address, PORT, BYTES, TIMEOUT).unwrap();
        assert!(has_learned(&near, address), "{address}");
        assert!(too_big(&rig) > before, "{address}: {:?}", rig.drops());
    }
    assert_accounted(&rig.counters());
    assert_eq!(rig.drops().into_keys().collect::<Vec<_>>(), ["too-big"]);
}

#[test]
fn a_datagram_that_must_not_be_cut_is_refused_by_the_switch_and_its_sender_is_told() {
    let Some(_isolated) = isolated() else { return };
    let rig = narrow_rig();
    let (near, far) = (rig.pod("near"), rig.pod("far"));
    let _server = Server::start(&far, &[PORT], Services::Udp).unwrap();
    for (number, address) in far.addresses().into_iter().enumerate() {
        let headers = if address.is_ipv4() { 28 } else { 48 };
        let socket = connected(&near, address).unwrap();
        let whole = vec![0x5a; 1500 - headers];
        // Linux sets Don't Fragment on datagrams that fit the MTU it knows of (ip(7), `IP_MTU_DISCOVER`).
        socket.send(&whole).unwrap();
        let told = socket.recv(&mut [0; 2000]).unwrap_err();
        assert_eq!(told.raw_os_error(), Some(libc::EMSGSIZE), "{address}: {told}");
        assert!(has_learned(&near, address), "{address}");
        // The same bytes arrive in fragments of the sender.
        socket.send(&whole).unwrap();
        let mut echo = vec![0; 2000];
        assert_eq!(socket.recv(&mut echo).unwrap(), whole.len(), "{address}");
        assert_eq!(echo[..whole.len()], whole);
        // The largest datagram that fits arrives whole.
        let fitting = &whole[..NARROW as usize - headers];
        socket.send(fitting).unwrap();
        assert_eq!(socket.recv(&mut echo).unwrap(), fitting.len(), "{address}");
        eventually("one datagram of each family was too big", || too_big(&rig) == number as u64 + 1);
    }
    assert_accounted(&rig.counters());
    assert_eq!(rig.drops(), [("too-big".to_owned(), 2)].into());
}

#[test]
fn a_datagram_that_may_be_cut_arrives_in_fragments_of_the_switch() {
    let Some(_isolated) = isolated() else { return };
    let rig = narrow_rig();
    let (near, far) = (rig.pod("near"), rig.pod("far"));
    let _server = Server::start(&far, &[PORT], Services::Udp).unwrap();
    let socket = connected(&near, far.v4().into()).unwrap();
    let dont = libc::IP_PMTUDISC_DONT;
    // SAFETY: the option is an integer, whose size is given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const dont).cast(),
            size_of_val(&dont) as u32,
        )
    };
    assert_eq!(set, 0);
    // The second one leaves its sender in fragments, of which the switch cuts the first again.
    for bytes in [1472, 4000] {
        let whole: Vec<u8> = (0..bytes).map(|at: usize| (at % 251) as u8).collect();
        socket.send(&whole).unwrap();
        let mut echo = vec![0; 8000];
        assert_eq!(socket.recv(&mut echo).unwrap(), whole.len());
        assert!(echo[..whole.len()] == whole);
    }
    assert_accounted(&rig.counters());
    assert_eq!(rig.drops(), [].into());
}

fn connected(pod: &Pod, to: IpAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = pod.run(|| UdpSocket::bind((any, 0))).unwrap()?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect((to, PORT))?;
    Ok(socket)
}
