//! Cluster as it is shipped: nodes prepared by `prepare-node.sh`, switches with the configuration of the `ConfigMap`, pods made
//! by `palisade-cni` with its own conflist. Nothing else gives a node or a pod an address, a route or a setting for pods.
//!
//! Two nodes share a network, whose router knows nothing of pods. Behind it are a third node, and a host outside with the API
//! server.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use palisade::control::Client;
use palisade::lab::PodPorts;
use serde_json::{Value, json};

use super::exchange::PORT;
use super::host::{Host, Network};
use crate::api_server::ApiServer;
use crate::support::{TIMEOUT, add_card, eventually};

/// Directory of the IPAM plugins of Debian's containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// Directory of the configuration, on each node.
const CONFIGURATION: &str = "/run/palisade-node";

/// Number of a node in its addresses, and in those of its pods.
pub(crate) type Number = u8;

/// The node in a network of its own.
pub(crate) const FAR: Number = 3;

/// Addresses of a host in the network of a node.
fn node_network(node: Number, host: Number) -> [IpAddr; 2] {
    let [v4, v6] = if node == FAR { ["203.0.113", "2001:db8:3:"] } else { ["192.0.2", "2001:db8:2:"] };
    [format!("{v4}.{host}"), format!("{v6}:{host}")].map(|text| text.parse().unwrap())
}

/// Addresses of the host outside.
pub(crate) fn outside() -> [IpAddr; 2] {
    ["198.51.100.1", "2001:db8:99::1"].map(|text| text.parse().unwrap())
}

/// The router of the nodes.
const ROUTER: Number = 254;

/// Node, with a switch.
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) addresses: [IpAddr; 2],
    switch: Option<Child>,
}

/// Pod of a node.
pub(crate) struct Pod {
    network: PathBuf,
    pub(crate) addresses: [IpAddr; 2],
}

/// Backend of a Service: its addresses, and its node if it is of the cluster.
pub(crate) struct Backend {
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) node: Option<Number>,
}

impl Network for Pod {
    fn network(&self) -> PathBuf {
        self.network.clone()
    }
}

/// Nodes, their router, and a host outside.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) outside: Host,
    pub(crate) api: ApiServer,
    pub(crate) router: Host,
    ports: PodPorts,
}

/// Edit of the configuration for so many workers, one or two.
pub(crate) fn workers(number: usize) -> &'static [[&'static str; 2]] {
    if number == 1 { &[] } else { &[["[services]", "[workers]\ncores = [0, 1]\n\n[services]"]] }
}

impl Cluster {
    /// Makes a cluster of so many nodes, whose switches have started and follow the API. Pods have interfaces of this kind.
    pub(crate) fn up(nodes: Number, ports: PodPorts) -> Cluster {
        Cluster::up_with(nodes, ports, &[])
    }

    /// Makes the same with edits of the template of the configuration: texts and what they become.
    pub(crate) fn up_with(nodes: Number, ports: PodPorts, edits: &[[&str; 2]]) -> Cluster {
        let (router, outside_host) = (Host::new("router"), Host::new("outside"));
        router.set("net/ipv4/ip_forward", "1");
        router.set("net/ipv6/conf/all/forwarding", "1");
        router.run("ip link add nodes type bridge mcast_snooping 0");
        router.run("ip link set nodes up");
        address(&router, "nodes", node_network(1, ROUTER));
        cable(&outside_host, "eth0", &router, "outside");
        address(&outside_host, "eth0", outside());
        address(&router, "outside", ["198.51.100.254", "2001:db8:99::fe"].map(|text| text.parse().unwrap()));
        // The host outside knows the nodes, as the router does, and no pod.
        for [network, router] in [
            ["192.0.2.0/24", "198.51.100.254"],
            ["203.0.113.0/24", "198.51.100.254"],
            ["2001:db8:2::/64", "2001:db8:99::fe"],
            ["2001:db8:3::/64", "2001:db8:99::fe"],
        ] {
            outside_host.run(&format!("ip route add {network} via {router}"));
        }
        let listener = outside_host.enter(|| TcpListener::bind(SocketAddr::new(outside()[0], 6443))).unwrap();
        let api = ApiServer::at(listener);
        api.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
        let nodes = (1..=nodes).map(|number| Node::new(number, &router)).collect();
        let mut cluster = Cluster { nodes, outside: outside_host, api, router, ports };
        for number in 1..=cluster.nodes.len() {
            cluster.join(number as Number, edits);
        }
        for node in &cluster.nodes {
            node.wait_until_ready();
        }
        cluster
    }

    /// Puts the object of a node.
    fn put_object(&self, number: Number, node: &Node) {
        let addresses = node.addresses.map(|address| json!({"type": "InternalIP", "address": address}));
        self.api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.host.name},
            "spec": {"podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:244:{number}::/64")]},
            "status": {"addresses": addresses}}));
    }

    /// Makes a node without a switch, and puts its object.
    pub(crate) fn bare_node(&self, number: Number) -> Node {
        let node = Node::new(number, &self.router);
        self.put_object(number, &node);
        node
    }

    /// Starts a node as the `DaemonSet` does, and puts its object.
    fn join(&mut self, number: Number, edits: &[[&str; 2]]) {
        self.put_object(number, &self.nodes[usize::from(number) - 1]);
        let kubeconfig = self.api.kubeconfig(&json!({}));
        let node = &mut self.nodes[usize::from(number) - 1];
        node.prepare(&kubeconfig, edits);
        node.start();
    }

    /// Puts the object of a node without a host, with this prefix of pods.
    pub(crate) fn put_node(&self, number: Number, prefix: &str) {
        let address = json!({"type": "InternalIP", "address": format!("192.0.2.{number}")});
        self.api
            .put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}")},
            "spec": {"podCIDRs": [prefix]}, "status": {"addresses": [address]}}));
    }

    /// Removes the object of a node.
    pub(crate) fn remove_node(&self, number: Number) {
        self.api.delete(&json!({"kind": "Node", "metadata": {"name": format!("node-{number}")}}));
    }

    /// Makes a pod of a node by the plugins of the conflist, and puts its object, with its name as the label `app`.
    pub(crate) fn pod(&self, number: Number, name: &str) -> Pod {
        self.pod_with(number, name, &json!([]))
    }

    /// Makes the same with these ports of the node, as the runtime passes them (`portMappings`).
    pub(crate) fn pod_with(&self, number: Number, name: &str, mappings: &Value) -> Pod {
        let pod = self.pending_pod(number, name, mappings);
        let ips = pod.addresses.map(|ip| json!({"ip": ip}));
        self.put_pod(number, name, &json!({"phase": "Running", "podIP": pod.addresses[0], "podIPs": ips}));
        pod
    }

    /// Makes a pod, of whose addresses the API does not know.
    pub(crate) fn pending_pod(&self, number: Number, name: &str, mappings: &Value) -> Pod {
        let node = &self.nodes[usize::from(number) - 1];
        node.host.run(&format!("ip netns add {name}"));
        let network = node.host.file(&format!("/run/netns/{name}"));
        // A runtime does so by the plugin loopback.
        node.host.run(&format!("ip -n {name} link set lo up"));
        // The kubelet knows the addresses behind the plugins.
        self.put_pod(number, name, &json!({"phase": "Pending"}));
        let result = node.add(name, self.ports, mappings);
        let addresses: Vec<IpAddr> = result["ips"].as_array().unwrap().iter().map(address_of).collect();
        let addresses: [IpAddr; 2] = addresses.try_into().expect("a pod has an address of each family");
        Pod { network, addresses }
    }

    fn put_pod(&self, number: Number, name: &str, status: &Value) {
        let node = &self.nodes[usize::from(number) - 1].host.name;
        self.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]}, "status": status}));
    }

    /// Puts a Service at port 80 of these addresses, TCP and UDP, with `spec` added, and one backend of each family.
    pub(crate) fn put_service(&self, name: &str, addresses: [IpAddr; 2], spec: &Value, backend: &Backend) {
        let port = |protocol: &str| {
            let mut port = json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "targetPort": PORT});
            if let Some(number) = spec["nodePort"].as_u64() {
                port["nodePort"] = json!(number);
            }
            port
        };
        let mut whole = json!({"type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses,
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack", "ports": [port("TCP"), port("UDP")]});
        for (key, value) in spec.as_object().unwrap().iter().filter(|(key, _)| *key != "nodePort") {
            whole[key] = value.clone();
        }
        self.api.put(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": name}, "spec": whole}));
        for (family, address) in ["IPv4", "IPv6"].into_iter().zip(backend.addresses) {
            let port =
                |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": PORT});
            let mut endpoint =
                json!({"addresses": [address], "conditions": {"ready": true, "serving": true}});
            if let Some(node) = backend.node {
                endpoint["nodeName"] = json!(self.nodes[usize::from(node) - 1].host.name);
            }
            self.api.put(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"namespace": "default", "name": format!("{name}-{}", family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": name}},
                "addressType": family, "endpoints": [endpoint], "ports": [port("TCP"), port("UDP")]}));
        }
    }

    /// Removes the endpoints of a Service.
    pub(crate) fn remove_endpoints(&self, name: &str) {
        for family in ["ipv4", "ipv6"] {
            let metadata = json!({"namespace": "default", "name": format!("{name}-{family}")});
            self.api.delete(&json!({"kind": "EndpointSlice", "metadata": metadata}));
        }
    }

    /// Waits until the switches of all nodes have this backend of a Service.
    pub(crate) fn wait_for_backend(&self, name: &str, backend: IpAddr) {
        let has = |node: &Node| {
            let services = node.client().services().unwrap();
            let ports: Vec<_> = services.ports.iter().filter(|port| port.service.name == name).collect();
            ports.len() == 2
                && ports.iter().all(|port| port.backends.iter().any(|found| found.address.ip() == backend))
        };
        eventually("the switches have the Service", || self.nodes.iter().all(has));
    }

    /// Waits until the tables know the pods of their nodes.
    pub(crate) fn wait_for_pods(&self) {
        for node in &self.nodes {
            eventually("the tables know the pods", || {
                node.client().pods().unwrap().iter().all(|pod| pod.warnings.is_empty())
            });
        }
    }
}

impl Node {
    fn new(number: Number, router: &Host) -> Node {
        let host = Host::new(&format!("node-{number}"));
        // kubeadm asks for forwarding, and systems such as Debian's filter strictly.
        host.set("net/ipv4/ip_forward", "1");
        host.set("net/ipv6/conf/all/forwarding", "1");
        for which in ["all", "default"] {
            host.set(&format!("net/ipv4/conf/{which}/rp_filter"), "1");
        }
        add_card(|line| _ = host.run(line));
        let port = format!("node{number}");
        cable(&host, "eth0", router, &port);
        if number == FAR {
            address(router, &port, node_network(FAR, ROUTER));
        } else {
            router.run(&format!("ip link set {port} master nodes"));
        }
        let addresses = node_network(number, number);
        address(&host, "eth0", addresses);
        let [v4, v6] = node_network(number, ROUTER);
        host.run(&format!("ip route add default via {v4}"));
        host.run(&format!("ip route add default via {v6}"));
        Node { host, addresses, switch: None }
    }

    /// Runs the init containers of the `DaemonSet`.
    fn prepare(&self, kubeconfig: &str, edits: &[[&str; 2]]) {
        let directory = self.host.file(CONFIGURATION);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("kubeconfig"), kubeconfig).unwrap();
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/kubernetes");
        let mut command = self.host.command("sh");
        let mut template = std::fs::read_to_string(files.join("palisade.toml")).unwrap();
        for [text, other] in edits {
            assert!(template.contains(text), "{text}");
            template = template.replace(text, other);
        }
        std::fs::write(directory.join("template.toml"), template).unwrap();
        command.arg(files.join("prepare-node.sh")).arg(format!("{CONFIGURATION}/template.toml"));
        command.arg(format!("{CONFIGURATION}/palisade.toml"));
        let addresses = self.addresses.map(|address| address.to_string()).join(",");
        command.env("NODE_NAME", &self.host.name).env("NODE_ADDRESSES", addresses).env_remove("UPLINK");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let install =
            [env!("CARGO_BIN_EXE_palisade-cni"), "install --bin-dir /run/cni --conf-dir /run/net.d"];
        self.host.run("mkdir -p /run/cni /run/net.d");
        self.host.run(&install.join(" "));
    }

    /// Edits the configuration of the node.
    pub(crate) fn edit(&self, text: &str, other: &str) {
        let path = self.host.file(&format!("{CONFIGURATION}/palisade.toml"));
        let before = std::fs::read_to_string(&path).unwrap();
        assert!(before.contains(text), "{before}");
        std::fs::write(path, before.replace(text, other)).unwrap();
    }

    /// Starts the switch.
    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = self.host.command(env!("CARGO_BIN_EXE_palisade"));
        command.args(["run", "--config"]).arg(format!("{CONFIGURATION}/palisade.toml"));
        command.env("KUBECONFIG", format!("{CONFIGURATION}/kubeconfig")).env("NODE_NAME", &self.host.name);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.switch = Some(command.spawn().unwrap());
    }

    /// Ends the switch with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut switch = self.switch.take().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    /// Waits until the tables are loaded.
    pub(crate) fn wait_until_ready(&self) {
        let start = Instant::now();
        while !self.client().status().is_ok_and(|status| status.tables_loaded) {
            assert!(start.elapsed() < TIMEOUT, "no switch: {}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.host.file("/run/palisade/control.sock"))
    }

    fn log_file(&self) -> PathBuf {
        self.host.file("/run/switch.log")
    }

    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        File::open(self.log_file()).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Calls the plugins of the conflist as a runtime does. Returns the last result.
    fn add(&self, pod: &str, ports: PodPorts, mappings: &Value) -> Value {
        let conflist = std::fs::read_to_string(self.host.file("/run/net.d/05-palisade.conflist")).unwrap();
        let conflist: Value = serde_json::from_str(&conflist).unwrap();
        let mut result = Value::Null;
        for plugin in conflist["plugins"].as_array().unwrap() {
            let mut config = plugin.clone();
            config["cniVersion"] = conflist["cniVersion"].clone();
            config["name"] = conflist["name"].clone();
            let program = config["type"].as_str().unwrap().to_owned();
            // Offloaded ports are those of the conflist as it is.
            if program == "palisade-cni" && ports != PodPorts::Offload {
                config["interface"] = json!(if ports == PodPorts::Tap { "tap" } else { "veth" });
            }
            if config["capabilities"]["portMappings"] == true && mappings != &json!([]) {
                config["runtimeConfig"] = json!({"portMappings": mappings});
            }
            if !result.is_null() {
                config["prevResult"] = result;
            }
            let mut answer = self.call(pod, &program, &config);
            // Code 11: try again.
            eventually("the switch knows the prefixes of the node", || {
                let is_answer = answer["code"] != 11;
                if !is_answer {
                    answer = self.call(pod, &program, &config);
                }
                is_answer
            });
            assert!(answer["code"].is_null(), "{program}: {answer}");
            result = answer;
        }
        result
    }

    /// Calls a plugin. Returns its answer.
    fn call(&self, pod: &str, program: &str, config: &Value) -> Value {
        let directory = if program == "palisade-cni" { "/run/cni" } else { PLUGINS };
        let mut command = self.host.command(&format!("{directory}/{program}"));
        command
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", format!("container-{pod}"))
            .env("CNI_NETNS", format!("/run/netns/{pod}"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", format!("/run/cni:{PLUGINS}"))
            .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() && self.switch.is_some() {
            eprintln!("{}:\n{}", self.host.name, self.log());
            let counters = self.client().counters().unwrap_or_default();
            for (name, port) in &counters.ports {
                let numbers = [port.received, port.forwarded, port.consumed, port.transmitted];
                eprintln!(
                    "{name}: received, forwarded, consumed, transmitted {numbers:?}; dropped {:?}; lost {:?}",
                    port.drops, port.lost
                );
            }
        }
        if let Some(switch) = &mut self.switch {
            let _ = switch.kill();
            let _ = switch.wait();
        }
    }
}

/// Joins two hosts.
fn cable(one: &Host, one_end: &str, other: &Host, other_end: &str) {
    let other_network = other.network();
    let pid = other_network.components().nth(2).unwrap().as_os_str().to_str().unwrap().to_owned();
    one.run(&format!("ip link add {one_end} type veth peer name {other_end} netns {pid}"));
    one.run(&format!("ip link set {one_end} up"));
    other.run(&format!("ip link set {other_end} up"));
}

/// Gives an interface addresses, with the usual lengths.
fn address(host: &Host, interface: &str, [v4, v6]: [IpAddr; 2]) {
    host.run(&format!("ip address add {v4}/24 dev {interface}"));
    host.run(&format!("ip address add {v6}/64 dev {interface} nodad"));
}

/// Address of an element of `ips`.
fn address_of(ip: &Value) -> IpAddr {
    ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
}
