//! Ports that are removed under traffic, switches that stop or are killed: no frame leaks and none is lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use palisade::lab::traffic::{Server, Services, transfer};
use palisade::lab::{Lab, LabSpec, POD_INTERFACE, Pod, PodPorts};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use crate::support::capture::Capture;
use crate::support::closed::{ProgramCounts, assert_closed};
use crate::support::packet_socket::PacketSocket;
use crate::support::{
    PORT, Rig, TIMEOUT, assert_accounted, assert_allowed, eventually, isolated, only_from, spec_of,
};

/// Starts a capture of frames that reach the host's stack from a pod. A frame sent without a switch is its
/// positive control.
fn tap_on(pod: &Pod) -> Capture {
    let tap = Capture::on(&pod.plan().host_interface, Command::new("tcpdump"));
    let socket = pod.run(|| PacketSocket::open(POD_INTERFACE)).unwrap().unwrap();
    // Broadcast of the ethertype for local experiments (IEEE 802), which no stack answers.
    let frame = [&[0xff; 6], &pod.plan().mac.0[..], &[0x88, 0xb5], b"control"].concat();
    tap.assert_hears(|| socket.send(&frame).unwrap());
    tap
}

/// Starts a lab with a capture for each pod, and its switch.
fn tapped(pods: &[&str]) -> (Rig, Vec<Capture>) {
    let mut lab = Lab::up(&LabSpec::of(pods).unwrap()).unwrap();
    let taps = lab.pods().map(|pod| tap_on(&pod)).collect();
    let switch = Rig::start(&mut lab, "");
    (Rig { switch, lab }, taps)
}

/// Thread that sends datagrams from one pod to another until drop. It leaves room for other traffic: a full
/// queue of the pod's interface would delay its connections by retransmissions.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(from: &Pod, to: &Pod) -> Flood {
        let socket = from.run(|| UdpSocket::bind(SocketAddr::new(from.v4().into(), 0))).unwrap().unwrap();
        let to = SocketAddr::new(to.v4().into(), PORT + 1);
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                for _ in 0..32 {
                    // Sending may fail while the port is closed or detached.
                    let _ = socket.send_to(&[7; 200], to);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_port_removed_under_traffic_gives_its_frames_back_and_others_go_on() {
    ports_under_traffic_come_and_go(PodPorts::Veth);
}

#[test]
fn a_port_removed_under_traffic_gives_its_frames_back_and_others_go_on_on_taps() {
    ports_under_traffic_come_and_go(PodPorts::Tap);
}

fn ports_under_traffic_come_and_go(ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::of(&LabSpec { ports, ..spec_of(&["one", "two", "noisy"]) }, "");
    let (one, two, noisy) = (rig.pod("one"), rig.pod("two"), rig.pod("noisy"));
    let _server = Server::start(&two, &[PORT], Services::Tcp).unwrap();
    {
        let _floods = [Flood::start(&noisy, &one), Flood::start(&one, &noisy)];
        for _ in 0..5 {
            transfer(&one, two.v4().into(), PORT, 1 << 16, TIMEOUT).unwrap();
            rig.switch.detach(&noisy).unwrap();
            transfer(&one, two.v4().into(), PORT, 1 << 16, TIMEOUT).unwrap();
            rig.switch.attach(&noisy).unwrap();
        }
    }
    for pod in [&one, &two, &noisy] {
        rig.switch.detach(pod).unwrap();
    }
    eventually("every frame is free when every port is closed", || {
        let counters = rig.counters();
        counters.workers.values().all(|worker| worker.frames == worker.frames_free)
    });
}

#[test]
fn a_killed_switch_stops_all_traffic_leaks_none_to_the_host_and_a_restart_works() {
    let Some(_isolated) = isolated() else { return };
    let (mut rig, taps) = tapped(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let address = SocketAddr::new(server.v4().into(), PORT);
    let listener = server.run(|| TcpListener::bind(address)).unwrap().unwrap();
    let mut open = client.run(|| TcpStream::connect_timeout(&address, TIMEOUT)).unwrap().unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    drop(listener);
    let echo = Server::start(&server, &[PORT + 2], Services::Both).unwrap();
    let sink =
        server.run(|| UdpSocket::bind(SocketAddr::new(server.v4().into(), PORT + 1))).unwrap().unwrap();
    sink.set_nonblocking(true).unwrap();
    {
        let _flood = Flood::start(&client, &server);
        eventually("the flood arrives", || sink.recv(&mut [0; 300]).is_ok());
        // Frames from before the switch started.
        taps.iter().for_each(|tap| drop(tap.heard()));
        rig.switch.kill().unwrap();
        let dropped = |count: u64| {
            let now = || ProgramCounts::on(&client.plan().host_interface).dropped;
            let before = now();
            eventually("the program drops the flood", || now() > before + count);
        };
        // Frames that the switch has sent are on their way no more.
        dropped(10);
        while sink.recv(&mut [0; 300]).is_ok() {}
        dropped(500);
        assert!(sink.recv(&mut [0; 300]).is_err(), "a frame reached the other pod");
        let leaked: Vec<String> = taps.into_iter().flat_map(Capture::frames).collect();
        assert!(leaked.is_empty(), "{leaked:?} reached the host's stack");
    }
    let switch = Rig::start(&mut rig.lab, "");
    rig = Rig { switch, lab: rig.lab };
    assert_eq!(
        palisade::lab::traffic::tcp_connect(&client, server.v4().into(), PORT + 2, TIMEOUT).unwrap(),
        palisade::lab::traffic::Outcome::Allowed
    );
    drop(echo);
    // A connection from before the kill continues.
    open.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    accepted.set_read_timeout(Some(TIMEOUT)).unwrap();
    accepted.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still here");
    assert_accounted(&rig.counters());
}

#[test]
fn half_open_requests_use_up_no_descriptors_that_a_change_needs() {
    const HALF_OPEN: usize = 1000;
    let Some(_isolated) = isolated() else { return };
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).unwrap();
    let rig = Rig::up(&["one", "two"], 1);
    let one = rig.pod("one");
    let pid = Pid::from_raw(rig.switch.pid() as i32);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(1024) }).unwrap();
    let socket = rig.lab.directory().join("control.sock");
    let open = |number: usize| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let half = ["PUT /v1/tables HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n", "GET"][number % 2];
        let _ = stream.write_all(half.as_bytes());
        stream
    };
    let half_open: Vec<UnixStream> = (0..HALF_OPEN).map(open).collect();
    rig.apply(&only_from("two", "one"));
    // A new port needs descriptors of its own.
    rig.switch.detach(&one).unwrap();
    rig.switch.attach(&one).unwrap();
    assert_eq!(rig.counters().ports.len(), 2);
    drop(half_open);
}

#[test]
fn a_switch_that_stops_cleanly_stays_closed() {
    let Some(_isolated) = isolated() else { return };
    let (rig, taps) = tapped(&["client", "server"]);
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Tcp).unwrap();
    assert_allowed(&client, server.v4().into());
    // From before the switch.
    taps.iter().for_each(|tap| drop(tap.heard()));
    let Rig { switch, lab } = rig;
    let socket = lab.directory().join("control.sock");
    assert!(socket.exists());
    assert!(switch.stop().unwrap().success());
    assert!(!socket.exists(), "the control socket goes with the switch");
    assert_closed(&client, server.v4().into());
    let leaked: Vec<String> = taps.into_iter().flat_map(Capture::frames).collect();
    assert!(leaked.is_empty(), "{leaked:?} reached the host's stack");
}
