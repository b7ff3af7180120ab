//! Random histories: whatever happened before, the tables are those of a compile from scratch.
//!
//! A small world, so that everything meets everything: three namespaces, two nodes, pods that share addresses, blocks
//! that pods are in, names of ports that mean different numbers. `PROPTEST_CASES` sets the number of histories;
//! a failure prints its seed and the shortest history that shows it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::net::flow::Protocol;
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, ContainerPort, IpBlock,
    LabelSelector, Labels, Namespace, NetworkPolicy, NetworkPolicyRule, Node, Peer, Peers, PodScope,
    PortMatch, Ports, Requirement, Tier,
};
use crate::policy::store::NAMESPACE_NAME_LABEL;
use crate::tables::{Classifier, PolicyKind};

fn cases() -> ProptestConfig {
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 300 };
    ProptestConfig { cases, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

fn name(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(names).prop_map(str::to_owned)
}

fn namespace_name() -> impl Strategy<Value = String> {
    name(&["x", "y", "z"])
}

fn labels() -> impl Strategy<Value = Labels> {
    btree_map(name(&["app", "team"]), name(&["a", "b"]), 0..3)
}

fn requirement() -> impl Strategy<Value = Requirement> {
    (name(&["app", "team"]), vec(name(&["a", "b", "c"]), 1..3), 0..6).prop_map(
        |(key, mut values, operator)| {
            values.sort_unstable();
            values.dedup();
            match operator {
                0 => Requirement::NotIn { key, values },
                1 => Requirement::Exists { key },
                2 => Requirement::DoesNotExist { key },
                _ => Requirement::In { key, values },
            }
        },
    )
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    vec(requirement(), 0..3).prop_map(|mut requirements| {
        requirements.sort_unstable();
        requirements.dedup();
        LabelSelector { requirements }
    })
}

/// Of namespaces: also by their names, which namespaces that are only mentioned have as a label too.
fn namespace_selector() -> impl Strategy<Value = LabelSelector> {
    let named = namespace_name().prop_map(|name| {
        let key = NAMESPACE_NAME_LABEL.to_owned();
        LabelSelector { requirements: vec![Requirement::In { key, values: vec![name] }] }
    });
    prop_oneof![4 => selector(), 1 => named]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    let address = prop_oneof![address(), Just("192.0.2.1".parse().unwrap())];
    (address, select(&[0_u8, 8, 29, 30, 31, 32][..])).prop_map(|(address, length)| {
        let length = if address.is_ipv6() && length > 8 { length + 96 } else { length };
        IpNet::new_assert(address, length).trunc()
    })
}

fn block() -> impl Strategy<Value = IpBlock> {
    (prefix(), vec(prefix(), 0..3)).prop_map(|(cidr, mut except)| {
        except.retain(|except| cidr.contains(except) && *except != cidr);
        IpBlock { cidr, except }
    })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        4 => (0..12_u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        1 => (0..6_u16).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::SCTP][..])
}

fn range() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        3 => select(&[53_u16, 80, 81, 443][..]).prop_map(|port| (port, port)),
        1 => Just((80, 443)),
        1 => Just((0, u16::MAX)),
    ]
}

fn container_port() -> impl Strategy<Value = ContainerPort> {
    (prop::option::weighted(0.8, name(&["http", "dns"])), protocol(), select(&[53_u16, 80, 81][..]))
        .prop_map(|(name, protocol, port)| ContainerPort { name, protocol, port })
}

fn pod() -> impl Strategy<Value = Pod> {
    let identity = (namespace_name(), name(&["p", "q", "r", "s"]));
    let node = (prop::option::weighted(0.8, name(&["n1", "n2"])), vec(address(), 0..2));
    let fate = (node, 0..12_u8);
    let what = (labels(), vec(address(), 0..3), vec(container_port(), 0..3));
    (identity, fate, what).prop_map(
        |((namespace, name), ((node, host_ips), fate), (labels, addresses, ports))| Pod {
            name: PodName::new(namespace, name),
            labels,
            addresses,
            placeholder: fate == 2,
            node,
            host_ips,
            host_network: fate == 0,
            finished: fate == 1,
            ports,
        },
    )
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        2 => (prop::option::of(namespace_selector()), selector()).prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods }),
        1 => block().prop_map(Peer::IpBlock),
    ]
}

fn port_match() -> impl Strategy<Value = PortMatch> {
    prop_oneof![
        2 => (protocol(), range()).prop_map(|(protocol, (first, last))| PortMatch::Range { protocol, first, last }),
        1 => (protocol(), name(&["http", "dns"])).prop_map(|(protocol, name)| PortMatch::Named { protocol, name }),
    ]
}

fn rule() -> impl Strategy<Value = NetworkPolicyRule> {
    let peers = prop_oneof![1 => Just(Peers::Everyone), 3 => vec(peer(), 1..3).prop_map(Peers::Any)];
    let ports = prop_oneof![1 => Just(Ports::All), 2 => vec(port_match(), 1..3).prop_map(Ports::Any)];
    (peers, ports).prop_map(|(peers, ports)| NetworkPolicyRule { peers, ports })
}

fn network_policy() -> impl Strategy<Value = NetworkPolicy> {
    let rules = || prop::option::of(vec(rule(), 0..3));
    (namespace_name(), name(&["a", "b", "c"]), selector(), rules(), rules()).prop_map(
        |(namespace, name, pod_selector, ingress, egress)| NetworkPolicy {
            namespace,
            name,
            pod_selector,
            ingress,
            egress,
            ignored: Vec::new(),
        },
    )
}

fn scope() -> impl Strategy<Value = PodScope> {
    (namespace_selector(), selector()).prop_map(|(namespaces, pods)| PodScope { namespaces, pods })
}

fn cluster_rule() -> impl Strategy<Value = ClusterRule> {
    let peer = prop_oneof![
        3 => scope().prop_map(ClusterPeer::Pods),
        1 => prefix().prop_map(ClusterPeer::Network),
        1 => selector().prop_map(ClusterPeer::Nodes),
        1 => Just(ClusterPeer::DomainName("example.com".to_owned())),
        1 => Just(ClusterPeer::Everyone),
    ];
    let port = prop_oneof![
        2 => (protocol(), range()).prop_map(|(protocol, (first, last))| ClusterPort::Range { protocol, first, last }),
        1 => (prop::option::of(protocol()), name(&["http", "dns"]))
            .prop_map(|(protocol, name)| ClusterPort::Named { protocol, name }),
    ];
    let action = select(&[ClusterAction::Accept, ClusterAction::Deny, ClusterAction::Pass][..]);
    let rule_name = prop::option::of(name(&["one", "two"]));
    (rule_name, action, vec(peer, 1..3), prop::option::of(vec(port, 1..3)))
        .prop_map(|(name, action, peers, ports)| ClusterRule { name, action, peers, ports })
}

fn cluster_policy() -> impl Strategy<Value = ClusterNetworkPolicy> {
    let kind = select(&[PolicyKind::ClusterNetworkPolicy, PolicyKind::AdminNetworkPolicy][..]);
    let tier = select(&[Tier::Admin, Tier::Baseline][..]);
    let rules = || vec(cluster_rule(), 0..3);
    (kind, name(&["a", "b"]), tier, 0..2_u32, scope(), rules(), rules()).prop_map(
        |(kind, name, tier, priority, subject, ingress, egress)| ClusterNetworkPolicy {
            kind,
            name,
            tier,
            priority,
            subject,
            ingress,
            egress,
        },
    )
}

fn object() -> impl Strategy<Value = Object> {
    let namespace = (namespace_name(), labels()).prop_map(|(name, mut labels)| {
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.clone());
        Object::Namespace(Namespace { name, labels })
    });
    let node = (name(&["n1", "n2"]), labels(), vec(address(), 0..3))
        .prop_map(|(name, labels, addresses)| Object::Node(Node { name, labels, addresses }));
    prop_oneof![
        6 => pod().prop_map(Object::Pod),
        1 => namespace,
        1 => node,
        4 => network_policy().prop_map(Object::NetworkPolicy),
        2 => cluster_policy().prop_map(Object::ClusterNetworkPolicy),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => object().prop_map(Change::Upsert),
        1 => object().prop_map(|object| Change::Remove(ObjectName::of(&object))),
    ]
}

/// What is done to a policy that is there.
#[derive(Debug, Clone)]
enum Edit {
    /// One of its directions has a rule more, at some place.
    Insert(bool, u8, NetworkPolicyRule, ClusterRule),
    /// One of its directions has a rule less.
    Remove(bool, u8),
    /// One of its rules says something else, of the same addresses, or of the same ports, or of neither.
    Replace(bool, u8, Kept, NetworkPolicyRule, ClusterRule),
    /// Two of its rules are asked in the other order.
    Reverse(bool),
    /// It no longer speaks of a direction.
    Forget(bool),
    /// It is about other pods, or about pods of other namespaces.
    Reselect(LabelSelector, bool),
    /// It is asked earlier or later, or in another tier.
    Rank(Tier, u32),
    /// Another one, of this name, says the same.
    Copy(String),
    /// It goes and add_rule back.
    Recreate,
    /// It goes.
    Drop,
}

/// What becomes of a pod that is there; all else of it stays.
#[derive(Debug, Clone)]
enum PodEdit {
    /// It has other labels.
    Relabel(Labels),
    /// It has other addresses.
    Readdress(Vec<IpAddr>),
    /// It has other ports.
    Expose(Vec<ContainerPort>),
    /// It is on another node.
    Move(Option<String>),
    /// Its status gives its node other addresses.
    Rehost(Vec<IpAddr>),
    /// It ends, or runs again.
    Finish,
    /// It is on the host's network, or no longer.
    Unnet,
    /// It goes and add_rule back.
    Recreate,
    /// It ends, and another one, old or new, gets its addresses.
    HandOver(Box<Pod>),
}

/// What remains of a rule that is replaced.
#[derive(Debug, Clone, Copy)]
enum Kept {
    Peers,
    Ports,
    Nothing,
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = || (any::<bool>(), any::<u8>());
    prop_oneof![
        4 => (place(), edit_rules()).prop_map(|((is_in, at), (rule, cluster))| Edit::Insert(is_in, at, rule, cluster)),
        2 => place().prop_map(|(is_in, at)| Edit::Remove(is_in, at)),
        3 => (place(), select(&[Kept::Peers, Kept::Ports, Kept::Nothing][..]), edit_rules())
            .prop_map(|((is_in, at), kept, (rule, cluster))| Edit::Replace(is_in, at, kept, rule, cluster)),
        1 => any::<bool>().prop_map(Edit::Reverse),
        1 => any::<bool>().prop_map(Edit::Forget),
        1 => (selector(), any::<bool>()).prop_map(|(selector, of_pods)| Edit::Reselect(selector, of_pods)),
        1 => (select(&[Tier::Admin, Tier::Baseline][..]), 0..2_u32).prop_map(|(tier, at)| Edit::Rank(tier, at)),
        2 => name(&["a", "b", "c"]).prop_map(Edit::Copy),
        1 => Just(Edit::Recreate),
        1 => Just(Edit::Drop),
    ]
}

fn pod_edit() -> impl Strategy<Value = PodEdit> {
    prop_oneof![
        2 => labels().prop_map(PodEdit::Relabel),
        2 => vec(address(), 0..3).prop_map(PodEdit::Readdress),
        2 => vec(container_port(), 0..3).prop_map(PodEdit::Expose),
        1 => prop::option::of(name(&["n1", "n2"])).prop_map(PodEdit::Move),
        1 => vec(address(), 0..2).prop_map(PodEdit::Rehost),
        1 => Just(PodEdit::Finish),
        1 => Just(PodEdit::Unnet),
        2 => Just(PodEdit::Recreate),
        1 => pod().prop_map(|pod| PodEdit::HandOver(Box::new(pod))),
    ]
}

/// Rules about some addresses and ports by number more often than not, as rule_sets follow only from such to such.
fn edit_rules() -> impl Strategy<Value = (NetworkPolicyRule, ClusterRule)> {
    (rule(), cluster_rule(), vec(peer(), 1..3), scope(), any::<bool>()).prop_map(
        |(mut rule, mut cluster, peers, scope, is_static)| {
            if is_static {
                rule.peers = Peers::Any(peers);
                if let Ports::Any(ports) = &mut rule.ports {
                    ports.retain(|port| matches!(port, PortMatch::Range { .. }));
                }
                cluster.peers.retain(|peer| *peer != ClusterPeer::Everyone);
                cluster.peers.push(ClusterPeer::Pods(scope));
                cluster.ports.iter_mut().for_each(|ports| {
                    ports.retain(|port| matches!(port, ClusterPort::Range { .. }));
                });
            }
            (rule, cluster)
        },
    )
}

/// The edit as changes, if there is a policy.
fn edited(objects: &BTreeMap<ObjectName, Object>, which: u8, edit: Edit) -> Vec<Change> {
    let is_policy =
        |object: &&Object| matches!(object, Object::NetworkPolicy(_) | Object::ClusterNetworkPolicy(_));
    let policies: Vec<&Object> = objects.values().filter(is_policy).collect();
    let Some(&object) = policies.get(usize::from(which) % policies.len().max(1)) else { return Vec::new() };
    let removed = Change::Remove(ObjectName::of(object));
    match edit {
        Edit::Drop => return vec![removed],
        Edit::Recreate => return vec![removed, Change::Upsert(object.clone())],
        _ => {}
    }
    let mut object = object.clone();
    match &mut object {
        Object::NetworkPolicy(policy) => edit_network_policy(policy, edit),
        Object::ClusterNetworkPolicy(policy) => edit_cluster_policy(policy, edit),
        _ => unreachable!("only policies are edited"),
    }
    vec![Change::Upsert(object)]
}

/// The edit as changes, if there is a pod.
fn edited_pod(objects: &BTreeMap<ObjectName, Object>, which: u8, edit: PodEdit) -> Vec<Change> {
    let pods = objects.values().filter_map(|object| match object {
        Object::Pod(pod) => Some(pod),
        _ => None,
    });
    let pods: Vec<&Pod> = pods.collect();
    let Some(&pod) = pods.get(usize::from(which) % pods.len().max(1)) else { return Vec::new() };
    let mut pod = pod.clone();
    let mut changes = Vec::new();
    match edit {
        PodEdit::Relabel(labels) => pod.labels = labels,
        PodEdit::Readdress(addresses) => pod.addresses = addresses,
        PodEdit::Expose(ports) => pod.ports = ports,
        PodEdit::Move(node) => pod.node = node,
        PodEdit::Rehost(addresses) => pod.host_ips = addresses,
        PodEdit::Finish => pod.finished = !pod.finished,
        PodEdit::Unnet => pod.host_network = !pod.host_network,
        PodEdit::Recreate => {
            changes.push(Change::Remove(ObjectName::Pod(pod.name.clone())));
        }
        PodEdit::HandOver(carry_over) => {
            changes
                .push(Change::Upsert(Object::Pod(Pod { addresses: pod.addresses.clone(), ..*carry_over })));
            pod.finished = true;
        }
    }
    changes.push(Change::Upsert(Object::Pod(pod)));
    changes
}

fn edit_network_policy(policy: &mut NetworkPolicy, edit: Edit) {
    match edit {
        Edit::Insert(is_in, at, rule, _) => {
            insert(of(is_in, &mut policy.ingress, &mut policy.egress).get_or_insert_default(), at, rule);
        }
        Edit::Remove(is_in, at) => drop(
            of(is_in, &mut policy.ingress, &mut policy.egress).as_mut().and_then(|rules| remove(rules, at)),
        ),
        Edit::Replace(is_in, at, kept, rule, _) => {
            let rules = of(is_in, &mut policy.ingress, &mut policy.egress).iter_mut();
            rules.for_each(|rules| {
                replace(rules, at, kept, rule.clone(), |rule| (&mut rule.peers, &mut rule.ports));
            });
        }
        Edit::Reverse(is_in) => {
            of(is_in, &mut policy.ingress, &mut policy.egress).iter_mut().for_each(|rules| rules.reverse());
        }
        Edit::Forget(is_in) => *of(is_in, &mut policy.ingress, &mut policy.egress) = None,
        Edit::Reselect(selector, _) => policy.pod_selector = selector,
        Edit::Copy(name) => policy.name = name,
        Edit::Rank(..) | Edit::Recreate | Edit::Drop => {}
    }
}

fn edit_cluster_policy(policy: &mut ClusterNetworkPolicy, edit: Edit) {
    match edit {
        Edit::Insert(is_in, at, _, rule) => {
            insert(of(is_in, &mut policy.ingress, &mut policy.egress), at, rule);
        }
        Edit::Remove(is_in, at) => drop(remove(of(is_in, &mut policy.ingress, &mut policy.egress), at)),
        Edit::Replace(is_in, at, kept, _, rule) => {
            let rules = of(is_in, &mut policy.ingress, &mut policy.egress);
            replace(rules, at, kept, rule, |rule| (&mut rule.peers, &mut rule.ports));
        }
        Edit::Reverse(is_in) => of(is_in, &mut policy.ingress, &mut policy.egress).reverse(),
        Edit::Forget(is_in) => of(is_in, &mut policy.ingress, &mut policy.egress).clear(),
        Edit::Reselect(selector, true) => policy.subject.pods = selector,
        Edit::Reselect(selector, false) => policy.subject.namespaces = selector,
        Edit::Rank(tier, priority) => (policy.tier, policy.priority) = (tier, priority),
        Edit::Copy(name) => policy.name = name,
        Edit::Recreate | Edit::Drop => {}
    }
}

fn of<'a, T>(is_in: bool, ingress: &'a mut T, egress: &'a mut T) -> &'a mut T {
    if is_in { ingress } else { egress }
}

fn insert<T>(rules: &mut Vec<T>, at: u8, rule: T) {
    rules.insert(usize::from(at) % (rules.len() + 1), rule);
}

fn remove<T>(rules: &mut Vec<T>, at: u8) -> Option<T> {
    (!rules.is_empty()).then(|| rules.remove(usize::from(at) % rules.len()))
}

fn replace<T, Peers, Ports>(
    rules: &mut [T],
    at: u8,
    kept: Kept,
    mut rule: T,
    parts: impl Fn(&mut T) -> (&mut Peers, &mut Ports),
) {
    let len = rules.len().max(1);
    let Some(before) = rules.get_mut(usize::from(at) % len) else { return };
    match kept {
        Kept::Peers => std::mem::swap(parts(before).0, parts(&mut rule).0),
        Kept::Ports => std::mem::swap(parts(before).1, parts(&mut rule).1),
        Kept::Nothing => {}
    }
    *before = rule;
}

fn options() -> impl Strategy<Value = Options> {
    prop::option::of(Just("n1".to_owned())).prop_map(|node| Options { node })
}

fn apply_to(objects: &mut BTreeMap<ObjectName, Object>, change: &Change) {
    match change {
        Change::Upsert(object) => objects.insert(ObjectName::of(object), object.clone()),
        Change::Remove(name) => objects.remove(name),
    };
}

/// How much the compiler keeps of the objects: a number that history raises is of something that is never given back.
fn kept(compiler: &Compiler) -> [usize; 4] {
    let members = &compiler.members;
    [compiler.classes.len(), members.groups.len(), members.port_uses.len(), compiler.rule_sets.keys.len()]
}

/// Whether nothing is left, of objects that have all removed.
fn has_nothing(compiler: &Compiler) -> Result<(), TestCaseError> {
    prop_assert_eq!(compiler.tables(), &RuleTables::default());
    prop_assert_eq!(kept(compiler), kept(&Compiler::new(Options::default())));
    prop_assert!(compiler.store.is_empty());
    Ok(())
}

/// The tables without the numbers that their history gave them; nothing in them is there twice or for nobody.
fn content(tables: &RuleTables) -> String {
    let canonical = tables.canonical();
    assert_eq!(canonical.rules.len(), tables.rules.len());
    assert_eq!(canonical.rows.len(), tables.rows.len());
    assert_eq!(canonical.acls.len(), tables.acls.len());
    serde_json::to_string(&canonical).unwrap()
}

/// Whether the tables say of each pod what a naive reading of the objects says, and name the rule that it names.
fn tables_decide_as_the_reference_evaluator(
    tables: &RuleTables,
    objects: &BTreeMap<ObjectName, Object>,
) -> Result<(), TestCaseError> {
    let evaluator = ReferenceEvaluator::new(objects.values());
    let classifier = Classifier::new(tables).expect("the tables are whole");
    let v4 = (0..12_u8).map(|last| IpAddr::from([10, 0, 0, last]));
    let v6 = (0..6_u16).map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]));
    let outside = ["192.0.2.1", "203.0.113.9", "2001:db8::1"].map(|address| address.parse().unwrap());
    let peers: Vec<IpAddr> = v4.chain(v6).chain(outside).collect();
    let tcp = [52, 53, 80, 81, 443, 444].map(|port| (Protocol::TCP, port));
    let other = [(Protocol::UDP, 53), (Protocol::UDP, 80), (Protocol::SCTP, 81), (Protocol::ICMP, 0)];
    for (name, policy) in &tables.pods {
        let Some(Object::Pod(pod)) = objects.get(&ObjectName::Pod(name.clone())) else {
            return Err(TestCaseError::fail(format!("{name} is enforced and is not there")));
        };
        for (&peer, &(protocol, port)) in
            peers.iter().flat_map(|peer| tcp.iter().chain(&other).map(move |to| (peer, to)))
        {
            for (acl, direction) in [(policy.ingress, Direction::Ingress), (policy.egress, Direction::Egress)]
            {
                let decision = classifier.decide(acl, classifier.class(peer), protocol, port);
                let expected = evaluator.evaluate_direction(pod, direction, peer, protocol, port);
                let found = (decision.verdict(), &tables.rules[&decision.rule()]);
                // Of several who claim an address each has a rule that decides, and either may be named.
                let is_anybodys = evaluator.owners(peer).len() > 1;
                let named = if is_anybodys { found.1 } else { &expected.origin };
                prop_assert_eq!(
                    found,
                    (expected.verdict, named),
                    "{:?} of {} with {} {:?} {}",
                    direction,
                    name,
                    peer,
                    protocol,
                    port
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_history_comes_to_what_a_compile_from_scratch_comes_to(
        options in options(),
        start in vec(object(), 0..40),
        history in vec((vec(change(), 0..3), vec((any::<u8>(), edit()), 0..4), vec((any::<u8>(), pod_edit()), 0..3)), 1..30),
    ) {
        let mut objects: BTreeMap<_, _> =
            start.into_iter().map(|object| (ObjectName::of(&object), object)).collect();
        let mut compiler = Compiler::from_objects(objects.values().cloned(), options.clone());
        let mut carried_over = compiler.tables().clone();
        for (mut changes, edits, pod_edits) in history {
            for change in &changes {
                apply_to(&mut objects, change);
            }
            let mut more = |made: Vec<Change>, objects: &mut BTreeMap<_, _>| {
                made.iter().for_each(|change| apply_to(objects, change));
                changes.extend(made);
            };
            for (which, edit) in edits {
                more(edited(&objects, which, edit), &mut objects);
            }
            for (which, edit) in pod_edits {
                more(edited_pod(&objects, which, edit), &mut objects);
            }
            let before = carried_over.clone();
            let difference = compiler.apply_all(changes);
            carried_over.apply(&difference);
            prop_assert_eq!(&carried_over, compiler.tables());
            prop_assert_eq!(&difference, &before.difference(&carried_over), "no more than what changed");
            prop_assert_eq!(carried_over.check(), Ok(()));
            let scratch = Compiler::from_objects(objects.values().cloned(), options.clone());
            prop_assert_eq!(content(&carried_over), content(scratch.tables()));
            prop_assert_eq!(kept(&compiler), kept(&scratch), "classes, groups, ports by name, rule sets");
        }
        tables_decide_as_the_reference_evaluator(&carried_over, &objects)?;
        compiler.apply_all(objects.into_keys().map(Change::Remove));
        has_nothing(&compiler)?;
    }

    #[test]
    fn the_order_of_objects_changes_nothing(
        options in options(),
        objects in vec(object(), 0..40),
        keys in vec(any::<u32>(), 40),
    ) {
        let objects: BTreeMap<_, _> =
            objects.into_iter().map(|object| (ObjectName::of(&object), object)).collect();
        let mut shuffled: Vec<_> = objects.values().cloned().zip(keys).collect();
        shuffled.sort_by_key(|(_, key)| *key);
        let a = Compiler::from_objects(objects.into_values(), options.clone());
        let b = Compiler::from_objects(shuffled.into_iter().map(|(object, _)| object), options);
        prop_assert_eq!(
            serde_json::to_string(a.tables()).unwrap(),
            serde_json::to_string(b.tables()).unwrap()
        );
    }

    #[test]
    fn a_full_compile_leaves_no_gaps(options in options(), objects in vec(object(), 0..40)) {
        let compiler = Compiler::from_objects(objects, options);
        let tables = compiler.tables();
        prop_assert!(tables.rules.keys().map(|id| id.index()).eq(0..tables.rules.len()));
        prop_assert!(tables.rows.keys().map(|id| id.index()).eq(0..tables.rows.len()));
        prop_assert!(tables.acls.keys().map(|id| id.index()).eq(0..tables.acls.len()));
        let classes: BTreeSet<usize> = tables.prefixes.values().map(|class| class.index()).collect();
        prop_assert!(classes.into_iter().filter(|&class| class > 0).eq(1..compiler.classes.len()));
    }

    #[test]
    fn what_everybody_left_is_given_back(options in options(), objects in vec(object(), 0..40)) {
        let names: BTreeSet<ObjectName> = objects.iter().map(ObjectName::of).collect();
        let mut compiler = Compiler::new(options);
        for object in objects {
            compiler.apply(Change::Upsert(object));
        }
        for name in names {
            compiler.apply(Change::Remove(name));
        }
        has_nothing(&compiler)?;
    }
}
