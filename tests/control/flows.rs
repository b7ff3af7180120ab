//! Flows on the control socket: filters, order, limit, holders, flush, and streams of events. The fake dataplane has nine
//! flows, from 10.1.0.N to 10.1.0.N+1 port 6379, with 100 N + 300 bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade::control::ClientError;
use palisade::control::protocol::{FlowEventLine, FlowQuery, FlowSort, FlowsReport, PacketFilter};
use palisade::limits::FLOWS_LISTED_MAX;

use crate::commands::palisade;
use crate::fixture::{Served, on_port, pod, pod_port};
use crate::small_tables::small_tables;

fn served() -> Served {
    let served = Served::start();
    served.client.put_port("veth-db", &pod_port()).unwrap();
    served.client.put_pod(&pod("db"), &on_port("veth-db", "10.1.0.3")).unwrap();
    served
}

fn sources(report: &FlowsReport) -> Vec<u8> {
    let last = |address| match address {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(_) => 0,
    };
    report.flows.iter().map(|record| last(record.flow.key.src)).collect()
}

fn refused(result: Result<impl std::fmt::Debug, ClientError>) -> (Option<u16>, String) {
    let error = result.unwrap_err();
    (error.status(), error.to_string())
}

#[test]
fn the_switch_filters_sorts_and_limits() {
    let served = served();
    let list = |query: &FlowQuery| served.client.flows(query).unwrap();
    let none = FlowQuery::default;
    let all = list(&none());
    assert_eq!(sources(&all), [9, 8, 7, 6, 5, 4, 3, 2, 1], "most bytes first");
    assert_eq!((all.matched, all.total, all.capacity), (9, 9, 4096));
    assert_eq!(all.flows[6].source_pod, Some(pod("db")));
    assert_eq!(all.flows[7].destination_pod, Some(pod("db")));
    let oldest = list(&FlowQuery { sort: FlowSort::Age, limit: Some(3), ..none() });
    assert_eq!((sources(&oldest), oldest.matched), (vec![1, 9, 8], 9), "a restored flow is the oldest");
    assert_eq!(sources(&list(&FlowQuery::of_pod(&pod("db")))), [3, 2]);
    let address = FlowQuery::of(PacketFilter {
        address: Some("10.1.0.8/31".parse().unwrap()),
        ..PacketFilter::default()
    });
    assert_eq!(sources(&list(&address)), [9, 8, 7]);
    let state = FlowQuery { state: Some("time-wait".to_owned()), ..none() };
    assert_eq!(sources(&list(&state)), [9]);
    let port = |port: &str| {
        let port = PacketFilter { port: Some(port.parse().unwrap()), ..PacketFilter::default() };
        FlowQuery { limit: Some(0), ..FlowQuery::of(port) }
    };
    assert_eq!([list(&port("6379")).matched, list(&port("1-6378")).matched], [9, 0]);
    let udp =
        FlowQuery::of(PacketFilter { protocol: Some("UDP".parse().unwrap()), ..PacketFilter::default() });
    assert_eq!(list(&udp).matched, 0);
    let holders = list(&FlowQuery { by_pod: true, ..none() });
    assert!(holders.flows.is_empty() && holders.matched == 9);
    let [db, other] = &holders.holders[..] else { panic!("{holders:?}") };
    // The fake dataplane has the flows from 5 on on port 1, which no port of the switch is.
    assert_eq!(
        (other.port.as_str(), &other.pod, other.flows, other.accepted),
        ("veth-db", &Some(pod("db")), 4, 1)
    );
    assert_eq!((db.port.as_str(), &db.pod, db.flows), ("closed port 1", &None, 5));
}

#[test]
fn wrong_queries_are_refused_with_what_is_allowed() {
    let served = served();
    let none = FlowQuery::default;
    let (status, error) = refused(served.client.flows(&FlowQuery { state: Some("up".to_owned()), ..none() }));
    assert!(status == Some(422) && error.contains("udp-two-way"), "{error}");
    let (status, error) = refused(served.client.flows(&FlowQuery::first(FLOWS_LISTED_MAX + 1)));
    assert!(status == Some(422) && error.contains("100000"), "{error}");
    assert_eq!(refused(served.client.flows(&FlowQuery::of_pod(&pod("web")))).0, Some(404));
    for query in
        ["port=9-8", "port=65536", "address=nowhere", "protocol=x", "limit=-1", "sort=size", "colour=red"]
    {
        let mut stream = UnixStream::connect(served.socket()).unwrap();
        write!(stream, "GET /v1/flows?{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400"), "{query}: {answer}");
    }
    // A name of today's program before this one.
    let (code, out, _) =
        palisade(&["show", "flows", "--max", "2", "--socket", served.socket().to_str().unwrap()]);
    assert!(code == 0 && out.ends_with("7 more (of 9)\n"), "{out}");
}

#[test]
fn a_flush_ends_what_the_filter_selects_and_needs_leave_for_all() {
    let served = served();
    let none = FlowQuery::default;
    let flush = |query: &FlowQuery| served.client.flush_flows(query);
    let (status, error) = refused(flush(&none()));
    assert!(status == Some(422) && error.contains("--all"), "{error}");
    for query in [
        FlowQuery { all: true, ..FlowQuery::of_pod(&pod("db")) },
        FlowQuery { limit: Some(1), ..FlowQuery::of_pod(&pod("db")) },
        FlowQuery { sort: FlowSort::Age, ..FlowQuery::of_pod(&pod("db")) },
        FlowQuery { by_pod: true, all: true, ..none() },
        FlowQuery { state: Some("up".to_owned()), ..none() },
    ] {
        assert_eq!(refused(flush(&query)).0, Some(422), "{query:?}");
    }
    assert_eq!(served.client.flows(&none()).unwrap().matched, 9, "nothing has ended");
    assert_eq!(flush(&FlowQuery::of_pod(&pod("db"))).unwrap().ended, 2);
    let socket = served.socket().to_str().unwrap();
    let (code, out, _) = palisade(&["flows", "flush", "--address", "10.1.0.9", "--socket", socket]);
    assert_eq!((code, out.as_str()), (0, "2 flows ended\n"));
    let (code, out, err) = palisade(&["flows", "flush", "--socket", socket]);
    assert!(code == 2 && out.is_empty() && err.contains("give a filter, or `--all`"), "{err}");
    served.dataplane.is_late.store(true, Ordering::Relaxed);
    let (status, error) = refused(flush(&FlowQuery { all: true, ..none() }));
    assert!(status == Some(503) && error.contains("2 flows have ended, and worker 1"), "{error}");
    served.dataplane.is_late.store(false, Ordering::Relaxed);
    let (code, out, _) = palisade(&["flows", "flush", "--all", "--output", "json", "--socket", socket]);
    assert_eq!((code, out.replace(char::is_whitespace, "").as_str()), (0, "{\"ended\":5}"));
    let (_, out, _) = palisade(&["show", "flows", "--socket", socket]);
    assert_eq!(out, "No flows.\n");
}

#[test]
fn a_stream_of_events_ends_with_the_switch_and_says_so() {
    let Served { dataplane, client, scratch, server } = served();
    let events = std::thread::scope(|scope| {
        let follow = scope.spawn(|| {
            let mut events = vec![];
            client
                .follow_flows(&FlowQuery::default(), |event| {
                    events.push(event);
                    true
                })
                .unwrap();
            events
        });
        let deadline = std::time::Instant::now() + Duration::from_mins(1);
        while !dataplane.is_followed.load(Ordering::Relaxed) {
            assert!(std::time::Instant::now() < deadline, "nobody follows");
            std::thread::sleep(Duration::from_millis(5));
        }
        let with_limit = client.follow_flows(&FlowQuery::first(3), |_| true).unwrap_err();
        assert_eq!(with_limit.status(), Some(422), "{with_limit}");
        drop(server);
        follow.join().unwrap()
    });
    assert_eq!(events, [FlowEventLine::End { reason: "the switch has stopped".to_owned() }]);
    assert!(!dataplane.is_followed.load(Ordering::Relaxed));
    drop(scratch);
}

#[test]
fn a_command_that_follows_ends_with_its_reader_though_nothing_happens() {
    let served = served();
    for what in ["flows", "drops"] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(["show", what, "--follow", "--socket"]).arg(served.socket());
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child = command.stdout(writer).spawn().unwrap();
        // The command object has the other writing end.
        drop(command);
        assert!(child.try_wait().unwrap().is_none(), "{what}: it follows");
        drop(reader);
        assert!(child.wait().unwrap().success(), "{what}");
    }
}

#[test]
fn a_name_that_nobody_knows_is_refused_with_the_nearest_one_in_every_filter() {
    let served = served();
    let socket = served.socket().to_str().unwrap();
    let run = |words: &str| palisade(&words.split(' ').chain(["--socket", socket]).collect::<Vec<_>>());
    let (code, out, _) = run("show drops --pod default/db");
    assert_eq!((code, out.as_str()), (0, "No dropped frame was recorded.\n"));
    served.client.put_tables(&small_tables("10.1.0.3")).unwrap();
    for words in [
        "show drops --pod default/dbx",
        "show drops --to default/dbx",
        "show flows --from default/dbx",
        "show flows --pod default/dbx",
        "flows flush --pod default/dbx",
        "show acl default/dbx",
        "show pod default/dbx",
        "trace --from default/dbx --seconds 1",
        "capture --to default/dbx --seconds 1 -w /dev/null",
        "explain --from default/dbx --to 192.0.2.1 --port 80",
        "pod detach default/dbx",
    ] {
        let (code, _, err) = run(words);
        assert_eq!(code, 2, "{words}: {err}");
        assert!(err.contains("default/dbx") && err.contains(", the nearest is default/db"), "{words}: {err}");
    }
    let port = served.client.ports().unwrap()[0].name.clone();
    for words in [
        "show drops --interface",
        "trace --interface",
        "capture -w /dev/null --interface",
        "port drain",
        "show port",
    ] {
        let (code, _, err) = run(&format!("{words} {port}x"));
        assert_eq!(code, 2, "{words}: {err}");
        assert!(err.contains(&format!(", the nearest is {port}")), "{words}: {err}");
    }
}

#[test]
fn one_thing_is_shown_by_its_name() {
    let served = served();
    served.client.put_port("veth-web", &pod_port()).unwrap();
    served.client.put_pod(&pod("web"), &on_port("veth-web", "10.1.0.4")).unwrap();
    let socket = served.socket().to_str().unwrap();
    let show = |words: &str| {
        let words = ["show", "--socket", socket].into_iter().chain(words.split(' '));
        let (code, out, err) = palisade(&words.collect::<Vec<_>>());
        assert_eq!(code, 0, "{err}");
        out
    };
    assert!(
        show("pods").contains("default/db ") && show("pods").contains("default/web "),
        "{}",
        show("pods")
    );
    let db = show("pod default/db");
    assert!(db.contains("default/db ") && !db.contains("default/web"), "{db}");
    let port = show("port veth-db");
    assert!(port.contains("veth-db ") && !port.contains("veth-web"), "{port}");
    assert_eq!(show("flow"), show("flows"));
    assert_eq!(show("policy"), show("policies"));
}
