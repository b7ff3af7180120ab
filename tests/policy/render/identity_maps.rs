//! Identities and policy maps for small clusters: numbers, splits, masked ports, denials, hosts, changes and limits.

use std::collections::BTreeSet;

use palisade::ids::{AclId, ClassId, RowId, RuleId};
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::Object;
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, RenderOptions, render};
use palisade::tables::{Acl, Decision, PodName, PortSpan, Row, RuleTables};

use super::System;
use super::identity::{Cilium, Key};
use super::tables::{objects, pod, policy, rendered};

fn cilium(text: &str) -> Cilium {
    let mut system = Cilium::default();
    system.load(&rendered(Format::Identity, None, text, &RenderOptions::default()).unwrap());
    system
}

/// Change from one cluster to another: its text, after a check that it leads there.
fn change(old: &str, new: &str) -> String {
    let parts = rendered(Format::Identity, Some(old), new, &RenderOptions::default()).unwrap();
    let mut system = cilium(old);
    system.load(&parts);
    assert_eq!(format!("{system:?}"), format!("{:?}", cilium(new)));
    parts[0].text.clone()
}

/// Entries of the policy map of a pod: direction, identity, protocol, port, mask, and action.
fn entries(system: &Cilium, pod: &str) -> Vec<String> {
    let map = &system.policies[&system.endpoints[pod].policy];
    let line = |(key, entry): (&Key, &super::identity::Entry)| {
        let way = if key.is_egress { "out" } else { "in" };
        let protocol = key.protocol.map_or("any".to_owned(), |number| number.to_string());
        let action = if entry.is_deny { "deny" } else { "allow" };
        format!("{way} {} {protocol} {}/{:04x} {action}", key.identity, key.port, key.mask)
    };
    map.iter().map(line).collect()
}

#[test]
fn the_default_allow_entry_disappears_when_a_policy_arrives() {
    let pods = pod("web", "web", &["10.1.0.1"]) + &pod("client", "client", &["10.1.0.2"]);
    assert_eq!(entries(&cilium(&pods), "default/web"), ["in 0 any 0/0000 allow", "out 0 any 0/0000 allow"]);
    let policy = policy("web", "web", "ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]");
    let system = cilium(&(pods.clone() + &policy));
    let client = system.endpoints["default/client"].identity;
    let found = entries(&system, "default/web");
    assert_eq!(found, [format!("in {client} any 0/0000 allow"), "out 0 any 0/0000 allow".to_owned()]);
    assert_eq!(entries(&system, "default/client").len(), 2);
    let text = change(&pods, &(pods.clone() + &policy));
    assert!(text.contains("\"summary\": \"write 1 entry, delete 1 entry\""), "{text}");
}

#[test]
fn a_range_is_masked_ports_and_all_ports_include_every_protocol() {
    let cluster = pod("web", "web", &["10.1.0.1"])
        + &policy("web", "web", "ingress: [{ports: [{port: 6000, endPort: 6999}, {protocol: SCTP}]}]");
    let found = entries(&cilium(&cluster), "default/web");
    assert_eq!(
        found[..8],
        [
            "in 0 6 6000/fff0 allow",
            "in 0 6 6016/ff80 allow",
            "in 0 6 6144/fe00 allow",
            "in 0 6 6656/ff00 allow",
            "in 0 6 6912/ffc0 allow",
            "in 0 6 6976/fff0 allow",
            "in 0 6 6992/fff8 allow",
            "in 0 132 0/0000 allow"
        ]
    );
    assert_eq!(found.len(), 9);
}

#[test]
fn pods_with_equal_labels_share_an_identity_until_a_policy_tells_them_apart() {
    let pods = pod("web-1", "web", &["10.1.0.1", "fd00::1"]) + &pod("web-2", "web", &["10.1.0.2"]);
    let system = cilium(&pods);
    let of = |address: &str, system: &Cilium| system.identity_of(address.parse().unwrap());
    let shared = of("10.1.0.1", &system);
    assert_eq!([of("10.1.0.2", &system), of("fd00::1", &system)], [shared; 2]);
    let block =
        policy("web", "web", "egress: [{to: [{ipBlock: {cidr: 10.1.0.2/31}}]}], policyTypes: [Egress]");
    let system = cilium(&(pods.clone() + &block));
    assert_eq!(of("10.1.0.1", &system), shared, "the first keeps its number");
    let apart = of("10.1.0.2", &system);
    assert_ne!(apart, shared);
    assert!(system.identities[&apart].contains(&"palisade:apart=10.1.0.2".to_owned()));
    // The block matches the pod too, and has an identity of its own for other addresses.
    let cidr = of("10.1.0.3", &system);
    assert_eq!(system.identities[&cidr], ["cidr:10.1.0.2/31", "reserved:world-ipv4"]);
    let expected = ["in 0 any 0/0000 allow".to_owned()]
        .into_iter()
        .chain([apart, cidr].map(|number| format!("out {number} any 0/0000 allow")));
    assert!(entries(&system, "default/web-1").into_iter().eq(expected));
    change(&pods, &(pods.clone() + &block));
}

/// Cluster-wide policy of the Admin tier about all pods.
fn admin(rules: &str) -> String {
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: admin}}\n\
         spec: {{tier: Admin, priority: 1, subject: {{namespaces: {{}}}}, {rules}}}\n---\n"
    )
}

#[test]
fn a_denial_for_everyone_is_an_entry_and_one_with_exceptions_leaves_the_rest_allowed() {
    let pods = pod("web", "web", &["10.1.0.1"]) + &pod("client", "client", &["10.1.0.2"]);
    let deny = "{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}], protocols: [{tcp: {destinationPort: {number: 22}}}]}";
    let everyone = entries(&cilium(&(pods.clone() + &admin(&format!("egress: [{deny}]")))), "default/web");
    assert!(everyone.contains(&"out 9 6 22/ffff deny".to_owned()), "{everyone:?}");
    // A rule without ports for the client, before the denial by a policy for every address outside.
    let first =
        "{action: Accept, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}]}";
    let system = cilium(&(pods + &admin(&format!("egress: [{first}, {deny}]"))));
    let client = system.endpoints["default/client"].identity;
    let found = entries(&system, "default/web");
    let is_denied = |number: u32| found.contains(&format!("out {number} 6 22/ffff deny"));
    assert!(is_denied(9) && is_denied(10) && !is_denied(client), "{found:?}");
}

#[test]
fn a_denial_for_every_address_with_an_exception_leaves_the_other_traffic_of_all_protocols() {
    let pods = pod("web", "web", &["10.1.0.1"]) + &pod("client", "client", &["10.1.0.2"]);
    let objects = objects(&pods);
    let compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    // Tables in which everyone but the client is denied a port, which the policies of today cannot ask for.
    let maps = |client: Option<RowId>| {
        let mut tables = compiler.tables().clone();
        let (allow, deny) = (Decision::allow(RuleId(0)), Decision::deny(RuleId(0)));
        let mut row = Row::uniform(allow);
        tables.rows.insert(RowId(10), row.clone());
        row.tcp.push(PortSpan { first: 22, last: 22, decision: deny });
        tables.rows.insert(RowId(11), row);
        tables.prefixes.insert("10.1.0.2/32".parse().unwrap(), ClassId(1));
        let rows = client.into_iter().map(|row| (ClassId(1), row)).collect();
        tables.acls.insert(AclId(10), Acl { rows, default: RowId(11) });
        tables.pods.get_mut(&PodName::new("default", "web")).unwrap().ingress = AclId(10);
        tables.check().unwrap();
        let state = ClusterState { tables: &tables, objects: &objects };
        let mut system = Cilium::default();
        system.load(&render(Format::Identity, state, &RenderOptions::default()).unwrap());
        system
    };
    // A denial of the wildcard identity would win over the client's entry.
    let system = maps(Some(RowId(10)));
    let found = entries(&system, "default/web");
    let client = system.endpoints["default/client"].identity;
    assert!(!found.iter().any(|line| line.ends_with("deny")), "{found:?}");
    assert!(found.contains(&format!("in {client} 6 22/ffff allow")), "{found:?}");
    assert!(
        found.contains(&"in 0 1 0/0000 allow".to_owned())
            && found.contains(&"in 0 6 32768/8000 allow".to_owned())
    );
    let (from, to) = ("10.1.0.2".parse().unwrap(), "10.1.0.1".parse().unwrap());
    let other = "192.0.2.1".parse().unwrap();
    for (src, protocol, port, expected) in [
        (from, Protocol::TCP, 22, true),
        (other, Protocol::TCP, 22, false),
        (other, Protocol::TCP, 23, true),
        (other, Protocol::TCP, 21, true),
        (other, Protocol::UDP, 22, true),
        (other, Protocol(0), 0, true),
        (other, Protocol(255), 0, true),
    ] {
        let flow = FlowKey { src, dst: to, protocol, src_port: 40_000, dst_port: port };
        assert_eq!(system.passes(&flow, ["", ""]), expected, "{flow}");
    }
    // Without the exception, one entry denies.
    let found = entries(&maps(None), "default/web");
    assert_eq!(found[..2], ["in 0 any 0/0000 allow", "in 0 6 22/ffff deny"]);
}

#[test]
fn tables_with_another_default_row_are_the_same_maps() {
    let cluster = pod("web", "web", &["10.1.0.1"])
        + &pod("client", "client", &["10.1.0.2"])
        + &policy(
            "web",
            "web",
            "ingress: [{from: [{podSelector: {matchLabels: {app: client}}}, {ipBlock: {cidr: 192.0.2.0/24}}]}]",
        );
    let objects = objects(&cluster);
    let compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    let text = |tables: &RuleTables| {
        let state = ClusterState { tables, objects: &objects };
        render(Format::Identity, state, &RenderOptions::default()).unwrap()
    };
    let mut tables = compiler.tables().clone();
    let classes: BTreeSet<ClassId> = tables.prefixes.values().copied().chain([ClassId::WORLD]).collect();
    let ids: Vec<AclId> = tables.acls.keys().copied().collect();
    let mut changed = 0;
    for id in ids {
        let acl = tables.acls[&id].clone();
        let Some(default) = acl.rows.values().find(|row| **row != acl.default).copied() else { continue };
        let rows = classes.iter().map(|&class| (class, acl.row(class))).filter(|(_, row)| *row != default);
        tables.acls.insert(id, Acl { rows: rows.collect(), default });
        changed += 1;
    }
    assert!(changed > 0);
    tables.check().unwrap();
    assert_eq!(text(&tables), text(compiler.tables()));
}

/// Node with an address.
fn node(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
         status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n---\n"
    )
}

#[test]
fn the_own_node_is_the_host_and_others_are_remote_nodes_that_policies_may_tell_apart() {
    let on = |name: &str, address: &str, node: &str| {
        pod(name, name, &[address]).replace("spec: {", &format!("spec: {{nodeName: {node}, "))
    };
    let closed = |name: &str| policy(name, name, "policyTypes: [Ingress, Egress]");
    let cluster = [
        node("one", "192.0.2.1"),
        node("two", "192.0.2.2"),
        node("three", "192.0.2.3"),
        on("a", "10.1.0.1", "one"),
        on("b", "10.1.0.2", "two"),
        closed("a"),
        closed("b"),
    ]
    .concat();
    let system = cilium(&cluster);
    for host in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        assert_eq!(system.identity_of(host.parse().unwrap()), 6);
    }
    assert_eq!(system.endpoints["default/a"].host, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    for pod in ["default/a", "default/b"] {
        assert_eq!(entries(&system, pod), ["in 1 any 0/0000 allow"]);
    }
    let to_two = policy(
        "to-two",
        "a",
        "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.2/32}}, {ipBlock: {cidr: 192.0.2.1/32}}]}]",
    );
    let system = cilium(&(cluster.clone() + &to_two));
    let two = system.identity_of("192.0.2.2".parse().unwrap());
    assert_eq!(system.identity_of("192.0.2.1".parse().unwrap()), 6);
    assert!((0x0200_0001..=0x02ff_ffff).contains(&two) || two == 6);
    let found = entries(&system, "default/a");
    assert!(found.contains(&"out 1 any 0/0000 allow".to_owned()), "{found:?}");
    assert_ne!(system.identity_of("192.0.2.3".parse().unwrap()), two);
    change(&cluster, &(cluster.clone() + &to_two));
}

#[test]
fn a_change_touches_its_own_entries_and_none_is_nothing_to_do() {
    let web = |number: usize| pod(&format!("web-{number}"), "web", &[&format!("10.1.0.{number}")]);
    let rules = |port: u16| {
        policy("web", "web", &format!("ingress: [{{ports: [{{port: {port}}}]}}, {{ports: [{{port: 22}}]}}]"))
    };
    let cluster = (1..50).map(web).collect::<String>();
    let text = change(&(cluster.clone() + &rules(80)), &(cluster.clone() + &rules(81)));
    assert!(text.contains("\"summary\": \"write 1 entry, delete 1 entry\""), "{text}");
    let text = change(&(cluster.clone() + &rules(80)), &(cluster.clone() + &web(50) + &rules(80)));
    assert!(text.contains("\"summary\": \"write 2 entries, delete 0 entries\""), "{text}");
    assert!(change(&cluster, &cluster).contains("\"summary\": \"nothing to do\""));
    // States without pods.
    change("", &cluster);
    assert!(change(&cluster, "").contains("delete"));
    assert_eq!(cilium("").ipcache.len(), 2);
}

#[test]
fn hostile_labels_stay_text() {
    // The parser refuses these labels; objects of other sources have not passed it.
    let mut objects = objects(&pod("web", "web", &["10.1.0.1"]));
    let Object::Pod(pod) = &mut objects[0] else { panic!("a pod") };
    pod.labels.insert("a\"b".to_owned(), "x\\y\n\u{1b}],".to_owned());
    pod.labels.insert("k".to_owned(), String::new());
    let compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    let state = ClusterState { tables: compiler.tables(), objects: &objects };
    let parts = render(Format::Identity, state, &RenderOptions::default()).unwrap();
    assert!(!parts[0].text.contains('\u{1b}'));
    let mut system = Cilium::default();
    system.load(&parts);
    let labels = &system.identities[&system.endpoints["default/web"].identity];
    assert!(labels.contains(&"k8s:a\"b=x\\y\n\u{1b}],".to_owned()), "{labels:?}");
    assert!(labels.contains(&"k8s:k=".to_owned()));
}

#[test]
fn a_policy_map_beyond_the_limit_of_cilium_is_refused_by_pod_and_rule() {
    let cluster = |blocks: usize| {
        let block =
            |number: usize| format!("{{ipBlock: {{cidr: 172.16.{}.{}/32}}}}", number / 256, number % 256);
        let blocks: Vec<String> = (0..blocks).map(block).collect();
        // Sixteen masked ports for each block, and the entry for all egress.
        let rules =
            format!("ingress: [{{from: [{}], ports: [{{port: 1, endPort: 65535}}]}}]", blocks.join(", "));
        pod("web", "web", &["10.1.0.1"]) + &policy("wide", "web", &rules)
    };
    let limit = |blocks: usize| {
        rendered(Format::Identity, None, &cluster(blocks), &RenderOptions::default())
            .map_err(|error| error.to_string())
    };
    assert!(limit(4_095).is_ok());
    let error = limit(4_096).unwrap_err();
    assert_eq!(
        error,
        "pod default/web: NetworkPolicy default/wide ingress[0]: its policy map would have 65537 entries, and Cilium \
         holds 65536"
    );
}
