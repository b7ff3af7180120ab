//! Export of flows to a collector: templates, deltas, names, a collector that is away.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade::control::{IpfixSettings, MetricsFormat, Periodic, Switch, SwitchSettings, export_flows};
use palisade::dataplane::{EndedFlow, EndedFlows, FlowCount, FlowCounters, FlowEnd};
use palisade::ids::PortId;
use palisade::net::flow::{FlowKey, Protocol};

use crate::fixture::{FakeDataplane, on_port, pod, pod_port, switch};
use crate::ipfix_collector::{Collector, Record};
use crate::tools::run_if_installed;

// Numbers of elements.
const OCTETS: u16 = 1;
const PACKETS: u16 = 2;
const SOURCE_PORT: u16 = 7;
const INGRESS: u16 = 10;
const EGRESS: u16 = 14;
const INTERFACE_NAME: u16 = 82;
const INTERFACE_DESCRIPTION: u16 = 83;
const END_REASON: u16 = 136;

/// Flows of the fake dataplane.
#[derive(Default)]
pub(crate) struct FakeFlows {
    now_ms: AtomicU32,
    live: Mutex<Vec<FlowCount>>,
    ended: Mutex<Vec<EndedFlow>>,
    /// Collections of ended flows while flows were read.
    taken_in_walks: AtomicU32,
    is_read: AtomicBool,
    /// Complete walks over the flows.
    walks: AtomicU32,
    lost: AtomicU32,
    is_followed: AtomicBool,
}

impl FlowCounters for FakeFlows {
    fn read(&self, see: &mut dyn FnMut(&FlowCount) -> bool) {
        self.is_read.store(true, Ordering::Relaxed);
        self.live.lock().unwrap().iter().all(see);
        self.is_read.store(false, Ordering::Relaxed);
        self.walks.fetch_add(1, Ordering::Relaxed);
    }

    fn follow_ended(&self, is_followed: bool) {
        self.is_followed.store(is_followed, Ordering::Relaxed);
    }

    fn take_ended(&self) -> EndedFlows {
        self.taken_in_walks.fetch_add(self.is_read.load(Ordering::Relaxed).into(), Ordering::Relaxed);
        EndedFlows {
            flows: std::mem::take(&mut *self.ended.lock().unwrap()),
            now_ms: self.now_ms.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed).into(),
        }
    }
}

fn flow(source_port: u16, packets: u64, v6: bool) -> FlowCount {
    let [src, dst] = if v6 { ["fd00::2", "fd00::9"] } else { ["10.1.0.2", "10.1.0.9"] };
    let [src, dst] = [src, dst].map(|address| address.parse().unwrap());
    FlowCount {
        key: FlowKey { src, dst, protocol: Protocol::TCP, src_port: source_port, dst_port: 80 },
        port: PortId(0),
        opened_ms: Some(u32::from(source_port)),
        last_seen_ms: 5,
        counts: [(packets, 100 * packets), (2 * packets, 50 * packets)],
    }
}

/// Switch with two pods that exports its flows.
fn exporting(collector: &Collector) -> (Arc<FakeDataplane>, Arc<Switch>, Periodic) {
    let settings = IpfixSettings {
        collector: collector.address(),
        observation_domain: 77,
        active_timeout: Duration::from_millis(600),
        template_interval: Duration::from_millis(300),
    };
    let (dataplane, switch) = switch(SwitchSettings { ipfix: Some(settings), ..SwitchSettings::default() });
    for (name, address) in [("client", "10.1.0.2"), ("server", "10.1.0.9")] {
        switch.put_port(&format!("veth-{name}"), &pod_port()).unwrap();
        switch.put_pod(&pod(name), &on_port(&format!("veth-{name}"), address)).unwrap();
    }
    let exporter = export_flows(&switch).unwrap().unwrap();
    (dataplane, switch, exporter)
}

/// Records of the flow with this source port.
fn of(collector: &Collector, port: u16) -> Vec<Record> {
    collector
        .with_element(PACKETS)
        .filter(|record| record.number(SOURCE_PORT) == u64::from(port))
        .cloned()
        .collect()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_mins(1), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_collector_gets_templates_then_records_with_names_and_templates_again() {
    let mut collector = Collector::bind("127.0.0.1:0");
    let (dataplane, switch, exporter) = exporting(&collector);
    let flows = &dataplane.counted;
    assert!(flows.is_followed.load(Ordering::Relaxed));
    flows.ended.lock().unwrap().extend(
        [(1000, FlowEnd::Finished, false), (1001, FlowEnd::Idle, true), (1002, FlowEnd::Policy, false)]
            .map(|(port, reason, v6)| EndedFlow { flow: flow(port, 7, v6), reason }),
    );
    let templates = |collector: &Collector| collector.template_records / 5;
    collector.receive_until("records and templates", |collector| {
        collector.with_element(PACKETS).count() == 3 && templates(collector) >= 3
    });
    assert_eq!(collector.domain, 77);
    for (port, reason) in [(1000, 3), (1001, 1), (1002, 4)] {
        let [record] = &of(&collector, port)[..] else { panic!("{:#?}", collector.records) };
        assert_eq!([record.number(PACKETS), record.number(OCTETS)], [7, 700]);
        assert_eq!([record.reverse(PACKETS), record.reverse(OCTETS)], [14, 350]);
        assert_eq!(record.number(END_REASON), reason);
        // The pods have no IPv6 address here.
        assert_eq!((record.number(INGRESS), record.number(EGRESS)), (1, if port == 1001 { 0 } else { 2 }));
    }
    let names: Vec<_> = collector.with_element(INTERFACE_NAME).take(2).cloned().collect();
    let named = |record: &Record| {
        (record.number(INGRESS), record.text(INTERFACE_NAME), record.text(INTERFACE_DESCRIPTION))
    };
    let expected = [(1, "client"), (2, "server")];
    let expected = expected.map(|(number, name)| (number, format!("veth-{name}"), format!("default/{name}")));
    assert_eq!(names.iter().map(named).collect::<Vec<_>>(), expected);

    // A removed pod changes a name at once.
    switch.delete_pod(&pod("server")).unwrap();
    collector.receive_until("another name", |collector| {
        collector
            .with_element(INTERFACE_NAME)
            .any(|record| record.text(INTERFACE_DESCRIPTION) == "veth-server")
    });
    drop(exporter);
    assert!(!flows.is_followed.load(Ordering::Relaxed));
}

#[test]
fn records_of_a_long_flow_add_up_and_a_lost_end_leaves_a_last_record() {
    let mut collector = Collector::bind("127.0.0.1:0");
    let (dataplane, switch, exporter) = exporting(&collector);
    let flows = &dataplane.counted;
    let set = |now_ms: u32, packets: &[(u16, u64)]| {
        flows.now_ms.store(now_ms, Ordering::Relaxed);
        *flows.live.lock().unwrap() =
            packets.iter().map(|(port, packets)| flow(*port, *packets, false)).collect();
    };
    set(2000, &[(1, 10), (2, 1)]);
    collector.receive_until("first records", |collector| of(collector, 1).len() == 1);
    set(4000, &[(1, 25), (2, 1)]);
    collector.receive_until("a second record", |collector| of(collector, 1).len() == 2);
    // The end of one flow is told, that of the other one is lost.
    flows.lost.store(1, Ordering::Relaxed);
    set(4100, &[(2, 4)]);
    flows.ended.lock().unwrap().push(EndedFlow { flow: flow(1, 30, false), reason: FlowEnd::Finished });
    collector.receive_until("the last record", |collector| of(collector, 1).len() == 3);
    collector.receive_until("the walk", |_| switch.status().ipfix.unwrap().flows == 1);
    // A walk notes the last count before the flow goes.
    let before = flows.walks.load(Ordering::Relaxed);
    eventually("a walk begins and ends", || flows.walks.load(Ordering::Relaxed) > before + 1);
    set(4200, &[]);
    collector.receive_until("the flow whose end is lost", |collector| {
        of(collector, 2).last().is_some_and(|record| record.number(END_REASON) == 5)
    });
    let sum = |port: u16, element: u16| -> u64 {
        of(&collector, port).iter().map(|record| record.number(element)).sum()
    };
    assert_eq!([sum(1, PACKETS), sum(1, OCTETS), sum(2, PACKETS), sum(2, OCTETS)], [30, 3000, 4, 400]);
    let reasons: Vec<u64> = of(&collector, 1).iter().map(|record| record.number(END_REASON)).collect();
    assert_eq!(reasons, [2, 2, 3]);

    // A flow that is there at the stop gets its rest.
    set(4300, &[(3, 6)]);
    drop(exporter);
    collector.receive_until("the rest", |collector| of(collector, 3).len() == 1);
    assert_eq!(of(&collector, 3)[0].number(END_REASON), 4);
    let report = switch.status().ipfix.unwrap();
    assert_eq!((report.lost_ends, report.missed_flows, report.send_errors, report.error), (1, 1, 0, None));
    let metrics = switch.metrics(MetricsFormat::OpenMetrics);
    for line in ["palisade_ipfix_lost_ends_total 1", "palisade_ipfix_unsent_records_total 0"] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[test]
fn a_collector_that_is_away_is_a_problem_of_the_status_and_comes_back_to_templates() {
    let away = Collector::bind("127.0.0.1:0");
    let address = away.address();
    let (dataplane, switch, _exporter) = exporting(&away);
    drop(away);
    let add = |port| {
        let ended = EndedFlow { flow: flow(port, 1, false), reason: FlowEnd::Finished };
        dataplane.counted.ended.lock().unwrap().push(ended);
    };
    eventually("the collector is away", || {
        add(1);
        let status = switch.status();
        let is_told = |problem: &String| problem.contains(&format!("do not reach the collector {address}"));
        status.ipfix.unwrap().send_errors > 1 && status.problems.iter().any(is_told)
    });
    let socket = UdpSocket::bind(address).unwrap();
    let mut back = Collector::on(socket, true);
    back.receive_until("templates and records", |back| {
        add(2);
        back.template_records >= 5 && !of(back, 2).is_empty()
    });
    let is_over = || !switch.status().problems.iter().any(|problem| problem.contains("collector"));
    eventually("the problem is over", is_over);
    assert!(back.early <= 1, "{} messages before the templates", back.early);
}

#[test]
fn ended_flows_are_taken_during_a_walk_over_flows_without_records() {
    let collector = Collector::bind("127.0.0.1:0");
    let (dataplane, _switch, _exporter) = exporting(&collector);
    let flows = &dataplane.counted;
    *flows.live.lock().unwrap() = (1..=5000).map(|port| flow(port, 0, false)).collect();
    eventually("four collections in one walk", || flows.taken_in_walks.load(Ordering::Relaxed) >= 4);
}

/// File of packets with these messages from one exporter (pcap with link type 101, "raw IP").
fn pcap(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut file =
        [0xa1b2_c3d4_u32.to_be_bytes(), [0, 2, 0, 4], [0; 4], [0; 4], [0, 0, 255, 255], [0, 0, 0, 101]]
            .concat();
    for message in messages {
        let total = (20 + 8 + message.len()) as u16;
        let [high, low] = total.to_be_bytes();
        let ip = [0x45, 0, high, low, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        let [high, low] = (total - 20).to_be_bytes();
        // Source port 40000, destination port 4739.
        let udp = [0x9c, 0x40, 0x12, 0x83, high, low, 0, 0];
        file.extend([0; 8]);
        file.extend([u32::from(total).to_be_bytes(), u32::from(total).to_be_bytes()].concat());
        file.extend([&ip[..], &udp, message].concat());
    }
    file
}

#[test]
fn tshark_decodes_the_records_and_finds_no_fault() {
    let mut collector = Collector::bind("127.0.0.1:0");
    let (dataplane, _switch, exporter) = exporting(&collector);
    let ended = |(port, v6)| EndedFlow { flow: flow(port, 7, v6), reason: FlowEnd::Finished };
    let all = (1000..1060).map(|port| ended((port, port % 2 == 1)));
    dataplane.counted.ended.lock().unwrap().extend(all);
    collector.receive_until("templates twice, and the records", |collector| {
        collector.with_element(PACKETS).count() == 60 && collector.template_records >= 10
    });
    drop(exporter);
    let file = pcap(&collector.raw);
    let read = |file: &[u8], arguments: &[&str]| {
        let decode = ["-r", "-", "-d", "udp.port==4739,cflow"];
        let output = run_if_installed("tshark", &[&decode, arguments].concat(), file)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let fields = ["cflow.version", "cflow.od_id", "cflow.srcport", "cflow.srcaddrv6", "cflow.octets"];
    let fields: Vec<&str> =
        ["-T", "fields"].into_iter().chain(fields.iter().flat_map(|field| ["-e", *field])).collect();
    let Some(decoded) = read(&file, &fields) else { return };
    assert_eq!(decoded.lines().count(), collector.raw.len(), "{decoded}");
    assert!(decoded.lines().all(|line| line.starts_with("10\t77\t")), "{decoded}");
    let ports: Vec<&str> =
        decoded.lines().flat_map(|line| line.split('\t').nth(2).unwrap().split(',')).collect();
    let ports: Vec<u16> = ports.into_iter().filter_map(|port| port.parse().ok()).collect();
    assert_eq!(ports.len(), 60, "{decoded}");
    assert!((1000..1060).all(|port| ports.contains(&port)), "{decoded}");
    assert!(decoded.contains("fd00::2") && decoded.contains("700"), "{decoded}");
    // Sequence numbers, lengths, and templates that are missing are experts' remarks.
    let faults = |file: &[u8]| read(file, &["-Y", "_ws.expert || _ws.malformed", "-V"]).unwrap();
    assert_eq!(faults(&file), "");
    let mut gap = collector.raw.clone();
    gap.remove(2);
    assert!(faults(&pcap(&gap)).contains("Unexpected flow sequence"), "tshark looks at sequence numbers");
}
