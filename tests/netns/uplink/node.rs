//! Node of a two-node cluster: a network namespace with a NIC, pods on veth pairs, and a switch of its own.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use palisade::control::Client;
use palisade::lab::{POD_INTERFACE, PodPorts};
use palisade::tap::{TapDevice, TapSpec};

use crate::support::closed::{FirstPacket, ProgramCounts, assert_counted, drops};
use crate::support::namespace::enter;
use crate::support::{TIMEOUT, add_card, eventually};

/// Network namespace that a sleeping process holds open.
pub(crate) struct Namespace {
    keeper: Child,
    /// Name in /run/netns, if it has one.
    name: Option<String>,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        let keeper = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .expect("setpriv and unshare (util-linux) are installed");
        let namespace = Namespace { keeper, name: None };
        let ours = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        eventually("unshare makes a network namespace", || {
            std::fs::read_link(namespace.path()).is_ok_and(|link| link != ours)
        });
        namespace.enter(|| {
            let ipv6 = "/proc/sys/net/ipv6/conf/default";
            for setting in ["accept_dad", "dad_transmits", "accept_ra", "router_solicitations"] {
                std::fs::write(format!("{ipv6}/{setting}"), "0").unwrap();
            }
        });
        namespace.run("ip link set lo up");
        namespace
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.keeper.id())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.keeper.id()
    }

    /// Gives the namespace a name, as tap ports need it.
    fn attach_name(&mut self, name: String) {
        let pid = self.pid().to_string();
        let attached = Command::new("ip").args(["netns", "attach", &name, &pid]).status();
        assert!(attached.unwrap().success());
        self.name = Some(name);
    }

    /// Runs `work` on a thread in the namespace. Sockets that it opens stay there.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        enter(self.path().as_ref(), work)
    }

    /// Prepares a system command in the namespace.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(words.next().unwrap()).args(words);
        command
    }

    /// Runs a system command in the namespace.
    pub(crate) fn run(&self, line: &str) {
        let output = self.command(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Output of a system command.
    pub(crate) fn output(&self, line: &str) -> String {
        String::from_utf8_lossy(&self.command(line).output().unwrap().stdout).into_owned()
    }

    pub(crate) fn listen(&self, at: SocketAddr) -> TcpListener {
        self.enter(|| TcpListener::bind(at)).unwrap()
    }

    pub(crate) fn connect(&self, to: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
        self.enter(|| TcpStream::connect_timeout(&to, timeout))
    }

    pub(crate) fn udp(&self, at: SocketAddr) -> UdpSocket {
        let socket = self.enter(|| UdpSocket::bind(at)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Number of a node in its addresses and in those of its pods.
pub(crate) type Number = u8;

/// Addresses of the node on the link between the nodes.
pub(crate) fn node_address(node: Number) -> [IpAddr; 2] {
    [format!("192.0.2.{node}"), format!("2001:db8:2::{node}")].map(|text| text.parse().unwrap())
}

/// Addresses of a pod of a node.
pub(crate) fn pod_address(node: Number, pod: usize) -> [IpAddr; 2] {
    [format!("10.244.{node}.{}", pod + 2), format!("fd00:244:{node}::{}", pod + 2)]
        .map(|text| text.parse().unwrap())
}

/// A node and its pods.
pub(crate) struct Node {
    pub(crate) number: Number,
    pub(crate) own: Namespace,
    pub(crate) pods: Vec<Namespace>,
    pub(crate) names: Vec<&'static str>,
    switch: Option<Child>,
    directory: PathBuf,
    /// Additional configuration of the switch, before its sections.
    pub(crate) config: String,
    /// Whether an agent supplies the policies and the routes to the other node's pods.
    pub(crate) has_agent: bool,
    /// Whether its flows outlive its switch.
    pub(crate) keeps_flows: bool,
    /// 802.1Q identifier of the uplink's frames.
    pub(crate) uplink_vlan: Option<u16>,
    /// Workers, one to a core.
    pub(crate) workers: usize,
}

impl Node {
    fn new(number: Number, names: &[&'static str], directory: PathBuf, ports: PodPorts) -> Node {
        let own = Namespace::new();
        std::fs::create_dir_all(&directory).unwrap();
        let pods = (0..names.len()).map(|pod| make_pod(&own, number, pod, ports)).collect();
        // The kernel would forward a leaked frame to its destination.
        own.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap();
        own.enter(|| std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")).unwrap();
        add_card(|line| own.run(line));
        let config = format!(
            "on_stop = \"closed\"\npod_prefixes = [\"10.244.{number}.0/24\", \"fd00:244:{number}::/64\"]\n"
        );
        Node {
            number,
            own,
            pods,
            names: names.to_vec(),
            switch: None,
            directory,
            config,
            has_agent: false,
            keeps_flows: false,
            uplink_vlan: None,
            workers: 1,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// Control socket of the switch.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Writes a file beside the control socket. Returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Starts the switch with the node's ports and pods, and waits until it answers.
    pub(crate) fn start(&mut self) {
        let config = self.directory.join("palisade.toml");
        std::fs::write(&config, self.configuration()).unwrap();
        let log = self.log_end();
        let program = env!("CARGO_BIN_EXE_palisade");
        let mut command = self.own.command(&format!("setpriv --pdeathsig KILL {program} run --config"));
        command.arg(config).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.switch = Some(command.spawn().unwrap());
        let client = self.client();
        let start = Instant::now();
        while client.status().is_err() {
            let ended = self.switch.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < TIMEOUT, "no switch: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("switch.log")
    }

    /// End of the log, to write to.
    pub(crate) fn log_end(&self) -> File {
        File::options().create(true).append(true).open(self.log_file()).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        File::open(self.log_file()).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Directory of flows that outlive the switch, in memory.
    fn flow_directory(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/uplink-{}", self.number))
    }

    fn configuration(&self) -> String {
        let other = 3 - self.number;
        let [v4, v6] = node_address(other);
        let flows = if self.keeps_flows { self.flow_directory() } else { PathBuf::new() };
        let vlan = self.uplink_vlan.map(|vlan| format!("vlan = {vlan}\n")).unwrap_or_default();
        let policy = if self.has_agent { "" } else { "[policy]\ndirectory = \"../policy\"\n" };
        let mut text = format!(
            "{}[workers]\ncores = {:?}\nframes = 4096\nhuge_pages = false\n\
             [conntrack]\nflows = 4096\ndirectory = \"{}\"\n[control]\nsocket = \"control.sock\"\n\
             [gateway]\naddresses = [\"169.254.1.1\", \"fe80::1\"]\n{policy}\
             [[ports]]\nname = \"uplink\"\nkind = \"uplink\"\ninterface = \"up0\"\n{vlan}\
             [[routes]]\nprefix = \"192.0.2.0/24\"\nport = \"uplink\"\n\
             [[routes]]\nprefix = \"2001:db8:2::/64\"\nport = \"uplink\"\n",
            self.config,
            (0..self.workers).collect::<Vec<_>>(),
            flows.display()
        );
        if !self.has_agent {
            text.extend([format!(
                "[[routes]]\nprefix = \"10.244.{other}.0/24\"\nport = \"uplink\"\nnext_hop = \"{v4}\"\nnode = true\n\
                 [[routes]]\nprefix = \"fd00:244:{other}::/64\"\nport = \"uplink\"\nnext_hop = \"{v6}\"\nnode = true\n"
            )]);
        }
        for (pod, name) in self.names.iter().enumerate() {
            let [v4, v6] = pod_address(self.number, pod);
            let kind = match &self.pods[pod].name {
                Some(name) => {
                    format!("kind = \"tap\"\nnamespace = \"{name}\"\ninterface = \"{POD_INTERFACE}\"")
                }
                None => "kind = \"pod\"".to_owned(),
            };
            text.extend([format!(
                "[[ports]]\nname = \"pod{pod}\"\n{kind}\npod = \"default/{name}\"\n\
                 pod_addresses = [\"{v4}\", \"{v6}\"]\n"
            )]);
        }
        text
    }

    /// Kills the switch with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut switch = self.switch.take().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    /// Stops the switch with SIGTERM.
    pub(crate) fn stop(&mut self) {
        let mut switch = self.switch.take().unwrap();
        let pid = rustix::process::Pid::from_raw(switch.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(switch.wait().unwrap().success(), "{}", self.log());
    }

    /// Asserts that the switch drops a first packet at a port for this reason.
    pub(crate) fn assert_denied(
        &self,
        (port, reason): (&str, &str),
        from: &Namespace,
        send: impl FnOnce() -> FirstPacket + Send,
    ) {
        let client = self.client();
        assert_counted(reason, || drops(&client, port, reason), || from.enter(send));
    }

    /// Asserts that the program that is left on the NIC drops a first packet.
    pub(crate) fn assert_closed(&self, from: &Namespace, send: impl FnOnce() -> FirstPacket + Send) {
        assert_counted("no switch runs", || self.dropped_by_program(), || from.enter(send));
    }

    /// Frames that the program on the NIC has dropped.
    pub(crate) fn dropped_by_program(&self) -> u64 {
        ProgramCounts::of(&self.own.output("ethtool -S up0")).dropped
    }

    /// Drops at a port, by reason.
    pub(crate) fn drops(&self, port: &str) -> std::collections::BTreeMap<String, u64> {
        self.client().counters().unwrap().ports.remove(port).unwrap().drops
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(switch) = &mut self.switch {
            let _ = switch.kill();
            let _ = switch.wait();
        }
        let _ = std::fs::remove_dir_all(self.flow_directory());
    }
}

fn make_pod(node: &Namespace, number: Number, pod: usize, ports: PodPorts) -> Namespace {
    let mut namespace = Namespace::new();
    if ports == PodPorts::Tap {
        let name = format!("uplink-{number}-{pod}");
        namespace.attach_name(name.clone());
        let interface = POD_INTERFACE.to_owned();
        TapDevice::open(&TapSpec {
            namespace: name,
            namespace_cookie: None,
            interface,
            mtu: None,
            mac: None,
            queues: 1,
            is_silent: false,
        })
        .unwrap();
    } else {
        node.run(&format!("ip link add pod{pod} type veth peer name eth0 netns {}", namespace.pid()));
        let ipv6 = format!("/proc/sys/net/ipv6/conf/pod{pod}/disable_ipv6");
        node.enter(|| std::fs::write(ipv6, "1")).unwrap();
        node.run(&format!("ip link set pod{pod} up"));
    }
    let [v4, v6] = pod_address(number, pod);
    for line in [
        "ip link set eth0 up".to_owned(),
        format!("ip address add {v4}/32 dev eth0"),
        format!("ip address add {v6}/128 dev eth0 nodad"),
        "ip route add default via 169.254.1.1 dev eth0 onlink".to_owned(),
        "ip route add default via fe80::1 dev eth0".to_owned(),
    ] {
        namespace.run(&line);
    }
    namespace
}

/// Two nodes joined by their NICs. The kernel of each gets routes to the other's pods from its switch, and would
/// forward leaked frames.
pub(crate) struct Cluster {
    pub(crate) nodes: [Node; 2],
    directory: PathBuf,
}

impl Cluster {
    /// Makes both nodes with pods of these names, without switches.
    pub(crate) fn up(names: [&[&'static str]; 2], policies: &str) -> Cluster {
        Cluster::with(PodPorts::Veth, names, policies)
    }

    /// Makes both nodes with pods on ports of this kind.
    pub(crate) fn with(ports: PodPorts, names: [&[&'static str]; 2], policies: &str) -> Cluster {
        let directory = PathBuf::from("/run/uplink");
        let [one, two] = names;
        let mut nodes = [(1, one), (2, two)]
            .map(|(number, names)| Node::new(number, names, directory.join(number.to_string()), ports));
        nodes[0].own.run(&format!("ip link add up0 type veth peer name up0 netns {}", nodes[1].own.pid()));
        for node in &mut nodes {
            let [v4, v6] = node_address(node.number);
            for line in [
                "ip link set up0 up".to_owned(),
                format!("ip address add {v4}/24 dev up0"),
                format!("ip address add {v6}/64 dev up0 nodad"),
            ] {
                node.own.run(&line);
            }
        }
        let cluster = Cluster { nodes, directory };
        cluster.write_policy(policies);
        cluster
    }

    pub(crate) fn start(&mut self) {
        self.nodes.iter_mut().for_each(Node::start);
    }

    /// Writes the pods of all nodes, with their names as the label `app`, and these policies, to the policy
    /// directories.
    pub(crate) fn write_policy(&self, policies: &str) {
        let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n".to_owned();
        for node in &self.nodes {
            for (pod, name) in node.names.iter().enumerate() {
                let [v4, v6] = pod_address(node.number, pod);
                text.extend([format!(
                    "---\napiVersion: v1\nkind: Pod\n\
                     metadata: {{name: {name}, namespace: default, labels: {{app: {name}}}}}\n\
                     spec: {{nodeName: node{}, containers: [{{name: c, image: c}}]}}\n\
                     status: {{phase: Running, podIP: \"{v4}\", podIPs: [{{ip: \"{v4}\"}}, {{ip: \"{v6}\"}}]}}\n",
                    node.number
                )]);
            }
        }
        let directory = self.directory.join("policy");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("all.yaml"), format!("{text}---\n{policies}")).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            let started = self.nodes.iter().filter(|node| node.switch.is_some());
            started.for_each(|node| eprintln!("node {}:\n{}", node.number, node.log()));
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
