use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::tables::Acl;
use crate::tables::tests::arbitrary;

/// Naive counterpart: reads the document entry by entry.
fn naive_class(tables: &RuleTables, address: IpAddr) -> ClassId {
    let covering = tables.prefixes.iter().filter(|(prefix, _)| prefix.contains(&address));
    covering.max_by_key(|(prefix, _)| prefix.prefix_len()).map_or(ClassId::WORLD, |(_, &class)| class)
}

fn naive_decision(tables: &RuleTables, flow: &FlowKey) -> FlowDecision {
    let pods = |address| -> Vec<_> {
        tables.pods.iter().filter(|(_, pod)| pod.addresses.contains(&address)).collect()
    };
    let decide = |acl: AclId, peer| {
        let row = tables.acls[&acl].row(naive_class(tables, peer));
        tables.rows[&row].decide(flow.protocol, flow.dst_port)
    };
    let (sources, destinations) = (pods(flow.src), pods(flow.dst));
    let is_one = sources.len() == 1 && sources == destinations;
    if is_one || flow.src == flow.dst && !sources.is_empty() {
        return FlowDecision { egress: None, ingress: None };
    }
    let strictest = |decisions: Vec<Decision>| {
        let denying = decisions.iter().find(|decision| !decision.is_allow());
        denying.or(decisions.first()).copied()
    };
    FlowDecision {
        egress: strictest(sources.iter().map(|(_, pod)| decide(pod.egress, flow.dst)).collect()),
        ingress: strictest(destinations.iter().map(|(_, pod)| decide(pod.ingress, flow.src)).collect()),
    }
}

fn agree(classifier: &Classifier, tables: &RuleTables, flows: &[FlowKey]) {
    for flow in flows {
        assert_eq!(classifier.class(flow.src), naive_class(tables, flow.src), "{flow} in {tables:?}");
        assert_eq!(classifier.decide_flow(flow), naive_decision(tables, flow), "{flow} in {tables:?}");
    }
    let acls = (0..5).map(AclId);
    let queries: Vec<(AclId, &FlowKey)> =
        acls.flat_map(|acl| flows.iter().map(move |flow| (acl, flow))).collect();
    let pending: Vec<AclId> = queries.iter().map(|&(acl, _)| acl).collect();
    let classes: Vec<u32> = queries.iter().map(|(_, flow)| naive_class(tables, flow.dst).0).collect();
    let services: Vec<Service> =
        queries.iter().map(|(_, flow)| Service::new(flow.protocol, flow.dst_port)).collect();
    let mut decisions = vec![Decision::allow(crate::ids::RuleId(0)); queries.len()];
    classifier.decide_batch(&pending, &classes, &services, &mut decisions);
    for (((acl, flow), class), decision) in queries.into_iter().zip(classes).zip(decisions) {
        let (class, protocol, dst_port) = (ClassId(class), flow.protocol, flow.dst_port);
        assert_eq!(decision, classifier.decide(acl, class, protocol, dst_port));
        let row = tables.acls.get(&acl).map(|acl| &tables.rows[&acl.row(class)]);
        let closed = Decision::deny(crate::ids::RuleId(0));
        assert_eq!(decision, row.map_or(closed, |row| row.decide(protocol, dst_port)));
    }
}

proptest! {
    #![proptest_config(crate::random::cases(30))]

    #[test]
    fn decides_what_the_document_says(
        tables in arbitrary::rule_tables(),
        flows in vec(arbitrary::flow(), 80),
    ) {
        agree(&Classifier::new(&tables).unwrap(), &tables, &flows);
    }

    #[test]
    fn updates_make_what_a_compile_makes_and_leave_the_last_alone(
        history in vec(arbitrary::rule_tables(), 2..4),
        flows in vec(arbitrary::flow(), 30),
    ) {
        let mut classifier = Classifier::new(&history[0]).unwrap();
        for pair in history.windows(2) {
            let updated = classifier.update(&pair[0].difference(&pair[1]), &pair[1]);
            agree(&updated, &pair[1], &flows);
            agree(&classifier, &pair[0], &flows);
            classifier = updated;
        }
    }
}

/// Tables with another id for a row.
fn renamed(tables: &RuleTables, from: RowId, to: RowId) -> RuleTables {
    let name = |row: RowId| if row == from { to } else { row };
    let mut tables = tables.clone();
    tables.rows = tables.rows.iter().map(|(&id, row)| (name(id), row.clone())).collect();
    let acl = |acl: &Acl| Acl {
        rows: acl.rows.iter().map(|(&class, &row)| (class, name(row))).collect(),
        default: name(acl.default),
    };
    tables.acls = tables.acls.iter().map(|(&id, of)| (id, acl(of))).collect();
    tables
}

proptest! {
    #![proptest_config(crate::random::cases(30))]

    #[test]
    fn changed_rows_reach_tables_that_inline_them(
        tables in arbitrary::rule_tables(),
        rows in vec(arbitrary::row(12), 8),
        flows in vec(arbitrary::flow(), 20),
    ) {
        let mut others = tables.clone();
        others.rows = tables.rows.keys().copied().zip(rows).collect();
        // All rows change at once; one moves to an unused id, and later another one to its former id.
        let history = [others.clone(), renamed(&others, RowId(0), RowId(1000)), others, tables.clone()];
        let (mut before, mut classifier) = (tables.clone(), Classifier::new(&tables).unwrap());
        for next in history {
            classifier = classifier.update(&before.difference(&next), &next);
            agree(&classifier, &next, &flows);
            before = next;
        }
    }
}

#[test]
fn a_pod_reaches_itself_whatever_its_tables_say() {
    let tables: RuleTables = serde_json::from_value(serde_json::json!({
        "format": 1,
        "rules": {"0": {"why": "not-isolated", "direction": "ingress"}},
        "prefixes": {},
        "rows": {"0": {"other": {"verdict": "deny", "rule": 0}}},
        "acls": {"0": {"default": 0}},
        "pods": {"default/a": {"addresses": ["10.0.0.1", "10.0.0.2"], "ingress": 0, "egress": 0}},
    }))
    .unwrap();
    let classifier = Classifier::new(&tables).unwrap();
    let flow = |src: &str, dst: &str| FlowKey {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        protocol: Protocol::TCP,
        src_port: 1024,
        dst_port: 80,
    };
    let hairpin = classifier.decide_flow(&flow("10.0.0.1", "10.0.0.2"));
    assert_eq!(hairpin, FlowDecision { egress: None, ingress: None });
    assert!(hairpin.is_allow());
    assert!(!classifier.decide_flow(&flow("10.0.0.1", "192.0.2.1")).is_allow());
    assert!(!classifier.decide_flow(&flow("192.0.2.1", "10.0.0.1")).is_allow());
    assert!(
        classifier.decide_flow(&flow("192.0.2.1", "192.0.2.2")).is_allow(),
        "no pod of the tables is at an end"
    );
}
