//! Interpreter of the rules and tables of Contiv/VPP, after its developer guide on policies: the first rule that matches
//! decides, a pod without a table is open, the global table is on the uplinks, and a reflective list lets replies of
//! what came in at an interface out again. It decides at both ends by the rules of the pods too, and compares.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_source};
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderError, RenderOptions, render};

use super::System;

/// Tables of a node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Contiv {
    /// Whether the local tables are those of traffic from pods.
    is_ingress: bool,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) tables: BTreeMap<String, Vec<Rule>>,
    pub(super) assigned: BTreeMap<String, String>,
    global: Option<Vec<Rule>>,
    reflecting: BTreeSet<String>,
    by_address: BTreeMap<IpAddr, Vec<String>>,
}

/// Pod with its rules, as the vswitch sees them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Pod {
    addresses: Vec<IpAddr>,
    ingress: Vec<Rule>,
    egress: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    pub(super) permits: bool,
    networks: [IpNet; 2],
    protocol: Layer4,
    port: u16,
}

/// Protocol, in the order of Contiv.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer4 {
    Tcp,
    Udp,
    Other,
    Any,
}

impl System for Contiv {
    fn load(&mut self, parts: &[Part]) {
        let [Part { file: "palisade.contiv", text }] = parts else { panic!("{parts:?}") };
        self.run(text);
    }

    fn passes(&self, flow: &FlowKey, _: [&str; 2]) -> bool {
        let pods = |address: IpAddr| self.by_address.get(&address).map_or(&[][..], Vec::as_slice);
        let (sources, destinations) = (pods(flow.src), pods(flow.dst));
        let is_inside = match (sources, destinations) {
            ([source], [destination]) => source == destination,
            _ => !sources.is_empty() && flow.src == flow.dst,
        };
        if is_inside {
            // It does not reach the vswitch.
            return true;
        }
        let passes = if self.is_ingress {
            self.passes_ends(sources, destinations, flow)
        } else {
            self.passes_ends(destinations, sources, flow)
        };
        let at_both_ends = sources.iter().all(|pod| permits(&self.pods[pod].ingress, flow))
            && destinations.iter().all(|pod| permits(&self.pods[pod].egress, flow));
        assert_eq!(passes, at_both_ends, "{flow}: folded, and by the rules of both ends");
        if passes && !self.is_ingress {
            let by_pods =
                sources.iter().all(|pod| !self.assigned.contains_key(pod) || self.reflecting.contains(pod));
            let is_outside = sources.is_empty() && !destinations.is_empty() && self.global.is_some();
            assert!(by_pods && (!is_outside || self.reflecting.contains("uplinks")), "replies of {flow}");
        }
        passes
    }
}

impl Contiv {
    /// Tests whether a flow passes the local tables of these pods, or the global table if there are none.
    fn passes_ends(&self, local: &[String], others: &[String], flow: &FlowKey) -> bool {
        match (local, others) {
            ([], []) => true,
            ([], _) => self.global.as_ref().is_none_or(|rules| permits(rules, flow)),
            (local, _) => {
                let mut tables = local.iter().filter_map(|pod| self.assigned.get(pod));
                tables.all(|id| permits(&self.tables[id], flow))
            }
        }
    }

    fn run(&mut self, text: &str) {
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split(' ').collect();
            let mut below = Vec::new();
            while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
                below.push(line.trim_start());
            }
            match words[..] {
                ["#", "Rules", .., direction] => self.is_ingress = direction == "ingress.",
                ["#", ..] => {}
                ["pod", name, ref addresses @ ..] => {
                    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
                    let rules =
                        |direction: &str| list(below.iter().filter_map(|line| line.strip_prefix(direction)));
                    let pod = Pod { addresses, ingress: rules("ingress "), egress: rules("egress ") };
                    assert_eq!(pod.ingress.len() + pod.egress.len(), below.len());
                    assert!(
                        [&pod.ingress, &pod.egress].into_iter().all(|list| keeps_contract(list)),
                        "{line}"
                    );
                    self.pods.insert(name.to_owned(), pod);
                }
                ["table", id] => {
                    let known = self.tables.insert(id.to_owned(), list(below.into_iter()));
                    assert!(known.is_none(), "tables do not change: {id}");
                }
                ["global"] => self.global = Some(list(below.into_iter())),
                ["assign", pod, id] => _ = self.assigned.insert(pod.to_owned(), id.to_owned()),
                ["reflect", place] => assert!(self.reflecting.insert(place.to_owned())),
                ["remove", "pod", name] => assert!(self.pods.remove(name).is_some()),
                ["remove", "table", id] => {
                    assert!(self.assigned.values().all(|other| other != id), "{id} is in use");
                    assert!(self.tables.remove(id).is_some());
                }
                ["remove", "global"] => assert!(self.global.take().is_some()),
                ["remove", "assign", pod] => assert!(self.assigned.remove(pod).is_some()),
                ["remove", "reflect", place] => assert!(self.reflecting.remove(place)),
                _ => panic!("{line}"),
            }
        }
        self.check();
    }

    /// Checks references, and rebuilds the index.
    fn check(&mut self) {
        for (pod, id) in &self.assigned {
            assert!(self.pods.contains_key(pod) && self.tables.contains_key(id), "{pod} {id}");
        }
        for (id, rules) in &self.tables {
            assert!(
                self.assigned.values().any(|other| other == id) && !rules.is_empty(),
                "{id} is not in use"
            );
        }
        self.by_address.clear();
        for (name, pod) in &self.pods {
            for address in &pod.addresses {
                self.by_address.entry(*address).or_default().push(name.clone());
            }
        }
    }
}

/// Verdict of a list: that of its first rule that matches. An empty list permits everything.
fn permits(rules: &[Rule], flow: &FlowKey) -> bool {
    let protocol = match flow.protocol {
        Protocol::TCP => Layer4::Tcp,
        Protocol::UDP => Layer4::Udp,
        _ => Layer4::Other,
    };
    let matches = |rule: &&Rule| {
        rule.networks[0].contains(&flow.src)
            && rule.networks[1].contains(&flow.dst)
            && (rule.protocol == Layer4::Any
                || rule.protocol == protocol && (rule.port == 0 || rule.port == flow.dst_port))
    };
    rules.is_empty() || rules.iter().find(matches).expect("the last rule matches all").permits
}

/// Whether the rules of each family permit, but for the last one, which may deny the rest.
fn keeps_contract(rules: &[Rule]) -> bool {
    let (v4, v6): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|rule| rule.networks[0].addr().is_ipv4());
    let is_rest = |rule: &Rule| {
        rule.networks.iter().all(|network| network.prefix_len() == 0) && rule.protocol == Layer4::Any
    };
    [v4, v6].iter().all(|family| match family.split_last() {
        None => true,
        Some((last, before)) => before.iter().all(|rule| rule.permits) && (last.permits || is_rest(last)),
    })
}

/// Rules of a list, which are in order.
fn list<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Rule> {
    let rules: Vec<Rule> = lines.map(rule).collect();
    for pair in rules.windows(2) {
        assert_eq!(compare(&pair[0], &pair[1]), Ordering::Less, "order of {pair:?}");
    }
    rules
}

/// `PERMIT 10.0.0.1/32[TCP:ANY] -> 0.0.0.0/0[TCP:80]`
fn rule(line: &str) -> Rule {
    let words: Vec<&str> = line.split(' ').collect();
    let [action, source, "->", destination] = words[..] else { panic!("{line}") };
    let end = |text: &str| {
        let (network, rest) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
        let (protocol, port) = rest.split_once(':').unwrap();
        let protocol = match protocol {
            "TCP" => Layer4::Tcp,
            "UDP" => Layer4::Udp,
            "OTHER" => Layer4::Other,
            "ANY" => Layer4::Any,
            _ => panic!("{line}"),
        };
        let port = if port == "ANY" { 0 } else { port.parse::<std::num::NonZeroU16>().unwrap().get() };
        (network.parse::<IpNet>().unwrap(), protocol, port)
    };
    let ((source, protocol, source_port), (destination, same, port)) = (end(source), end(destination));
    assert!(protocol == same && source_port == 0, "{line}");
    assert!(port == 0 || matches!(protocol, Layer4::Tcp | Layer4::Udp), "{line}: a port of what");
    let permits = match action {
        "PERMIT" => true,
        "DENY" => false,
        _ => panic!("{line}"),
    };
    Rule { permits, networks: [source, destination], protocol, port }
}

/// Order of rules: by source, destination, protocol, port and action. A network within another is less, and so is one
/// port less than all.
fn compare(a: &Rule, b: &Rule) -> Ordering {
    let networks = |a: &IpNet, b: &IpNet| {
        if a.contains(b) || b.contains(a) {
            b.prefix_len().cmp(&a.prefix_len())
        } else {
            a.addr().cmp(&b.addr())
        }
    };
    let port = |rule: &Rule| (rule.port == 0, rule.port);
    networks(&a.networks[0], &b.networks[0])
        .then_with(|| networks(&a.networks[1], &b.networks[1]))
        .then_with(|| a.protocol.cmp(&b.protocol))
        .then_with(|| port(a).cmp(&port(b)))
        .then_with(|| a.permits.cmp(&b.permits))
}

/// Rules of pod `d/db` under these rules of a policy of the cluster, and under a policy of its namespace if there is one.
fn rendered(cluster: &str, namespace: Option<&str>) -> Result<Contiv, RenderError> {
    let pod = |name: &str, address: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: d, labels: {{app: {name}}}}}, spec: {{containers: \
             [{{name: c}}]}}, status: {{podIP: {address}}}}}\n"
        )
    };
    let cluster = format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: no-http}}\nspec: {{tier: \
         Admin, priority: 1, subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: db}}}}}}}}, ingress: \
         [{cluster}]}}\n"
    );
    let namespace = namespace.map(|rules| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, namespace: d}}\nspec: {{podSelector: \
             {{matchLabels: {{app: db}}}}, ingress: [{rules}]}}\n"
        )
    });
    let pods = [("db", "10.0.0.2"), ("web", "10.0.0.3"), ("bad", "10.0.0.9")].map(|(name, at)| pod(name, at));
    let text = pods.concat() + &cluster + &namespace.unwrap_or_default();
    let parsed = parse_source(&Source::new("pods.yaml", text)).unwrap();
    let objects: Vec<Object> = parsed.objects.into_iter().map(|(object, _)| object).collect();
    let compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    let state = ClusterState { objects: &objects, tables: compiler.tables() };
    let mut system = Contiv::default();
    system.load(&render(Format::Contiv, state, &RenderOptions::default())?);
    Ok(system)
}

const DENIED_PORT: &str =
    "{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}";
const DENIED_PORT_TO_BAD: &str = "{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: bad}}}}], \
                                  protocols: [{tcp: {destinationPort: {number: 80}}}]}";

#[test]
fn rules_of_a_pod_permit_before_one_denial_or_are_refused_by_name() {
    // Whole rules that permit are left out, or lose the prefixes that may not use the port.
    for (cluster, namespace, passing) in [
        (DENIED_PORT, "{ports: [{port: 80}, {port: 443}]}", [[false, true], [false, true]]),
        (DENIED_PORT_TO_BAD, "{ports: [{port: 80}, {port: 443}]}", [[true, true], [false, true]]),
        (
            DENIED_PORT_TO_BAD,
            "{from: [{ipBlock: {cidr: 10.0.0.0/24}}], ports: [{port: 80}]}",
            [[true, false], [false, false]],
        ),
        (
            DENIED_PORT_TO_BAD,
            "{from: [{podSelector: {matchLabels: {app: web}}}]}",
            [[true, true], [false, false]],
        ),
    ] {
        let system = rendered(cluster, Some(namespace)).unwrap();
        assert!(system.pods["d/db"].egress.iter().any(|rule| !rule.permits), "{namespace}");
        for (source, of_source) in ["10.0.0.3", "10.0.0.9"].into_iter().zip(passing) {
            for (dst_port, is_allowed) in [80, 443].into_iter().zip(of_source) {
                let flow = FlowKey {
                    src: source.parse().unwrap(),
                    dst: "10.0.0.2".parse().unwrap(),
                    protocol: Protocol::TCP,
                    src_port: 40_000,
                    dst_port,
                };
                assert_eq!(system.passes(&flow, ["", ""]), is_allowed, "{namespace}: {flow}");
            }
        }
    }
    // A port or a protocol of all that is permitted would take a rule for each of the others.
    let protocol = "{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {}}]}";
    for (cluster, namespace) in [
        (DENIED_PORT, None),
        (DENIED_PORT_TO_BAD, None),
        (DENIED_PORT, Some("{}")),
        (DENIED_PORT_TO_BAD, Some("{from: [{ipBlock: {cidr: 10.0.0.0/24}}]}")),
        (protocol, None),
    ] {
        let said = rendered(cluster, namespace).unwrap_err().to_string();
        for word in ["d/db", "no-http", "contiv", "PERMIT"] {
            assert!(said.contains(word), "{cluster} {namespace:?}: {said}");
        }
    }
}
