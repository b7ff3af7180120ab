//! Flows of a switch under traffic: list, flush, and events, as the commands show them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use palisade::control::protocol::{FlowEventLine, FlowEventRecord, FlowQuery, FlowRecord, PacketFilter};
use palisade::dataplane::FlowEnd;
use palisade::net::flow::Protocol;
use palisade::tables::PodName;

use crate::support::closed::assert_cut;
use crate::support::connection::Connection;
use crate::support::{
    INGRESS, PORT, Rig, TIMEOUT, assert_denied, assert_pings, eventually, isolated, only_from,
};

fn command(rig: &Rig, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(arguments).env("PALISADE_SOCKET", rig.switch.client().socket());
    command
}

/// Output of a command of `palisade` for the switch.
fn palisade(rig: &Rig, arguments: &[&str]) -> String {
    let output = command(rig, arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn is_pod(pod: Option<&PodName>, name: &str) -> bool {
    pod == Some(&PodName::new("default", name))
}

fn list(rig: &Rig, query: &FlowQuery) -> Vec<FlowRecord> {
    rig.switch.client().flows(query).unwrap().flows
}

fn tcp() -> FlowQuery {
    let tcp = PacketFilter { protocol: Some(Protocol::TCP), ..PacketFilter::default() };
    FlowQuery { state: Some("established".to_owned()), ..FlowQuery::of(tcp) }
}

#[test]
fn flows_are_listed_by_pod_with_the_policy_that_allows_them_and_a_flush_cuts_them() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "other", "server"], 2);
    rig.apply(&only_from("server", "client"));
    let [client, other, server] = ["client", "other", "server"].map(|name| rig.pod(name));
    let mut talk = Connection::open(&client, &server);
    let mut second = Connection::open(&server, &other);
    (0..8).for_each(|_| assert!(talk.goes_on(TIMEOUT)));
    assert!(second.goes_on(TIMEOUT));
    assert_pings(&server, client.addresses()[0]);

    let flows = list(&rig, &tcp());
    assert_eq!(flows.len(), 2, "{flows:?}");
    let first = &flows[0];
    assert!(
        is_pod(first.source_pod.as_ref(), "client") && is_pod(first.destination_pod.as_ref(), "server"),
        "most bytes"
    );
    assert_eq!((first.flow.key.dst_port, first.flow.key.src), (PORT, client.v4().into()));
    assert!(first.flow.ingress.as_ref().unwrap().to_string().contains("default/to-server"), "{first:?}");
    assert!(first.flow.age_ms.is_some_and(|age| age < 120_000 && age >= first.flow.idle_ms), "{first:?}");
    assert!(first.flow.assured && first.flow.packets >= 8 && first.flow.reply_packets >= 8, "{first:?}");
    let of_other = FlowQuery::of_pod(&PodName::new("default", "other"));
    assert!(list(&rig, &of_other).iter().all(|flow| is_pod(flow.destination_pod.as_ref(), "other")));
    let oldest = FlowQuery { sort: palisade::control::protocol::FlowSort::Age, ..tcp() };
    assert!(is_pod(list(&rig, &oldest)[0].source_pod.as_ref(), "client"));

    let shown = palisade(&rig, &["show", "flows", "--port", &PORT.to_string(), "--limit", "1"]);
    for word in
        ["default/client (", "default/server (", "established", "in: ", "default/to-server", "1 more (of 2)"]
    {
        assert!(shown.contains(word), "{word} is missing: {shown}");
    }
    let holders = palisade(&rig, &["show", "flows", "--by-pod"]);
    assert!(holders.contains("default/client") && holders.contains("the table holds"), "{holders}");

    // The flush ends this connection and no other. Policy allows it, and its packets open no flow all the same.
    let flushed = palisade(&rig, &["flows", "flush", "--pod", "default/client", "--protocol", "tcp"]);
    assert_eq!(flushed, "1 flow ended\n");
    assert_cut(&rig.switch, &client, &mut talk, "invalid-state");
    assert!(second.goes_on(TIMEOUT), "the other one goes on");
    let mut again = Connection::open(&client, &server);
    assert!(again.goes_on(TIMEOUT), "policy allows a new one");
    palisade(&rig, &["flows", "flush", "--all"]);
    assert_cut(&rig.switch, &server, &mut second, "invalid-state");
    assert_pings(&server, client.addresses()[0]);
}

/// Running `show flows --follow`.
struct Follow {
    process: Child,
    lines: Receiver<FlowEventLine>,
}

impl Follow {
    fn start(rig: &Rig, arguments: &[&str]) -> Follow {
        let mut process =
            command(rig, &[&["show", "flows", "--follow", "--output", "json"], arguments].concat())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = send.send(serde_json::from_str(&line).unwrap());
            }
        });
        Follow { process, lines }
    }

    /// Waits for the event that `wanted` selects. Returns it.
    fn wait(&self, what: &str, wanted: impl Fn(&FlowEventLine) -> bool) -> FlowEventLine {
        let mut seen = vec![];
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("{what}: {error}: {seen:#?}"),
            }
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn followers_see_flows_open_and_close_revalidations_and_denials() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server"], 1);
    rig.apply(&only_from("server", "client"));
    let [client, stranger, server] = ["client", "stranger", "server"].map(|name| rig.pod(name));
    let follow = Follow::start(&rig, &["--protocol", "tcp"]);
    // The collection begins a moment after the command.
    let mut talks = vec![];
    let mut is_told = None;
    eventually("an opened connection is told", || {
        talks.push(Connection::open(&client, &server));
        is_told = follow.lines.recv_timeout(Duration::from_millis(200)).ok();
        is_told.is_some()
    });
    let Some(FlowEventLine::Opened(opened)) = is_told else { panic!("{is_told:?}") };
    assert!(
        is_pod(opened.source_pod.as_ref(), "client") && is_pod(opened.destination_pod.as_ref(), "server")
    );
    assert_eq!((opened.state.as_str(), opened.flow.dst_port), ("syn-sent", PORT));
    assert!(
        opened.decided_by.iter().any(|origin| origin.to_string().contains("default/to-server")),
        "{opened:?}"
    );
    assert!(talks.last_mut().unwrap().goes_on(TIMEOUT));

    // The rest of the connections is of no interest.
    let mut talk = talks.pop().unwrap();
    let own_port = talk.client.local_addr().unwrap().port();
    let is_own = |record: &FlowEventRecord| record.flow.src_port == own_port;
    drop(talks);

    assert_denied(&rig.switch, &stranger, server.addresses()[0], INGRESS);
    let denied = follow.wait("a denied packet", |line| matches!(line, FlowEventLine::Denied(_)));
    assert!(is_pod(denied.record().unwrap().source_pod.as_ref(), "stranger"), "{denied:?}");

    rig.apply(&format!("{}---\n{}", only_from("server", "client"), only_from("stranger", "client")));
    rig.apply(&only_from("server", "client").replace("to-server", "again-to-server"));
    assert!(talk.goes_on(TIMEOUT));
    follow
        .wait("a revalidation", |line| matches!(line, FlowEventLine::Revalidated(record) if is_own(record)));

    drop(talk);
    let closed =
        follow.wait("the close", |line| matches!(line, FlowEventLine::Closed(record) if is_own(record)));
    let record = closed.record().unwrap();
    assert_eq!(record.closed_by, Some(FlowEnd::Finished), "{record:?}");
    assert!(record.packets >= 4 && record.bytes > 5 && record.reply_packets >= 4, "{record:?}");

    let mut cut = Connection::open(&client, &server);
    assert!(cut.goes_on(TIMEOUT));
    rig.switch.client().flush_flows(&tcp()).unwrap();
    let port = cut.client.local_addr().unwrap().port();
    let flushed = follow.wait(
        "the flush",
        |line| matches!(line, FlowEventLine::Closed(record) if record.flow.src_port == port),
    );
    assert_eq!(flushed.record().unwrap().closed_by, Some(FlowEnd::Flushed), "{flushed:?}");
}
