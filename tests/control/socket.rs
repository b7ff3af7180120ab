//! Server on a Unix socket: each verb, each error, malformed requests, and several clients at once.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::control::protocol::{FlowQuery, PolicySource, Problem, TablesPatch};
use palisade::control::{Client, Server, ServerError, SwitchSettings};
use palisade::ids::Generation;

use crate::fixture::{Scratch, Served, on_port, pod, pod_port, switch};
use crate::small_tables::small_tables;

/// Sends one request as text and returns the status and body of its response.
fn exchange(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// Asserts the status of an API error, and that its body is a [`Problem`]. Returns the problem's sentence.
fn problem(socket: &Path, status: u16, method: &str, path: &str, body: &str) -> String {
    let (seen, answer) = exchange(socket, method, path, body);
    assert_eq!(seen, status, "{method} {path}: {answer}");
    serde_json::from_str::<Problem>(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?}")).error
}

#[test]
fn every_verb_works_through_the_client() {
    let served = Served::start();
    let client = &served.client;
    assert_eq!(client.status().unwrap().pid, std::process::id());
    assert_eq!(client.tables_document().unwrap_err().status(), Some(404));
    let first = client.put_tables(&small_tables("10.1.0.2")).unwrap().generation;
    let this_process = PolicySource::ControlSocket {
        uid: Some(rustix::process::getuid().as_raw()),
        pid: Some(std::process::id().cast_signed()),
    };
    let policy = client.status().unwrap().policy.unwrap();
    assert_eq!((policy.origin.source, policy.generation), (this_process, first));
    assert_eq!(client.tables_document().unwrap(), small_tables("10.1.0.2"));
    let diff = small_tables("10.1.0.2").difference(&small_tables("10.1.0.3"));
    let second = client.patch_tables(&TablesPatch { base: first, diff: diff.clone() }).unwrap().generation;
    assert!(second > first);
    let stale = client.patch_tables(&TablesPatch { base: first, diff }).unwrap_err();
    assert_eq!(stale.status(), Some(409));
    assert_eq!(client.tables().unwrap().generation, second);

    let port = client.put_port("veth@1", &pod_port()).unwrap();
    assert_eq!(client.ports().unwrap(), [port]);
    let attached = client.put_pod(&pod("db"), &on_port("veth@1", "10.1.0.3")).unwrap();
    assert!(attached.known && attached.warnings.is_empty());
    assert_eq!(client.pods().unwrap(), [attached]);
    assert_eq!(client.delete_port("veth@1").unwrap_err().status(), Some(409));

    let counters = client.counters().unwrap();
    assert_eq!(counters.ports["veth@1"].drops["policy-ingress"], 3);
    assert_eq!(counters.decisions[0].packets, 3);
    assert_eq!(client.flows(&FlowQuery::first(3)).unwrap().flows.len(), 3);
    assert_eq!(client.flows(&FlowQuery::of_pod(&pod("db"))).unwrap().matched, 2);

    client.delete_pod(&pod("db")).unwrap();
    client.delete_port("veth@1").unwrap();
    assert!(client.pods().unwrap().is_empty() && client.ports().unwrap().is_empty());
    client.delete_tables().unwrap();
    assert!(!client.tables().unwrap().loaded);
    assert!(served.dataplane.desired().tables.is_none());
}

#[test]
fn every_error_is_a_problem_with_its_status() {
    let served = Served::start();
    let socket = served.socket();
    let before = served.dataplane.publications();
    problem(socket, 404, "GET", "/", "");
    problem(socket, 404, "GET", "/v2/status", "");
    problem(socket, 404, "GET", "/v1/tables/document", "");
    problem(socket, 404, "DELETE", "/v1/ports/nowhere", "");
    problem(socket, 404, "DELETE", "/v1/pods/default/db", "");
    problem(socket, 404, "GET", "/v1/flows?pod=default/db", "");
    assert!(problem(socket, 405, "POST", "/v1/tables", "{}").contains("/v1/tables does not take POST"));
    problem(socket, 405, "DELETE", "/v1/status", "");
    problem(socket, 400, "GET", "/v1/flows?max=many", "");
    problem(socket, 400, "GET", "/v1/flows?colour=3", "");
    problem(socket, 400, "DELETE", "/v1/ports/p?detach=maybe", "");
    problem(socket, 400, "PUT", "/v1/ports/%ff", r#"{"kind":"pod"}"#);
    let said = problem(socket, 400, "PUT", "/v1/ports/p", "{\n  \"kind\": \"pdo\"\n}");
    assert!(
        said.contains("kind") && said.contains("unknown variant `pdo`") && said.contains("line 2"),
        "{said}"
    );
    let said = problem(socket, 400, "PUT", "/v1/ports/p", r#"{"kind":"pod","vlam":1}"#);
    assert!(said.contains("unknown field `vlam`"), "{said}");
    for body in ["", "{", "[]", "\u{0}", "null", r#"{"format":1}"#] {
        problem(socket, 400, "PUT", "/v1/tables", body);
    }
    let other_format =
        serde_json::to_string(&small_tables("10.1.0.2")).unwrap().replace("\"format\":1", "\"format\":7");
    assert!(problem(socket, 422, "PUT", "/v1/tables", &other_format).contains("format 7"));
    problem(socket, 409, "PATCH", "/v1/tables", r#"{"base":1,"diff":{}}"#);
    problem(socket, 422, "PUT", "/v1/ports/absent", r#"{"kind":"pod"}"#);
    problem(socket, 404, "PUT", "/v1/pods/default/db", r#"{"port":"nowhere","addresses":["10.1.0.2"]}"#);
    problem(socket, 422, "PUT", "/v1/pods/default/a%2Fb", r#"{"port":"p","addresses":["10.1.0.2"]}"#);
    assert_eq!(served.dataplane.publications(), before, "an error changed something");
}

#[test]
fn a_body_above_the_limit_is_refused_before_it_is_sent() {
    let served = Served::start();
    let mut stream = UnixStream::connect(served.socket()).unwrap();
    let huge = 1u64 << 40;
    write!(
        stream,
        "PUT /v1/tables HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {huge}\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("the body is larger than"), "{answer}");
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let served = Served::start();
    let mut idle = UnixStream::connect(served.socket()).unwrap();
    idle.write_all(b"GET /v1/sta").unwrap();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..50 {
        let mut stream = UnixStream::connect(served.socket()).unwrap();
        let bytes: Vec<u8> = (0..round * 40)
            .map(|_| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                noise as u8
            })
            .collect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    served.client.status().unwrap();
    idle.write_all(b"tus HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    idle.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_thousand_half_open_requests_do_not_keep_a_change_from_the_switch() {
    const HALF_OPEN: usize = 1000;
    let served = Served::start();
    let halves = ["", "GET /v1/sta", "PUT /v1/tables HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"];
    let open = |number: usize| {
        let mut stream = UnixStream::connect(served.socket()).unwrap();
        // A connection that the server has closed already cannot be written to.
        let _ = stream.write_all(halves[number % halves.len()].as_bytes());
        stream
    };
    let half_open: Vec<UnixStream> = (0..HALF_OPEN).map(open).collect();
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    assert!(served.client.status().unwrap().tables_loaded);
    let closed = |mut stream: &UnixStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let open = half_open.iter().filter(|stream| !closed(stream)).count();
    assert!((1..=HALF_OPEN / 2).contains(&open), "{open} of {HALF_OPEN} connections are still open");
}

#[test]
fn a_body_that_breaks_off_changes_nothing() {
    let served = Served::start();
    let mut stream = UnixStream::connect(served.socket()).unwrap();
    let body = serde_json::to_string(&small_tables("10.1.0.2")).unwrap();
    let head = format!("PUT /v1/tables HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body[..body.len() - 1]).as_bytes()).unwrap();
    drop(stream);
    assert!(!served.client.status().unwrap().tables_loaded);
}

#[test]
fn clients_at_once_all_get_their_way() {
    let served = Served::start();
    std::thread::scope(|scope| {
        for i in 0..8 {
            let client = &served.client;
            scope.spawn(move || {
                let port = format!("p{i}");
                for _ in 0..5 {
                    client.put_port(&port, &pod_port()).unwrap();
                    client.put_pod(&pod(&port), &on_port(&port, &format!("10.1.1.{}", i + 1))).unwrap();
                    assert!(client.pods().unwrap().iter().any(|info| info.pod == pod(&port)));
                    client.delete_pod(&pod(&port)).unwrap();
                    client.delete_port(&port).unwrap();
                }
            });
        }
    });
    assert!(served.client.ports().unwrap().is_empty());
    let changes = 1 + 8 * 5 * 4;
    assert_eq!(served.client.status().unwrap().generation, Generation(changes), "one publication a change");
    let ids: Vec<_> = {
        let published = served.dataplane.published.lock().unwrap();
        published
            .iter()
            .flat_map(|desired| desired.pods.iter().map(|pod| (pod.id, pod.pod.clone())))
            .collect()
    };
    let distinct: std::collections::BTreeSet<_> = ids.iter().map(|(id, _)| id).collect();
    let pairs: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!((distinct.len(), pairs.len()), (40, 40), "an attachment number was used twice");
}

#[test]
fn reads_are_answered_while_a_change_waits_for_the_workers() {
    let served = Served::start();
    let workers_busy = served.dataplane.publishing.lock().unwrap();
    std::thread::scope(|scope| {
        let change = scope.spawn(|| served.client.put_tables(&small_tables("10.1.0.2")).unwrap());
        for _ in 0..20 {
            assert!(!served.client.status().unwrap().tables_loaded);
            served.client.counters().unwrap();
        }
        drop(workers_busy);
        change.join().unwrap();
    });
    assert!(served.client.status().unwrap().tables_loaded);
}

#[test]
fn reads_are_answered_while_many_changes_wait_for_the_workers() {
    const CLIENTS: usize = 100;
    let served = Served::start();
    let before = served.dataplane.publications();
    let workers_busy = served.dataplane.publishing.lock().unwrap();
    std::thread::scope(|scope| {
        let change = |i| {
            let client = &served.client;
            scope.spawn(move || client.put_tables(&small_tables(&format!("10.1.0.{}", i + 1))).unwrap())
        };
        let changes: Vec<_> = (0..CLIENTS).map(change).collect();
        for _ in 0..CLIENTS {
            assert!(!served.client.status().unwrap().tables_loaded);
        }
        drop(workers_busy);
        changes.into_iter().for_each(|change| _ = change.join().unwrap());
    });
    assert_eq!(served.dataplane.publications() - before, CLIENTS, "one publication a change");
}

#[test]
fn a_stop_lets_a_change_end_that_waits_for_the_workers() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let (dataplane, switch) = switch(SwitchSettings::default());
    let server = Server::start(&socket, 0o660, switch.clone()).unwrap();
    let client = Client::new(&socket);
    let workers_busy = dataplane.publishing.lock().unwrap();
    std::thread::scope(|scope| {
        let change = scope.spawn(|| client.put_tables(&small_tables("10.1.0.2")));
        for _ in 0..20 {
            Client::new(&socket).status().unwrap();
        }
        let stopped = scope.spawn(|| drop(server));
        drop(workers_busy);
        stopped.join().unwrap();
        assert_eq!(change.join().unwrap().is_ok(), switch.tables().is_some(), "done and said so, or neither");
    });
    assert_eq!(Arc::strong_count(&switch), 1, "the server still holds the switch");
}

#[test]
fn the_socket_is_for_owner_and_group_and_goes_with_the_server() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("deeper/control.sock");
    let (_, switch) = switch(SwitchSettings::default());
    let server = Server::start(&socket, 0o660, switch).unwrap();
    let file = std::fs::symlink_metadata(&socket).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o777, 0o660);
    drop(server);
    assert_eq!(std::fs::read_dir(socket.parent().unwrap()).unwrap().count(), 0, "something is left");
}

#[test]
fn a_socket_of_a_dead_process_is_replaced() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a listener leaves its file");
    let (_, switch) = switch(SwitchSettings::default());
    let _server = Server::start(&socket, 0o660, switch).unwrap();
    Client::new(&socket).status().unwrap();
}

#[test]
fn a_client_asks_many_times_by_one_connection() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let client = Client::new(&socket);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| [client.counters().is_err(), client.counters().is_err()]);
        // A second connection would wait here without end, and its request with it.
        let (mut connection, _) = listener.accept().unwrap();
        for _ in 0..2 {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            connection.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
        assert_eq!(asking.join().unwrap(), [true, true]);
    });
}

#[test]
fn a_client_survives_a_restart_of_its_switch_and_many_at_once() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let client = Client::new(&socket);
    for _ in 0..3 {
        let (_, switch) = switch(SwitchSettings::default());
        let server = Server::start(&socket, 0o660, switch).unwrap();
        client.status().unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| client.status())).collect();
            threads.into_iter().for_each(|thread| drop(thread.join().unwrap().unwrap()));
        });
        drop(server);
        assert!(client.status().is_err(), "nobody is there");
    }
}

#[test]
fn a_live_socket_is_never_taken() {
    let served = Served::start();
    let (_, other) = switch(SwitchSettings::default());
    let refused = Server::start(served.socket(), 0o660, other.clone()).err().unwrap();
    assert!(matches!(refused, ServerError::Alive { .. }), "{refused}");
    served.client.status().unwrap();
    let file = served.scratch.write("file", "not a socket");
    let refused = Server::start(&file, 0o660, other).err().unwrap();
    assert!(matches!(refused, ServerError::NotASocket { .. }), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a socket");
}

#[test]
fn of_servers_that_start_at_once_one_gets_the_stale_socket() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let start = || Server::start(&socket, 0o660, switch(SwitchSettings::default()).1);
    let started: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(started.iter().filter(|server| server.is_ok()).count(), 1);
    Client::new(&socket).status().unwrap();
}

#[test]
fn a_bound_socket_lets_requests_wait_until_it_is_served() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let bound = Server::bind(&socket, 0o660).unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| Client::new(&socket).status().unwrap());
        let server = bound.serve(switch(SwitchSettings::default()).1).unwrap();
        assert_eq!(asked.join().unwrap().generation, Generation(1));
        drop(server);
    });
}

#[test]
fn a_stop_does_not_wait_for_clients_that_say_nothing() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let (dataplane, switch) = switch(SwitchSettings::default());
    let server = Server::start(&socket, 0o660, switch.clone()).unwrap();
    let mut silent = UnixStream::connect(&socket).unwrap();
    silent.write_all(b"PUT /v1/tables HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n").unwrap();
    Client::new(&socket).status().unwrap();
    let (stopped, wait) = std::sync::mpsc::channel();
    let stopper = std::thread::spawn(move || {
        drop(server);
        stopped.send(Instant::now()).unwrap();
    });
    wait.recv_timeout(Duration::from_mins(1)).expect("the server hangs on a silent client");
    stopper.join().unwrap();
    assert!(!socket.exists());
    assert_eq!(Arc::strong_count(&switch), 1, "the server still holds the switch");
    drop(switch);
    assert_eq!(Arc::strong_count(&dataplane), 1);
}
