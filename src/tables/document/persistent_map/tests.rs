use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

type Small = PersistentMap<u32, u8, 3>;

fn differences(old: &Small, new: &Small) -> Vec<(u32, Option<u8>, Option<u8>)> {
    let mut seen = Vec::new();
    old.for_each_difference(new, |&key, old, new| seen.push((key, old.copied(), new.copied())));
    seen
}

fn naive_differences(old: &BTreeMap<u32, u8>, new: &BTreeMap<u32, u8>) -> Vec<(u32, Option<u8>, Option<u8>)> {
    let keys: std::collections::BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
    let both = keys.into_iter().map(|key| (key, old.get(&key).copied(), new.get(&key).copied()));
    both.filter(|(_, old, new)| old != new).collect()
}

fn changed(
    map: &Small,
    naive: &BTreeMap<u32, u8>,
    changes: &[(u32, Option<u8>)],
) -> (Small, BTreeMap<u32, u8>) {
    let (mut map, mut naive) = (map.clone(), naive.clone());
    for &(key, value) in changes {
        match value {
            Some(value) => assert_eq!(map.insert(key, value), naive.insert(key, value)),
            None => assert_eq!(map.remove(&key), naive.remove(&key)),
        }
    }
    (map, naive)
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    #[test]
    fn holds_and_tells_what_a_map_holds_and_a_clone_sees_no_later_change(
        first in btree_map(0..60_u32, 0..4_u8, 0..40),
        one in vec((0..60_u32, prop::option::of(0..4_u8)), 0..40),
        other in vec((0..60_u32, prop::option::of(0..4_u8)), 0..40),
    ) {
        let map = Small::from(first.clone());
        let (one, naive_one) = changed(&map, &first, &one);
        let (other, naive_other) = changed(&one, &naive_one, &other);
        let maps = [(&map, &first), (&one, &naive_one), (&other, &naive_other)];
        for (map, naive) in maps {
            prop_assert!(map.iter().eq(naive.iter()));
            prop_assert_eq!(map.len(), naive.len());
            prop_assert_eq!(map.last_key_value(), naive.last_key_value());
            for key in 0..62 {
                prop_assert_eq!(map.get(&key), naive.get(&key));
                prop_assert!(map.iter_from(&key).eq(naive.range(key..)));
            }
            prop_assert_eq!(map, &naive.iter().map(|(&key, &value)| (key, value)).collect());
        }
        for (a, naive_a) in maps {
            for (b, naive_b) in maps {
                prop_assert_eq!(a == b, naive_a == naive_b);
            }
        }
        prop_assert_eq!(differences(&map, &one), naive_differences(&first, &naive_one));
        prop_assert_eq!(differences(&one, &other), naive_differences(&naive_one, &naive_other));
        prop_assert_eq!(differences(&other, &map), naive_differences(&naive_other, &first));
    }
}

#[test]
fn a_change_of_a_large_map_copies_one_chunk_and_is_found_without_reading_the_others() {
    struct Counted<'a>(u32, &'a std::cell::Cell<usize>);
    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }
    impl Clone for Counted<'_> {
        fn clone(&self) -> Self {
            self.1.set(self.1.get() + 1);
            Counted(self.0, self.1)
        }
    }
    let touched = std::cell::Cell::new(0);
    let map: PersistentMap<u32, Counted<'_>> =
        (0..100_000).map(|key| (key, Counted(key, &touched))).collect();
    let mut next = map.clone();
    next.insert(50_000, Counted(0, &touched));
    let mut seen = 0;
    map.for_each_difference(&next, |_, _, _| seen += 1);
    assert_eq!(seen, 1);
    assert!(map != next && next == next.clone());
    assert!(touched.get() <= 4 * 64, "{} values were touched", touched.get());
}

#[test]
fn in_json_it_is_an_object() {
    let map = Small::from([(2, 1), (1, 9)]);
    let json = serde_json::to_string(&map).unwrap();
    assert_eq!(json, r#"{"1":9,"2":1}"#);
    assert_eq!(serde_json::from_str::<Small>(&json).unwrap(), map);
}
