//! Captures and traces of a switch under traffic.

use std::process::{Command, Stdio};

use palisade::control::protocol::{CaptureRequest, PacketFilter, PacketRecord, PacketVerdictName};
use palisade::dataplane::DropReason;
use palisade::lab::Pod;
use palisade::lab::traffic::{Server, Services};
use palisade::net::flow::Protocol;

use crate::support::closed::FirstPacket;
use crate::support::{
    INGRESS, PORT, Rig, assert_allowed, assert_denied, assert_pings, eventually, isolated, only_from,
};
use crate::tools::run_if_installed;

fn rig() -> Rig {
    let rig = Rig::up(&["client", "stranger", "server"], 1);
    rig.apply(&only_from("server", "client"));
    rig
}

fn between(from: &str, to: &str) -> PacketFilter {
    let [from, to] = [from, to].map(|name| Some(format!("default/{name}").parse().unwrap()));
    PacketFilter { from, to, ..PacketFilter::default() }
}

fn of_port(port: u16) -> PacketFilter {
    PacketFilter { port: Some(port.to_string().parse().unwrap()), ..PacketFilter::default() }
}

/// Runs a capture during `traffic`, and returns its packets once there are `count` of them.
fn capture(rig: &Rig, request: &CaptureRequest, count: usize, traffic: impl FnOnce()) -> Vec<PacketRecord> {
    let client = rig.switch.client();
    let number = client.start_capture(request).unwrap();
    traffic();
    let mut packets = vec![];
    eventually("the packets are captured", || {
        let report = client.fetch_capture(number).unwrap();
        assert_eq!(report.lost, 0);
        packets.extend(report.packets);
        packets.len() >= count
    });
    client.stop_capture(number).unwrap();
    assert_eq!(client.fetch_capture(number).unwrap_err().status(), Some(404));
    packets
}

#[test]
fn captured_packets_are_those_that_were_sent_with_verdict_stage_and_policy() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig();
    let [client, stranger, server] = ["client", "stranger", "server"].map(|name| rig.pod(name));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let address = server.addresses()[0];
    assert_pings(&server, stranger.addresses()[0]);
    let both = CaptureRequest { filter: between("client", "server"), ..CaptureRequest::default() };
    let packets = capture(&rig, &both, 6, || {
        assert_allowed(&client, address);
        assert_denied(&rig.switch, &stranger, address, INGRESS);
    });
    for packet in &packets {
        let flow = packet.flow.unwrap();
        let ends =
            [&packet.source_pod, &packet.destination_pod].map(|pod| pod.as_ref().unwrap().name.as_str());
        assert!(ends == ["client", "server"] || ends == ["server", "client"], "{packet:?}");
        assert_eq!(packet.verdict, PacketVerdictName::Forwarded);
        // The packet is that of the pod, not that of the next hop.
        let source = if ends[0] == "client" { &client } else { &server };
        assert_eq!(packet.bytes[6..12], source.plan().mac.0, "{flow}");
        assert_eq!((packet.port.as_str(), packet.bytes[22]), (source.plan().host_interface.as_str(), 64));
    }
    let first = &packets[0];
    assert_eq!((first.stage.as_str(), packets[1].stage.as_str()), ("rewrite", "rewrite"));
    assert_eq!((first.is_new_flow, packets[1].is_new_flow), (true, false));
    assert!(
        first.decided_by.iter().any(|origin| origin.to_string().contains("default/to-server")),
        "{first:?}"
    );
    assert!(packets.is_sorted_by_key(|packet| packet.at_unix_ns));

    let drops = CaptureRequest { drops: true, filter: of_port(PORT), ..CaptureRequest::default() };
    let dropped = capture(&rig, &drops, 1, || {
        assert_allowed(&client, address);
        assert_denied(&rig.switch, &stranger, address, INGRESS);
    });
    for packet in &dropped {
        assert_eq!(
            (packet.verdict, packet.reason),
            (PacketVerdictName::Dropped, Some(DropReason::PolicyIngress))
        );
        assert_eq!(packet.stage, "classify");
    }
}

#[test]
fn tshark_reads_the_file_of_a_capture_and_its_comments() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig();
    let [client, stranger, server] = ["client", "stranger", "server"].map(|name| rig.pod(name));
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let address = server.addresses()[0];
    let file = rig.lab.directory().join("packets.pcapng");
    let mut capture = palisade(&rig, &["capture", "--port", &PORT.to_string(), "-w"])
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let says =
        |words: &str| std::fs::read(&file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(words));
    eventually("an allowed packet is in the file", || {
        assert_allowed(&client, address);
        says("forwarded by")
    });
    assert_denied(&rig.switch, &stranger, address, INGRESS);
    eventually("the drop is in the file", || says("classify: dropped: policy-ingress"));
    let pid = rustix::process::Pid::from_raw(capture.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(capture.wait().unwrap().success());
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header");
    assert!(says("default/to-server"), "the policy is in no comment");
    // tshark is not among the packages of the tests.
    let fields = ["-r", file.to_str().unwrap(), "-T", "fields", "-e", "ip.src", "-e", "frame.comment"];
    let Some(read) = run_if_installed("tshark", &fields, b"") else { return };
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let lines = String::from_utf8_lossy(&read.stdout).into_owned();
    let source = stranger.addresses()[0].to_string();
    assert!(
        lines.lines().any(|line| line.starts_with(&source) && line.contains("policy-ingress")),
        "{lines}"
    );
}

fn palisade(rig: &Rig, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(arguments).env("PALISADE_SOCKET", rig.switch.client().socket());
    command
}

/// Sends an ICMP echo to an address without a route.
fn ping_to_nowhere(pod: &Pod) {
    pod.run(|| FirstPacket::send(Protocol::ICMP, [198, 51, 100, 9].into(), 0)).unwrap();
}

#[test]
fn a_trace_names_the_stages_and_the_verdict() {
    let Some(_isolated) = isolated() else { return };
    let rig = rig();
    let client = rig.pod("client");
    let mut trace =
        palisade(&rig, &["trace", "--drops", "--count", "2"]).stdout(Stdio::piped()).spawn().unwrap();
    eventually("the trace has its packets", || {
        ping_to_nowhere(&client);
        trace.try_wait().unwrap().is_some()
    });
    let output = trace.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for words in
        ["packet 2: ", "from pod default/client", "anti-spoof      passed on", "no-route", "ICMP type 8"]
    {
        assert!(text.contains(words), "{words} is missing: {text}");
    }
}
