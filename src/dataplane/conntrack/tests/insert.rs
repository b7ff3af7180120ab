//! Insertion and lookup.

use super::*;

#[test]
fn an_inserted_flow_is_found_until_it_is_removed() {
    let mut fixture = Fixture::new(&settings(1024, 100), 1);
    let InsertOutcome::Inserted(slot) = fixture.insert(&key(1), &flow(0, FlowState::UdpOneWay), 0) else {
        panic!()
    };
    assert_eq!(fixture.find(&key(1)), Some(slot));
    assert_eq!(fixture.find(&key(2)), None);
    assert_eq!(fixture.table.entry(slot).sender(true), Side::Initiator);
    assert_eq!(fixture.table.entry(slot).sender(false), Side::Responder);
    fixture.table.remove(slot, None, &mut fixture.workers[0]);
    assert_eq!((fixture.find(&key(1)), fixture.table.len()), (None, 0));
    assert_eq!((fixture.workers[0].inserted, fixture.workers[0].ended), (1, 1));
    fixture.table.remove(slot, None, &mut fixture.workers[0]);
    assert_eq!(fixture.workers[0].ended, 1, "an ended flow does not end again");
}

#[test]
fn a_full_table_finds_every_flow_in_its_first_or_second_bucket() {
    for flows_max in [32, 64, 1024] {
        let mut fixture = Fixture::new(&settings(flows_max, 100), 1);
        let keys = fixture.fill(flows_max, FlowState::UdpOneWay);
        assert!(keys.len() > flows_max * 3 / 4, "{} of {flows_max}", keys.len());
        let slots: HashSet<u32> = keys.iter().map(|key| fixture.find(key).unwrap().0).collect();
        assert_eq!(slots.len(), keys.len());
        for key in &keys {
            let slot = fixture.find(key).unwrap();
            fixture.table.remove(slot, None, &mut fixture.workers[0]);
        }
        assert_eq!(fixture.table.len(), 0);
        assert!(
            (0..flows_max / BUCKET_SLOTS).all(|bucket| !fixture.table.has_overflow(bucket)),
            "removals count the overflow down"
        );
    }
}

#[test]
fn workers_that_insert_the_same_flows_at_once_leave_one_of_each() {
    const WORKERS: usize = 3;
    let table = Conntrack::new(&settings(1 << 14, 100), false).unwrap();
    let slots: Vec<Vec<Slot>> = std::thread::scope(|scope| {
        let worker = |worker: usize| {
            let table = &table;
            scope.spawn(move || {
                let mut worker_state = WorkerState::new(WorkerId(worker as u16), WORKERS);
                let mut slots = Vec::new();
                for port in 0..2000 {
                    table.start_batch(&mut worker_state);
                    let key = key(port);
                    let hash = table.hash(&key);
                    let outcome = table.look_up(&key, hash).map_or_else(
                        || table.insert(&key, hash, &flow(0, FlowState::Established), 0, &mut worker_state),
                        InsertOutcome::Exists,
                    );
                    match outcome {
                        InsertOutcome::Inserted(slot) | InsertOutcome::Exists(slot) => slots.push(slot),
                        other @ InsertOutcome::Full => panic!("{other:?}"),
                    }
                }
                table.offline(&worker_state);
                slots
            })
        };
        let threads: Vec<_> = (0..WORKERS).map(worker).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(slots.len(), WORKERS);
    assert_eq!(table.len(), 2000);
    assert_eq!(table.flows_of(PortId(0), QuotaClass::Unassured), 2000);
    assert!((0..2000).all(|port| table.look_up(&key(port), table.hash(&key(port))).is_some()));
}
