//! Reports on what is in force, and comparisons with the running switch, by the socket and by the commands.

use std::collections::BTreeSet;

use palisade::control::protocol::{AclReport, PoliciesReport, RouteInfo};
use palisade::control::{Client, Server};
use palisade::dataplane::{NeighborState, RouteOrigin};
use palisade::policy::parse::Source;
use palisade::source::load::{LoadOptions, load_sources};
use palisade::tables::{PolicyKind, PolicyRef, RuleOrigin, RuleTables, Verdict};
use serde_json::Value;

use crate::commands::palisade;
use crate::explain::{OBJECTS, open_uplink, switch};
use crate::fixture::{Scratch, Served, on_port, pod, pod_port};

const MORE: &str = "
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: cidr}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 10.9.0.0/16, except: [10.9.1.0/24]}}]
    ports: [{port: 80}, {protocol: UDP, port: 53, endPort: 55}]
---
{apiVersion: v1, kind: Pod, metadata: {name: front, labels: {app: web}}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.0.7}}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: ban}
spec:
  priority: 1
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: bad}}}}]}]
---
{apiVersion: v1, kind: Namespace, metadata: {name: default}}
---
{apiVersion: v1, kind: Pod, metadata: {name: evil, labels: {app: bad}}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.0.66}}
";

fn tables(objects: &str) -> RuleTables {
    load_sources(&[Source::new("objects.yaml", objects)], &LoadOptions::default()).unwrap().tables
}

/// Runs a command for the switch.
fn run(served: &Served, arguments: &[&str]) -> (i32, String, String) {
    palisade(&[arguments, &["--socket", served.socket().to_str().unwrap()]].concat())
}

#[test]
fn the_tables_of_a_pod_name_peers_ports_rules_and_hits_in_the_order_of_tiers() {
    let served = Served::start();
    served.client.put_tables(&tables(&format!("{OBJECTS}{MORE}"))).unwrap();
    let (code, out, err) = run(&served, &["show", "acl", "default/db"]);
    assert_eq!(code, 0, "{err}");
    let expected = "\
default/db (10.1.0.2), not attached to this switch, generation 2
ingress: isolated by NetworkPolicy default/cidr, NetworkPolicy default/db
  deny  everything from default/evil
      AdminNetworkPolicy ban ingress[0] (0 packets)
  allow TCP 80, UDP 53-55 from default/front; 10.9.0.0/16 except 10.9.1.0/24
      NetworkPolicy default/cidr ingress[0] (0 flows)
  allow TCP 6379 from any address except default/evil
      NetworkPolicy default/db ingress[0] (0 flows)
  allow everything from the pod's own node
  deny  everything else
      isolated for ingress by NetworkPolicy default/cidr, NetworkPolicy default/db; no rule matched (0 packets)
egress: not isolated
  allow everything
      no policy isolates the pod for egress (0 flows)
";
    assert_eq!(out, expected);

    // The dataplane counts three packets for the isolation by one policy.
    served.client.put_tables(&tables(OBJECTS)).unwrap();
    let (_, out, _) = run(&served, &["show", "acl", "default/db", "--output", "json"]);
    let report: AclReport = serde_json::from_str(&out).unwrap();
    assert_eq!(report, served.client.acl(&pod("db")).unwrap());
    let RuleOrigin::DefaultDeny { policies, .. } = &report.ingress.default.decided_by else {
        panic!("{report:?}");
    };
    assert_eq!((policies, report.ingress.default.hits), (&report.ingress.isolated_by, 3));
    assert_eq!((report.ingress.isolated, report.egress.isolated), (Some(true), Some(false)));
    assert_eq!(report.egress.default.verdict, Verdict::Allow);
}

#[test]
fn a_pod_without_tables_and_a_switch_without_them_are_told() {
    let served = Served::start();
    let (code, out, err) = run(&served, &["show", "acl", "default/db"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("no rule tables are loaded"), "{err}");
    for (what, says) in [("classes", "No rule tables"), ("policies", "No rule tables"), ("routes", "gateway")]
    {
        let (code, out, err) = run(&served, &["show", what]);
        assert!(code == 0 && (out.contains(says) || what == "routes"), "{what}: {out} {err}");
    }
    served.client.put_tables(&tables(OBJECTS)).unwrap();
    let (code, _, err) = run(&served, &["show", "acl", "default/nobody"]);
    assert!(code == 2 && err.contains("do not know pod default/nobody"), "{err}");
    assert_eq!(served.client.acl(&pod("no/bo\ndy")).unwrap_err().status(), Some(404));
    let (code, _, _) = run(&served, &["show", "acl", "a/b/c"]);
    assert_eq!(code, 2);
    for (what, column) in [("classes", "CLASS"), ("policies", "KIND"), ("umem", "IN RINGS")] {
        let (code, out, _) = run(&served, &["show", what]);
        assert!(code == 0 && out.contains(column), "{what}: {out}");
        let (_, json, _) = run(&served, &["show", what, "--output", "json"]);
        serde_json::from_str::<Value>(&json).unwrap();
    }
}

#[test]
fn classes_and_policies_say_whom_they_are_about() {
    let served = Served::start();
    served.client.put_port("veth-lost", &pod_port()).unwrap();
    served.client.put_pod(&pod("db"), &on_port("veth-lost", "10.1.0.99")).unwrap();
    served.client.put_tables(&tables(&format!("{OBJECTS}{MORE}"))).unwrap();
    let classes = served.client.classes().unwrap().classes;
    let of = |name: &str| classes.iter().find(|class| class.members.pods.contains(&pod(name))).unwrap();
    assert_ne!(of("front").class, of("evil").class);
    assert_eq!(classes[0].members.prefixes.last().unwrap(), "every other address");
    let policies =
        |name: &str| of(name).policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>();
    assert_eq!((policies("evil"), policies("front")), (vec!["ban"], vec!["cidr"]));
    assert_eq!((classes[0].policies.len(), of("evil").policies_left_out), (0, 0));
    let (_, out, _) = run(&served, &["show", "classes"]);
    assert!(out.contains("AdminNetworkPolicy ban"), "{out}");
    let (_, out, _) = run(&served, &["show", "policies"]);
    assert!(out.starts_with("policy: from control socket (user "), "{out}");
    assert!(out.contains("warning: default/db: the loaded tables give the pod the addresses"), "{out}");
    let report: PoliciesReport = served.client.policies().unwrap();
    let found: Vec<(&str, usize, usize, u64)> = report
        .policies
        .iter()
        .map(|found| (found.policy.name.as_str(), found.pods, found.rules, found.denied_packets))
        .collect();
    // The isolation by the policy db alone, which these packets came from, is not in these tables.
    assert_eq!(found, [("ban", 5, 1, 0), ("cidr", 1, 1, 0), ("db", 1, 1, 3)]);
    assert_eq!(report.policies[0].policy.kind, PolicyKind::AdminNetworkPolicy);
}

#[test]
fn hostile_names_of_policies_stay_on_their_line() {
    let served = Served::start();
    let mut tables = tables(OBJECTS);
    let rules: Vec<_> = tables.rules.iter().map(|(id, origin)| (*id, origin.clone())).collect();
    for (id, origin) in rules {
        if let RuleOrigin::Rule { direction, index, .. } = origin {
            let name = "p\nallow everything\u{1b}[31m\u{202e}".to_owned();
            let policy = PolicyRef { kind: PolicyKind::NetworkPolicy, namespace: "n\n".to_owned(), name };
            let name = Some("r\n\u{7}".to_owned());
            tables.rules.insert(id, RuleOrigin::Rule { policy, direction, index, name });
        }
    }
    served.client.put_tables(&tables).unwrap();
    let policy = served.scratch.write("tables.json", &serde_json::to_string(&tables).unwrap());
    for arguments in [
        &["show", "acl", "default/db"][..],
        &["show", "policies"],
        &["show", "classes"],
        &["show", "policies", "--output", "json"],
        &["apply", "--dry-run", policy.to_str().unwrap()],
        &["diff", "--running", policy.to_str().unwrap()],
    ] {
        let (code, out, err) = run(&served, arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        assert!(!out.contains("\nallow everything\\u"), "{arguments:?}: {out}");
        assert!(
            !out.chars().any(|c| c != '\n' && palisade::printable::is_steering(c)),
            "{arguments:?}: {out:?}"
        );
    }
}

#[test]
fn routes_have_origin_port_and_neighbour_and_wait_for_their_port() {
    let (_, switch) = switch();
    let scratch = Scratch::new();
    let socket = scratch.0.join("control.sock");
    let _server = Server::start(&socket, 0o660, switch.clone()).unwrap();
    let show = || {
        let (code, out, err) = palisade(&["show", "routes", "--socket", socket.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
        out
    };
    let waiting = show();
    let line = |out: &str, prefix: &str| out.lines().find(|line| line.contains(prefix)).unwrap().to_owned();
    assert!(line(&waiting, "10.2.0.0/16").ends_with("waits for its port"), "{waiting}");
    assert!(line(&waiting, "10.1.0.2/32").contains("default/db"), "{waiting}");
    assert!(line(&waiting, "10.1.0.0/24").contains("(no pod)"), "{waiting}");
    open_uplink(&switch);
    let routes: Vec<RouteInfo> = Client::new(&socket).routes().unwrap();
    let origins: BTreeSet<RouteOrigin> = routes.iter().map(|route| route.origin).collect();
    assert_eq!(
        origins.into_iter().collect::<Vec<_>>(),
        [RouteOrigin::Pod, RouteOrigin::Gateway, RouteOrigin::PodPrefix, RouteOrigin::Configured]
    );
    let of = |prefix: &str| routes.iter().find(|route| route.prefix == prefix.parse().unwrap()).unwrap();
    let routed = of("10.2.0.0/16");
    assert!(routed.in_force && routed.mtu == Some(1400) && routed.port.as_deref() == Some("eth0"));
    assert_eq!(routed.neighbor.unwrap().state, NeighborState::Unresolved);
    assert_eq!(of("192.0.2.0/24").neighbor, None, "its destinations are on the link");
    assert!(line(&show(), "10.2.0.0/16").ends_with("in force"));
}

#[test]
fn a_dry_run_shows_what_would_change_and_changes_nothing() {
    let served = Served::start();
    let now = tables(OBJECTS);
    served.client.put_tables(&now).unwrap();
    let same = served.scratch.write("same.yaml", OBJECTS);
    let other = served.scratch.write("other.yaml", &OBJECTS.replace("6379", "6380"));
    let (same, other) = (same.to_str().unwrap(), other.to_str().unwrap());
    let generation = served.client.status().unwrap().generation;
    for command in [&["apply", "--dry-run"][..], &["diff", "--running"]] {
        let run = |more: &[&str]| run(&served, &[command, more].concat());
        let (code, out, err) = run(&[same]);
        assert_eq!((code, out.as_str()), (0, "No connection opens or closes.\n"), "{err}");
        let (code, out, err) = run(&[other]);
        assert_eq!(code, 1, "{err}");
        assert!(out.contains("+ opens  TCP 6380") && out.contains("- closes TCP 6379"), "{out}");
        assert!(out.contains("to   default/db"), "{out}");
        let (code, out, _) = run(&["--output", "json", other]);
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, json["changes"].as_array().unwrap().len()), (1, 2));
        let (code, out, err) = run(&["/nonexistent"]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
    }
    let (code, _, _) = run(&served, &["diff", "--running", "--assert-no-opening", other]);
    assert_eq!(code, 1);
    assert_eq!(run(&served, &["diff", "--running", same, other]).0, 2);
    assert_eq!(palisade(&["diff", same]).0, 2);
    assert_eq!(palisade(&["diff", same, other]).0, 1);
    assert_eq!(palisade(&["diff", "--node", "n", same, other]).0, 2);
    assert_eq!(run(&served, &["apply", "--dry-run", "--delete"]).0, 2);
    assert_eq!(run(&served, &["apply", "--output", "json", same]).0, 2);
    assert_eq!(served.client.tables_document().unwrap(), now);
    assert_eq!(served.client.status().unwrap().generation, generation);
}

#[test]
fn pods_that_only_the_running_switch_has_are_named() {
    let served = Served::start();
    served.client.put_tables(&tables(OBJECTS)).unwrap();
    let closed = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed}\n\
                  spec: {podSelector: {}, policyTypes: [Egress]}\n";
    let next = format!("{}{closed}", OBJECTS.replace("name: far", "name: away"));
    let file = served.scratch.write("next.yaml", &next);
    let (code, out, err) = run(&served, &["diff", "--running", file.to_str().unwrap()]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("from default/db, default/far, default/web\n"), "{out}");
    assert!(!out.contains("all pods"), "{out}");
}

#[test]
fn a_dry_run_fails_where_a_load_would() {
    let served = Served::start();
    served.client.put_port("web", &pod_port()).unwrap();
    served.client.put_pod(&pod("elsewhere"), &on_port("web", "10.1.0.77")).unwrap();
    let file = served.scratch.write("objects.yaml", OBJECTS);
    let file = file.to_str().unwrap();
    let (code, out, err) = run(&served, &["apply", "--dry-run", file]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("none of the 1 that are attached"), "{err}");
    let (code, out, err) = run(&served, &["apply", "--dry-run", "--allow-empty", file]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("+ opens") && err.contains("the switch has no rule tables"), "{out}{err}");
    assert!(err.contains("do not know 1 of 1 attached pods, such as default/elsewhere"), "{err}");
    assert!(!served.client.status().unwrap().tables_loaded);
    let mut wrong = tables(OBJECTS);
    wrong.rules = palisade::tables::PersistentMap::new();
    assert_eq!(served.client.check_tables(&wrong, true).unwrap_err().status(), Some(422));
}

#[test]
fn the_matrix_of_the_running_switch_takes_names_from_manifests() {
    let served = Served::start();
    served.client.put_tables(&tables(OBJECTS)).unwrap();
    let (code, plain, err) = run(&served, &["matrix", "--running"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(run(&served, &["matrix"]).1, plain);
    // Another policy in the manifests makes no difference, the labels of their pods do.
    let manifest = served.scratch.write("objects.yaml", &OBJECTS.replace("6379", "1"));
    let (code, named, err) = run(&served, &["matrix", "--running", manifest.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(named.contains("6379"), "{named}");
    assert_eq!(palisade(&["matrix", "--running", "--socket", "/nonexistent.sock"]).0, 2);
}
