//! Incremental property tests: after any sequence of changes the tables equal those of a compile from
//! scratch.
//!
//! The cluster is small, so that objects interact: three namespaces, two nodes, pods with shared addresses,
//! blocks that contain pods, port names with several numbers. `PROPTEST_CASES` sets the number of sequences.
//! A failure prints its seed and the shortest sequence.

mod arbitrary;
mod edits;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Compiler, Options};
use crate::net::flow::Protocol;
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::Object;
use crate::policy::store::{Change, ObjectName};
use crate::tables::{Classifier, Direction, RuleTables};
use arbitrary::{change, object};
use edits::{edit, edited, edited_pod, pod_edit};

fn cases(number: u32) -> ProptestConfig {
    ProptestConfig { max_shrink_iters: 20_000, ..crate::random::cases(number) }
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

/// Sizes of the internal tables. A size that depends on the sequence of changes indicates a leak.
fn kept(compiler: &Compiler) -> [usize; 4] {
    let members = &compiler.members;
    [compiler.classes.len(), members.groups.len(), members.port_uses.len(), compiler.rule_sets.keys.len()]
}

/// Asserts that nothing is left after all objects are removed.
fn has_nothing(compiler: &Compiler) -> Result<(), TestCaseError> {
    prop_assert_eq!(compiler.tables(), &RuleTables::default());
    prop_assert_eq!(kept(compiler), kept(&Compiler::new(Options::default())));
    prop_assert!(compiler.store.is_empty());
    Ok(())
}

/// Canonical content of the tables. Asserts that they have no duplicate and no unused entry.
fn content(tables: &RuleTables) -> String {
    let canonical = tables.canonical();
    assert_eq!(canonical.rules.len(), tables.rules.len());
    assert_eq!(canonical.rows.len(), tables.rows.len());
    assert_eq!(canonical.acls.len(), tables.acls.len());
    serde_json::to_string(&canonical).unwrap()
}

/// Asserts that the tables decide for each pod like the reference evaluator, and name the same rule.
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
                // Each of several owners of an address has a rule that decides; the tables may name any of
                // them.
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
    #![proptest_config(cases(40))]

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
}

proptest! {
    #![proptest_config(cases(200))]

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
