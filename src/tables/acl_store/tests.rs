use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::ids::RuleId;
use crate::net::flow::Protocol;
use crate::tables::row_store::is_block;
use crate::tables::{Decision, PortSpan, Row};

/// Rows of every form; some differ from the first in a few services only.
fn rows() -> Vec<Row> {
    let [closed, open, of_port] =
        [Decision::deny(RuleId(0)), Decision::allow(RuleId(1)), Decision::allow(RuleId(2))];
    let span = |first, last| vec![PortSpan { first, last, decision: of_port }];
    let none = Row::uniform(closed);
    vec![
        none.clone(),
        Row::uniform(open),
        Row { tcp: span(80, 80), ..none.clone() },
        Row { udp: span(53, 60), ..none.clone() },
        Row { tcp: span(0, 0), ..none.clone() },
        Row { sctp: span(0, 65_535), ..none.clone() },
        // One interval of services.
        Row { tcp: span(65_535, 65_535), udp: span(0, 0), ..none.clone() },
        Row { tcp: span(80, 80), udp: span(53, 53), ..none },
        Row { tcp: span(80, 80), ..Row::uniform(open) },
    ]
}

fn row_store() -> RowStore {
    let mut store = RowStore::default();
    (0..).zip(rows()).for_each(|(id, row)| store.set(RowId(id), Some(&row)));
    store
}

fn row_id() -> impl Strategy<Value = RowId> {
    (0..rows().len() as u32).prop_map(RowId)
}

/// Generates consecutive classes, and classes whose hashes share leading bits.
fn class() -> impl Strategy<Value = ClassId> {
    let alike = (0..40_u32).prop_map(|i| (i << 12).wrapping_mul(0x0e8b_c451) & 0xf_ffff);
    prop_oneof![0..20_u32, 60..70_u32, 4090..4100_u32, 0..20_000_u32, alike].prop_map(ClassId)
}

fn acl() -> impl Strategy<Value = Acl> {
    (btree_map(class(), row_id(), 0..80), row_id())
        .prop_map(|(rows, default)| Acl { rows: rows.into(), default })
}

#[derive(Debug, Clone)]
enum Change {
    Table(Option<Acl>),
    Rows(BTreeMap<ClassId, Option<RowId>>),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        prop::option::of(acl()).prop_map(Change::Table),
        btree_map(class(), prop::option::of(row_id()), 1..60).prop_map(Change::Rows),
    ]
}

fn change_rows(acl: &mut Acl, changes: &BTreeMap<ClassId, Option<RowId>>) {
    for (&class, &row) in changes {
        match row {
            Some(row) => acl.rows.insert(class, row),
            None => acl.rows.remove(&class),
        };
    }
}

proptest! {
    #![proptest_config(crate::random::cases(60))]

    #[test]
    fn decides_what_the_rows_of_the_tables_decide_and_leaves_clones_alone(
        changes in vec((0..6_u32, change()), 1..20),
        classes in vec(0..30_000_u32, 30),
        ports in vec(prop_oneof![Just(0), Just(53), Just(61), Just(79), Just(80), Just(65_535), any::<u16>()], 3),
    ) {
        let (rows, compiled) = (rows(), row_store());
        let (mut store, mut naive) = (AclStore::default(), BTreeMap::<AclId, Option<Acl>>::new());
        let services: Vec<(Protocol, u16)> = [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP]
            .into_iter()
            .flat_map(|protocol| ports.iter().map(move |&port| (protocol, port)))
            .collect();
        let agree = |store: &AclStore, naive: &BTreeMap<AclId, Option<Acl>>| {
            let named = naive.values().flatten().flat_map(|acl| acl.rows.keys().copied());
            let classes: Vec<ClassId> = named.chain(classes.iter().copied().map(ClassId)).collect();
            for (id, class) in (0..8).flat_map(|id| classes.iter().map(move |&class| (AclId(id), class))) {
                let row = naive.get(&id).and_then(Option::as_ref).map(|acl| &rows[acl.row(class).index()]);
                for &(protocol, port) in &services {
                    let service = Service::new(protocol, port);
                    let slot = store.slot(id, class, service);
                    let expected = row.map_or(Decision::deny(RuleId(0)), |row| row.decide(protocol, port));
                    prop_assert_eq!(compiled.decide(slot, service), expected);
                }
            }
            Ok(())
        };
        let mut earlier = None;
        for (id, change) in changes {
            let id = AclId(id);
            match change {
                Change::Table(acl) => {
                    store.set(id, acl.as_ref(), &compiled);
                    naive.insert(id, acl);
                }
                Change::Rows(changes) => {
                    let Some(Some(acl)) = naive.get_mut(&id) else { continue };
                    change_rows(acl, &changes);
                    store.set_rows(id, &changes, acl, &compiled);
                }
            }
            earlier.get_or_insert_with(|| (store.clone(), naive.clone()));
        }
        agree(&store, &naive)?;
        let (store, naive) = earlier.unwrap_or_default();
        agree(&store, &naive)?;
    }
}

#[test]
fn a_short_row_is_not_looked_at() {
    let (mut store, rows) = (AclStore::default(), row_store());
    let named = (0..9).map(|i| (ClassId(i), RowId(i))).collect();
    store.set(AclId(0), Some(&Acl { rows: named, default: RowId(0) }), &rows);
    let asks_row = |class| {
        let service = Service::new(Protocol::TCP, 80);
        is_block(store.slot(AclId(0), ClassId(class), service))
    };
    // Only the long row, and the row whose other services differ from the default, are looked up.
    let asked: Vec<u32> = (0..10).filter(|&class| asks_row(class)).collect();
    assert_eq!(asked, [7, 8]);
}

#[test]
fn tables_that_say_little_take_little() {
    let (mut store, row_store) = (AclStore::default(), row_store());
    for id in 0..500 {
        let rows = [(ClassId(19_999), RowId(1))].into();
        store.set(AclId(id), Some(&Acl { rows, default: RowId(0) }), &row_store);
    }
    let bytes = store.headers.bytes() + store.buckets.bytes();
    assert!(bytes < 64 << 10, "{bytes} bytes");
}

#[test]
fn memory_of_classes_that_come_and_go_is_used_again() {
    let (mut store, rows) = (AclStore::default(), row_store());
    let acl = |named: u32| Acl {
        rows: (0..named).map(|i| (ClassId(3 * i), RowId(1))).collect(),
        default: RowId(0),
    };
    let mut first = acl(50_000);
    store.set(AclId(0), Some(&first), &rows);
    let bytes = store.buckets.bytes();
    for _ in 0..3 {
        for row in [None, Some(RowId(2))] {
            let changes = (0..49_000).map(|i| (ClassId(3 * i), row)).collect();
            change_rows(&mut first, &changes);
            store.set_rows(AclId(0), &changes, &first, &rows);
            store.set(AclId(1), row.is_none().then(|| acl(2_000)).as_ref(), &rows);
        }
    }
    assert!(store.buckets.bytes() <= 2 * bytes, "{bytes} bytes grew to {}", store.buckets.bytes());
}
