//! Tests of the packet generator on a veth pair between two network namespaces.

mod veth_pair;

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use palisade::net::mac::Mac;
use palisade::pktgen::{
    Capture, Content, Distribution, FlowSpace, FrameSize, Kind, Rate, Receive, Replay, Session, Setup,
    TcpSession, TcpTraffic, Traffic, Trial,
};

use self::veth_pair::{Pair, rx_link};
use crate::support::eventually;
use crate::support::namespace::{in_namespace, run};

const TIME: Duration = Duration::from_millis(100);
/// Rate that a loaded machine keeps up with.
const SLOW: Rate = Rate::PerSecond(2000.0);
/// Fewest frames of a claim, over as many trials as needed.
const FRAMES_MIN: u64 = 100;
static GO_ON: AtomicBool = AtomicBool::new(false);

fn traffic(pair: &Pair, kind: Kind, ipv6: bool) -> Traffic {
    let network = |v4: &str, v6: &str| if ipv6 { v6.parse() } else { v4.parse() }.unwrap();
    let space = FlowSpace {
        src: network("10.0.0.1/32", "fd00::1/128"),
        dst: network("10.0.0.2/32", "fd00::2/128"),
        src_ports: 1024..=65535,
        dst_ports: 9000..=9000,
    };
    let mut traffic = Traffic {
        flows: 100,
        distribution: Distribution::Uniform,
        ..Traffic::new(kind, pair.tx.mac().unwrap(), pair.rx.mac().unwrap(), space)
    };
    traffic.size = FrameSize::Fixed(traffic.size_min(true));
    traffic
}

fn setup(pair: &Pair, receive: Receive, content: Content) -> Setup {
    Setup { tx: pair.tx.clone(), rx: Some(pair.rx.clone()), receive, content, queues: 1, cores: vec![] }
}

/// Runs slow trials of this traffic, [`FRAMES_MIN`] frames in all, and asserts that every frame arrives once,
/// in order, with a latency. Returns the last trial.
fn assert_all_measured(pair: &Pair, traffic: Traffic, what: &str) -> Trial {
    let setup = setup(pair, Receive::Measure, Content::Generated(traffic));
    trials_all_measured(&mut Session::open(&setup).unwrap(), what)
}

fn trials_all_measured(session: &mut Session, what: &str) -> Trial {
    let mut sent = 0;
    loop {
        let trial = session.trial(SLOW, TIME, &GO_ON).unwrap();
        assert_measured(&trial, what);
        sent += trial.sent.frames;
        if sent >= FRAMES_MIN {
            return trial;
        }
    }
}

fn assert_measured(trial: &Trial, what: &str) {
    let received = trial.received.as_ref().unwrap();
    let measured = received.measured.as_ref().unwrap();
    assert_eq!((trial.lost(), measured.duplicates, measured.reordered), (Some(0), 0, 0), "{what}");
    assert_eq!((received.frames, measured.latency.len()), (trial.sent.frames, trial.sent.frames), "{what}");
    assert_eq!(received.bytes, trial.sent.bytes, "{what}");
    assert!(measured.latency.min() > 0, "{what}");
}

#[test]
fn at_a_low_rate_every_frame_of_every_protocol_arrives_once_and_in_order() {
    in_namespace(|| {
        let pair = Pair::new(1);
        let kinds = [Kind::Udp, Kind::Tcp(0x10), Kind::IcmpEcho, Kind::SctpData, Kind::SctpInit];
        for (kind, ipv6) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            assert_all_measured(&pair, traffic(&pair, kind, ipv6), &format!("{kind} {ipv6}"));
        }
    });
}

#[test]
fn tagged_frames_the_mix_of_sizes_and_fresh_flows_arrive_too() {
    in_namespace(|| {
        let pair = Pair::new(1);
        let mut tagged = traffic(&pair, Kind::Udp, false);
        (tagged.vlan, tagged.size) = (Some(7), FrameSize::Fixed(68));
        assert_all_measured(&pair, tagged, "tagged");
        let mut mix = traffic(&pair, Kind::Udp, true);
        mix.size = FrameSize::Imix;
        assert_all_measured(&pair, mix, "mix");
        let mut fresh = traffic(&pair, Kind::Udp, false);
        fresh.new_flows_per_s = 500.0;
        let trial = assert_all_measured(&pair, fresh, "fresh");
        assert!((1..=trial.sent.frames).contains(&trial.new_flows), "{}", trial.new_flows);
    });
}

#[test]
fn the_counting_receiver_counts_every_frame_and_neighbours_still_find_each_other() {
    in_namespace(|| {
        let pair = Pair::new(1);
        for ipv6 in [false, true] {
            let content = Content::Generated(traffic(&pair, Kind::Udp, ipv6));
            let mut session = Session::open(&setup(&pair, Receive::Count, content)).unwrap();
            let mut sent = 0;
            while sent < 2 * FRAMES_MIN {
                let trial = session.trial(SLOW, TIME, &GO_ON).unwrap();
                let received = trial.received.as_ref().unwrap();
                assert_eq!((received.frames, received.bytes), (trial.sent.frames, trial.sent.bytes));
                assert!(received.measured.is_none());
                sent += trial.sent.frames;
            }
            let dst = if ipv6 { "fd00::2" } else { "10.0.0.2" };
            let (dst, mac) = (dst.parse().unwrap(), pair.rx.mac().unwrap());
            eventually("the neighbour is found", || {
                pair.tx.next_hop_mac(dst).is_ok_and(|found| found == mac)
            });
        }
    });
}

#[test]
fn what_was_attached_is_gone_with_the_session() {
    in_namespace(|| {
        let pair = Pair::new(1);
        for receive in [Receive::Count, Receive::Measure] {
            let content = Content::Generated(traffic(&pair, Kind::Udp, false));
            let session = Session::open(&setup(&pair, receive, content)).unwrap();
            assert!(rx_link().contains("prog/xdp"), "{receive:?}");
            assert!(!pair.tx_link().contains("prog/xdp"), "the sender's stack is left alone");
            drop(session);
            assert!(!rx_link().contains("prog/xdp"), "{receive:?}");
        }
    });
}

#[test]
fn two_queues_send_disjoint_flows_and_all_arrive() {
    in_namespace(|| {
        let pair = Pair::new(2);
        let content = Content::Generated(traffic(&pair, Kind::Udp, false));
        let setup = Setup { queues: 2, ..setup(&pair, Receive::Measure, content) };
        trials_all_measured(&mut Session::open(&setup).unwrap(), "two queues");
        let error = Session::open(&Setup { queues: 3, ..setup }).err().unwrap().to_string();
        assert!(error.contains("queue 2"), "{error}");
    });
}

#[test]
fn the_command_prints_one_object_whether_a_rate_passes_or_none_does() {
    in_namespace(|| {
        let pair = Pair::new(1);
        run("ip link add deaf type veth peer name mute");
        run("ip link set deaf up");
        let search = |rx: &str| {
            let options =
                "--ndr --loss 0.5 --precision 0.5 --trials 1 --rate 2000 --seconds 0.2 --output json";
            let line = format!("pktgen --tx {} --rx {rx} --src 10.0.0.1 --dst 10.0.0.2 {options}", pair.tx);
            let done = Command::new(env!("CARGO_BIN_EXE_palisade")).args(line.split(' ')).output().unwrap();
            let said: serde_json::Value = serde_json::from_slice(&done.stdout).expect("one object");
            (done.status.code(), said)
        };
        let (code, said) = search("rx0");
        assert!(code == Some(0) && said["ndr_mpps"].as_f64() > Some(0.0), "{said}");
        assert!(said["received"].as_u64() > Some(0), "{said}");
        let (code, said) = search("deaf");
        assert!(code == Some(1) && said["ndr_mpps"] == 0.0 && said["ndr_steps"].as_u64() > Some(0), "{said}");
        assert!(said.get("sent").is_none(), "no trial at no rate: {said}");
    });
}

#[test]
fn connections_open_and_close_over_both_versions_of_ip_and_tagged() {
    in_namespace(|| {
        let pair = Pair::new(1);
        for (ipv6, vlan) in [(false, None), (true, None), (false, Some(9))] {
            let dialogue = TcpTraffic { vlan, ..TcpTraffic::from(&traffic(&pair, Kind::Tcp(0), ipv6)) };
            let mut connections = TcpSession::open(&pair.tx, &pair.rx, dialogue, &[]).unwrap();
            let mut opened = 0;
            while opened < 50 {
                let connected = connections.trial(Rate::PerSecond(1000.0), TIME, &GO_ON).unwrap();
                assert_eq!(
                    (connected.established, connected.completed),
                    (connected.opened, connected.opened)
                );
                assert_eq!((connected.reset, connected.timed_out), (0, 0));
                assert_eq!(connected.setup.len(), connected.opened);
                opened += connected.opened;
            }
        }
    });
}

#[test]
fn connections_that_nobody_answers_time_out_and_are_counted() {
    in_namespace(|| {
        let pair = Pair::new(1);
        let mut dialogue = TcpTraffic::from(&traffic(&pair, Kind::Tcp(0), false));
        (dialogue.dst_mac, dialogue.vlan) = (Mac([2, 9, 9, 9, 9, 9]), None);
        dialogue.concurrent = 10;
        let mut connections = TcpSession::open(&pair.tx, &pair.rx, dialogue, &[]).unwrap();
        run("ip link set rx0 down");
        let connected = connections.trial(Rate::Max, TIME, &GO_ON);
        // The sender's carrier is lost with its peer: the send fails, or no frame gets a reply.
        match connected {
            Ok(connected) => {
                assert_eq!((connected.opened, connected.timed_out, connected.established), (10, 10, 0));
            }
            Err(error) => assert!(error.to_string().contains("ip link set"), "{error}"),
        }
    });
}

#[test]
fn a_recording_is_sent_as_it_is_with_other_addresses() {
    in_namespace(|| {
        let pair = Pair::new(1);
        let frames: Vec<Vec<u8>> = (0..20u8).map(|number| vec![number; 60 + usize::from(number)]).collect();
        let mut file =
            [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0]
                .to_vec();
        for (frame, number) in frames.iter().zip(0u32..) {
            let length = (frame.len() as u32).to_le_bytes();
            file.extend([[0; 4], (number * 1000).to_le_bytes(), length, length].concat());
            file.extend(frame);
        }
        let path = std::env::temp_dir().join(format!("palisade-pktgen-{}.pcap", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let recording = Capture::open(&path);
        std::fs::remove_file(&path).unwrap();
        let replay = Replay::new(recording.unwrap(), None, Some(pair.rx.mac().unwrap()), 3);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let mut session = Session::open(&setup(&pair, Receive::Count, Content::Replay(replay))).unwrap();
        for rate in [Rate::Recorded, Rate::Max] {
            let trial = session.trial(rate, Duration::from_secs(5), &GO_ON).unwrap();
            let received = trial.received.unwrap();
            assert_eq!((received.frames, received.bytes), (60, 3 * bytes as u64), "{rate:?}");
        }
    });
}

#[test]
fn a_frame_larger_than_the_interface_lets_pass_is_refused_and_so_is_an_interface_that_is_down() {
    in_namespace(|| {
        let pair = Pair::new(1);
        let mut large = traffic(&pair, Kind::Udp, false);
        large.size = FrameSize::Fixed(1519);
        let content = Content::Generated(large.clone());
        let error = Session::open(&setup(&pair, Receive::Count, content)).err().unwrap().to_string();
        assert!(error.contains("MTU is 1500") && error.contains("1518"), "{error}");
        large.size = FrameSize::Fixed(1518);
        let content = Content::Generated(large);
        let mut session = Session::open(&setup(&pair, Receive::Count, content)).unwrap();
        pair.tx_run("ip link set tx0 down");
        let error = session.trial(SLOW, TIME, &GO_ON).err().unwrap().to_string();
        assert!(error.contains("tx0"), "{error}");
    });
}
