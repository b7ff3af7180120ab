//! Renderings in the kernel: packets between pods that the kernel routes, under its own packet filters.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use palisade::dataplane::Mac;
use palisade::lab::traffic::{Outcome, Probe, Server, Services, ping};
use palisade::lab::{Lab, LabSpec, Node};
use palisade::net::flow::Protocol;

use crate::support::{PATIENCE, beside_others, eventually, pods_manifest};
use crate::tools::run_if_installed;

/// Time without a reply that counts as silence. A slow machine only makes it count earlier.
const DENIED: Duration = Duration::from_millis(500);
const PORTS: [u16; 5] = [6379, 7000, 7005, 7011, 5353];

/// Pods that the kernel of a node routes between, with servers, and a directory for files.
struct Routed {
    directory: PathBuf,
    _servers: Vec<Server>,
    node: Node,
    lab: Lab,
}

impl Routed {
    fn up() -> Routed {
        let lab = Lab::up(&LabSpec::of(&["db", "client", "other", "blocked"]).unwrap()).unwrap();
        let node = lab.node().unwrap();
        node.route(Mac([2, 0, 0, 0, 0, 1])).unwrap();
        let servers =
            ["db", "other"].map(|pod| Server::start(&lab.pod(pod).unwrap(), &PORTS, Services::Both).unwrap());
        let directory = std::env::temp_dir().join(format!("palisade-render-{}", lab.id()));
        fs::create_dir_all(&directory).unwrap();
        Routed { directory, _servers: servers.into(), node, lab }
    }

    fn address(&self, pod: &str) -> IpAddr {
        self.lab.pod(pod).unwrap().v4().into()
    }

    /// Writes manifests of the pods and a state of the policies. Returns the path.
    fn manifests(&self, name: &str, policies: &str) -> String {
        let path = self.directory.join(name);
        fs::write(&path, format!("{}---\n{policies}", pods_manifest(&self.lab))).unwrap();
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

    /// Sends every probe, and asserts its outcome.
    fn check(&self, probes: &[(&str, &str, Protocol, u16, bool)]) {
        for &(from, to, protocol, port, is_allowed) in probes {
            let probe = Probe { protocol, to: self.address(to), port };
            let patience = if is_allowed { PATIENCE } else { DENIED };
            let outcome = probe.run(&self.lab.pod(from).unwrap(), patience).unwrap();
            let expected = if is_allowed { Outcome::Allowed } else { Outcome::TimedOut };
            assert_eq!(outcome, expected, "{from} to {to}, {protocol} port {port}");
        }
    }

    fn policies(&self, subject_rule: &str) -> String {
        let blocked = self.address("blocked");
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
  egress: [{{to: [{{ipBlock: {{cidr: 10.77.0.0/16, except: [{other}/32]}}}}]}}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: admin}}
spec:
  tier: Admin
  priority: 1
  subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: other}}}}}}}}
  ingress:
  - {{action: Deny, from: [{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: blocked}}}}}}}}], protocols: [{{tcp: {{destinationPort: {{number: 6379}}}}}}]}}
",
            other = self.address("other"),
        )
        .replace("BLOCKED", &blocked.to_string())
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
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
const RANGE: &str = "  - from: [{ipBlock: {cidr: 10.77.0.0/16, except: [BLOCKED/32]}}]
    ports: [{port: 7000, endPort: 7010}]
";
/// Rule in the next state.
const BLOCKED_TOO: &str = "  - from: [{podSelector: {matchLabels: {app: blocked}}}]
    ports: [{port: 7005}]
";

/// Probes that both states decide alike.
const ALWAYS: [(&str, &str, Protocol, u16, bool); 10] = [
    ("client", "db", Protocol::TCP, 6379, true),
    ("client", "db", Protocol::UDP, 5353, true),
    ("client", "db", Protocol::TCP, 5353, false),
    ("other", "db", Protocol::TCP, 6379, false),
    ("other", "db", Protocol::UDP, 5353, false),
    // The database may open nothing itself, and its replies above have passed.
    ("db", "other", Protocol::TCP, 6379, false),
    // Egress: a block without one address.
    ("client", "other", Protocol::TCP, 6379, false),
    // The admin tier denies one port to one pod.
    ("blocked", "other", Protocol::TCP, 6379, false),
    ("blocked", "other", Protocol::TCP, 7000, true),
    ("blocked", "other", Protocol::UDP, 6379, true),
];
const BEFORE: [(&str, &str, Protocol, u16, bool); 4] = [
    ("other", "db", Protocol::TCP, 7000, true),
    ("other", "db", Protocol::TCP, 7005, true),
    ("other", "db", Protocol::TCP, 7011, false),
    ("blocked", "db", Protocol::TCP, 7005, false),
];
const AFTER: [(&str, &str, Protocol, u16, bool); 3] = [
    ("other", "db", Protocol::TCP, 7005, false),
    ("blocked", "db", Protocol::TCP, 7005, true),
    ("blocked", "db", Protocol::TCP, 7000, false),
];

#[test]
fn nftables_decides_as_the_tables() {
    let Some(_beside_others) = beside_others() else { return };
    if run_if_installed("nft", &["--version"], b"").is_none() {
        return;
    }
    let rig = Routed::up();
    let old = rig.manifests("old.yaml", &rig.policies(RANGE));
    let new = rig.manifests("new.yaml", &rig.policies(BLOCKED_TOO));
    let load = |arguments: &[&str]| {
        let file = rig.render("nftables", arguments).join("palisade.nft");
        rig.run(&format!("nft -f {}", file.display()));
    };
    load(&[&old]);
    rig.check(&ALWAYS);
    rig.check(&BEFORE);
    // ICMP has no ports: a policy with ports denies it, and a denied pod reaches others.
    let (client, blocked) = (rig.lab.pod("client").unwrap(), rig.lab.pod("blocked").unwrap());
    assert_eq!(ping(&client, rig.address("db"), DENIED).unwrap(), Outcome::TimedOut);
    assert_eq!(ping(&blocked, rig.address("other"), PATIENCE).unwrap(), Outcome::Allowed);
    load(&["--since", &old, &new]);
    rig.check(&ALWAYS);
    rig.check(&AFTER);
    let changed = rig.run("nft --stateless list ruleset");
    load(&[&new]);
    assert_eq!(sorted(&changed), sorted(&rig.run("nft --stateless list ruleset")));
    guards_against_forged_addresses(&rig, || _ = rig.run("nft flush chain ip palisade guard"));
}

#[test]
fn iptables_decides_as_the_tables() {
    let Some(_beside_others) = beside_others() else { return };
    for variant in ["iptables-legacy", "iptables-nft"] {
        if run_if_installed(variant, &["--version"], b"").is_none()
            || run_if_installed("ipset", &["--version"], b"").is_none()
        {
            return;
        }
        let rig = Routed::up();
        let old = rig.manifests("old.yaml", &rig.policies(RANGE));
        let new = rig.manifests("new.yaml", &rig.policies(BLOCKED_TOO));
        // Interfaces of two pods are named, and the others are found by their addresses.
        let named = ["db", "client"]
            .map(|pod| format!("default/{pod} {}\n", rig.lab.pod(pod).unwrap().plan().host_interface));
        let interfaces = rig.directory.join("interfaces");
        fs::write(&interfaces, named.concat()).unwrap();
        let interfaces = interfaces.display().to_string();
        let load = |arguments: &[&str]| {
            let files = rig.render("iptables", &[&["--interfaces", &interfaces], arguments].concat());
            let file = |name: &str| files.join(name).display().to_string();
            rig.run(&format!("ipset -exist restore -file {}", file("palisade.ipset")));
            rig.run(&format!("{variant}-restore --noflush {}", file("palisade.iptables")));
            rig.run(&format!(
                "{}-restore --noflush {}",
                variant.replace("ip", "ip6"),
                file("palisade.ip6tables")
            ));
            if files.join("palisade.ipset-unused").exists() {
                rig.run(&format!("ipset restore -file {}", file("palisade.ipset-unused")));
            }
        };
        let state = || {
            let dump = rig.run(&format!("{variant}-save")) + &rig.run("ipset save");
            without_counters(&sorted(&dump))
        };
        load(&[&old]);
        rig.run(&format!("{variant} -t raw -I PREROUTING -j palisade-guard"));
        rig.run(&format!("{variant} -I FORWARD -j palisade-forward"));
        rig.run(&format!("{variant} -I INPUT -j palisade-input"));
        rig.check(&ALWAYS);
        rig.check(&BEFORE);
        load(&["--since", &old, &new]);
        rig.check(&ALWAYS);
        rig.check(&AFTER);
        let changed = state();
        load(&[&new]);
        assert_eq!(changed, state(), "{variant}");
        guards_against_forged_addresses(&rig, || _ = rig.run(&format!("{variant} -t raw -F palisade-guard")));
    }
}

/// Lines without the counters and the seeds of hashes, which differ.
fn without_counters(lines: &[String]) -> Vec<String> {
    let lines = lines
        .iter()
        .map(|line| line.split(" [").next().unwrap().split(" hashsize").next().unwrap().to_owned());
    lines.collect()
}

/// Asserts that a datagram with the address of another pod passes when the guard is removed, and not before. The
/// database answers it, and the pod with that address receives the answer.
fn guards_against_forged_addresses(rig: &Routed, remove: impl FnOnce()) {
    let [forger, victim] = ["other", "client"].map(|pod| rig.lab.pod(pod).unwrap());
    let address = format!("{}/32", victim.v4());
    succeeded(forger.output(Command::new("ip").args(["address", "add", &address, "dev", "lo"])).unwrap());
    let receiver = victim.run(|| UdpSocket::bind((victim.v4(), 0))).unwrap().unwrap();
    let port = receiver.local_addr().unwrap().port();
    let sender = forger.run(|| UdpSocket::bind((victim.v4(), port))).unwrap().unwrap();
    let passes = |patience: Duration| {
        receiver.set_read_timeout(Some(patience)).unwrap();
        sender.send_to(b"forged", (rig.address("db"), 5353)).unwrap();
        receiver.recv_from(&mut [0; 16]).is_ok()
    };
    assert!(!passes(DENIED));
    remove();
    eventually("the datagram passes without the guard", || passes(DENIED));
}
