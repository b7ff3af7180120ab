//! Renderings in the systems themselves: packets of both families between pods that the kernel routes under its own
//! packet filters, or that Open vSwitch connects.

mod kernel;
mod openflow;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use palisade::lab::traffic::{Outcome, Probe, Server, Services, ping};
use palisade::lab::{Lab, LabSpec, Node, Pod};
use palisade::net::flow::Protocol;

use crate::support::closed::FirstPacket;
use crate::support::packet_log::Packet;
use crate::support::{TIMEOUT, eventually, pods_manifest};

const PORTS: [u16; 5] = [6379, 7000, 7005, 7011, 5353];
/// Addresses of the node.
const NODE: [&str; 2] = ["10.77.255.1", "fd77::ff01"];
/// Length of a datagram that leaves a pod in three fragments.
const FRAGMENTED: usize = 4000;

/// Pods with servers, their node, and a directory for files.
struct Pods {
    directory: PathBuf,
    _servers: Vec<Server>,
    node: Node,
    lab: Lab,
}

/// Sends packets by the second argument, and asserts that the system drops them.
type Drops<'a> = dyn Fn(&[Packet], &mut dyn FnMut()) + 'a;

/// Source, destination, protocol, port, and whether it is allowed.
type Flow = (&'static str, &'static str, Protocol, u16, bool);

impl Pods {
    fn up() -> Pods {
        let spec = LabSpec::of(&["db", "client", "other", "blocked"]).unwrap();
        let lab = Lab::up(&LabSpec { mtu: 1500, ..spec }).unwrap();
        let node = lab.node().unwrap();
        let start = |pod| Server::start(&lab.pod(pod).unwrap(), &PORTS, Services::Both).unwrap();
        let servers = ["db", "other"].map(start);
        let directory = PathBuf::from("/run/render");
        fs::create_dir_all(&directory).unwrap();
        Pods { directory, _servers: servers.into(), node, lab }
    }

    fn pod(&self, name: &str) -> Pod {
        self.lab.pod(name).unwrap()
    }

    /// Addresses of a pod: IPv4, IPv6.
    fn addresses(&self, pod: &str) -> [IpAddr; 2] {
        let pod = self.pod(pod);
        [pod.v4().into(), pod.v6().into()]
    }

    /// Interfaces of the node that lead to the pods.
    fn host_ends(&self) -> Vec<String> {
        self.lab.pods().map(|pod| pod.plan().host_interface.clone()).collect()
    }

    /// Writes manifests of the pods and a state of the policies. Returns the path.
    fn manifests(&self, name: &str, subject_rule: &str) -> String {
        let [v4, v6] = NODE;
        let on_node =
            format!("\"phase\": \"Running\", \"hostIPs\": [{{\"ip\": \"{v4}\"}}, {{\"ip\": \"{v6}\"}}]");
        let pods = pods_manifest(&self.lab).replace("\"phase\": \"Running\"", &on_node);
        assert!(pods.contains(v4));
        self.file(name, &format!("{pods}---\n{}", self.policies(subject_rule)))
    }

    /// Writes a file of interfaces of these pods. Returns the path.
    fn interfaces(&self, pods: &[&str]) -> String {
        let line = |pod: &&str| format!("default/{pod} {}\n", self.pod(pod).plan().host_interface);
        self.file("interfaces", &pods.iter().map(line).collect::<String>())
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Renders into files, and returns their directory.
    fn render(&self, format: &str, arguments: &[&str]) -> PathBuf {
        let output = self.directory.join("rules");
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(["render", "--to", format, "--output"]).arg(&output).args(arguments);
        succeeded(command.output().unwrap());
        output
    }

    /// Runs a program in the node, which must succeed.
    fn run(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        succeeded(self.node.output(Command::new(words[0]).args(&words[1..])).unwrap())
    }

    /// Runs lines of a shell in the node.
    fn shell(&self, script: &str) {
        succeeded(self.node.output(Command::new("sh").args(["-euc", script])).unwrap());
    }

    /// Sends every probe in both families, the allowed ones at once, and asserts its outcome.
    fn check(&self, flows: &[Flow], drops: &Drops<'_>) {
        let probes = flows.iter().flat_map(|&(from, to, protocol, port, is_allowed)| {
            self.addresses(to).map(|to| (from, Probe { protocol, to, port }, is_allowed))
        });
        let (allowed, denied): (Vec<_>, Vec<_>) = probes.partition(|(.., is_allowed)| *is_allowed);
        thread::scope(|scope| {
            for (from, probe, _) in allowed {
                scope.spawn(move || {
                    let outcome = probe.run(&self.pod(from), TIMEOUT).unwrap();
                    assert_eq!(outcome, Outcome::Allowed, "{from}: {probe:?}");
                });
            }
        });
        self.assert_denied(&denied.iter().map(|&(from, probe, _)| (from, probe)).collect::<Vec<_>>(), drops);
    }

    /// Asserts that the first packets of these probes are dropped.
    fn assert_denied(&self, probes: &[(&str, Probe)], drops: &Drops<'_>) {
        let packets: Vec<Packet> = probes
            .iter()
            .map(|&(from, probe)| self.packet(from, probe.protocol, (probe.to, probe.port)))
            .collect();
        let mut sent = vec![];
        drops(&packets, &mut || {
            for &(from, Probe { protocol, to, port }) in probes {
                sent.push(self.pod(from).run(|| FirstPacket::send(protocol, to, port)).unwrap());
            }
        });
        sent.iter().for_each(FirstPacket::assert_unanswered);
    }

    fn packet(&self, from: &str, protocol: Protocol, (to, port): (IpAddr, u16)) -> Packet {
        Packet { from: self.pod(from).plan().host_interface.clone(), protocol, to, port }
    }

    /// Asserts outcomes that do not depend on the state: ICMP has no ports, so a policy with ports denies it, and a pod
    /// that is denied a port may send it; the node reaches every pod.
    fn check_icmp_and_node(&self, drops: &Drops<'_>) {
        for family in 0..2 {
            let [db, other] = ["db", "other"].map(|pod| self.addresses(pod)[family]);
            let protocol = [Protocol::ICMP, Protocol::ICMPV6][family];
            self.assert_denied(&[("client", Probe { protocol, to: db, port: 0 })], drops);
            assert_eq!(ping(&self.pod("blocked"), other, TIMEOUT).unwrap(), Outcome::Allowed, "{other}");
            let connect = || TcpStream::connect_timeout(&SocketAddr::new(db, 6379), TIMEOUT);
            self.node.run(connect).unwrap().unwrap();
        }
    }

    fn policies(&self, subject_rule: &str) -> String {
        let [[blocked4, blocked6], [other4, other6]] = ["blocked", "other"].map(|pod| self.addresses(pod));
        format!(
            "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: db}}}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{{podSelector: {{matchLabels: {{app: client}}}}}}]
    ports: [{{port: 6379}}, {{protocol: UDP, port: 5353}}]
{subject_rule}---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: client, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: client}}}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {{cidr: 10.77.0.0/16, except: [{other4}/32]}}
    - ipBlock: {{cidr: \"fd77::/64\", except: [\"{other6}/128\"]}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: admin}}
spec:
  tier: Admin
  priority: 1
  subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: other}}}}}}}}
  ingress:
  - {{action: Deny, from: [{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: blocked}}}}}}}}], protocols: [{{tcp: {{destinationPort: {{number: 6379}}}}}}, {{udp: {{destinationPort: {{number: 7011}}}}}}]}}
",
        )
        .replace("BLOCKED4", &blocked4.to_string())
        .replace("BLOCKED6", &blocked6.to_string())
    }

    /// Asserts for each family that a datagram with the address of another pod passes when the guard is removed, and not
    /// before. The database answers it, and the pod with that address receives the answer.
    fn guards_against_forged_addresses(&self, drops: &Drops<'_>, remove: impl FnOnce()) {
        let forged: Vec<Forged> = (0..2).map(|family| Forged::of(self, family)).collect();
        let to = |forged: &Forged| self.packet("other", Protocol::UDP, (forged.to.ip(), forged.to.port()));
        drops(&forged.iter().map(to).collect::<Vec<_>>(), &mut || forged.iter().for_each(Forged::send));
        assert!(!forged.iter().any(Forged::is_answered));
        remove();
        for forged in &forged {
            eventually("the datagram passes without the guard", || {
                forged.send();
                forged.is_answered()
            });
        }
    }
}

/// Sockets of one address: of the pod that has it, and of one that has not.
struct Forged {
    receiver: UdpSocket,
    sender: UdpSocket,
    to: SocketAddr,
}

impl Forged {
    fn of(pods: &Pods, family: usize) -> Forged {
        let (forger, victim) = (pods.pod("other"), pods.pod("client"));
        let address = pods.addresses("client")[family];
        // The forger does not answer for the address.
        let script =
            format!("sysctl -qw net.ipv4.conf.all.arp_ignore=1; ip address add {address} dev lo nodad");
        succeeded(forger.output(Command::new("sh").args(["-euc", &script])).unwrap());
        let receiver = victim.run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let sender = forger.run(|| UdpSocket::bind((address, port))).unwrap().unwrap();
        Forged { receiver, sender, to: (pods.addresses("db")[family], 5353).into() }
    }

    fn send(&self) {
        self.sender.send_to(b"forged", self.to).unwrap();
    }

    /// Whether an answer is with the pod that has the address.
    fn is_answered(&self) -> bool {
        self.receiver.recv_from(&mut [0; 16]).is_ok()
    }
}

/// Socket inside a pod for exchanges with a server.
fn connected(from: &Pod, to: IpAddr, port: u16) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.run(|| UdpSocket::bind(any)).unwrap().unwrap();
    socket.connect((to, port)).unwrap();
    socket
}

/// Sends a datagram of this length. Tests whether its echo arrives.
fn is_answered(socket: &UdpSocket, length: usize) -> bool {
    let (sent, mut echo) = (vec![length as u8; length], vec![0; length + 1]);
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.send(&sent).unwrap();
    socket.recv(&mut echo).is_ok_and(|received| echo[..received] == sent)
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.split([',', '\n']).map(|line| line.trim().to_owned()).collect();
    lines.retain(|line| !line.is_empty() && !line.starts_with('#'));
    lines.sort_unstable();
    lines
}

/// Rule for a range of ports from a block with an exception.
const RANGE: &str = "  - from:
    - ipBlock: {cidr: 10.77.0.0/16, except: [BLOCKED4/32]}
    - ipBlock: {cidr: \"fd77::/64\", except: [\"BLOCKED6/128\"]}
    ports: [{port: 7000, endPort: 7010}]
";
/// Rule in the next state.
const BLOCKED_TOO: &str = "  - from: [{podSelector: {matchLabels: {app: blocked}}}]
    ports: [{port: 7005}]
";

/// Probes that both states decide alike.
const ALWAYS: [Flow; 11] = [
    ("client", "db", Protocol::TCP, 6379, true),
    ("client", "db", Protocol::UDP, 5353, true),
    ("client", "db", Protocol::TCP, 5353, false),
    ("other", "db", Protocol::TCP, 6379, false),
    ("other", "db", Protocol::UDP, 5353, false),
    // The database may open nothing itself, and its replies above have passed.
    ("db", "other", Protocol::TCP, 6379, false),
    // Egress: a block without one address.
    ("client", "other", Protocol::TCP, 6379, false),
    // The admin tier denies one port of each protocol to one pod.
    ("blocked", "other", Protocol::TCP, 6379, false),
    ("blocked", "other", Protocol::UDP, 7011, false),
    ("blocked", "other", Protocol::TCP, 7000, true),
    ("blocked", "other", Protocol::UDP, 5353, true),
];
const BEFORE: [Flow; 4] = [
    ("other", "db", Protocol::TCP, 7000, true),
    ("other", "db", Protocol::TCP, 7005, true),
    ("other", "db", Protocol::TCP, 7011, false),
    ("blocked", "db", Protocol::TCP, 7005, false),
];
const AFTER: [Flow; 3] = [
    ("other", "db", Protocol::TCP, 7005, false),
    ("blocked", "db", Protocol::TCP, 7005, true),
    ("blocked", "db", Protocol::TCP, 7000, false),
];
