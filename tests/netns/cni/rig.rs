//! A switch with a network of the CNI plugin, and containers as bare network namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use palisade::control::Client;
use palisade::lab::{Lab, LabSpec, Switch, SwitchSpec};
use palisade::netlink::NetworkNamespace;
use serde_json::{Value, json};

use crate::support::closed::{FirstPacket, assert_counted, drops};
use crate::support::connection::Connection;
use crate::support::veth::ip;
use crate::support::{PORT, TIMEOUT};

/// Directory of the IPAM plugins of Debian's containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// Network of a running switch.
pub(crate) struct Network {
    pub(crate) switch: Option<Switch>,
    pub(crate) lab: Lab,
    /// Configuration of the network.
    pub(crate) config: Value,
    /// Directories of plugins.
    pub(crate) path: String,
}

/// Container: a named network namespace.
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) pod: String,
    pub(crate) netns: String,
}

/// Answer of the plugin.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) success: bool,
    pub(crate) json: Value,
}

impl Network {
    pub(crate) fn up(workers: u16) -> Network {
        let lab = Lab::up(&LabSpec { workers, ..LabSpec::of(&["bystander"]).unwrap() }).unwrap();
        let directory = lab.directory();
        let config = json!({
            "cniVersion": "1.0.0",
            "name": format!("pal{}", lab.id()),
            "type": "palisade-cni",
            "socket": directory.join("control.sock"),
            "ipam": {
                "type": "host-local",
                "dataDir": directory.join("leases"),
                "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]],
            },
        });
        let mut network = Network { switch: None, lab, config, path: PLUGINS.to_owned() };
        network.start();
        network
    }

    /// Starts the switch.
    pub(crate) fn start(&mut self) {
        let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
        spec.stay_closed = true;
        // A connection that continues after a restart has kept its flow.
        spec.config.push_str("[conntrack]\ntcp_pickup = false\n");
        self.switch = Some(Switch::start(&mut self.lab, &spec).unwrap());
    }

    pub(crate) fn kill(&mut self) {
        self.switch.take().unwrap().kill().unwrap();
    }

    pub(crate) fn client(&self) -> &Client {
        self.switch.as_ref().unwrap().client()
    }

    /// The network with interfaces of this kind.
    pub(crate) fn with(&self, key: &str, value: impl Into<Value>) -> Value {
        let mut config = self.config.clone();
        config[key] = value.into();
        config
    }

    pub(crate) fn start_call(&self, verb: &str, container: &Container, config: &Value) -> Child {
        self.start_call_with(verb, container, config, Stdio::inherit())
    }

    /// Starts a call with this standard error.
    pub(crate) fn start_call_with(
        &self,
        verb: &str,
        container: &Container,
        config: &Value,
        errors: Stdio,
    ) -> Child {
        let mut child = self.prepare_call(verb, container).stderr(errors).spawn().unwrap();
        // A program that does not read its input has answered already.
        let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
        child
    }

    /// Prepares a call, which takes its configuration from a pipe.
    pub(crate) fn prepare_call(&self, verb: &str, container: &Container) -> Command {
        self.prepare_call_of(env!("CARGO_BIN_EXE_palisade-cni").as_ref(), verb, container)
    }

    fn prepare_call_of(&self, program: &Path, verb: &str, container: &Container) -> Command {
        let mut command = Command::new(program);
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &container.id)
            .env("CNI_NETNS", container.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.path)
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={}", container.pod),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    pub(crate) fn call(&self, verb: &str, container: &Container, config: &Value) -> Answer {
        Answer::of(&self.start_call(verb, container, config).wait_with_output().unwrap())
    }

    /// Calls a plugin of Debian behind this one, with the result before it.
    pub(crate) fn call_chained(&self, verb: &str, container: &Container, config: &Value) -> Answer {
        let program = Path::new(PLUGINS).join(config["type"].as_str().unwrap());
        let mut child = self.prepare_call_of(&program, verb, container).spawn().unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        Answer::of(&child.wait_with_output().unwrap())
    }

    /// Attaches a container, and returns its result.
    pub(crate) fn add(&self, container: &Container, kind: &str) -> Value {
        let answer = self.call("ADD", container, &self.with("interface", kind));
        assert!(answer.success, "{answer:?}");
        answer.json
    }

    pub(crate) fn del(&self, container: &Container) {
        let answer = self.call("DEL", container, &self.config);
        assert!(answer.success && answer.json.is_null(), "{answer:?}");
    }

    /// Loads the containers as pods, with their names as the label `app`, and these policies.
    pub(crate) fn apply(&self, containers: &[(&Container, &Value)], policies: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        let pods = containers.iter().map(|(container, result)| {
            let addresses: Vec<Value> =
                addresses(result).iter().map(|address| json!({"ip": address})).collect();
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": container.pod, "namespace": "default", "labels": {"app": container.pod}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
                "status": {"phase": "Running", "podIPs": addresses},
            })
        });
        let objects: Vec<String> = pods.chain([namespace]).map(|object| format!("{object}\n---\n")).collect();
        self.switch.as_ref().unwrap().apply(&format!("{}{policies}", objects.concat())).unwrap();
    }

    /// Asserts that the switch drops a container's first packet for this reason.
    pub(crate) fn assert_denied(&self, from: &Container, to: IpAddr, reason: &str) {
        let pods = self.client().pods().unwrap();
        let port = pods.into_iter().find(|info| info.pod.name == from.pod).expect("the pod is attached").port;
        assert_counted(
            &format!("{} to {to}", from.pod),
            || drops(self.client(), &port, reason),
            || from.run(|| FirstPacket::tcp(to)),
        );
    }

    /// Leases of host-local.
    pub(crate) fn leases(&self) -> BTreeSet<String> {
        let name = self.config["name"].as_str().unwrap();
        let files = fs::read_dir(self.lab.directory().join("leases").join(name));
        let names = files.into_iter().flatten().flatten().map(|file| file.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("10.88.")).collect()
    }

    /// Records of a part: `attached` or `pending`.
    pub(crate) fn records(&self, part: &str) -> usize {
        fs::read_dir(self.lab.directory().join("cni").join(part)).map_or(0, Iterator::count)
    }

    /// Asserts that nothing of any container is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.leases(), BTreeSet::new());
        assert_eq!((self.records("attached"), self.records("pending")), (0, 0));
        if let Some(switch) = &self.switch {
            let ports: Vec<String> =
                switch.client().ports().unwrap().into_iter().map(|port| port.name).collect();
            assert_eq!((ports, switch.client().pods().unwrap().len()), (vec![], 0));
        }
    }
}

impl Answer {
    pub(crate) fn of(output: &Output) -> Answer {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        Answer {
            success: output.status.success(),
            json: if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() },
        }
    }

    /// Asserts that the call failed with this code.
    pub(crate) fn refused(&self, code: u32, says: &str) {
        let message = self.json["msg"].as_str().unwrap_or_default();
        assert!(!self.success && self.json["code"] == code && message.contains(says), "{says}: {self:?}");
    }
}

impl Container {
    pub(crate) fn new(pod: &str) -> Container {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("container-{number}");
        ip(&format!("netns add {id}"));
        ip(&format!("-n {id} link set lo up"));
        Container { netns: id.clone(), id, pod: pod.to_owned() }
    }

    /// Path of the namespace as a runtime has it, with a link.
    pub(crate) fn path(&self) -> String {
        format!("/var/run/netns/{}", self.netns)
    }

    /// Runs `f` inside.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        NetworkNamespace::open(&self.netns).unwrap().run(f).unwrap()
    }

    /// Serves TCP connections: each gets an answer.
    pub(crate) fn serve(&self, at: IpAddr) -> JoinHandle<()> {
        let listener = self.run(|| TcpListener::bind(SocketAddr::new(at, PORT))).unwrap();
        serve(listener)
    }

    /// Opens a connection to another container.
    pub(crate) fn connect(&self, to: &Container, address: IpAddr) -> Connection {
        let address = SocketAddr::new(address, PORT + 1);
        let listener = to.run(|| TcpListener::bind(address)).unwrap();
        let client = self.run(|| TcpStream::connect_timeout(&address, TIMEOUT)).unwrap();
        let (server, _) = listener.accept().unwrap();
        Connection { client, server }
    }

    pub(crate) fn assert_reaches(&self, to: IpAddr) {
        assert!(self.run(|| talks(to, TIMEOUT)), "{} does not reach {to}", self.pod);
    }

    pub(crate) fn has_interface(&self) -> bool {
        let output = Command::new("ip").args(["-n", &self.netns, "link", "show", "dev", "eth0"]).output();
        output.unwrap().status.success()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.netns]).output();
    }
}

/// Answers each connection.
pub(crate) fn serve(listener: TcpListener) -> JoinHandle<()> {
    std::thread::spawn(move || {
        // The test process ends with its last test, and the listener with it.
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(b"hello");
        }
    })
}

/// Tells whether a server answers in the calling thread's namespace.
pub(crate) fn talks(to: IpAddr, timeout: Duration) -> bool {
    let exchange = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(to, PORT), timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer == *b"hello")
    };
    exchange().unwrap_or(false)
}

/// Addresses of a result, IPv4 first.
pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let text = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
    result["ips"].as_array().unwrap().iter().map(text).collect()
}

/// Writes an IPAM plugin into a directory of its own before the real ones: a shell script.
pub(crate) fn plugin(network: &mut Network, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let directory: PathBuf = network.lab.directory().join("plugins");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    network.path = format!("{}:{PLUGINS}", directory.display());
}
