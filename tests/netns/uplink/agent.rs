//! Two nodes whose agents follow one API server, with pods under policies that cross the nodes.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::node::{Cluster, Node, node_address, pod_address};
use super::{PORT, tcp_crosses};
use crate::api_server::ApiServer;
use crate::support::closed::{FirstPacket, assert_hears_nothing};
use crate::support::{EGRESS, INGRESS, isolated};
use crate::support::{TIMEOUT, eventually};

/// Agent of a node.
struct Agent(Child);

impl Agent {
    fn start(server: &ApiServer, node: &Node) -> Agent {
        let kubeconfig = node.write("kubeconfig", &server.kubeconfig(&json!({})));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_palisade"), "agent", "--kubeconfig"]);
        command.arg(kubeconfig).args(["--node", &name(node), "--socket"]).arg(node.socket());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(node.log_end());
        Agent(command.spawn().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn name(node: &Node) -> String {
    format!("node-{}", node.number)
}

/// Puts the namespace, the nodes and the pods of a cluster. Pods have their names as the label `app`.
fn put_objects(server: &ApiServer, cluster: &Cluster) {
    server.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    for node in &cluster.nodes {
        let number = node.number;
        let addresses = node_address(number).map(|address| json!({"type": "InternalIP", "address": address}));
        server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name(node)},
            "spec": {"podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:244:{number}::/64")]},
            "status": {"addresses": addresses}}));
        for (pod, app) in node.names.iter().enumerate() {
            let addresses = pod_address(number, pod);
            server.put(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "default", "name": app, "labels": {"app": app}},
                "spec": {"nodeName": name(node), "containers": [{"name": "c", "image": "c"}]},
                "status": {"phase": "Running", "podIP": addresses[0], "podIPs": addresses.map(|ip| json!({"ip": ip}))}}));
        }
    }
}

fn policy(name: &str, app: &str, spec: &Value) -> Value {
    let mut object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": name}, "spec": spec});
    object["spec"]["podSelector"] = json!({"matchLabels": {"app": app}});
    object
}

/// Time for which the server is away after the agents have noticed it: the seconds in the environment variable
/// `PALISADE_OUTAGE_SECONDS`, or none.
fn outage() -> Duration {
    let seconds = std::env::var("PALISADE_OUTAGE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or_default())
}

#[test]
fn agents_of_two_nodes_enforce_the_policies_of_one_server_and_its_absence_disturbs_no_flow() {
    let Some(_isolated) = isolated() else { return };
    let mut cluster = Cluster::up([&["front", "stranger", "locked"], &["web", "open"]], "");
    let server = ApiServer::start();
    put_objects(&server, &cluster);
    let from_front = json!([{"from": [{"podSelector": {"matchLabels": {"app": "front"}}}]}]);
    server.put(policy("web", "web", &json!({"policyTypes": ["Ingress"], "ingress": from_front})));
    let dns = json!([{"ports": [{"protocol": "UDP", "port": 53}]}]);
    server.put(policy("locked", "locked", &json!({"policyTypes": ["Egress"], "egress": dns})));
    cluster.nodes.iter_mut().for_each(|node| node.has_agent = true);
    cluster.start();
    let [one, two] = &cluster.nodes;
    let [front, stranger, locked] = &one.pods[..] else { panic!("three pods") };
    let [web, open] = &two.pods[..] else { panic!("two pods") };
    // Pods are closed without an agent.
    one.assert_denied(("pod0", "unknown-pod"), front, || FirstPacket::tcp(pod_address(1, 1)[0]));
    let at = SocketAddr::new(pod_address(2, 0)[0], PORT);
    let agents = cluster.nodes.each_ref().map(|node| Agent::start(&server, node));
    for node in &cluster.nodes {
        let has_routes =
            || node.client().routes().unwrap().iter().filter(|route| route.in_force).count() >= 3;
        eventually("the agent has loaded tables and routes", || {
            node.client().status().unwrap().tables_loaded && has_routes()
        });
    }
    for family in [0, 1] {
        let of = |node, pod| pod_address(node, pod)[family];
        assert!(tcp_crosses(front, web, of(2, 0)), "front to web, family {family}");
        assert!(tcp_crosses(open, stranger, of(1, 1)), "open to stranger");
        two.assert_denied(("uplink", INGRESS), stranger, || FirstPacket::tcp(of(2, 0)));
        one.assert_denied(("pod2", EGRESS), locked, || FirstPacket::tcp(of(2, 1)));
    }

    // The server goes, restarts without the versions that the agents know, and is listed again.
    let listener = web.listen(at);
    let mut client = front.connect(at, TIMEOUT).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut crosses = || {
        client.write_all(b"ping").unwrap();
        peer.read_exact(&mut [0; 4]).unwrap();
    };
    let generations = || cluster.nodes.each_ref().map(|node| node.client().status().unwrap().generation);
    let away =
        |node: &Node| node.client().status().unwrap().source.map_or(0, |source| source.report.away.len());
    let before = (generations(), two.drops("uplink"), one.drops("pod0"));
    server.set(|faults| faults.is_away = true);
    server.cut();
    eventually("both agents report it", || {
        crosses();
        cluster.nodes.iter().all(|node| away(node) > 0)
    });
    let start = Instant::now();
    while start.elapsed() < outage() {
        crosses();
        std::thread::sleep(Duration::from_millis(10));
    }
    server.bookmark();
    server.compact();
    server.set(|faults| faults.is_away = false);
    eventually("both agents follow all kinds again", || {
        crosses();
        cluster.nodes.iter().all(|node| away(node) == 0)
    });
    crosses();
    assert_eq!(
        (generations(), two.drops("uplink"), one.drops("pod0")),
        before,
        "nothing was published or dropped"
    );

    // A change reaches both nodes: the connection is denied.
    // The flow ends with the first packet that is denied: one of the client, or an acknowledgement of the server.
    let by_policy = || {
        ["uplink", "pod0"].map(|port| two.drops(port).get(INGRESS).copied().unwrap_or(0)).iter().sum::<u64>()
    };
    let policy_drops = by_policy();
    server.put(policy("web", "web", &json!({"policyTypes": ["Ingress"]})));
    // The segments after the one that ends the flow are in no state.
    let denied = || {
        let drops = two.drops("uplink");
        [INGRESS, "invalid-state"].map(|reason| drops.get(reason).copied().unwrap_or(0)).iter().sum::<u64>()
    };
    eventually("the open connection is denied", || {
        client.write_all(b"late").unwrap();
        by_policy() > policy_drops
    });
    // Segments that were on their way have arrived.
    peer.set_nonblocking(true).unwrap();
    while peer.read(&mut [0; 4096]).is_ok() {}
    let before = denied();
    client.write_all(b"too late").unwrap();
    eventually("it is denied for good", || denied() > before);
    assert_hears_nothing(&peer);
    drop(agents);
}
