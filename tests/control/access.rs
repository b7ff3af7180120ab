//! Access to the control side: the read-only socket, groups of the sockets, and the log of changes.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use palisade::control::protocol::{CaptureRequest, FlowQuery};
use palisade::control::{Client, Server, ServerError, SocketPlace, Switch, SwitchSettings};
use palisade::ids::RuleId;
use rustix::process::{getgid, getuid};

use crate::commands::palisade;
use crate::fixture::{FakeDataplane, Scratch, on_port, pod, pod_port, switch};
use crate::small_tables::small_tables;

/// Switch with both sockets.
struct Both {
    scratch: Scratch,
    dataplane: Arc<FakeDataplane>,
    main: Client,
    viewer: Client,
    _switch: Arc<Switch>,
    server: Server,
}

impl Both {
    fn start() -> Both {
        let scratch = Scratch::new();
        let (dataplane, switch) = switch(SwitchSettings::default());
        let (main, view) = (scratch.0.join("control.sock"), scratch.0.join("view.sock"));
        let view_place = place(&view, 0o604, Some(getgid().as_raw().to_string()));
        let bound = Server::bind(&main, 0o660).unwrap().with_read_only(Some(&view_place)).unwrap();
        let server = bound.serve(switch.clone()).unwrap();
        let (main, viewer) = (Client::new(main), Client::new(view));
        Both { scratch, dataplane, main, viewer, _switch: switch, server }
    }
}

fn place(path: &std::path::Path, mode: u32, group: Option<String>) -> SocketPlace {
    SocketPlace { path: path.to_owned(), mode, group }
}

#[test]
fn the_read_only_socket_answers_every_question_and_refuses_every_change() {
    let both = Both::start();
    both.main.put_tables(&small_tables("10.1.0.2")).unwrap();
    both.main.put_port("veth@1", &pod_port()).unwrap();
    both.main.put_pod(&pod("db"), &on_port("veth@1", "10.1.0.2")).unwrap();
    let viewer = &both.viewer;
    assert_eq!(viewer.status().unwrap().pid, std::process::id());
    assert_eq!(viewer.ports().unwrap(), both.main.ports().unwrap());
    assert_eq!(viewer.pods().unwrap(), both.main.pods().unwrap());
    assert_eq!(viewer.tables_document().unwrap(), small_tables("10.1.0.2"));
    assert_eq!(viewer.flows(&FlowQuery::first(3)).unwrap().flows.len(), 3);
    assert!(!viewer.counters().unwrap().ports.is_empty());
    let capture = both.main.start_capture(&CaptureRequest::default()).unwrap();

    let before = both.dataplane.publications();
    let refusals = [
        viewer.put_tables(&small_tables("10.1.0.3")).map(drop),
        viewer.delete_tables().map(drop),
        viewer.put_port("veth@2", &pod_port()).map(drop),
        viewer.delete_port("veth@1"),
        viewer.put_pod(&pod("web"), &on_port("veth@1", "10.1.0.9")).map(drop),
        viewer.delete_pod(&pod("db")),
        viewer.start_capture(&CaptureRequest::default()).map(drop),
        // Packets of somebody else's capture.
        viewer.fetch_capture(capture).map(drop),
        viewer.stop_capture(capture),
    ];
    let main = both.main.socket().display().to_string();
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert_eq!(error.status(), Some(403), "{error}");
        assert!(error.to_string().contains(&main) && error.to_string().contains("read-only"), "{error}");
    }
    assert_eq!(both.dataplane.publications(), before);
    assert_eq!(both.main.pods().unwrap().len(), 1);
    both.main.fetch_capture(capture).unwrap();
}

#[test]
fn every_command_that_only_reads_works_on_the_read_only_socket() {
    let both = Both::start();
    let view = both.viewer.socket().to_str().unwrap();
    for what in ["status", "ports", "pods", "counters", "flows", "drops", "latency"] {
        let (code, _, error) = palisade(&["show", what, "--socket", view]);
        assert_eq!(code, 0, "show {what}: {error}");
    }
    let policies = both.scratch.write("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\n");
    let (code, _, error) =
        palisade(&["apply", "--allow-empty", policies.to_str().unwrap(), "--socket", view]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("read-only") && error.contains("control.sock"), "{error}");
}

#[test]
fn a_large_change_on_the_read_only_socket_is_refused_with_its_sentence() {
    let both = Both::start();
    // Larger than the buffers of a socket, so that the server answers before it has read the body.
    let mut tables = small_tables("10.1.0.2");
    let origin = tables.rules.values().next().unwrap().clone();
    tables.rules.extend((1_000..50_000).map(|number| (RuleId(number), origin.clone())));
    let error = both.viewer.put_tables(&tables).unwrap_err();
    assert_eq!(error.status(), Some(403), "{error}");
}

#[test]
fn the_sockets_have_their_permissions_and_groups_and_both_go() {
    let both = Both::start();
    let (main, view) = (both.main.socket().to_owned(), both.viewer.socket().to_owned());
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&main), mode(&view)), (0o660, 0o604));
    drop(both.server);
    assert!(!main.exists() && !view.exists());

    let unknown = Server::bind_at(&place(&main, 0o660, Some("no-such-group-here".to_owned()))).err().unwrap();
    assert!(matches!(&unknown, ServerError::NoGroup { .. }), "{unknown}");
    if getuid().is_root() {
        // The group `daemon` of every Debian.
        let bound = Server::bind_at(&place(&main, 0o660, Some("daemon".to_owned()))).unwrap();
        assert_eq!(std::fs::metadata(&main).unwrap().gid(), 1);
        drop(bound);
    }
    assert!(!main.exists(), "a rejected socket is not left behind");
}

#[test]
fn a_running_switch_keeps_its_read_only_socket() {
    let both = Both::start();
    let other = Server::bind(&both.scratch.0.join("other.sock"), 0o660).unwrap();
    let taken = other.with_read_only(Some(&place(both.viewer.socket(), 0o660, None))).err().unwrap();
    assert!(matches!(taken, ServerError::Alive { .. }), "{taken}");
    assert!(both.viewer.status().is_ok());
    assert!(!both.scratch.0.join("other.sock").exists());
}

#[test]
fn readers_beyond_number_do_not_keep_a_change_waiting() {
    let both = Both::start();
    let view = both.viewer.socket().to_owned();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let (client, stop) = (Client::new(&view), stop.clone());
            thread::spawn(move || {
                let mut answers = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.flows(&FlowQuery::first(9)).unwrap();
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for round in 0..20 {
        let name = format!("veth{round}");
        both.main.put_port(&name, &pod_port()).unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let answers: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(answers > 100, "{answers}");
}

/// Log of this process, one JSON object a line.
static LOG: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(|| {
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = log.clone();
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || Lines(writer.clone()))
        .init();
    log
});

/// Waits for the line of the log whose message contains `text`.
fn logged(text: &str) -> serde_json::Value {
    for _ in 0..1000 {
        let log = LOG.lock().unwrap().clone();
        let lines = log.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        let mut lines = lines.filter(|line: &serde_json::Value| {
            line["message"].as_str().is_some_and(|message| message.contains(text))
        });
        if let Some(line) = lines.next() {
            return line;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("no line with {text:?}: {}", String::from_utf8_lossy(&LOG.lock().unwrap()));
}

#[test]
fn every_change_is_logged_with_the_credentials_of_its_client() {
    LazyLock::force(&LOG);
    let both = Both::start();
    both.main.put_port("veth-logged", &pod_port()).unwrap();
    let line = logged("PUT /v1/ports/veth-logged");
    assert_eq!(line["uid"], getuid().as_raw());
    assert_eq!(line["pid"], std::process::id());
    let program = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(line["program"], program.trim_end());
    assert_eq!(line["status"], 200);

    // A failed attempt is logged with its status, and the address of a request is cut.
    let long = format!("veth-cut{}", "x".repeat(5000));
    both.main.put_port(&long, &pod_port()).unwrap_err();
    let line = logged("PUT /v1/ports/veth-cut");
    assert_eq!(line["status"], 422, "{line}");
    assert!(line["message"].as_str().unwrap().len() < 400);

    // Another program is named.
    let policies = both.scratch.write("db.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\n");
    let socket = both.main.socket().to_str().unwrap();
    let applied = palisade(&["apply", "--allow-empty", policies.to_str().unwrap(), "--socket", socket]);
    assert_eq!(applied.0, 0, "{}", applied.2);
    let line = logged("/v1/tables");
    assert_ne!(line["pid"], std::process::id());
}
