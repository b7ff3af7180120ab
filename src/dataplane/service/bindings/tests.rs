use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::dataplane::conntrack::Key;
use crate::dataplane::service::SourceChoice;
use crate::mem::SequenceLock;
use crate::net::address::{Address, from_v4};

/// Key of a client's port and a virtual address, over IPv4 or IPv6, in set `set`.
fn key(kind: BindingKind, number: u64, set: u64) -> BindingKey {
    let address =
        |host: u32| if number.is_multiple_of(2) { from_v4(host) } else { 0xfd << 120 | u128::from(host) };
    let word = number << 16 | 0x50 | 6 << 32;
    BindingKey {
        kind,
        key: Key::new(address(1), address(2), word & 0xff_ffff_ffff),
        from_low: number.is_multiple_of(3),
        hash: set << 40 | number,
    }
}

const OWNER: PortId = PortId(3);

/// Binds a key for a flow whose set has room.
fn bind(bindings: &Bindings, key: &BindingKey, (address, port): (Address, u16), now_ms: u32, revision: u16) {
    let to = BindingEnd::new(address, port);
    assert!(bindings.bind(key, to, OWNER, now_ms, revision, |_| QuotaClass::Unassured));
}

#[test]
fn a_binding_is_found_by_its_kind_and_direction_until_it_is_removed() {
    let bindings = Bindings::new(1, false).unwrap();
    for number in 0..4 {
        let forward = key(BindingKind::Forward, number, number);
        bind(&bindings, &forward, (7, 8080), 5000, 9);
        let found = bindings.find(&forward).unwrap();
        assert_eq!(
            (found.to.address, found.to.port, found.is_of(9, 5000), found.is_of(8, 5000)),
            (7, 8080, true, false)
        );
        assert_eq!(bindings.find(&BindingKey { kind: BindingKind::Hairpin, ..forward }), None);
        assert_eq!(bindings.find(&BindingKey { from_low: !forward.from_low, ..forward }), None);
        bind(&bindings, &forward, (u128::MAX, 1), 5000, 9);
        assert_eq!(
            bindings.find(&forward).map(|found| (found.to.address, found.to.port)),
            Some((u128::MAX, 1))
        );
        bindings.remove(&forward);
        assert_eq!(bindings.find(&forward), None);
    }
}

#[test]
fn keys_of_other_addresses_with_the_same_hash_and_ports_have_their_own_bindings() {
    for is_v4 in [true, false] {
        let bindings = Bindings::new(1, false).unwrap();
        let address = |host: u32| if is_v4 { from_v4(host) } else { 0xfd << 120 | u128::from(host) };
        let keys = [1, 3, 5].map(|host| BindingKey {
            key: Key::new(address(host), address(host + 1), 0x50 | 17 << 32),
            ..key(BindingKind::Forward, 1, 1)
        });
        for (key, to) in keys.iter().zip(1..) {
            bind(&bindings, key, (to, 1), 0, 0);
        }
        assert_eq!(
            keys.map(|key| bindings.find(&key).map(|found| found.to.address)),
            [Some(1), Some(2), Some(3)]
        );
        bindings.remove(&keys[1]);
        assert_eq!(
            keys.map(|key| bindings.find(&key).map(|found| found.to.address)),
            [Some(1), None, Some(3)]
        );
    }
}

#[test]
fn a_refresh_keeps_time_and_revision() {
    let bindings = Bindings::new(1, false).unwrap();
    let key = key(BindingKind::Forward, 1, 1);
    bind(&bindings, &key, (7, 8080), 0, 1);
    let found = bindings.find(&key).unwrap();
    assert_eq!(found.idle_seconds(10_240), 10);
    bindings.refresh(&found, 10_240, 2);
    let found = bindings.find(&key).unwrap();
    assert_eq!((found.idle_seconds(10_240), found.is_of(2, 10_240)), (0, true));
    // The clock counts milliseconds in 32 bits.
    bindings.refresh(&found, u32::MAX, 2);
    assert_eq!(bindings.find(&key).unwrap().idle_seconds(1023), 1);
}

/// Binds keys of one set for a port, one second after the other. Returns the keys that have got a slot.
fn fill(
    bindings: &Bindings,
    numbers: std::ops::Range<u64>,
    owner: PortId,
    class_of: impl Fn(u64) -> QuotaClass,
) -> Vec<u64> {
    let has_slot = |number: &u64| {
        let key = key(BindingKind::Forward, *number, 1);
        bindings.bind(&key, BindingEnd::new((*number).into(), 1), owner, *number as u32 * 1024, 0, |held| {
            class_of(held.to.address as u64)
        })
    };
    numbers.filter(has_slot).collect()
}

fn found(bindings: &Bindings, numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.filter(|number| bindings.find(&key(BindingKind::Forward, *number, 1)).is_some()).collect()
}

#[test]
fn ports_without_end_take_no_slot_from_one_with_fewer_bindings() {
    let bindings = Bindings::new(1, false).unwrap();
    fill(&bindings, 0..2, PortId(1), |_| QuotaClass::Unassured);
    for round in 1..20 {
        let first = round * 100;
        fill(&bindings, first..first + 50, PortId(2), |_| QuotaClass::Unassured);
        fill(&bindings, first + 50..first + 100, PortId(4), |_| QuotaClass::Unassured);
    }
    assert_eq!(found(&bindings, 0..2), [0, 1]);
    assert_eq!(found(&bindings, 2..2000).len(), 2 * WAYS - 2);
}

#[test]
fn an_assured_flow_keeps_its_binding_even_from_its_own_port() {
    let bindings = Bindings::new(1, false).unwrap();
    let class = |number| if number < 4 { QuotaClass::Assured } else { QuotaClass::Unassured };
    fill(&bindings, 0..4, PortId(1), class);
    fill(&bindings, 100..200, PortId(1), class);
    fill(&bindings, 200..300, PortId(2), class);
    assert_eq!(found(&bindings, 0..100), [0, 1, 2, 3]);
    // Two sets of assured flows have no slot for another.
    let bindings = Bindings::new(1, false).unwrap();
    let all: Vec<u64> = (0..2 * WAYS as u64).collect();
    assert_eq!(fill(&bindings, 0..100, PortId(1), |_| QuotaClass::Assured), all);
    assert!(fill(&bindings, 100..110, PortId(2), |_| QuotaClass::Assured).is_empty());
    // Flows that have ended give theirs.
    let class = |number| if number == 5 { QuotaClass::Ended } else { QuotaClass::Assured };
    assert_eq!(fill(&bindings, 200..210, PortId(2), class), [200]);
    assert_eq!(found(&bindings, 0..100), all.into_iter().filter(|number| *number != 5).collect::<Vec<_>>());
}

/// Key with a hash that spreads over the sets.
fn spread(number: u64) -> BindingKey {
    let key = key(BindingKind::Forward, number, 0);
    BindingKey { hash: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number << 20, ..key }
}

#[test]
fn beside_pods_that_use_up_their_quota_every_flow_has_a_binding() {
    const OTHERS: PortId = PortId(0);
    let small =
        [1000, 1 << 13, 1 << 14].into_iter().flat_map(|flows| [2, 10, 250].map(|hostile| (flows, hostile)));
    for (flows, hostile) in small.chain([(1 << 16, 10)]) {
        let bindings = Bindings::new(flows, false).unwrap();
        // Conntrack assures three quarters of its flows at most.
        let (assured, all) = (flows as u64 * 3 / 4, flows as u64);
        let class_of = |held: &Held| {
            let is_assured = held.to.address < u128::from(assured) || held.to.address >= u128::from(2 * all);
            if is_assured { QuotaClass::Assured } else { QuotaClass::Unassured }
        };
        let bind = |number: u64, owner: PortId| {
            bindings.bind(&spread(number), BindingEnd::new(number.into(), 1), owner, 0, 0, class_of)
        };
        let hostile = |number: u64| PortId(1 + (number % hostile) as u16);
        assert!((0..assured).all(|number| bind(number, hostile(number))), "{flows} flows");
        // Flows that nobody answers fill the rest.
        let flood =
            |numbers: std::ops::Range<u64>| numbers.filter(|number| bind(*number, hostile(*number))).count();
        assert!(flood(assured..2 * all) > 0);
        let own = 2 * all..2 * all + 300;
        assert!(own.clone().all(|number| bind(number, OTHERS)), "{flows} flows");
        flood(2 * all + 300..3 * all);
        let is_found = |number: u64| bindings.find(&spread(number)).is_some();
        assert!((0..assured).chain(own).all(is_found), "{flows} flows");
    }
}

#[test]
fn among_flows_that_end_or_are_not_answered_every_assured_flow_has_a_binding() {
    const FLOWS: u64 = 1 << 15;
    let assured = FLOWS * 3 / 4;
    for others in [QuotaClass::Ended, QuotaClass::Unassured] {
        let bindings = Bindings::new(FLOWS as usize, false).unwrap();
        let class_of = |held: &Held| {
            if held.to.address < u128::from(assured) { QuotaClass::Assured } else { others }
        };
        let bind = |number: u64, owner: PortId| {
            bindings.bind(&spread(number), BindingEnd::new(number.into(), 1), owner, 0, 0, class_of)
        };
        for number in 0..assured {
            for other in 0..4 {
                bind(assured + 4 * number + other, PortId(1));
            }
            assert!(bind(number, PortId(0)), "{number} beside {others:?}");
        }
        assert!((0..assured).all(|number| bindings.find(&spread(number)).is_some()), "{others:?}");
    }
}

#[test]
fn a_binding_keeps_its_source_port() {
    let bindings = Bindings::new(1, false).unwrap();
    let key = key(BindingKind::Forward, 1, 1);
    for source in SourceChoice::others() {
        let to = BindingEnd { source, ..BindingEnd::new(7, u16::MAX) };
        assert!(bindings.bind(&key, to, OWNER, 0, 0, |_| QuotaClass::Unassured));
        assert_eq!(bindings.find(&key).map(|found| found.to), Some(to));
        assert_eq!(bindings.find_preferred(&key).map(|found| found.to), Some(to));
    }
}

#[test]
fn an_unused_binding_does_not_count_as_checked_when_its_revision_returns() {
    let bindings = Bindings::new(1, false).unwrap();
    let (key, revision) = (key(BindingKind::Forward, 1, 1), 7);
    bind(&bindings, &key, (1, 1), 0, revision);
    let binding = bindings.find(&key).unwrap();
    assert!(binding.is_of(revision, 1500) && !binding.is_of(revision + 1, 1500));
    assert!(!binding.is_of(revision, 2048));
    bindings.refresh(&binding, 2048, revision);
    assert!(bindings.find(&key).is_some_and(|binding| binding.is_of(revision, 3000)));
}

#[test]
fn a_slot_that_was_left_half_written_is_empty_afterwards() {
    let mut bindings = Bindings::new(1, false).unwrap();
    let (whole, torn) = (key(BindingKind::Forward, 1, 1), key(BindingKind::Forward, 2, 2));
    bind(&bindings, &whole, (1, 1), 0, 0);
    bind(&bindings, &torn, (2, 2), 0, 0);
    let slot = bindings.find(&torn).unwrap().slot;
    assert!(!bindings.awaits_services(5));
    let meta = bindings.slots[slot].meta.word();
    bindings.slots[slot].meta = SequenceLock::from_word(meta + 1);
    assert_eq!(bindings.find(&torn), None, "a writer is there");
    bind(&bindings, &torn, (3, 3), 0, 0);
    let bindings = Bindings::of(bindings.slots, bindings.addresses);
    assert!(bindings.awaits_services(5));
    assert_eq!(bindings.find(&whole).map(|found| found.to.port), Some(1));
    assert_eq!(bindings.find(&torn).map(|found| found.to.port), Some(3), "it has taken another slot");
}

#[test]
fn services_are_awaited_for_a_while_from_the_first_packet_on() {
    let bindings = Bindings::new(1, false).unwrap();
    bind(&bindings, &key(BindingKind::Forward, 1, 1), (1, 1), 0, 0);
    let bindings = Bindings::of(bindings.slots, bindings.addresses);
    let start = u32::MAX - 1000;
    for after in [0, 1, 2000, AWAITED_PODS_MS - 1] {
        assert!(bindings.awaits_services(start.wrapping_add(after)));
    }
    assert!(!bindings.awaits_services(start.wrapping_add(AWAITED_PODS_MS)));
    assert!(!bindings.awaits_services(start), "it is over");
    let bindings = Bindings::of(bindings.slots, bindings.addresses);
    bindings.note_services();
    assert!(!bindings.awaits_services(0));
}

#[test]
fn readers_never_see_half_of_a_binding() {
    let bindings = Bindings::new(1, false).unwrap();
    let keys: Vec<BindingKey> = (0..40).map(|number| key(BindingKind::Forward, number, 1)).collect();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_000u64 {
                let number = n % keys.len() as u64;
                let to = (number.into(), number as u16);
                bind(&bindings, &keys[number as usize], to, n as u32, n as u16);
                written.store(n, Ordering::Release);
            }
        });
        while written.load(Ordering::Acquire) < 19_999 {
            for (number, key) in keys.iter().enumerate() {
                if let Some(found) = bindings.find(key) {
                    assert_eq!((found.to.address, found.to.port), (number as u128, number as u16));
                }
            }
        }
    });
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    /// A binding that is found is the last one of its key. Few keys in many sets are all found.
    #[test]
    fn bindings_agree_with_a_map(
        steps in prop::collection::vec((0..60u64, 0..4u64, any::<bool>(), any::<u128>()), 1..200),
    ) {
        let bindings = Bindings::new(1, false).unwrap();
        let mut model = BTreeMap::new();
        for (number, set, removes, address) in steps {
            let key = key(BindingKind::Forward, number, set << 20 | set);
            if removes {
                bindings.remove(&key);
                model.remove(&(number, set));
            } else {
                bind(&bindings, &key, (address, number as u16), 0, 0);
                model.insert((number, set), address);
            }
            for (&(number, set), address) in &model {
                let key = self::key(BindingKind::Forward, number, set << 20 | set);
                if let Some(found) = bindings.find(&key) {
                    prop_assert_eq!((found.to.address, found.to.port), (*address, number as u16));
                }
            }
            prop_assert_eq!(bindings.find(&key).is_some(), model.contains_key(&(number, set)));
        }
    }
}
