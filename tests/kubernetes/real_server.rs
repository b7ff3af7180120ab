//! Real API server with its etcd, from the directory `$KUBEBUILDER_ASSETS`.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Collected};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::{Scratch, eventually};
use crate::tools::skipped;

/// Token of a user who may do everything.
const ADMIN: &str = "admin-token";
/// Token of the service account of config/kubernetes.
pub(crate) const AGENT: &str = "agent-token";
/// Longest wait for a program to be ready.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Type of a change that leaves the fields which it does not name.
const MERGE: &str = "application/merge-patch+json";

/// Path of the collection of each kind that the tests write.
const COLLECTIONS: [(&str, &str); 11] = [
    ("Namespace", "/api/v1/namespaces"),
    ("Node", "/api/v1/nodes"),
    ("Pod", "/api/v1/NAMESPACE/pods"),
    ("Service", "/api/v1/NAMESPACE/services"),
    ("ServiceAccount", "/api/v1/NAMESPACE/serviceaccounts"),
    ("EndpointSlice", "/apis/discovery.k8s.io/v1/NAMESPACE/endpointslices"),
    ("NetworkPolicy", "/apis/networking.k8s.io/v1/NAMESPACE/networkpolicies"),
    ("AdminNetworkPolicy", "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"),
    ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
];

/// Kinds that the agent follows here.
const FOLLOWED: [&str; 7] =
    ["Namespace", "Node", "Pod", "Service", "EndpointSlice", "NetworkPolicy", "AdminNetworkPolicy"];

/// Real API server. It ends with this.
pub(crate) struct RealServer {
    assets: PathBuf,
    scratch: Scratch,
    ports: [u16; 3],
    _etcd: Running,
    server: Running,
    runtime: Runtime,
    client: Client,
}

/// Program that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RealServer {
    /// Starts a server without objects. Without its programs the test says what it leaves out, and returns `None`.
    pub(crate) fn start() -> Option<RealServer> {
        let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
            skipped("KUBEBUILDER_ASSETS names no directory with kube-apiserver and etcd");
            return None;
        };
        let scratch = Scratch::new();
        let listeners: [_; 3] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
        scratch.write(
            "tokens",
            &format!(
                "{ADMIN},admin,1,system:masters\n\
                 {AGENT},system:serviceaccount:palisade-system:palisade,2,system:serviceaccounts\n"
            ),
        );
        let key = Command::new("openssl").args(["genrsa", "2048"]).output().expect("openssl is installed");
        std::fs::write(scratch.0.join("key"), key.stdout).unwrap();
        let etcd = run_etcd(&assets, &scratch.0, ports);
        let server = run_server(&assets, &scratch.0, ports);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let until = Instant::now() + TIMEOUT;
        while !scratch.0.join("certificates/apiserver.crt").exists() {
            assert!(Instant::now() < until, "the API server has no certificate: {}", log_of(&scratch.0));
            std::thread::sleep(Duration::from_millis(50));
        }
        let kubeconfig = serde_json::from_value::<Kubeconfig>(kubeconfig(&scratch.0, ports, ADMIN)).unwrap();
        let options = KubeConfigOptions::default();
        let client = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
            Client::try_from(config).unwrap()
        });
        let real = RealServer { assets, scratch, ports, _etcd: etcd, server, runtime, client };
        real.is_ready();
        Some(real)
    }

    /// File of credentials with this token.
    pub(crate) fn kubeconfig(&self, token: &str) -> PathBuf {
        self.scratch.write(token, &kubeconfig(&self.scratch.0, self.ports, token).to_string())
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        self.server.0.kill().unwrap();
        self.server.0.wait().unwrap();
    }

    /// Starts the server again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.server = run_server(&self.assets, &self.scratch.0, self.ports);
        self.is_ready();
    }

    /// Removes all earlier versions of objects from etcd, as it does every five minutes.
    pub(crate) fn compact(&self) {
        let etcd = |path: &str, body: &Value| {
            let url = format!("http://127.0.0.1:{}/v3/{path}", self.ports[0]);
            let arguments = ["-sf", "-d", &body.to_string(), &url];
            let output = Command::new("curl").args(arguments).output().expect("curl is installed");
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        let revision = etcd("kv/range", &json!({"key": "AA=="}))["header"]["revision"].clone();
        etcd("kv/compaction", &json!({"revision": revision}));
    }

    /// Waits until the server is ready.
    fn is_ready(&self) {
        let until = Instant::now() + TIMEOUT;
        while self.send(Method::GET, "/readyz", "text/plain", None).0 != StatusCode::OK {
            assert!(Instant::now() < until, "the API server is not ready: {}", log_of(&self.scratch.0));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a request, again while a server that has just started cannot serve it.
    fn ask(&self, method: &Method, path: &str, format: &str, body: &Value) -> (StatusCode, Value) {
        let until = Instant::now() + TIMEOUT;
        loop {
            let answer = self.send(method.clone(), path, format, Some(body));
            if answer.0 != StatusCode::SERVICE_UNAVAILABLE || Instant::now() > until {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a request. A server that is away answers with 503.
    fn send(&self, method: Method, path: &str, format: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string().into_bytes()));
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, format);
        let request = request.body(body).unwrap();
        self.runtime.block_on(async {
            let Ok(response) = self.client.send(request).await else {
                return (StatusCode::SERVICE_UNAVAILABLE, Value::Null);
            };
            let (head, body) = response.into_parts();
            let bytes = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            (head.status, serde_json::from_slice(&bytes).unwrap_or_default())
        })
    }

    /// Adds or changes an object, by as many requests as a cluster needs for it.
    #[track_caller]
    pub(crate) fn put(&self, object: &Value) {
        let path = path_of(object);
        let mut wanted = object.clone();
        let status = wanted.as_object_mut().unwrap().remove("status");
        let (mut code, mut answer) = self.ask(&Method::PATCH, &path, MERGE, &wanted);
        if code == StatusCode::UNPROCESSABLE_ENTITY {
            // A field cannot be changed.
            self.delete(object);
            code = StatusCode::NOT_FOUND;
        }
        if code == StatusCode::NOT_FOUND {
            let collection = collection_of(object);
            (code, answer) = self.ask(&Method::POST, &collection, "application/json", &wanted);
        }
        assert!(code.is_success(), "{object}: {code} {answer}");
        if let Some(status) = status.filter(|status| *status != json!({"loadBalancer": {}})) {
            let body = json!({"status": status});
            let (code, answer) = self.ask(&Method::PATCH, &format!("{path}/status"), MERGE, &body);
            assert!(code.is_success(), "status of {object}: {code} {answer}");
        }
    }

    /// Removes an object, if there is one.
    #[track_caller]
    pub(crate) fn delete(&self, object: &Value) {
        // Nothing here ends the containers of a pod, or the objects that belong to a removed one.
        let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        let (code, answer) = self.ask(&Method::DELETE, &path_of(object), "application/json", &options);
        assert!(code.is_success() || code == StatusCode::NOT_FOUND, "{object}: {code} {answer}");
    }

    /// Defines a kind, and waits until the server has it.
    pub(crate) fn define(&self, definition: &Value) {
        self.put(definition);
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        eventually("the kind is there", || self.serves(kind));
    }

    /// Applies a file of config/kubernetes, as the kustomization does.
    pub(crate) fn apply(&self, name: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/kubernetes").join(name);
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig(ADMIN));
        command.arg("--cache-dir").arg(self.scratch.0.join("cache"));
        command.args(["--namespace", "palisade-system", "apply", "-f"]).arg(file);
        let output = command.output().expect("kubectl is installed");
        assert!(output.status.success(), "{output:?}");
    }

    /// Whether the server has objects of a kind.
    pub(crate) fn serves(&self, kind: &str) -> bool {
        self.send(Method::GET, &everywhere(kind), "application/json", None).0 == StatusCode::OK
    }

    /// Events that are about objects of a kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let events = self.items("Event", "/apis/events.k8s.io/v1/events");
        events.into_iter().filter(|event| event["regarding"]["kind"] == kind).collect()
    }

    /// Objects of a kind, as the server shows them.
    fn items(&self, kind: &str, path: &str) -> Vec<Value> {
        let (code, mut list) = self.send(Method::GET, path, "application/json", None);
        assert!(code.is_success(), "{kind}: {code} {list}");
        let version = list["apiVersion"].clone();
        let mut items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        for item in &mut items {
            (item["kind"], item["apiVersion"]) = (json!(kind), version.clone());
        }
        items
    }

    /// All objects that the agent follows.
    pub(crate) fn objects(&self) -> Vec<Value> {
        FOLLOWED
            .iter()
            .filter(|kind| self.serves(kind))
            .flat_map(|kind| self.items(kind, &everywhere(kind)))
            .collect()
    }
}

fn run_etcd(assets: &Path, directory: &Path, [client, peer, _]: [u16; 3]) -> Running {
    let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
    let flags = BTreeMap::from([
        ("data-dir", directory.join("etcd").display().to_string()),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("default={peer}")),
    ]);
    run(&assets.join("etcd"), &directory.join("etcd.log"), flags)
}

fn run_server(assets: &Path, directory: &Path, [etcd, _, port]: [u16; 3]) -> Running {
    let file = |name: &str| directory.join(name).display().to_string();
    let flags = BTreeMap::from([
        ("etcd-servers", format!("http://127.0.0.1:{etcd}")),
        ("cert-dir", file("certificates")),
        ("bind-address", "127.0.0.1".to_owned()),
        ("secure-port", port.to_string()),
        ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
        ("token-auth-file", file("tokens")),
        ("authorization-mode", "RBAC".to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("service-account-key-file", file("key")),
        ("service-account-signing-key-file", file("key")),
        // Nothing here makes service accounts of namespaces.
        ("disable-admission-plugins", "ServiceAccount".to_owned()),
    ]);
    run(&assets.join("kube-apiserver"), &directory.join("server.log"), flags)
}

fn run(program: &Path, log: &Path, flags: BTreeMap<&str, String>) -> Running {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let flags = flags.into_iter().map(|(name, value)| format!("--{name}={value}"));
    let mut command = Command::new(program);
    command.args(flags).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display())))
}

fn log_of(directory: &Path) -> String {
    let log = std::fs::read_to_string(directory.join("server.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn kubeconfig(directory: &Path, [_, _, port]: [u16; 3], token: &str) -> Value {
    let certificate = directory.join("certificates/apiserver.crt");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster":
            {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": certificate}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
}

fn collection(kind: &str) -> &'static str {
    COLLECTIONS.iter().find(|(of, _)| *of == kind).unwrap_or_else(|| panic!("no path of {kind}")).1
}

/// Path of the objects of a kind in all namespaces.
fn everywhere(kind: &str) -> String {
    format!("{}?limit=500", collection(kind).replace("NAMESPACE/", ""))
}

fn collection_of(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    collection(object["kind"].as_str().unwrap()).replace("NAMESPACE", &format!("namespaces/{namespace}"))
}

fn path_of(object: &Value) -> String {
    format!("{}/{}", collection_of(object), object["metadata"]["name"].as_str().unwrap())
}
