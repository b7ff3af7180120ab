//! The table against a hash map.

use super::*;

/// An operation on a table.
#[derive(Debug, Clone, Copy)]
enum Step {
    Insert { port: u32, state: u8 },
    Remove { port: u32 },
    Touch { port: u32 },
    Wait { ms: u32 },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0..150u32;
    prop_oneof![
        4 => (port.clone(), 0..FlowState::ALL.len() as u8).prop_map(|(port, state)| Step::Insert { port, state }),
        2 => port.clone().prop_map(|port| Step::Remove { port }),
        2 => port.prop_map(|port| Step::Touch { port }),
        1 => (0..40_000u32).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Sweep),
    ]
}

proptest! {

    #![proptest_config(crate::random::cases(100))]

    /// The model is a hash map of each flow's state and the time of its last packet.
    #[test]
    fn the_table_is_a_map(steps in prop::collection::vec(step(), 0..400), workers in 1..4usize) {
        let mut fixture = Fixture::new(&settings(1024, 100), workers);
        let mut model: HashMap<u32, (FlowState, u32)> = HashMap::new();
        let timeouts = timeouts_ms(&Timeouts::default());
        let mut now_ms = u32::MAX - 100_000;
        for step in steps {
            fixture.start_batches();
            match step {
                Step::Insert { port, state } if !model.contains_key(&port) => {
                    let state = FlowState::from_number(state);
                    let outcome = fixture.insert(&key(port), &flow(3, state), now_ms);
                    prop_assert!(matches!(outcome, InsertOutcome::Inserted(_)), "{outcome:?}");
                    model.insert(port, (state, now_ms));
                }
                Step::Insert { .. } => {}
                Step::Remove { port } => {
                    let found = fixture.find(&key(port));
                    prop_assert_eq!(found.is_some(), model.remove(&port).is_some());
                    found.into_iter().for_each(|slot| fixture.table.remove(slot, None, &mut fixture.workers[0]));
                }
                Step::Touch { port } => {
                    let found = fixture.find(&key(port));
                    prop_assert_eq!(found.is_some(), model.contains_key(&port));
                    found.into_iter().for_each(|slot| fixture.table.entry(slot).count(false, 1, now_ms));
                    model.entry(port).and_modify(|(_, last_seen_ms)| *last_seen_ms = now_ms);
                }
                Step::Wait { ms } => now_ms = now_ms.wrapping_add(ms),
                Step::Sweep => {
                    let buckets = fixture.table.buckets_per_worker(&fixture.workers[0]);
                    for worker_state in &mut fixture.workers {
                        fixture.table.sweep(buckets, now_ms, worker_state, |_| false);
                    }
                    model.retain(|_, (state, last_seen_ms)| {
                        now_ms.wrapping_sub(*last_seen_ms) <= timeouts[*state as usize]
                    });
                }
            }
            prop_assert_eq!(fixture.table.len(), model.len());
            for class in [QuotaClass::Assured, QuotaClass::Unassured, QuotaClass::Ended] {
                let flows = model.values().filter(|(state, _)| state.class() == class).count();
                prop_assert_eq!(fixture.table.flows_of(PortId(3), class) as usize, flows, "{:?}", class);
            }
        }
        for port in 0..150 {
            let state = fixture.find(&key(port)).map(|slot| fixture.table.entry(slot).state());
            prop_assert_eq!(state, model.get(&port).map(|(state, _)| *state));
        }
    }
}
