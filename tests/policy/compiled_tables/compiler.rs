//! The incremental compiler: differences between generations of tables.

use super::*;

#[test]
fn only_pods_of_the_node_have_tables_and_only_their_rules_make_classes() {
    let objects = |node: &str| {
        let compiled = Compiled::new();
        let mut pods: Vec<Object> = compiled.compiler.pods().cloned().map(Object::Pod).collect();
        for object in &mut pods {
            let Object::Pod(pod) = object else { unreachable!() };
            if pod.name == PodName::new("x", "a") {
                pod.node = Some(node.to_owned());
            }
        }
        pods.push(ingress("p", &[rule(&[app("b")], &[])]));
        pods
    };
    let options = || Options { node: Some("n".to_owned()) };
    let elsewhere = Compiler::from_objects(objects("m"), options());
    assert_eq!(elsewhere.tables().pods.len(), 3);
    assert!(elsewhere.tables().prefixes.is_empty(), "nothing here tells addresses apart");
    let here = Compiler::from_objects(objects("n"), options());
    assert_eq!(here.tables().pods.len(), 4);
    assert_eq!(here.tables().prefixes.len(), 1);
}

#[test]
fn pods_with_equal_rules_share_their_tables() {
    let mut compiled = Compiled::new();
    assert_eq!(compiled.compiler.tables().acls.len(), 2, "one for each direction");
    compiled.put(ingress("p", &[rule(&[app("b")], &[])]));
    compiled.put(Object::Pod(Pod { labels: labels(&[("app", "a")]), ..pod("x", "a2", "10.0.0.9") }));
    let tables = compiled.compiler.tables();
    let of = |name: &str| &tables.pods[&PodName::new("x", name)];
    assert_eq!(of("a").ingress, of("a2").ingress);
    assert_ne!(of("a").ingress, of("b").ingress);
    assert_eq!((tables.acls.len(), tables.rows.len()), (3, 4));
}

#[test]
fn a_change_costs_what_it_touches() {
    let mut compiled = Compiled::new().with([ingress("p", &[rule(&[app("b")], &[])])]);
    let twin = Pod { labels: labels(&[("app", "b")]), ..pod("x", "b2", "10.0.0.9") };
    assert_eq!(compiled.put(Object::Pod(twin.clone())), 2, "its prefix and its tables");
    assert_eq!(compiled.put(Object::Pod(twin)), 0, "nothing has changed");
}

#[test]
fn a_policy_beside_a_large_one_changes_what_it_is_about() {
    let large = (1..60).map(|i| rule(&[block(&format!("192.0.2.{i}/32"), &[])], &[tcp(i, 1000)]));
    let mut compiled = Compiled::new().with([ingress("p", &large.collect::<Vec<_>>())]);
    let small = ingress("q", &[rule(&[block("192.0.2.7/32", &[])], &[tcp(2000, 2000)])]);
    let changes = "its rule, what denies by default, the address's row, the one it had, the table's entry";
    assert_eq!(compiled.put(small.clone()), 5, "{changes}");
    assert_eq!(compiled.on_ingress("192.0.2.7", "x/a", TCP, 2000), "allow: NetworkPolicy x/q ingress[0]");
    assert_eq!(compiled.on_ingress("192.0.2.7", "x/a", TCP, 1000), "allow: NetworkPolicy x/p ingress[6]");
    let denied = "deny: isolated for ingress by NetworkPolicy x/p, NetworkPolicy x/q; no rule matched";
    assert_eq!(compiled.on_ingress("192.0.2.8", "x/a", TCP, 2000), denied);
    assert_eq!(compiled.compiler.apply(Change::Remove(ObjectName::of(&small))).len(), 5, "{changes}");
    assert!(!compiled.passes("192.0.2.7", "x/a", TCP, 2000));
}

#[test]
fn classes_are_called_what_rules_call_them() {
    let compiled = Compiled::new()
        .with([ingress("p", &[rule(&[app("b"), block("10.0.0.0/24", &["10.0.0.9/32"])], &[])])]);
    let class = compiled.compiler.class_of(compiled.address("x/b"));
    let groups = compiled.compiler.groups_of_class(class);
    let mut names: Vec<String> = groups[0].iter().map(ToString::to_string).collect();
    names.sort();
    assert_eq!(names, ["10.0.0.0/24 except 10.0.0.9/32", "pods app=b in namespace x"]);
    let selecting = compiled.compiler.policies_selecting(&PodName::new("x", "a"), Direction::Ingress);
    assert_eq!(selecting.iter().map(ToString::to_string).collect::<Vec<_>>(), ["NetworkPolicy x/p"]);
}

#[test]
fn tables_pass_their_check_and_default_deny_is_a_deny() {
    let compiled = Compiled::new().with([policy("p", Some(vec![]), Some(vec![]))]);
    assert_eq!(compiled.compiler.tables().check(), Ok(()));
    let pod = &compiled.compiler.tables().pods[&PodName::new("x", "a")];
    for acl in [pod.ingress, pod.egress] {
        let row = &compiled.compiler.tables().rows[&compiled.compiler.tables().acls[&acl].default];
        assert_eq!(row.other.verdict(), Verdict::Deny);
    }
}
