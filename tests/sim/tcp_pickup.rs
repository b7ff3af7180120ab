//! TCP segments outside any flow. No field of theirs names the originator of a connection, so they open none,
//! or with `tcp_pickup` one with their sender as the originator.

use std::time::Duration;

use palisade::dataplane::{ConntrackSettings, DropReason};
use palisade::ids::PortId;

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{flows, is_dropped, passes, udp};
use crate::rig::model::{ACK, FIN, RST, SYN};
use crate::rig::rule_lists::PodRules;
use crate::rig::{Rig, Setting, pod_address};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const PSH: u8 = 8;
/// Ports of client and server: the client's higher, the client's lower, both from the ephemeral range.
const PORT_PAIRS: [[u16; 2]; 4] = [[40_000, 80], [80, 40_000], [40_001, 50_051], [50_051, 40_001]];

/// Segment from the first pod to the second, or back.
fn segment(
    family: usize,
    from: usize,
    ports: [u16; 2],
    flags: u8,
    numbers: [u32; 2],
    payload: &[u8],
) -> Spec {
    let ports = if from == 0 { ports } else { [ports[1], ports[0]] };
    let [sequence, acknowledgement] = numbers;
    let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 };
    let spec = Spec::new(pod_address(from)[family], pod_address(1 - from)[family], transport);
    Spec { payload: payload.to_vec(), ..spec }
}

/// Rules that let nobody reach the second pod.
fn denied() -> Setting {
    Setting::open().with(1, PodRules { ingress: Some(Vec::new()), egress: None })
}

fn with_pickup(setting: &Setting) -> Rig {
    let conntrack = ConntrackSettings { flows_max: 1024, tcp_pickup: true, ..ConntrackSettings::default() };
    Rig::with(1, conntrack, setting)
}

#[test]
fn a_segment_outside_any_flow_is_invalid_whatever_its_ports_its_flags_and_the_policy() {
    for setting in [Setting::open(), denied()] {
        let mut rig = Rig::new(1, &setting);
        for ports in PORT_PAIRS {
            for flags in [ACK, PSH | ACK, FIN | ACK, FIN, RST, RST | ACK, SYN | ACK, PSH, 0] {
                for (family, from) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let payload: &[u8] = if flags & PSH != 0 { b"GET / HTTP/1.1" } else { b"" };
                    let mid_stream = segment(family, from, ports, flags, [1000, 2000], payload);
                    is_dropped(&mut rig, PortId(from as u16), &mid_stream, DropReason::InvalidState);
                }
            }
        }
        assert_eq!(rig.sim.flows_len(), 0);
    }
}

#[test]
fn a_tightened_policy_cuts_running_connections_whatever_their_ports() {
    for ports in PORT_PAIRS {
        for family in [0, 1] {
            for server_first in [false, true] {
                let mut rig = Rig::new(1, &Setting::open());
                passes(&mut rig, A, B, &segment(family, 0, ports, SYN, [100, 0], b""));
                passes(&mut rig, B, A, &segment(family, 1, ports, SYN | ACK, [500, 101], b""));
                passes(&mut rig, A, B, &segment(family, 0, ports, ACK, [101, 501], b""));
                passes(&mut rig, B, A, &segment(family, 1, ports, ACK, [501, 101], b"hello"));
                rig.publish(&denied());
                let of_client = segment(family, 0, ports, PSH | ACK, [101, 506], b"again");
                let of_server = segment(family, 1, ports, PSH | ACK, [506, 101], b"hello");
                let sides = [(A, &of_client), (B, &of_server)];
                let [(first, one), (second, other)] = if server_first { [sides[1], sides[0]] } else { sides };
                is_dropped(&mut rig, first, one, DropReason::PolicyIngress);
                for _ in 0..3 {
                    is_dropped(&mut rig, second, other, DropReason::InvalidState);
                    is_dropped(&mut rig, first, one, DropReason::InvalidState);
                }
                // The connection stays dead also after policy allows it again.
                rig.publish(&Setting::open());
                is_dropped(&mut rig, A, &of_client, DropReason::InvalidState);
                assert_eq!(rig.sim.flows_len(), 0);
            }
        }
    }
}

#[test]
fn where_connections_are_picked_up_policy_is_asked_about_the_direction_of_the_sender() {
    for ports in PORT_PAIRS {
        let mut rig = with_pickup(&denied());
        for flags in [ACK, PSH | ACK, FIN | ACK] {
            let probe = segment(0, 0, ports, flags, [1000, 2000], b"probe");
            is_dropped(&mut rig, A, &probe, DropReason::PolicyIngress);
        }
        for flags in [SYN | ACK, RST, RST | ACK, FIN, 0] {
            let probe = segment(0, 0, ports, flags, [1000, 2000], b"");
            is_dropped(&mut rig, A, &probe, DropReason::InvalidState);
        }
        assert_eq!(rig.sim.flows_len(), 0);
        passes(&mut rig, B, A, &segment(0, 1, ports, ACK, [2000, 1000], b"data"));
        let flow = &flows(&rig)[0];
        assert_eq!((flow.key.src_port, flow.key.dst_port), (ports[1], ports[0]));
        assert_eq!((flow.packets, flow.reply_packets), (1, 0));
    }
}

#[test]
fn a_picked_up_connection_counts_against_its_sender_and_is_assured_once_it_is_answered() {
    let mut rig = with_pickup(&Setting::open());
    let ports = [40_000, 80];
    passes(&mut rig, B, A, &segment(0, 1, ports, ACK, [2000, 1000], b""));
    let state = |rig: &Rig| {
        let flow = &flows(rig)[0];
        let counters = [A, B].map(|port| rig.counters(port));
        (
            flow.state.to_string(),
            flow.assured,
            counters.map(|port| [port.flows_assured, port.flows_unassured]),
        )
    };
    assert_eq!(state(&rig), ("unacknowledged".to_owned(), false, [[0, 0], [0, 1]]));
    // A segment that cannot be a reply passes, and confirms nothing.
    passes(&mut rig, A, B, &segment(0, 0, ports, ACK, [1000, 3000], b""));
    assert_eq!(state(&rig).0, "unacknowledged");
    passes(&mut rig, A, B, &segment(0, 0, ports, ACK, [1000, 2000], b""));
    assert_eq!(state(&rig), ("established".to_owned(), true, [[0, 0], [1, 0]]));
    passes(&mut rig, A, B, &segment(0, 0, ports, RST | ACK, [1000, 2000], b""));
    assert_eq!(state(&rig), ("reset".to_owned(), false, [[0, 0], [0, 1]]));
}

#[test]
fn unanswered_flows_are_short_lived_and_answered_ones_are_not() {
    let gre = |from: usize| Spec::new(pod_address(from)[0], pod_address(1 - from)[0], Transport::Other(47));
    let middle =
        |from| segment(0, from, [40_000, 80], ACK, if from == 0 { [1000, 2000] } else { [2000, 1000] }, b"");
    for (packet, alone_s, answered_s) in [(&gre as &dyn Fn(usize) -> Spec, 30, 600), (&middle, 300, 86_400)] {
        for (is_answered, lives_s) in [(false, alone_s), (true, answered_s)] {
            let mut rig = with_pickup(&Setting::open());
            passes(&mut rig, A, B, &packet(0));
            if is_answered {
                passes(&mut rig, B, A, &packet(1));
            }
            assert_eq!(flows(&rig)[0].assured, is_answered);
            rig.wait(Duration::from_secs(lives_s));
            assert_eq!(rig.sim.flows_len(), 1);
            rig.wait(Duration::from_secs(2));
            assert_eq!(rig.sim.flows_len(), 0);
        }
    }
}

#[test]
fn a_flushed_connection_stays_cut_and_a_flushed_exchange_of_udp_begins_again() {
    for workers in [1, 2] {
        let mut rig = Rig::with(workers, ConntrackSettings::default(), &Setting::open());
        let ports = [40_000, 80];
        passes(&mut rig, A, B, &segment(0, 0, ports, SYN, [100, 0], b""));
        passes(&mut rig, B, A, &segment(0, 1, ports, SYN | ACK, [500, 101], b""));
        passes(&mut rig, A, B, &segment(0, 0, ports, ACK, [101, 501], b""));
        (0..500).for_each(|n| passes(&mut rig, A, B, &udp(0, 1, [2000 + n, 53])));
        let (assured, of_a) = (rig.counters(A).flows_assured, rig.counters(A).flows_unassured);
        assert_eq!((rig.sim.flows_len(), assured, of_a), (501, 1, 500));
        // All but one exchange of UDP: more than a worker ends at once.
        assert_eq!(rig.sim.end_flows(&mut |flow| flow.key.src_port != 2007), 500);
        let left = flows(&rig);
        assert_eq!((left.len(), left[0].key.src_port), (1, 2007));
        assert_eq!((rig.counters(A).flows_assured, rig.counters(A).flows_unassured), (0, 1));
        let (client, server) = (
            segment(0, 0, ports, PSH | ACK, [101, 501], b"again"),
            segment(0, 1, ports, PSH | ACK, [501, 101], b"hello"),
        );
        is_dropped(&mut rig, A, &client, DropReason::InvalidState);
        is_dropped(&mut rig, B, &server, DropReason::InvalidState);
        passes(&mut rig, A, B, &udp(0, 1, [2000, 53]));
        passes(&mut rig, A, B, &segment(0, 0, ports, SYN, [9000, 0], b""));
        assert_eq!(rig.sim.flows_len(), 3);
        assert_eq!(rig.sim.end_flows(&mut |_| true), 3);
        assert_eq!((rig.sim.flows_len(), rig.sim.end_flows(&mut |_| true)), (0, 0));
    }
}
