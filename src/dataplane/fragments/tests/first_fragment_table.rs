//! The shared table of verdicts on first fragments.

use crate::dataplane::DropReason;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fragments::first_fragment_table::FirstFragmentTable;
use crate::dataplane::fragments::first_verdict::{FirstRecord, FirstVerdict};
use crate::dataplane::fragments::parts::PROBES;
use crate::limits::FRAGMENT_TIMEOUT_MS;

fn key(n: u64) -> Key {
    Key::new(1, 2, n)
}

const RECORD: FirstRecord =
    FirstRecord { first: FirstVerdict::Denied(DropReason::PolicyIngress), end_unit: 185 };

#[test]
fn a_published_record_is_found_until_it_is_removed_or_old() {
    let shared = FirstFragmentTable::new(2);
    shared.publish(&key(7), 7, &RECORD, 1000);
    assert_eq!(shared.find(&key(7), 7, 1000), Some(RECORD));
    assert_eq!(shared.find(&key(7), 7, 990), Some(RECORD), "a clock read a little earlier");
    assert_eq!(shared.find(&key(8), 7, 1000), None);
    assert_eq!(shared.find(&key(7), 7, 1000 + FRAGMENT_TIMEOUT_MS), None);
    shared.remove(&key(7), 7, 1000);
    assert_eq!(shared.find(&key(7), 7, 1000), None);
}

#[test]
fn the_oldest_record_of_the_probed_slots_is_replaced() {
    let shared = FirstFragmentTable::new(2);
    for n in 0..=PROBES as u64 {
        shared.publish(&key(n + 1), 3, &RECORD, 1000 + n as u32);
    }
    assert_eq!(shared.find(&key(1), 3, 1010), None);
    assert!((2..=PROBES as u64 + 1).all(|n| shared.find(&key(n), 3, 1010) == Some(RECORD)));
}

#[test]
fn a_single_worker_publishes_nothing() {
    let shared = FirstFragmentTable::new(1);
    shared.publish(&key(1), 1, &RECORD, 0);
    assert_eq!(shared.find(&key(1), 1, 0), None);
}

#[test]
fn readers_never_see_half_of_a_record() {
    let shared = FirstFragmentTable::new(2);
    let record =
        |end_unit: usize| FirstRecord { first: FirstVerdict::Denied(DropReason::PolicyEgress), end_unit };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..20_000_u64 {
                shared.publish(&key(n), 5, &record((n % 8000) as usize), n as u32);
            }
        });
        while shared.version() < 10_000 {
            let newest = u64::from(shared.version());
            for n in newest..newest + PROBES as u64 {
                if let Some(found) = shared.find(&key(n), 5, n as u32) {
                    assert_eq!(found.end_unit, (n % 8000) as usize);
                }
            }
        }
    });
}
