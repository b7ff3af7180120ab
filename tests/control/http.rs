//! HTTP listener: read-only, for this machine or with a token, and undisturbed by clients that are slow or silent.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use palisade::control::{Client, HttpListener, Server, ServerError, Switch, SwitchSettings};

use crate::fixture::{FakeDataplane, Scratch, on_port, pod, pod_port, switch};
use crate::small_tables::small_tables;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Switch with a control socket and an HTTP listener.
pub(crate) struct WithHttp {
    pub(crate) dataplane: Arc<FakeDataplane>,
    pub(crate) switch: Arc<Switch>,
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    _server: Server,
    _scratch: Scratch,
}

impl WithHttp {
    /// Starts both, with a token where one is given.
    pub(crate) fn start(token: Option<&str>) -> WithHttp {
        let scratch = Scratch::new();
        let (dataplane, switch) = switch(SwitchSettings::default());
        let token_file = token.map(|token| scratch.write("token", token));
        let http = HttpListener::bind("127.0.0.1:0".parse().unwrap(), token_file.as_deref()).unwrap();
        let address = http.address();
        let socket = scratch.0.join("control.sock");
        let bound = Server::bind(&socket, 0o660).unwrap().with_http(Some(http));
        let server = bound.serve(switch.clone()).unwrap();
        WithHttp {
            dataplane,
            switch,
            client: Client::new(socket),
            address,
            _server: server,
            _scratch: scratch,
        }
    }

    /// Sends a request without a body, with further header lines, and returns its response as text.
    pub(crate) fn exchange(&self, method: &str, path: &str, headers: &str) -> String {
        self.exchange_raw(&format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"
        ))
    }

    /// Sends these bytes, and returns the response as text.
    pub(crate) fn exchange_raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Status and body of a GET request.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        parsed(&self.exchange("GET", path, ""))
    }
}

fn parsed(answer: &str) -> (u16, String) {
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

fn status(answer: &str) -> u16 {
    parsed(answer).0
}

#[test]
fn only_get_and_head_are_served_and_nothing_changes() {
    let served = WithHttp::start(None);
    let before = served.dataplane.publications();
    for path in ["/metrics", "/healthz", "/v1/status", "/v1/tables", "/v1/ports", "/v1/ports/p", "/nowhere"] {
        for method in ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"] {
            let answer = served.exchange(method, path, "");
            assert_eq!(status(&answer), 405, "{method} {path}: {answer}");
            assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
        }
    }
    assert_eq!(served.dataplane.publications(), before);
    let page = ["/", "/dashboard.css", "/dashboard.js", "/v1/overview"];
    for path in ["/v1/status", "/v1/ports", "/v1/pods", "/v1/counters", "/metrics"].into_iter().chain(page) {
        assert_eq!(served.get(path).0, 200, "{path}");
        let (status, body) = parsed(&served.exchange("HEAD", path, ""));
        assert_eq!((status, body.as_str()), (200, ""), "HEAD {path}");
    }
    for path in ["/v1/tables", "/v1/tables/document", "/v1/flows", "/v1/pods/a/b", "//metrics", "//"] {
        assert_eq!(served.get(path).0, 404, "{path}");
    }
    let status: serde_json::Value = serde_json::from_str(&served.get("/v1/status").1).unwrap();
    assert_eq!(status["pid"], std::process::id());
}

#[test]
fn with_a_token_only_probes_need_none() {
    let served = WithHttp::start(Some(&format!("{TOKEN}\n")));
    let with = |header: &str| served.exchange("GET", "/metrics", header);
    for header in ["", "authorization: Bearer 0\r\n", "authorization: Basic x\r\n"] {
        let answer = with(header);
        assert_eq!(status(&answer), 401, "{answer}");
        assert!(answer.contains("www-authenticate: Bearer\r\n") && !answer.contains("palisade_"), "{answer}");
    }
    for path in ["/v1/status", "/v1/counters", "/nowhere", "/healthz/", "/healthz/../metrics", "/%68ealthz"] {
        assert_eq!(served.get(path).0, 401, "{path}");
    }
    assert_eq!(status(&with(&format!("authorization: Bearer {TOKEN}\r\n"))), 200);
    assert_eq!(served.get("/healthz").0, 200);
    assert_eq!(served.get("/readyz").0, 503, "no tables");
}

#[test]
fn other_machines_need_a_token_and_the_file_must_have_one() {
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let refused = HttpListener::bind(everywhere, None).err().unwrap();
    assert!(matches!(refused, ServerError::HttpWithoutToken { .. }), "{refused}");
    let scratch = Scratch::new();
    let long = "x".repeat(513);
    for text in
        ["", "\n", "short", "0123456789 abcdef", "0123456789abcde\u{fc}", "0123456789abcdef\nsecond", &long]
    {
        let refused = HttpListener::bind(everywhere, Some(&scratch.write("token", text))).err().unwrap();
        assert!(refused.to_string().contains("openssl rand"), "{text:?}: {refused}");
    }
    for path in [scratch.0.join("absent"), scratch.0.clone()] {
        let refused = HttpListener::bind(everywhere, Some(&path)).err().unwrap().to_string();
        assert!(refused.contains("cannot be read") && refused.contains(path.to_str().unwrap()), "{refused}");
    }
    let file = scratch.write("token", TOKEN);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(HttpListener::bind(everywhere, Some(&file)).is_ok());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = HttpListener::bind(taken.local_addr().unwrap(), None).err().unwrap();
    assert!(matches!(refused, ServerError::Http { .. }), "{refused}");
}

#[test]
fn a_page_of_another_site_reads_nothing() {
    let served = WithHttp::start(None);
    let mut stream = TcpStream::connect(served.address).unwrap();
    write!(stream, "GET /v1/pods HTTP/1.1\r\nhost: evil.example:9640\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 403, "{answer}");
}

#[test]
fn health_is_that_of_the_workers_and_readiness_that_of_tables_and_ports() {
    let served = WithHttp::start(None);
    assert_eq!(served.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(served.get("/readyz"), (503, "no rule tables are loaded\n".to_owned()));
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    served.client.put_port("p", &pod_port()).unwrap();
    assert_eq!(served.get("/readyz"), (200, "ok\n".to_owned()));

    *served.dataplane.halted_for.lock().unwrap() = Duration::from_millis(900);
    assert_eq!(served.get("/healthz").0, 200);
    *served.dataplane.halted_for.lock().unwrap() = Duration::from_millis(2100);
    let halted = "worker 0 (core 3) has not come to the end of a batch for 2 s\n";
    assert_eq!(served.get("/healthz"), (503, halted.to_owned()));
    assert!(served.get("/metrics").1.contains("palisade_worker_up{worker=\"0\"} 0\n"));
    assert_eq!(served.get("/readyz").0, 200);
}

#[test]
fn a_thousand_half_open_requests_keep_neither_a_scrape_nor_a_change_from_the_switch() {
    const HALF_OPEN: usize = 1000;
    let served = WithHttp::start(None);
    let halves =
        ["", "GET /metr", "GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"];
    let open = |number: usize| {
        let mut stream = TcpStream::connect(served.address).unwrap();
        // A connection that the server has closed already cannot be written to.
        let _ = stream.write_all(halves[number % halves.len()].as_bytes());
        stream
    };
    let half_open: Vec<TcpStream> = (0..HALF_OPEN).map(open).collect();
    assert_eq!(served.get("/metrics").0, 200);
    served.client.put_tables(&small_tables("10.1.0.2")).unwrap();
    let closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 1 << 16];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    };
    let open = half_open.iter().filter(|stream| !closed(stream)).count();
    assert!(open <= 64, "{open} of {HALF_OPEN} connections are still open");
}

#[test]
fn many_scrapes_at_once_are_all_served_while_a_change_waits_for_the_workers() {
    let served = WithHttp::start(None);
    served.client.put_port("p", &pod_port()).unwrap();
    let workers_busy = served.dataplane.publishing.lock().unwrap();
    std::thread::scope(|scope| {
        let change = scope.spawn(|| served.client.put_pod(&pod("db"), &on_port("p", "10.1.0.3")).unwrap());
        let scrape = || (0..10).for_each(|_| assert!(served.get("/metrics").1.ends_with("# EOF\n")));
        let scrapers: Vec<_> = (0..8).map(|_| scope.spawn(scrape)).collect();
        scrapers.into_iter().for_each(|scraper| scraper.join().unwrap());
        drop(workers_busy);
        change.join().unwrap();
    });
}

#[test]
fn garbage_gets_no_more_than_an_error() {
    let served = WithHttp::start(None);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    for bytes in
        [b"\x16\x03\x01\x02\x00\x01\x00".as_slice(), b"\r\n\r\n\0\xff", long.as_bytes(), many.as_bytes()]
    {
        let mut stream = TcpStream::connect(served.address).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(served.get("/metrics").0, 200);
}

#[test]
fn the_listener_ends_with_the_server() {
    let served = WithHttp::start(None);
    let address = served.address;
    let mut silent = TcpStream::connect(address).unwrap();
    assert_eq!(served.get("/healthz").0, 200);
    let switch = served.switch.clone();
    drop(served);
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    assert!(TcpStream::connect(address).is_err());
    assert_eq!(Arc::strong_count(&switch), 1, "the server still holds the switch");
}
