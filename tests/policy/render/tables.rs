//! Tables of Contiv/VPP for small clusters: sharing, both folds, minimal changes, and what is refused.

use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_source};
use palisade::policy::{Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderError, RenderOptions, difference, render};
use palisade::tables::Direction;

use super::System;
use super::contiv::Contiv;

/// Pod of the namespace `default`.
pub(super) fn pod(name: &str, app: &str, addresses: &[&str]) -> String {
    let of = |address: &&str| format!("{{ip: '{address}'}}");
    let ips: Vec<String> = addresses.iter().map(of).collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, labels: {{app: {app}}}}}\n\
         spec: {{containers: [{{name: c}}]}}\nstatus: {{podIP: '{}', podIPs: [{}]}}\n---\n",
        addresses[0],
        ips.join(", ")
    )
}

/// Policy for the pods of an app.
pub(super) fn policy(name: &str, app: &str, rules: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{podSelector: {{matchLabels: {{app: {app}}}}}, {rules}}}\n---\n"
    )
}

/// Twenty pods that nothing tells apart from one another, and the same with one of another app.
pub(super) fn change_of_one_pod() -> [String; 2] {
    let pods = |app: &str| -> String {
        let others = (1..20).map(|n| pod(&format!("web-{n:02}"), "web", &[&format!("10.1.0.{n}")]));
        others.chain([pod("web-20", app, &["10.1.0.20"])]).collect()
    };
    let policies = [
        policy("web", "web", "ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 80}]}]"),
        policy("old", "old", "ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/25}}], ports: [{port: 80}]}]"),
    ]
    .concat();
    ["web", "old"].map(|app| pods(app) + &policies)
}

/// Objects of manifests.
pub(super) fn objects(text: &str) -> Vec<Object> {
    let parsed = parse_source(&Source::new("cluster.yaml", text)).unwrap();
    parsed.objects.into_iter().map(|(object, _)| object).collect()
}

/// Rendering of a cluster, or of its change from another.
pub(super) fn rendered(
    format: Format,
    old: Option<&str>,
    new: &str,
    options: &RenderOptions,
) -> Result<Vec<Part>, RenderError> {
    let compiled = |text: &str| {
        let objects = objects(text);
        (Compiler::from_objects(objects.iter().cloned(), Options::default()), objects)
    };
    let new = compiled(new);
    let state = ClusterState { tables: new.0.tables(), objects: &new.1 };
    match old.map(compiled) {
        None => render(format, state, options),
        Some((compiler, objects)) => {
            let old = ClusterState { tables: compiler.tables(), objects: &objects };
            difference(format, old, state, options)
        }
    }
}

fn contiv(text: &str, direction: Direction) -> (Contiv, String) {
    let options = RenderOptions { direction, ..RenderOptions::default() };
    let parts = rendered(Format::Contiv, None, text, &options).unwrap();
    let mut system = Contiv::default();
    system.load(&parts);
    (system, parts[0].text.clone())
}

/// Lines below a statement.
fn below<'a>(text: &'a str, statement: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| *line != statement).skip(1);
    lines.take_while(|line| line.starts_with("  ")).map(str::trim).collect()
}

/// Web servers that two clients may reach, one of which may reach only one port, and another which is isolated.
fn shop() -> String {
    [
        pod("web-1", "web", &["10.1.0.1"]),
        pod("web-2", "web", &["10.1.0.2"]),
        pod("client", "client", &["10.1.0.3"]),
        pod("closed", "closed", &["10.1.0.4"]),
        policy("web", "web", "ingress: [{from: [{podSelector: {}}], ports: [{port: 80}, {port: 443}]}]"),
        policy(
            "client",
            "client",
            "policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: 443}, {port: 53, protocol: UDP}]}]",
        ),
        policy("closed", "closed", "policyTypes: [Ingress, Egress]"),
    ]
    .concat()
}

#[test]
fn equal_pods_share_a_local_table() {
    let (system, text) = contiv(&shop(), Direction::Egress);
    assert_eq!(system.assigned["default/web-1"], system.assigned["default/web-2"]);
    assert_ne!(system.assigned["default/web-1"], system.assigned["default/closed"]);
    // The client is open for ingress, and has a table since the closed pod may not reach it.
    assert_eq!((system.tables.len(), system.assigned.len()), (3, 4), "{text}");
    // One that differs in one label has a table of its own.
    let other = shop().replace(
        "app: web}}\nspec: {containers: [{name: c}]}\nstatus: {podIP: '10.1.0.2'",
        "app: x}}\nspec: {containers: [{name: c}]}\nstatus: {podIP: '10.1.0.2'",
    );
    let (system, _) = contiv(&other, Direction::Egress);
    assert_ne!(system.assigned["default/web-1"], system.assigned["default/web-2"]);
}

#[test]
fn rules_of_one_direction_are_folded_into_the_other() {
    let (system, text) = contiv(&shop(), Direction::Egress);
    let table = format!("table {}", system.assigned["default/web-1"]);
    assert_eq!(
        below(&text, &table),
        [
            "PERMIT 10.1.0.1/32[TCP:ANY] -> 0.0.0.0/0[TCP:80]",
            "PERMIT 10.1.0.1/32[TCP:ANY] -> 0.0.0.0/0[TCP:443]",
            "PERMIT 10.1.0.2/32[TCP:ANY] -> 0.0.0.0/0[TCP:80]",
            "PERMIT 10.1.0.2/32[TCP:ANY] -> 0.0.0.0/0[TCP:443]",
            "PERMIT 10.1.0.3/32[TCP:ANY] -> 0.0.0.0/0[TCP:443]",
            "DENY 0.0.0.0/0[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]",
        ]
    );
    assert_eq!(
        below(&text, "global")[..2],
        [
            "PERMIT 10.1.0.3/32[TCP:ANY] -> 10.1.0.1/32[TCP:443]",
            "PERMIT 10.1.0.3/32[UDP:ANY] -> 10.1.0.1/32[UDP:53]"
        ]
    );
    assert!(text.contains("reflect default/web-1\n") && text.contains("reflect uplinks\n"), "{text}");
    let (system, text) = contiv(&shop(), Direction::Ingress);
    let table = format!("table {}", system.assigned["default/client"]);
    assert_eq!(
        below(&text, &table),
        [
            "PERMIT 0.0.0.0/0[TCP:ANY] -> 10.1.0.1/32[TCP:443]",
            "PERMIT 0.0.0.0/0[TCP:ANY] -> 10.1.0.2/32[TCP:443]",
            "PERMIT 0.0.0.0/0[TCP:ANY] -> 10.1.0.3/32[TCP:443]",
            "PERMIT 0.0.0.0/0[UDP:ANY] -> 10.1.0.3/32[UDP:53]",
            "DENY 0.0.0.0/0[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]",
        ]
    );
    assert_eq!(below(&text, "global")[0], "PERMIT 10.1.0.1/32[TCP:ANY] -> 10.1.0.1/32[TCP:80]");
    assert!(!text.contains("reflect"), "{text}");
}

#[test]
fn a_change_of_one_pod_changes_its_own_tables_alone() {
    let [old, new] = change_of_one_pod();
    let options = RenderOptions::default();
    let change = &rendered(Format::Contiv, Some(&old), &new, &options).unwrap()[0].text;
    let statements: Vec<&str> = change.lines().filter(|line| !line.starts_with(['#', ' '])).collect();
    let id = statements[1].strip_prefix("table ").unwrap();
    assert_eq!(
        statements,
        ["pod default/web-20 10.1.0.20", &format!("table {id}"), &format!("assign default/web-20 {id}")]
    );
    // It leads to the same state as the whole, which has far more statements.
    let mut changed = Contiv::default();
    changed.load(&rendered(Format::Contiv, None, &old, &options).unwrap());
    changed.load(&rendered(Format::Contiv, Some(&old), &new, &options).unwrap());
    let (whole, text) = contiv(&new, Direction::Egress);
    assert_eq!(changed, whole);
    assert!(text.lines().count() > 80);
    // The way back removes the table that no pod has any more.
    let back = &rendered(Format::Contiv, Some(&new), &old, &options).unwrap()[0].text;
    assert!(back.ends_with(&format!("remove table {id}\n")), "{back}");
    let none = &rendered(Format::Contiv, Some(&new), &new, &options).unwrap()[0].text;
    assert_eq!(none.lines().count(), 2, "{none}");
}

#[test]
fn contiv_refuses_by_name_what_it_cannot_express() {
    let web = pod("web", "web", &["10.1.0.1"]);
    let refusal = |rules: &str| {
        let cluster = web.clone() + &policy("ports", "web", rules);
        rendered(Format::Contiv, None, &cluster, &RenderOptions::default()).map_err(|error| error.to_string())
    };
    for (rules, problem) in [
        ("ingress: [{ports: [{port: 1, endPort: 65535}]}]", "more than 4096 rules"),
        ("ingress: [{ports: [{port: 1000, endPort: 5096}]}]", "more than 4096 rules"),
        ("ingress: [{ports: [{port: 9, protocol: SCTP}]}]", "no rules for ports of SCTP"),
        ("ingress: [{ports: [{protocol: SCTP}]}]", "no rules for ports of SCTP"),
        (
            "ingress: [{ports: [{port: 80}]}, {ports: [{port: 9, protocol: SCTP}]}]",
            "no rules for ports of SCTP",
        ),
    ] {
        let error = refusal(rules).unwrap_err();
        let names = error.contains("pod default/web: NetworkPolicy default/ports ingress");
        assert!(names && error.contains(problem), "{rules}: {error}");
    }
    // The bound itself, and all ports, which include port 0.
    let text = &refusal("ingress: [{ports: [{port: 1000, endPort: 5095}]}]").unwrap()[0].text;
    assert_eq!(text.lines().filter(|line| line.starts_with("  PERMIT")).count(), 4_096);
    let text = &refusal("ingress: [{ports: [{protocol: TCP}]}]").unwrap()[0].text;
    assert_eq!(text.lines().filter(|line| line.starts_with("  PERMIT")).count(), 1, "{text}");
    // Isolation has no need of ports.
    let text = &refusal("ingress: []").unwrap()[0].text;
    assert!(text.contains("\n  DENY 0.0.0.0/0[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]\n"), "{text}");
}

#[test]
fn a_pod_of_both_families_has_one_table_with_an_end_for_each() {
    let cluster = pod("web", "web", &["10.1.0.1", "2001:db8::1"])
        + &policy("web", "web", "ingress: [{from: [{ipBlock: {cidr: '::/0'}}]}]");
    let (system, text) = contiv(&cluster, Direction::Egress);
    let table = format!("table {}", system.assigned["default/web"]);
    assert_eq!(
        below(&text, &table),
        ["DENY 0.0.0.0/0[ANY:ANY] -> 0.0.0.0/0[ANY:ANY]", "PERMIT ::/0[ANY:ANY] -> ::/0[ANY:ANY]"]
    );
}
