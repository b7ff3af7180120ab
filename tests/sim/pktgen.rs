//! Tests of the packet generator on the memory ports of a simulated switch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use palisade::dataplane::{
    Bandwidth, DesiredState, Gateway, PodAttachment, PortKind, Settings, SimulatedPort, Simulation,
};
use palisade::ids::AttachmentId;
use palisade::net::mac::Mac;
use palisade::pktgen::{
    Content, Distribution, FlowSpace, FrameSize, Kind, Rate, Session, TcpSession, TcpTraffic, Traffic,
};
use palisade::tables::PodName;

/// Fewest frames of a claim, over as many trials as needed.
const FRAMES_MIN: u64 = 50;
static GO_ON: AtomicBool = AtomicBool::new(false);
const TIME: Duration = Duration::from_millis(300);

fn mac(pod: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, pod])
}

/// Makes a switch between two pods that no policy isolates, 10.0.0.1 and 10.0.0.2.
fn switch() -> (Simulation, [SimulatedPort; 2]) {
    let mut sim = Simulation::new(&Settings::default()).unwrap();
    let ports = [1, 2].map(|_| sim.open_port(PortKind::Pod, None, 1500).unwrap());
    let pods = ports.iter().zip(1u8..).map(|(port, number)| PodAttachment {
        id: AttachmentId(u32::from(number)),
        pod: PodName::new("default", format!("pod{number}")),
        port: port.id,
        addresses: vec![format!("10.0.0.{number}").parse().unwrap()],
        mac: Some(mac(number)),
        bandwidth: Bandwidth::default(),
    });
    sim.publish(DesiredState { fail_open: true, pods: pods.collect(), ..DesiredState::default() });
    (sim, ports)
}

fn traffic() -> Traffic {
    let space = FlowSpace {
        src: "10.0.0.1/32".parse().unwrap(),
        dst: "10.0.0.2/32".parse().unwrap(),
        src_ports: 1024..=65535,
        dst_ports: 9000..=9000,
    };
    Traffic {
        flows: 50,
        distribution: Distribution::Zipf(1.0),
        new_flows_per_s: 100.0,
        size: FrameSize::Imix,
        ..Traffic::new(Kind::Udp, mac(1), Gateway::default().mac, space)
    }
}

/// Runs `f` beside the workers of the switch.
fn while_it_runs<T>(sim: &mut Simulation, f: impl FnOnce() -> T) -> T {
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        for mut work in sim.workers() {
            let end = &end;
            scope.spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    if !work() {
                        thread::yield_now();
                    }
                }
            });
        }
        let done = f();
        end.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn what_a_pod_sends_at_a_low_rate_another_receives_whole_and_in_order() {
    let (mut sim, [from, to]) = switch();
    let mut session = Session::in_memory(from.peers, to.peers, &Content::Generated(traffic())).unwrap();
    let (mut sent, mut new_flows) = (0, 0);
    while sent < FRAMES_MIN || new_flows == 0 {
        let trial = while_it_runs(&mut sim, || session.trial(Rate::PerSecond(2000.0), TIME, &GO_ON).unwrap());
        let measured = trial.received.as_ref().unwrap().measured.as_ref().unwrap();
        assert_eq!((trial.lost(), measured.duplicates, measured.reordered), (Some(0), 0, 0));
        assert_eq!(measured.latency.len(), trial.sent.frames);
        (sent, new_flows) = (sent + trial.sent.frames, new_flows + trial.new_flows);
    }
    let counters = sim.counters();
    let received: u64 = counters.ports.values().map(|port| port.received).sum();
    assert_eq!(received, sent);
}

#[test]
fn connections_pass_the_switch_and_their_answers_come_back() {
    let (mut sim, [from, to]) = switch();
    let dialogue = TcpTraffic::from(&traffic());
    let mut connections = TcpSession::in_memory(from.peers, to.peers, dialogue).unwrap();
    let mut opened = 0;
    while opened < 20 {
        let connected =
            while_it_runs(&mut sim, || connections.trial(Rate::PerSecond(500.0), TIME, &GO_ON).unwrap());
        assert_eq!((connected.completed, connected.timed_out), (connected.opened, 0), "{connected:?}");
        opened += connected.opened;
    }
}

#[test]
fn a_switch_that_drops_everything_loses_everything() {
    let (mut sim, [from, to]) = switch();
    sim.publish(DesiredState::default());
    let mut session = Session::in_memory(from.peers, to.peers, &Content::Generated(traffic())).unwrap();
    let mut sent = 0;
    while sent < FRAMES_MIN {
        let trial = while_it_runs(&mut sim, || session.trial(Rate::PerSecond(2000.0), TIME, &GO_ON).unwrap());
        if trial.sent.frames > 0 {
            assert_eq!((trial.lost(), trial.loss()), (Some(trial.sent.frames), Some(1.0)));
        }
        sent += trial.sent.frames;
    }
}
