//! Address blocks of peers, with exceptions.

use super::*;

#[test]
fn n5_1_except_narrows_its_own_entry_and_denies_nothing() {
    let compiled = Compiled::new().with([ingress(
        "p",
        &[
            rule(&[block("192.0.2.0/24", &["192.0.2.128/25"])], &[tcp(80, 80)]),
            rule(&[block("192.0.2.192/26", &[])], &[tcp(80, 80)]),
        ],
    )]);
    assert_eq!(compiled.on_ingress("192.0.2.1", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[0]");
    assert!(!compiled.passes("192.0.2.129", "x/a", TCP, 80));
    assert_eq!(compiled.on_ingress("192.0.2.200", "x/a", TCP, 80), "allow: NetworkPolicy x/p ingress[1]");
    assert!(!compiled.passes("192.0.3.1", "x/a", TCP, 80));
}

#[test]
fn n5_2_blocks_match_pods_and_selectors_add_to_them() {
    let compiled = Compiled::new().with([ingress(
        "p",
        &[rule(&[block("10.0.0.0/23", &["10.0.1.2/32"])], &[tcp(80, 80)]), rule(&[app("b")], &[tcp(81, 81)])],
    )]);
    assert!(compiled.passes("x/b", "x/a", TCP, 80) && compiled.passes("x/b", "x/a", TCP, 81));
    assert!(compiled.passes("y/a", "x/a", TCP, 80) && !compiled.passes("y/a", "x/a", TCP, 81));
    assert!(!compiled.passes("y/b", "x/a", TCP, 80));
}

#[test]
fn n5_5_families_never_mix() {
    let compiled = Compiled::new().with([
        Object::Pod(Pod {
            addresses: vec!["fd00::1".parse().unwrap(), "10.0.0.1".parse().unwrap()],
            ..pod("x", "a", "10.0.0.1")
        }),
        ingress("p", &[rule(&[block("0.0.0.0/0", &[])], &[])]),
    ]);
    assert!(!compiled.passes("2001:db8::1", "fd00::1", TCP, 80));
    assert!(compiled.passes("192.0.2.1", "10.0.0.1", TCP, 80));
    let compiled = compiled.with([ingress("p", &[rule(&[block("::/0", &["fd00::/8"])], &[])])]);
    assert!(compiled.passes("2001:db8::1", "fd00::1", TCP, 80));
    assert!(!compiled.passes("fd00::2", "fd00::1", TCP, 80));
    assert!(!compiled.passes("192.0.2.1", "10.0.0.1", TCP, 80));
}

#[test]
fn n5_an_address_has_an_entry_only_where_its_prefix_does_not_say_it() {
    let compiled =
        Compiled::new().with([ingress("p", &[rule(&[block("10.0.0.0/8", &["10.0.1.0/24"])], &[])])]);
    let prefixes: Vec<String> = compiled.compiler.tables().prefixes.keys().map(ToString::to_string).collect();
    assert_eq!(prefixes, ["10.0.0.0/8", "10.0.1.0/24"]);
}
