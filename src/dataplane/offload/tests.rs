mod program;

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::net::address::{Address, from_v4};
use crate::net::flow::Protocol;
use crate::xdp::offload::layout::{GATEWAYS, Record, address_words, hash_of};

const FLOWS: usize = 64;

fn offload() -> Offload {
    Offload::new(OffloadMaps::in_memory(FLOWS).unwrap())
}

fn flow(number: u16) -> OffloadedFlow {
    OffloadedFlow {
        addresses: [1, 2].map(|last| from_v4(Ipv4Addr::new(10, 0, 0, last).to_bits())),
        transport_ports: [1000 + number, 80],
        protocol: Protocol::UDP,
        ports: [PortId(3), PortId(4)],
        epochs: [Some(Generation(7)), None],
        front: None,
        gateway: Gateway::None,
        numbers: Default::default(),
    }
}

/// The flow of a client, which is the first end, to a Service.
fn flow_to_service(number: u16) -> OffloadedFlow {
    let address = from_v4(Ipv4Addr::new(10, 96, 0, 1).to_bits());
    let front = OffloadedFront { client: 0, address, port: 8080, service: 5, epoch: Some(Generation(7)) };
    OffloadedFlow { front: Some(front), ..flow(number) }
}

/// Record that the program finds for packets between the ends of a flow: it looks for the hash in the bucket, and compares.
fn found<'a>(offload: &'a Offload, flow: &OffloadedFlow) -> Option<&'a Record> {
    found_by(offload, flow, flow.addresses, flow.transport_ports)
}

/// Record that the program finds for packets of a flow's client to the front end.
fn found_by_client<'a>(offload: &'a Offload, flow: &OffloadedFlow) -> Option<&'a Record> {
    let front = flow.front.unwrap();
    let (mut addresses, mut ports) = (flow.addresses, flow.transport_ports);
    (addresses[1 - front.client], ports[1 - front.client]) = (front.address, front.port);
    found_by(offload, flow, addresses, ports)
}

fn found_by<'a>(
    offload: &'a Offload,
    flow: &OffloadedFlow,
    addresses: [Address; 2],
    ports: [u16; 2],
) -> Option<&'a Record> {
    let hash = hash_of(offload.maps.seed, addresses.map(address_words), ports, flow.protocol.0);
    let named = offload.bucket(hash).ways.iter().map(|way| way.load(Relaxed));
    let named = named.filter(|word| *word as u32 != 0 && (*word ^ hash) >> 32 == 0);
    let mut records = named.map(|word| &offload.maps.records[word as u32 as usize - 1]);
    records.find(|record| record.head.load(Relaxed) == flow.head())
}

/// Records a flow in each slot. Some flows meet a full bucket.
fn take_all(offload: &Offload, slots: impl Iterator<Item = u32>) {
    let mut flows = (200..).map(flow);
    for slot in slots {
        assert!(flows.by_ref().take(1000).any(|flow| offload.record(slot, &flow, || true)), "{slot}");
    }
}

fn forward(record: &Record, end: usize, packets: u32, bytes: u64) {
    record.packets[end].fetch_add(packets, Relaxed);
    record.bytes[end].fetch_add(bytes, Relaxed);
}

#[test]
fn a_recorded_flow_is_found_until_it_is_removed() {
    let offload = offload();
    assert!(offload.record(9, &flow(0), || true) && offload.is_recorded(9));
    let record = found(&offload, &flow(0)).unwrap();
    assert_eq!(record.epochs.each_ref().map(|epoch| epoch.load(Relaxed)), [7, 0]);
    assert!(found(&offload, &flow(1)).is_none());
    // A later evaluation.
    let evaluated = OffloadedFlow { epochs: [Some(Generation(8)), Some(Generation(9))], ..flow(0) };
    assert!(offload.record(9, &evaluated, || true));
    assert_eq!(record.epochs.each_ref().map(|epoch| epoch.load(Relaxed)), [8, 9]);
    offload.remove(9);
    assert!(found(&offload, &flow(0)).is_none() && !offload.is_recorded(9));
    assert_eq!(record.epochs.each_ref().map(|epoch| epoch.load(Relaxed)), [0, 0]);
}

#[test]
fn a_flow_to_a_service_is_found_by_both_of_its_directions() {
    let offload = offload();
    let of = flow_to_service(0);
    assert!(offload.record(9, &of, || true));
    let record = found(&offload, &of).unwrap();
    assert!(std::ptr::eq(record, found_by_client(&offload, &of).unwrap()));
    assert_eq!((record.head().client, record.service_epoch.load(Relaxed)), (Some(0), 7));
    // A packet that was not compared with the Services leaves the epoch.
    let front = |epoch| OffloadedFront { epoch, ..of.front.unwrap() };
    for (epoch, expected) in [(None, 7), (Some(Generation(9)), 9)] {
        assert!(offload.record(9, &OffloadedFlow { front: Some(front(epoch)), ..of }, || true));
        assert_eq!(record.service_epoch.load(Relaxed), expected);
    }
    offload.remove(9);
    assert!(found(&offload, &of).is_none() && found_by_client(&offload, &of).is_none());
    // The record of another flow has nothing of it.
    offload.end_grace_period(|| true);
    assert!(offload.record(10, &flow(1), || true));
    assert_eq!(found(&offload, &flow(1)).unwrap().head().client, None);
}

#[test]
fn a_flow_to_a_service_with_a_full_bucket_leaves_no_name() {
    let offload = offload();
    let of = flow_to_service(0);
    let front = of.front.unwrap();
    let addresses = [of.addresses[0], front.address].map(address_words);
    let hash = hash_of(offload.maps.seed, addresses, [of.transport_ports[0], front.port], of.protocol.0);
    offload.bucket(hash).ways.iter().for_each(|way| way.store(1, Relaxed));
    assert!(!offload.record(9, &of, || true) && !offload.is_recorded(9));
    assert!(found(&offload, &of).is_none());
}

#[test]
fn the_difference_of_addresses_is_that_of_their_checksums() {
    let sum = |address: Address| {
        let words = address.to_be_bytes();
        let words = words.chunks(2).map(|word| u32::from(u16::from_ne_bytes([word[0], word[1]])));
        let sum = words.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) % 0xffff
    };
    let v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
    for [from, to] in [
        [of_v4([10, 96, 0, 1]), of_v4([10, 0, 0, 2])],
        [of_v4([255, 255, 255, 255]), of_v4([0, 0, 0, 1])],
        [v6("fd00:96::1"), v6("fd00:10:244::ffff")],
        [v6("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), v6("::1")],
    ] {
        for [from, to] in [[from, to], [to, from], [from, from]] {
            let difference = Record::difference_of(address_words(from), address_words(to));
            assert_eq!((sum(from) + u32::from(difference)) % 0xffff, sum(to), "{from:x} {to:x}");
        }
    }
}

fn of_v4(octets: [u8; 4]) -> Address {
    from_v4(Ipv4Addr::from(octets).to_bits())
}

#[test]
fn a_flow_that_another_worker_ends_meanwhile_has_no_record() {
    let offload = offload();
    assert!(!offload.record(9, &flow(0), || false));
    assert!(found(&offload, &flow(0)).is_none() && !offload.is_recorded(9));
}

#[test]
fn a_removed_record_is_taken_again_after_a_grace_period_alone() {
    let offload = offload();
    take_all(&offload, 0..FLOWS as u32);
    offload.remove(5);
    let mut others = (0..100).map(flow);
    assert!(
        !others.clone().any(|flow| offload.record(5, &flow, || true)),
        "the program may still read the record"
    );
    offload.end_grace_period(|| false);
    assert!(!others.clone().any(|flow| offload.record(5, &flow, || true)), "the wait has failed");
    offload.end_grace_period(|| true);
    assert!(others.any(|flow| offload.record(5, &flow, || true)));
    offload.end_grace_period(|| panic!("no record was removed"));
}

#[test]
fn counts_go_to_the_flow_and_to_its_ports_once() {
    let offload = offload();
    assert!(offload.record(9, &flow(0), || true));
    let record = found(&offload, &flow(0)).unwrap();
    forward(record, 0, 3, 300);
    forward(record, 1, 1, 40);
    let of = |packets, bytes| Forwarded { packets, bytes, segments: 0 };
    assert_eq!(offload.peek(9), [of(3, 300), of(1, 40)]);
    assert_eq!(offload.take(9), Some([of(3, 300), of(1, 40)]));
    assert_eq!((offload.take(9), offload.peek(9)), (None, [of(0, 0); 2]));
    offload.count_ports();
    offload.count_ports();
    assert_eq!(offload.totals_of(PortId(3)), [of(3, 300 + 3 * 14), of(1, 40 + 14)]);
    assert_eq!(offload.totals_of(PortId(4)), [of(1, 40 + 14), of(3, 300 + 3 * 14)]);
    forward(record, 0, 1, 100);
    assert_eq!(offload.remove(9), Some([of(1, 100), of(0, 0)]), "the last packets");
    // The program has found the record before it was removed.
    forward(record, 0, 1, 100);
    offload.end_grace_period(|| true);
    assert!(offload.record(10, &flow(1), || true));
    assert_eq!(offload.take(10), None, "they are none of the next flow");
    offload.count_ports();
    assert_eq!(offload.totals_of(PortId(3))[0].packets, 5);
}

#[test]
fn flows_beyond_the_ways_of_a_bucket_stay_with_the_workers() {
    let offload = offload();
    let of_one_bucket = (0..u16::MAX).filter(|number| {
        let addresses = flow(0).addresses.map(address_words);
        let hash = hash_of(offload.maps.seed, addresses, flow(*number).transport_ports, Protocol::UDP.0);
        std::ptr::eq(offload.bucket(hash), &raw const offload.maps.buckets[0])
    });
    let recorded = of_one_bucket
        .take(10)
        .zip(0..)
        .filter(|(number, slot)| offload.record(*slot, &flow(*number), || true));
    assert_eq!(recorded.count(), 8);
    assert_eq!(offload.counters(), OffloadCounters { flows: 8, recorded: 8, refused: 2, lost: 0 });
}

#[test]
fn no_packet_passes_while_offload_is_suspended() {
    let offload = offload();
    let until = || offload.maps.lease[0].until.load(Relaxed);
    offload.renew_lease(1000);
    assert_eq!(until(), 1000);
    offload.suspend(true);
    offload.renew_lease(2000);
    assert_eq!((until(), offload.is_suspended()), (0, true));
    offload.suspend(false);
    offload.renew_lease(3000);
    assert_eq!(until(), 3000);
}

#[test]
fn records_of_the_process_before_are_taken_over_with_the_flows_that_the_table_still_has() {
    let before = offload();
    before.open_port(PortId(3), 30, false);
    before.set_port(PortId(3), OffloadPort { epoch: Some(Generation(7)), ..OffloadPort::default() });
    for number in 0..3 {
        assert!(before.record(u32::from(number), &flow(number), || true));
    }
    let to_service = flow_to_service(3);
    assert!(before.record(3, &to_service, || true));
    forward(found(&before, &flow(1)).unwrap(), 0, 3, 300);
    before.take(1);
    forward(found(&before, &flow(1)).unwrap(), 0, 2, 200);
    forward(found(&before, &flow(0)).unwrap(), 0, 7, 700);

    let after = Offload::new(before.maps);
    // The table has the second and the third flow, in other slots, and the third ends with another flow's key.
    after.adopt(|(_, [port, _], _)| (port != 1000).then(|| 20 + u32::from(port - 1000)));
    assert!(found(&after, &flow(0)).is_none());
    assert!([21, 22, 23].into_iter().all(|slot| after.is_recorded(slot)) && !after.is_recorded(20));
    assert_eq!(after.counters().flows, 3);
    assert!(found(&after, &to_service).is_some() && found_by_client(&after, &to_service).is_some());
    // The flow goes on where the process before has counted, the ports begin again.
    assert_eq!(
        after.take(21),
        Some([Forwarded { packets: 2, bytes: 200, segments: 0 }, Forwarded::default()])
    );
    after.count_ports();
    assert_eq!(after.totals_of(PortId(3)), [Forwarded::default(); 2]);
    // The record that nobody has is taken again, after a grace period.
    after.end_grace_period(|| true);
    take_all(&after, (0..FLOWS as u32).filter(|slot| ![21, 22, 23].contains(slot)));
}

#[test]
fn the_ports_of_the_process_before_keep_its_policy_until_they_are_released() {
    let epoch_of = |offload: &Offload| offload.port(PortId(3)).epoch.load(Relaxed);
    let published = |epoch| OffloadPort { epoch: Some(Generation(epoch)), ..OffloadPort::default() };
    let before = offload();
    before.open_port(PortId(3), 30, false);
    before.set_port(PortId(3), published(7));
    before.renew_lease(u64::MAX);
    let after = Offload::new(before.maps);
    after.adopt(|_| None);
    // A port that this process has not opened keeps nobody waiting.
    assert_eq!(after.held_ports().count(), 0);
    after.open_port(PortId(3), 30, false);
    assert_eq!(after.held_ports().collect::<Vec<_>>(), [PortId(3)]);
    after.set_port(PortId(3), published(9));
    assert_eq!(epoch_of(&after), 7);
    after.release_held();
    assert_eq!((epoch_of(&after), after.held_ports().count()), (9, 0));
    after.set_port(PortId(3), published(10));
    assert_eq!(epoch_of(&after), 10);

    // Another interface takes the place of the first.
    let next = Offload::new(after.maps);
    next.adopt(|_| None);
    next.open_port(PortId(3), 31, false);
    assert_eq!((epoch_of(&next), next.held_ports().count()), (CLOSED, 0));

    // The lease has ended.
    next.set_port(PortId(3), published(11));
    next.renew_lease(1);
    let last = Offload::new(next.maps);
    last.adopt(|_| None);
    assert_eq!(epoch_of(&last), CLOSED, "also of a port that is not there any more");
    last.open_port(PortId(3), 31, false);
    assert_eq!(last.held_ports().count(), 0);
}

#[test]
fn counts_of_the_program_go_on_where_they_begin_again() {
    let offload = offload();
    assert!(offload.record(9, &flow(0), || true));
    let record = found(&offload, &flow(0)).unwrap();
    let mut sum = 0;
    // The last steps are beyond 2^32 packets.
    for packets in [1, u32::MAX - 3, 7, 1 << 31, u32::MAX] {
        forward(record, 0, packets, 1);
        sum += u64::from(packets);
        assert_eq!(offload.peek(9)[0].packets, u64::from(packets));
        assert_eq!(offload.take(9).unwrap()[0].packets, u64::from(packets));
        offload.count_ports();
        assert_eq!(offload.totals_of(PortId(3))[0].packets, sum);
    }
}

fn connection() -> OffloadedFlow {
    let numbers = |end, acknowledged| TcpNumbers { end, acknowledged, max_window: 1 << 16, scale: 7 };
    OffloadedFlow { protocol: Protocol::TCP, numbers: [numbers(100, 200), numbers(300, 400)], ..flow(0) }
}

#[test]
fn a_connection_has_the_numbers_of_its_record_while_it_has_one() {
    let offload = offload();
    let mut of = connection();
    assert!(offload.record(9, &of, || true));
    assert_eq!(offload.numbers(9), Some(of.numbers));
    let record = found(&offload, &of).unwrap();
    // The program and a worker note segments.
    record.sequence_ends[0].store(150, Relaxed);
    let before = offload.numbers(9).unwrap();
    let mut after = before;
    (after[0].acknowledged, after[1].max_window) = (250, 70_000);
    record.sequence_ends[1].store(350, Relaxed);
    offload.set_numbers(9, &before, &after);
    of.numbers[0] = TcpNumbers { end: 150, acknowledged: 250, ..of.numbers[0] };
    of.numbers[1] = TcpNumbers { end: 350, max_window: 1 << 17, ..of.numbers[1] };
    assert_eq!(offload.numbers(9), Some(of.numbers), "the program's number of the other end stays");
    assert!(!offload.is_changed(9, &connection()), "numbers are no other flow");
    offload.remove(9);
    assert_eq!(offload.numbers(9), None);
    assert!(offload.record(10, &flow(1), || true));
    assert_eq!(offload.numbers(10), None, "a flow of UDP has none");
}

#[test]
fn the_window_of_a_record_is_no_less_than_the_one_it_holds() {
    for (bytes, log) in [(0, 0), (1, 0), (2, 1), (3, 2), (65_535, 16), (65_536, 16), (65_537, 17)] {
        assert_eq!(log_of_window(bytes), log, "{bytes}");
    }
    assert_eq!(log_of_window(65_535 << 14), 30);
}

#[test]
fn a_flow_with_another_next_hop_or_front_end_is_another_one() {
    let offload = offload();
    let of = flow_to_service(0);
    assert!(offload.record(9, &of, || true) && !offload.is_changed(9, &of) && !offload.is_changed(10, &of));
    let evaluated = OffloadedFlow { epochs: [Some(Generation(9)); 2], ..of };
    assert!(!offload.is_changed(9, &evaluated));
    let front = of.front.unwrap();
    for other in [
        OffloadedFlow { gateway: Gateway::Number(0), ..of },
        OffloadedFlow { ports: [PortId(3), PortId(5)], ..of },
        OffloadedFlow { front: Some(OffloadedFront { port: 8081, ..front }), ..of },
        OffloadedFlow { front: Some(OffloadedFront { service: 6, ..front }), ..of },
        OffloadedFlow { front: Some(OffloadedFront { address: front.address + 1, ..front }), ..of },
        OffloadedFlow { front: None, ..of },
    ] {
        assert!(offload.is_changed(9, &other), "{other:?}");
    }
}

#[test]
fn gateways_have_one_number_each_until_a_start_frees_those_that_no_record_has() {
    let before = offload();
    let address = |number: u32| from_v4(0x0a00_0000 + number);
    let numbered = |offload: &Offload, number| match offload.gateway(address(number)) {
        Some(Gateway::Number(number)) => Some(number),
        _ => None,
    };
    let mut numbers = std::collections::BTreeMap::new();
    for number in 0..40_000 {
        if let Some(given) = numbered(&before, number) {
            assert_eq!(numbers.insert(given, number), None, "two addresses have one number");
        }
    }
    assert!(numbers.len() > GATEWAYS * 9 / 10, "{}", numbers.len());
    for (given, number) in &numbers {
        assert_eq!(numbered(&before, *number), Some(*given));
        let [high, low] = before.maps.gateways[usize::from(*given)].address.each_ref();
        assert_eq!([high.load(Relaxed), low.load(Relaxed)], address_words(address(*number)));
    }
    let (kept, of) = numbers.first_key_value().unwrap();
    assert!(before.record(9, &OffloadedFlow { gateway: Gateway::Number(*kept), ..flow(0) }, || true));

    let after = Offload::new(before.maps);
    after.adopt(|_| Some(9));
    let filled = after.maps.gateways.iter().filter(|slot| slot.state.load(Relaxed) != 0);
    assert_eq!(filled.count(), 1);
    assert_eq!(numbered(&after, *of), Some(*kept));
    assert!(numbered(&after, 70_000).is_some(), "there is room again");
}
