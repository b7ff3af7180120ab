//! Commands of VPP for small clusters: ranges, interfaces, overlaps without order, minimal changes, and what is refused.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::objects::Object;
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, RenderOptions, difference, render};
use palisade::tables::Classifier;

use super::golden::{self, TemporaryDirectory};
use super::tables::{change_of_one_pod, objects, pod, policy, rendered};
use super::{Systems, system, unless_refused};

/// Text of a rendering, or of a change.
fn text(format: Format, old: Option<&str>, new: &str) -> Result<String, String> {
    let parts = rendered(format, old, new, &RenderOptions::default()).map_err(|error| error.to_string())?;
    Ok(parts.into_iter().map(|part| part.text).collect())
}

/// Compares the state after a change with the whole new one, and this one with the tables, in all flows between these
/// addresses. Returns the number of formats.
fn compare(old: &str, new: &str, addresses: &[&str], ports: &[u16]) -> usize {
    let objects = [objects(old), objects(new)];
    let compilers =
        [0, 1].map(|state| Compiler::from_objects(objects[state].iter().cloned(), Options::default()));
    let states =
        [0, 1].map(|state| ClusterState { tables: compilers[state].tables(), objects: &objects[state] });
    let options = RenderOptions::default();
    let [mut changed, mut whole] = [0, 1].map(|_| Systems(BTreeMap::new()));
    for format in [Format::VppAcl, Format::Vpptcp] {
        let parts = states.map(|state| unless_refused(format, render(format, state, &options)));
        if let [Some(old), Some(new)] = parts {
            changed.0.entry(format).or_insert_with(|| system(format)).load(&old);
            whole.0.entry(format).or_insert_with(|| system(format)).load(&new);
        }
    }
    changed.load(|format| unless_refused(format, difference(format, states[0], states[1], &options)));
    changed.assert_same(&whole);
    let classifier = Classifier::new(states[1].tables).unwrap();
    for source in addresses {
        for destination in addresses {
            let (src, dst): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            if src.is_ipv4() != dst.is_ipv4() {
                continue;
            }
            for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol(1)] {
                for &dst_port in ports {
                    let flow = FlowKey { src, dst, protocol, src_port: 40_000, dst_port };
                    whole.compare(&classifier, &flow, &options);
                }
            }
        }
    }
    changed.0.len()
}

#[test]
fn lists_have_ranges_of_ports_and_sctp_as_a_whole() {
    let cluster = pod("web", "web", &["10.1.0.1"])
        + &policy(
            "web",
            "web",
            "ingress: [{ports: [{port: 1, endPort: 65535}, {protocol: SCTP}]}, \
             {from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.64/26]}}], \
             ports: [{port: 9, endPort: 19, protocol: UDP}]}]",
        );
    let acl = text(Format::VppAcl, None, &cluster).unwrap();
    let list = acl.lines().find(|line| line.contains("192.0.2.64/26")).unwrap();
    let (rules, tag) = list.strip_prefix("set acl-plugin acl ").unwrap().split_once(" tag ").unwrap();
    assert!(tag.starts_with("palisade-"), "{tag}");
    let expected = [
        "deny src 192.0.2.64/26 dst 0.0.0.0/0 proto 17",
        "permit src 192.0.2.0/24 dst 0.0.0.0/0 proto 17 dport 9-19",
        "permit src 0.0.0.0/0 dst 0.0.0.0/0 proto 6 dport 1-65535",
        "permit src 0.0.0.0/0 dst 0.0.0.0/0 proto 132",
        "deny src 0.0.0.0/0 dst 0.0.0.0/0",
    ];
    assert_eq!(rules.split(", ").collect::<Vec<&str>>(), expected);
    let error = text(Format::VppAcl, None, &cluster.replace("{protocol: SCTP}", "{protocol: SCTP, port: 9}"));
    let error = error.unwrap_err();
    assert!(error.contains("pod default/web: NetworkPolicy default/web ingress"), "{error}");
    assert!(error.contains("no rules for ports of SCTP"), "{error}");
}

#[test]
fn an_empty_state_is_one_comment() {
    for (format, lines) in [(Format::VppAcl, 1), (Format::Vpptcp, 1)] {
        for cluster in [String::new(), pod("web", "web", &["10.1.0.1"])] {
            assert_eq!(text(format, None, &cluster).unwrap().lines().count(), lines);
        }
    }
}

#[test]
fn interfaces_of_vpp_are_bound_and_pods_without_one_fail_to_load() {
    let directory = TemporaryDirectory::new("vpp-interfaces");
    let file = directory.path("interfaces");
    let run = |lines: &str| {
        fs::write(&file, lines).unwrap();
        golden::render(&["--to", "vpp-acl", "--interfaces", &file, "config/examples"])
    };
    let (code, text, errors) = run(
        "uplink TenGigabitEthernet3b/0/0.100\ndefault/db memif1/0\nuplink loop0\ndefault/frontend tap2\n",
    );
    assert_eq!((code, errors.as_str()), (0, ""));
    let bound = |interface: &str, side: &str| {
        let start = format!("set acl-plugin interface {interface} {side} acl ");
        let found = text.lines().filter_map(|line| line.strip_prefix(&start)).collect::<Vec<&str>>();
        assert_eq!(found.len(), 1, "{start}: {text}");
        found[0].to_owned()
    };
    let list = |number: &str| {
        let mut lists = text.lines().filter(|line| line.starts_with("set acl-plugin acl "));
        lists.nth(number.parse().unwrap()).unwrap().to_owned()
    };
    assert!(list(&bound("memif1/0", "output")).contains("dport 6379"));
    assert!(list(&bound("tap2", "output")).contains("dport 443"));
    assert_eq!(bound("loop0", "output"), bound("TenGigabitEthernet3b/0/0.100", "output"));
    for interface in ["memif1/0", "tap2", "loop0", "interface-of:default/backend"] {
        assert!(list(&bound(interface, "input")).starts_with("set acl-plugin acl permit+reflect src "));
    }
    for (lines, problem) in [
        ("default/db a\"b\n", "a name has up to 63"),
        ("default/db a;b\n", "a name has up to 63"),
        ("default/db a{b}\n", "a name has up to 63"),
        ("default/db veth\u{e9}\n", "a name has up to 63"),
        ("uplink a$b\n", "uplink \"a$b\": a name has up to 63"),
        ("uplink a b\n", ":1: write NAMESPACE/NAME INTERFACE, pods PREFIX or uplink INTERFACE"),
        ("default/db tap0\nuplink tap0\n", "uplink \"tap0\": a pod or another line has the same"),
        ("uplink tap0\nuplink tap0\n", "uplink \"tap0\": a pod or another line has the same"),
        ("default/db tap0\ndefault/backend tap0\n", "another pod has the same"),
    ] {
        let (code, out, errors) = run(lines);
        assert!(code == 2 && out.is_empty() && errors.contains(problem), "{lines}: {errors}");
    }
}

#[test]
fn names_of_pods_do_not_end_a_command() {
    let name = "web; reboot $(id)\\n{ }";
    let cluster = pod("web", "web", &["10.1.0.1"]) + &policy("web", "web", "ingress: []");
    let objects = objects(&cluster).into_iter().map(|object| match object {
        Object::Pod(mut pod) => {
            pod.name.name = name.to_owned();
            Object::Pod(pod)
        }
        other => other,
    });
    let objects: Vec<_> = objects.collect();
    let compiler = Compiler::from_objects(objects.iter().cloned(), Options::default());
    let state = ClusterState { tables: compiler.tables(), objects: &objects };
    for format in [Format::VppAcl, Format::Vpptcp] {
        let parts = render(format, state, &RenderOptions::default()).unwrap();
        assert!(!parts[0].text.contains("reboot $") && !parts[0].text.contains(';'), "{}", parts[0].text);
        // The interpreters read every word.
        system(format).load(&parts);
    }
}

#[test]
fn the_list_of_one_pod_changes_alone() {
    let [old, new] = change_of_one_pod();
    let commands = |old: &str, new: &str, format| -> Vec<String> {
        let text = text(format, Some(old), new).unwrap();
        text.lines().filter(|line| !line.starts_with(['c', '#'])).map(str::to_owned).collect()
    };
    let there = commands(&old, &new, Format::VppAcl);
    assert!(
        there[0].starts_with("set acl-plugin acl permit src 192.0.2.0/25 dst 0.0.0.0/0 proto 6 dport 80, ")
    );
    let place = "set acl-plugin interface interface-of:default/web-20 output acl";
    assert_eq!(there[1..], [format!("{place} 2"), format!("{place} 0 del")]);
    // The way back removes the list that no interface has any more. Its number is that of the loaded state.
    let back = commands(&new, &old, Format::VppAcl);
    assert_eq!(back.len(), 3, "{back:?}");
    assert!(back[2].starts_with("delete acl-plugin acl index "), "{back:?}");
    let port = "scope global proto tcp 10.1.0.20/32 80 192.0.2.0";
    assert_eq!(
        commands(&old, &new, Format::Vpptcp),
        [
            format!("vppctl session rule del {port}/24 0"),
            format!("vppctl session rule add {port}/25 0 action -3"),
        ]
    );
    for format in [Format::VppAcl, Format::Vpptcp] {
        assert!(commands(&new, &new, format).is_empty());
        assert!(text(format, None, &new).unwrap().lines().count() > 40);
    }
    compare(&old, &new, &["10.1.0.1", "10.1.0.20", "192.0.2.1", "192.0.2.200"], &[80, 81]);
    compare(&new, &old, &["10.1.0.1", "10.1.0.20", "192.0.2.1", "192.0.2.200"], &[80, 81]);
}

/// Cluster in which networks overlap: of each, some ports or all.
fn overlapping(rules: &str) -> String {
    pod("db", "db", &["10.1.0.1", "2001:db8:1::1"])
        + &pod("api", "api", &["10.1.0.2", "2001:db8:1::2"])
        + &policy("db", "db", rules)
        + &policy(
            "api",
            "api",
            &rules.replace("from", "to").replace("ingress", "policyTypes: [Egress], egress"),
        )
}

#[test]
fn overlapping_networks_decide_without_an_order_of_rules() {
    let block = |cidr: &str, ports: &str| {
        format!(
            "{{from: [{{ipBlock: {{cidr: '{cidr}'}}}}]{}}}",
            if ports.is_empty() { String::new() } else { format!(", ports: {ports}") }
        )
    };
    let states = [
        // A port of a network, and all ports of a part with the same lowest address; and apart from it.
        ["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24"],
        ["0.0.0.0/0", "10.128.0.0/9", "10.200.0.0/16"],
        ["::/0", "2001:db8::/32", "2001:db8::/64"],
        ["0.0.0.0/0", "128.0.0.0/1", "192.0.2.0/24"],
    ];
    let addresses = [
        "10.1.0.1",
        "10.1.0.2",
        "10.0.0.0",
        "10.0.0.1",
        "10.0.1.1",
        "10.2.0.1",
        "10.200.0.9",
        "10.199.0.1",
        "11.0.0.1",
        "192.0.2.9",
        "203.0.113.1",
        "2001:db8::",
        "2001:db8::5",
        "2001:db8:0:1::",
        "2001:db8:1::1",
        "2001:db8:1::2",
        "2001:db9::1",
        "::1",
        "9000::1",
    ];
    let mut clusters = vec![overlapping("ingress: []"), String::new()];
    for [wide, narrow, narrowest] in states {
        for [first, second, third] in [
            ["[{port: 80}, {port: 53, protocol: UDP}]", "", "[{port: 443}]"],
            ["", "[{port: 80}]", ""],
            ["[{port: 80}]", "[{port: 443}]", ""],
            ["[{port: 80, endPort: 83}]", "[{port: 82, endPort: 85}]", "[{port: 80}]"],
        ] {
            let rules = [block(wide, first), block(narrow, second), block(narrowest, third)];
            clusters.push(overlapping(&format!("ingress: [{}]", rules.join(", "))));
            clusters.push(overlapping(&format!("ingress: [{}, {}]", rules[0], rules[2])));
        }
        // Exceptions.
        clusters.push(overlapping(&format!(
            "ingress: [{{from: [{{ipBlock: {{cidr: '{wide}', except: ['{narrow}']}}}}], ports: [{{port: 80}}]}}, {}]",
            block(narrowest, "")
        )));
        let except = |cidr: &str, without: &str, ports: &str| {
            let end = format!("cidr: '{cidr}', except: ['{without}']");
            block(cidr, ports).replace(&format!("cidr: '{cidr}'"), &end)
        };
        for rules in [
            // A network that is left out, and a part of it.
            vec![block(narrowest, "[{port: 80}]")],
            vec![except(wide, narrow, "[{port: 80}]"), block(narrowest, "[{port: 80}]")],
            vec![block(wide, "[{port: 80}]")],
            // All ports of a part without a part of its own, which has the port of the whole.
            vec![block(wide, "[{port: 80}]"), except(narrow, narrowest, "")],
            // Ranges side by side, of which the part has one and the whole the other.
            vec![
                except(wide, narrow, "[{port: 85, endPort: 90}]"),
                block(narrow, "[{port: 80, endPort: 84}]"),
            ],
        ] {
            clusters.push(overlapping(&format!("ingress: [{}]", rules.join(", "))));
        }
    }
    for (number, old) in clusters.iter().enumerate() {
        // Each is reached from others.
        for step in [1, 7] {
            let new = &clusters[(number + step) % clusters.len()];
            // The flows of a state are those of one way to it.
            let addresses = if step == 1 { &addresses[..] } else { &[] };
            assert_eq!(compare(old, new, addresses, &[0, 53, 80, 82, 84, 85, 90, 443]), 2, "{new}");
        }
    }
}

#[test]
fn cluster_wide_denials_split_ports_or_are_refused() {
    let tier = |denied: &str, ports: &str| {
        format!(
            "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {{name: tier}}\n\
             spec: {{priority: 1, subject: {{namespaces: {{}}}}, egress: [{{action: Allow, to: [{{networks: \
             ['{denied}']}}]}}, {{action: Deny, to: [{{networks: ['0.0.0.0/0']}}], ports: [{ports}]}}]}}\n---\n\
             apiVersion: v1\nkind: Namespace\nmetadata: {{name: default}}\n---\n"
        )
    };
    let port = "{portNumber: {protocol: TCP, port: 25}}";
    let open = pod("web", "web", &["10.1.0.1"]);
    let isolated = open.clone()
        + &policy(
            "web",
            "web",
            "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 25}, {port: 80}]}]",
        );
    let addresses = ["10.1.0.1", "10.0.0.0", "10.0.0.9", "192.0.2.1", "192.0.2.255", "10.200.0.1"];
    for cluster in [&open, &isolated] {
        for denied in ["10.0.0.0/24", "192.0.2.0/24", "10.0.0.0/8", "0.0.0.0/1"] {
            compare(cluster, &(tier(denied, port) + cluster), &addresses, &[24, 25, 80]);
            compare(&(tier(denied, port) + cluster), cluster, &addresses, &[24, 25, 80]);
        }
    }
    // All ports of a part of a network, in which one part is denied a port.
    let denied = |blocks: &str| {
        tier("203.0.113.0/24", port).replace("['0.0.0.0/0']", "['10.128.0.0/16']")
            + &open
            + &policy("web", "web", &format!("policyTypes: [Egress], egress: [{blocks}]"))
    };
    let wide = "{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 25}]}";
    let narrow = "{to: [{ipBlock: {cidr: 10.128.0.0/9}}]}";
    let states =
        [wide.to_owned(), format!("{wide}, {narrow}"), narrow.to_owned()].map(|blocks| denied(&blocks));
    for old in &states {
        for new in &states {
            let ends = ["10.1.0.1", "10.128.0.0", "10.128.1.1", "10.129.0.1", "10.255.255.255", "10.2.0.1"];
            assert_eq!(compare(old, new, &ends, &[24, 25, 80]), 2);
        }
    }
    let range = "{portRange: {protocol: TCP, start: 1, end: 4097}}";
    let error = text(Format::Vpptcp, None, &(tier("192.0.2.0/24", range) + &open)).unwrap_err();
    assert!(error.contains("pod default/web: AdminNetworkPolicy tier egress"), "{error}");
    assert!(error.contains("more than 4096 rules"), "{error}");
}

#[test]
fn session_rules_are_refused_for_a_pod_whose_addresses_differ() {
    // An address that two pods claim has the rules of both.
    let cluster = pod("web", "web", &["10.1.0.1", "10.1.0.2"])
        + &pod("copy", "copy", &["10.1.0.1"])
        + &policy("copy", "copy", "policyTypes: [Egress]");
    let error = text(Format::Vpptcp, None, &cluster).unwrap_err();
    assert!(error.starts_with("pod default/web: its rules for 10.1.0.1 and for 10.1.0.2: "), "{error}");
    assert!(text(Format::VppAcl, None, &cluster).is_ok());
    assert_eq!(compare(&cluster, &cluster, &["10.1.0.1", "10.1.0.2", "10.1.0.9"], &[80]), 1);
    // Addresses with equal rules share the table.
    let equal = pod("web", "web", &["10.1.0.1", "10.1.0.2", "2001:db8::1"])
        + &policy("web", "web", "policyTypes: [Egress], egress: [{ports: [{port: 80}]}]");
    assert_eq!(compare(&cluster, &equal, &["10.1.0.1", "10.1.0.2", "10.1.0.9", "2001:db8::1"], &[80, 81]), 1);
    assert_eq!(compare(&equal, &equal, &["10.1.0.1", "10.1.0.2", "10.1.0.9", "2001:db8::1"], &[80, 81]), 2);
}

#[test]
fn session_rules_have_halves_instead_of_all_addresses() {
    let cluster = pod("web", "web", &["10.1.0.1"]) + &policy("web", "web", "policyTypes: [Egress]");
    let sessions = text(Format::Vpptcp, None, &cluster).unwrap();
    let rule = "vppctl session rule add appns default/web scope local proto tcp 0.0.0.0/0 0";
    let tcp: Vec<&str> = sessions.lines().filter(|line| line.starts_with(rule)).collect();
    // It reaches itself.
    let ends = ["0.0.0.0/1 0 action -2", "128.0.0.0/1 0 action -2", "10.1.0.1/32 0 action -3"];
    assert_eq!(tcp, ends.map(|end| format!("{rule} {end}")));
    assert_eq!(sessions.lines().count(), 7, "{sessions}");
}
