//! Fake API server: lists in pages, watches, streaming lists, bookmarks, and faults on demand. Plain HTTP.

#[path = "requests.rs"]
mod requests;
#[path = "written.rs"]
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use requests::COLLECTIONS;
use requests::{Request, discovery, read_request, respond, status};

/// Behaviour of the server.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Status and `Retry-After` of requests whose path contains the text.
    pub(crate) statuses: Vec<(&'static str, u16)>,
    /// Requests with `sendInitialEvents` are refused, as by a server without the feature.
    pub(crate) refuses_streams: bool,
    /// Requests with `sendInitialEvents` get a plain watch, as by an old server.
    pub(crate) ignores_streams: bool,
    /// Connections are closed as soon as they are made.
    pub(crate) is_away: bool,
    /// Watches send nothing any more, and stay open.
    pub(crate) is_stalled: bool,
    /// Watches from a version are too old, whatever it is.
    pub(crate) is_gone: bool,
    /// Tokens of pages have expired.
    pub(crate) expires_pages: bool,
    /// Kinds that the server does not have.
    pub(crate) absent: BTreeSet<&'static str>,
    /// Version in which the server has the kinds of `policy.networking.k8s.io` that are absent.
    pub(crate) other_version: Option<&'static str>,
    /// Bytes of a watch of a kind, as a real server has sent them.
    pub(crate) recorded: BTreeMap<&'static str, Arc<[u8]>>,
    /// Next events of a watch of this kind have this error behind them, in the same chunk.
    pub(crate) error_after_events: Option<(&'static str, u16)>,
    /// `Authorization` that requests need.
    pub(crate) token: Option<String>,
}

#[derive(Default)]
struct State {
    version: u64,
    /// Objects of each kind by `namespace/name`.
    objects: BTreeMap<&'static str, BTreeMap<String, Arc<str>>>,
    /// Objects of lists in pages, by version and kind.
    lists: BTreeMap<(u64, &'static str), BTreeMap<String, Arc<str>>>,
    /// Events: version, kind, line.
    log: Vec<(u64, &'static str, Arc<str>)>,
    /// Versions up to this one are gone.
    compacted: u64,
    faults: Faults,
    /// Connections of earlier epochs are cut, in the middle of a line.
    epoch: u64,
    requests: Vec<String>,
    posted: Vec<Value>,
    /// The Lease, if an agent has made one.
    lease: Option<Value>,
}

impl State {
    fn put(&mut self, mut object: Value) {
        self.version += 1;
        let kind = kind_of(&object);
        let key = key_of(&object);
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        metadata["managedFields"] = json!([{"manager": "test", "fieldsV1": {"f:spec": {"f:x": {}}}}]);
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        let text: Arc<str> = object.to_string().into();
        let before = self.objects.entry(kind).or_default().insert(key, text.clone());
        let event = if before.is_some() { "MODIFIED" } else { "ADDED" };
        let line = format!("{{\"type\":\"{event}\",\"object\":{text}}}\n");
        self.log.push((self.version, kind, line.into()));
    }
}

/// Fake API server. Its threads end with the process.
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
    listener: Arc<TcpListener>,
}

impl ApiServer {
    pub(crate) fn start() -> ApiServer {
        ApiServer::at(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Starts a server whose clients come by this listener.
    pub(crate) fn at(listener: TcpListener) -> ApiServer {
        let address = listener.local_addr().unwrap();
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        shared.0.lock().unwrap().version = 100;
        let listener = Arc::new(listener);
        let (of_thread, streams) = (shared.clone(), listener.clone());
        std::thread::spawn(move || {
            for stream in streams.incoming().map_while(Result::ok) {
                let shared = of_thread.clone();
                std::thread::spawn(move || drop(serve(&stream, &shared)));
            }
        });
        ApiServer { address, shared, listener }
    }

    /// Text of a kubeconfig for this server.
    pub(crate) fn kubeconfig(&self, user: &Value) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.0.lock().unwrap());
        self.shared.1.notify_all();
        result
    }

    /// Holder of the Lease.
    pub(crate) fn holder(&self) -> Option<String> {
        let state = self.shared.0.lock().unwrap();
        state.lease.as_ref().map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap().to_owned())
    }

    /// Adds or replaces an object.
    pub(crate) fn put(&self, object: Value) {
        self.change(|state| state.put(object));
    }

    /// Removes an object.
    pub(crate) fn delete(&self, object: &Value) {
        self.change(|state| {
            let kind = kind_of(object);
            let Some(text) = state.objects.entry(kind).or_default().remove(&key_of(object)) else { return };
            state.version += 1;
            let mut last: Value = serde_json::from_str(&text).unwrap();
            last["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let line = format!("{{\"type\":\"DELETED\",\"object\":{last}}}\n");
            state.log.push((state.version, kind, line.into()));
        });
    }

    /// Objects of all kinds.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let state = self.shared.0.lock().unwrap();
        state
            .objects
            .values()
            .flat_map(BTreeMap::values)
            .map(|text| serde_json::from_str(text).unwrap())
            .collect()
    }

    /// Forgets all versions but the last.
    pub(crate) fn compact(&self) {
        self.change(|state| {
            state.compacted = state.version;
            state.log.clear();
        });
    }

    /// Sends a bookmark on each watch.
    pub(crate) fn bookmark(&self) {
        self.change(|state| {
            state.version += 1;
            for (_, version, kind) in COLLECTIONS {
                let line = bookmark(version, kind, state.version, false);
                state.log.push((state.version, kind, line.into()));
            }
        });
    }

    /// Cuts all connections, watches in the middle of a line.
    pub(crate) fn cut(&self) {
        self.change(|state| state.epoch += 1);
    }

    /// Whether each kind has been watched after so many requests.
    pub(crate) fn has_watches_since(&self, requests: usize) -> bool {
        let all = self.requests();
        let is_watched = |path: &str| {
            let start = format!("GET {path}?");
            all[requests..].iter().any(|line| line.starts_with(&start) && line.contains("watch=1"))
        };
        COLLECTIONS.iter().all(|(path, ..)| is_watched(path))
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        self.change(|state| change(&mut state.faults));
    }

    pub(crate) fn see_faults<T>(&self, see: impl FnOnce(&Faults) -> T) -> T {
        see(&self.shared.0.lock().unwrap().faults)
    }

    /// Method, path and query of the requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().requests.clone()
    }

    /// Bodies of POST requests so far.
    pub(crate) fn posted(&self) -> Vec<Value> {
        self.shared.0.lock().unwrap().posted.clone()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.cut();
        // The thread that accepts connections ends with EINVAL.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

fn kind_of(object: &Value) -> &'static str {
    let kind = object["kind"].as_str().unwrap();
    COLLECTIONS.iter().map(|(.., known)| *known).find(|known| *known == kind).unwrap()
}

fn key_of(object: &Value) -> String {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn bookmark(version: &str, kind: &str, resource_version: u64, is_end: bool) -> String {
    let mut metadata = json!({"resourceVersion": resource_version.to_string()});
    if is_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object =
        json!({"kind": kind, "apiVersion": version, "metadata": metadata, "spec": {"podSelector": {}}});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
}

fn serve(stream: &TcpStream, shared: &(Mutex<State>, Condvar)) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let epoch = {
        let state = shared.0.lock().unwrap();
        if state.faults.is_away {
            return stream.shutdown(Shutdown::Both);
        }
        state.epoch
    };
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        if shared.0.lock().unwrap().faults.is_away {
            return stream.shutdown(Shutdown::Both);
        }
        if !answer(stream, shared, &request, epoch)? {
            return stream.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}

/// Answers a request. Returns whether the connection goes on.
fn answer(
    stream: &TcpStream,
    shared: &(Mutex<State>, Condvar),
    request: &Request,
    epoch: u64,
) -> io::Result<bool> {
    let mut state = shared.0.lock().unwrap();
    let query: Vec<String> = request.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    state.requests.push(format!("{} {}?{}", request.method, request.path, query.join("&")));
    let faults = state.faults.clone();
    if let Some(token) = &faults.token
        && request.authorization.as_deref() != Some(&format!("Bearer {token}"))
    {
        drop(state);
        return status(stream, 401, "Unauthorized");
    }
    if let Some((_, code)) = faults.statuses.iter().find(|(text, _)| request.path.contains(text)) {
        drop(state);
        let message = format!("User \"system:anonymous\" cannot list resource at {}", request.path);
        return status(stream, *code, &message);
    }
    if let Some((code, body)) = written::answer(&mut state, request) {
        drop(state);
        shared.1.notify_all();
        return respond(stream, code, &body.to_string(), "");
    }
    if request.method == "POST" {
        state.posted.push(serde_json::from_slice(&request.body)?);
        drop(state);
        return respond(stream, 201, "{}", "");
    }
    // Absent kinds may be there in another version.
    let other = faults.other_version.map(|version| format!("/{version}/"));
    let path = other.map_or(request.path.clone(), |other| request.path.replace(&other, "/v1alpha2/"));
    let is_other = path != request.path;
    let Some((_, version, kind)) = COLLECTIONS.iter().find(|(known, ..)| *known == path) else {
        drop(state);
        return discovery(stream, &request.path, &faults);
    };
    if faults.absent.contains(kind) != is_other {
        drop(state);
        return status(stream, 404, "the server could not find the requested resource");
    }
    if !request.query.contains_key("watch") {
        let page = page(&mut state, version, kind, request);
        drop(state);
        return match page {
            Some(text) => respond(stream, 200, &text, ""),
            None => status(stream, 410, "The provided continue parameter is too old"),
        };
    }
    drop(state);
    watch(stream, shared, (version, kind), request, epoch)
}

/// Page of a list. Tokens are `version:first key`.
fn page(state: &mut State, version: &str, kind: &'static str, request: &Request) -> Option<String> {
    let limit = request.query.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let from = request.query.get("continue").map(|token| token.replace("%2F", "/").replace("%3A", ":"));
    if from.is_some() && state.faults.expires_pages {
        return None;
    }
    let first = from.as_deref().and_then(|token| token.split_once(':')).map_or("", |(_, key)| key);
    // All pages have the objects of the version of the first: a watch from it misses nothing, and repeats nothing.
    let list_version =
        from.as_deref().and_then(|token| token.split_once(':')?.0.parse().ok()).unwrap_or(state.version);
    let current = state.objects.get(kind).cloned().unwrap_or_default();
    let objects = &*state.lists.entry((list_version, kind)).or_insert(current);
    let mut items = objects.range(first.to_owned()..);
    let texts: Vec<&str> = items.by_ref().take(limit).map(|(_, text)| &**text).collect();
    let rest = items.next().map(|(key, _)| format!("{list_version}:{key}")).unwrap_or_default();
    let metadata = json!({"resourceVersion": list_version.to_string(), "continue": rest});
    Some(format!(
        "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[{}]}}",
        texts.join(",")
    ))
}

/// Event that ends a watch from a version that is no longer there.
fn expired(version: u64, compacted: u64) -> Arc<str> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": format!("too old resource version: {version} ({compacted})")});
    format!("{}\n", json!({"type": "ERROR", "object": status})).into()
}

fn watch(
    mut stream: &TcpStream,
    shared: &(Mutex<State>, Condvar),
    (version, kind): (&str, &'static str),
    request: &Request,
    epoch: u64,
) -> io::Result<bool> {
    let mut state = shared.0.lock().unwrap();
    let faults = state.faults.clone();
    let streams = request.query.get("sendInitialEvents").is_some_and(|value| value == "true");
    if streams && faults.refuses_streams {
        drop(state);
        return status(stream, 422, "sendInitialEvents is forbidden for watch");
    }
    let from = request.query.get("resourceVersion").and_then(|text| text.parse::<u64>().ok());
    let mut lines: Vec<Arc<str>> = Vec::new();
    let mut at = from.unwrap_or(state.version);
    if from.is_some_and(|from| from < state.compacted || faults.is_gone) {
        lines.push(expired(at, state.compacted));
    } else if from.is_none() {
        let empty = BTreeMap::new();
        let objects = state.objects.get(kind).unwrap_or(&empty).values();
        lines.extend(objects.map(|text| format!("{{\"type\":\"ADDED\",\"object\":{text}}}\n").into()));
        if streams && !faults.ignores_streams {
            lines.push(bookmark(version, kind, state.version, true).into());
        }
    }
    if let Some(bytes) = faults.recorded.get(kind) {
        lines = vec![String::from_utf8_lossy(bytes).into()];
    }
    let mut ends = lines.first().is_some_and(|line| line.starts_with("{\"type\":\"ERROR\""));
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    loop {
        if at < state.compacted && !ends {
            // The events in between are gone from the log. "mvcc: required revision has been compacted" (etcd) ends a watch.
            lines.push(expired(at, state.compacted));
            ends = true;
        }
        let fresh = state.log.iter().filter(|(version, of, _)| *version > at && *of == kind);
        lines.extend(fresh.map(|(.., line)| line.clone()));
        at = at.max(state.version);
        let is_cut = state.epoch != epoch;
        let is_stalled = state.faults.is_stalled;
        if let Some((_, code)) =
            state.faults.error_after_events.take_if(|(of, _)| *of == kind && !lines.is_empty())
        {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
            lines.push(format!("{}\n", json!({"type": "ERROR", "object": status})).into());
            ends = true;
        }
        drop(state);
        if is_cut {
            let half = bookmark(version, kind, at, false);
            chunk(stream, &half.as_bytes()[..half.len() / 2])?;
            return Ok(false);
        }
        if !is_stalled {
            // Small objects share a chunk, and large ones are split, as in a real connection.
            let text: Vec<u8> = lines.drain(..).flat_map(|line| line.as_bytes().to_vec()).collect();
            for part in text.chunks(60_000) {
                chunk(stream, part)?;
            }
        }
        if ends {
            stream.write_all(b"0\r\n\r\n")?;
            return Ok(true);
        }
        state = shared.0.lock().unwrap();
        let is_idle = |state: &mut State| {
            state.epoch == epoch && (state.faults.is_stalled || state.version <= at && lines.is_empty())
        };
        state = shared.1.wait_timeout_while(state, Duration::from_secs(5), is_idle).unwrap().0;
    }
}

fn chunk(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes())?;
    stream.write_all(bytes)?;
    stream.write_all(b"\r\n")
}
