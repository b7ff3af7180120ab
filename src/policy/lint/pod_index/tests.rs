use proptest::prelude::*;

use super::*;
use crate::policy::lint::policy_index::PolicyIndex;
use crate::policy::lint::subsumption;
use crate::policy::objects::{AssignedMetadata, Namespace, NetworkPolicy, Object, Requirement};
use crate::tables::PodName;

const KEYS: [&str; 2] = ["app", "tier"];
const VALUES: [&str; 3] = ["a", "b", "c"];

fn labels() -> impl Strategy<Value = Labels> {
    prop::collection::btree_map(prop::sample::select(&KEYS[..]), prop::sample::select(&VALUES[..]), 0..3)
        .prop_map(|labels| {
            labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        })
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = prop::collection::btree_set(prop::sample::select(&VALUES[..]), 1..3);
    (0..4, prop::sample::select(&KEYS[..]), values).prop_map(|(operator, key, values)| {
        let key = key.to_owned();
        let values = values.into_iter().map(str::to_owned).collect();
        match operator {
            0 => Requirement::In { key, values },
            1 => Requirement::NotIn { key, values },
            2 => Requirement::Exists { key },
            _ => Requirement::DoesNotExist { key },
        }
    })
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    prop::collection::btree_set(requirement(), 0..3)
        .prop_map(|requirements| LabelSelector { requirements: requirements.into_iter().collect() })
}

fn namespace() -> impl Strategy<Value = String> {
    (0..3_u8).prop_map(|number| format!("namespace-{number}"))
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    #[test]
    fn all_pods_that_a_selector_selects_are_among_those_that_it_can_select(
        pods in prop::collection::vec((namespace(), labels()), 0..12),
        of_namespaces in prop::collection::vec(labels(), 2),
        own in namespace(), pods_selected in selector(), namespaces in selector(),
    ) {
        let name = |(index, (namespace, labels)): (usize, (String, Labels))| {
            Pod::new(PodName::new(namespace, format!("pod-{index}")), labels)
        };
        let pods: Vec<Pod> = pods.into_iter().enumerate().map(name).collect();
        // One namespace has no object, and its name is its only label.
        let objects: Vec<Object> = of_namespaces.into_iter().enumerate().map(|(index, labels)| {
            Object::Namespace(Namespace { name: format!("namespace-{index}"), labels })
        }).collect();
        let evaluator = ReferenceEvaluator::new(&objects);
        let index = PodIndex::new(pods.iter().collect(), &evaluator);
        let is_own = |pod: &&Pod| pod.name.namespace == own && pods_selected.matches(&pod.labels);
        let scope = PodScope { namespaces, pods: pods_selected.clone() };
        let is_in_scope = |pod: &&Pod| evaluator.scope_selects(&scope, pod);
        let selected: Vec<&Pod> = pods.iter().filter(is_own).collect();
        let mut found: Vec<&Pod> = index.of_namespace(&own, &pods_selected).filter(is_own).collect();
        found.sort_by_key(|pod| pods.iter().position(|other| other.name == pod.name));
        prop_assert_eq!(found, selected);
        let selected: Vec<&Pod> = pods.iter().filter(is_in_scope).collect();
        let mut found: Vec<&Pod> = index.of_scope(&scope).filter(is_in_scope).collect();
        found.sort_by_key(|pod| pods.iter().position(|other| other.name == pod.name));
        prop_assert_eq!(found, selected);
    }

    #[test]
    fn all_policies_whose_selector_holds_that_of_a_policy_may_cover_it(
        policies in prop::collection::vec((namespace(), selector()), 1..12),
    ) {
        let policies: Vec<NetworkPolicy> = policies.into_iter().map(|(namespace, pod_selector)| NetworkPolicy {
            namespace,
            name: String::new(),
            pod_selector,
            ingress: None,
            egress: None,
            ignored: Vec::new(),
            audited: false,
            assigned: AssignedMetadata::default(),
        }).collect();
        let all: Vec<&NetworkPolicy> = policies.iter().collect();
        let index = PolicyIndex::new(&all);
        for inner in &policies {
            let holds = |number: &usize| {
                let outer = &policies[*number];
                inner.namespace == outer.namespace
                    && subsumption::selector(&inner.pod_selector, &outer.pod_selector)
            };
            let found: Vec<usize> = index.may_cover(inner).into_iter().filter(holds).collect();
            let holding: Vec<usize> = (0..policies.len()).filter(holds).collect();
            prop_assert_eq!(found, holding);
        }
    }
}
