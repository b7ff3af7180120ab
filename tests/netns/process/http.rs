//! HTTP listener of a running switch: metrics that equal the counters.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use palisade::control::protocol::CountersReport;
use palisade::lab::traffic::{Server, Services};

use crate::support::veth::{host_end, ip};
use crate::support::{
    INGRESS, PORT, Rig, assert_allowed, assert_denied, assert_pings, eventually, isolated, only_from,
};
use crate::tools::run_if_installed;

/// Address of the HTTP listener of a switch.
pub(super) fn address_of(rig: &Rig) -> SocketAddr {
    let mut address = None;
    eventually("the switch prints the address", || {
        let log = rig.switch.log().unwrap();
        let printed = log.split_once("http://").and_then(|(_, rest)| rest.split_once("/metrics"));
        address = printed.map(|(address, _)| address.parse().unwrap());
        address.is_some()
    });
    address.unwrap()
}

/// Lab whose switch has an HTTP listener.
struct Scraped {
    rig: Rig,
    address: SocketAddr,
}

impl Scraped {
    fn up(pods: &[&str]) -> Scraped {
        let rig = Rig::with(pods, 1, "[http]\nlisten = \"127.0.0.1:0\"\n");
        let address = address_of(&rig);
        Scraped { rig, address }
    }

    /// Status and body of a GET request.
    fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, "*/*")
    }

    /// Status and body of a GET request for this type of content.
    fn get_as(&self, path: &str, accept: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let headers = format!("host: {}\r\naccept: {accept}\r\nconnection: close", self.address);
        write!(stream, "GET {path} HTTP/1.1\r\n{headers}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Values of all samples by name and labels, but for times in fractions of seconds.
    fn scrape(&self) -> BTreeMap<String, u64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = samples.map(|line| line.rsplit_once(' ').unwrap());
        let numbers = pairs.filter(|(_, value)| !value.contains('.'));
        numbers.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }
}

/// Samples of packets that the counters of ports and decisions make.
fn expected(counters: &CountersReport) -> BTreeMap<String, u64> {
    let mut expected = BTreeMap::new();
    for (name, port) in &counters.ports {
        let of = |metric: &str| format!("palisade_port_{metric}_total{{port=\"{name}\"}}");
        expected.extend([
            (of("received_packets"), port.received),
            (of("received_bytes"), port.received_bytes),
            (of("forwarded_packets"), port.forwarded),
            (of("consumed_packets"), port.consumed),
            (of("transmitted_packets"), port.transmitted),
            (of("transmitted_bytes"), port.transmitted_bytes),
        ]);
        for (reason, packets) in &port.drops {
            let labels = format!("port=\"{name}\",reason=\"{reason}\"");
            expected.insert(format!("palisade_port_dropped_packets_total{{{labels}}}"), *packets);
        }
    }
    for (number, worker) in &counters.workers {
        let of = |metric: &str| format!("palisade_worker_{metric}{{worker=\"{number}\"}}");
        expected.extend([
            (of("received_packets_total"), worker.received),
            (of("batches_total"), worker.batches),
            (of("umem_frames"), worker.frames),
        ]);
    }
    expected
}

#[test]
fn a_scrape_has_the_numbers_of_the_counters_and_the_flows() {
    let Some(_isolated) = isolated() else { return };
    let scraped = Scraped::up(&["client", "server", "other"]);
    let rig = &scraped.rig;
    rig.apply(&only_from("server", "client"));
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Tcp).unwrap();
    assert_allowed(&client, server.v4().into());
    assert_denied(&rig.switch, &rig.pod("other"), server.v4().into(), INGRESS);
    assert_pings(&server, client.v4().into());
    eventually("the worker is healthy", || scraped.get("/healthz") == (200, "ok\n".to_owned()));
    assert_eq!(scraped.get("/readyz"), (200, "ok\n".to_owned()));
    let (status, text) = scraped.get_as("/metrics", "text/plain;version=0.0.4");
    assert!(status == 200 && text.contains("palisade_port_dropped_packets_total{"), "{status}: {text}");
    if let Some(output) = run_if_installed("promtool", &["check", "metrics"], text.as_bytes()) {
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.is_empty(), "{said}");
    }

    // Neighbour discovery of the pods' kernels may come between the two readings.
    eventually("scrape and counters agree", || {
        let expected = expected(&rig.counters());
        let scrape = scraped.scrape();
        expected.iter().all(|(name, value)| scrape.get(name) == Some(value))
    });
    let scrape = scraped.scrape();
    let port =
        rig.switch.client().pods().unwrap().into_iter().find(|info| info.pod.name == "other").unwrap().port;
    let denied = format!("palisade_port_dropped_packets_total{{port=\"{port}\",reason=\"policy-ingress\"}}");
    assert!(scrape[&denied] > 0, "{scrape:#?}");
    let by_policy = "palisade_policy_decided_packets_total{kind=\"NetworkPolicy\",namespace=\"default\",policy=\"to-server\",\
                     direction=\"ingress\",verdict=\"deny\"}";
    assert_eq!(scrape.get(by_policy), Some(&scrape[&denied]), "{scrape:#?}");
    assert_eq!(scrape["palisade_pods{state=\"attached\"}"], 3);
    let flows = rig.flows(100).len() as u64;
    assert!(flows > 0);
    assert_eq!(scrape["palisade_conntrack_flows"], flows);

    // A port that is down is not ready until it is up.
    let interface = host_end(&client);
    ip(&format!("link set {interface} down"));
    eventually("the probe names the port", || {
        let (status, body) = scraped.get("/readyz");
        status == 503 && body.contains(&format!("interface {interface} is set down"))
    });
    ip(&format!("link set {interface} up"));
    eventually("the port is up again", || scraped.get("/readyz").0 == 200);
}
