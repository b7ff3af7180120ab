use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::dataplane::conntrack::tcp::{TcpFlow, TcpSide};
use crate::dataplane::conntrack::{
    FlowState, FrontEnd, InsertOutcome, Key, NewFlow, QuotaClass, WorkerState,
};
use crate::ids::{PortId, WorkerId};
use crate::limits::PORTS_MAX;
use crate::net::address::from_v4;
use crate::net::flow::Protocol;

/// A directory in memory, removed at the end of its test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        Directory(PathBuf::from(format!("/dev/shm/palisade-test-{}-{number}", std::process::id())))
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.0.join("table")).unwrap()
    }

    fn open(&self) -> Result<Stored, StorageError> {
        self.open_at(NOW_MS)
    }

    /// Opens the directory. A program that another test has just started has the lock of a table until it begins.
    fn open_at(&self, now_ms: u32) -> Result<Stored, StorageError> {
        let open = || Storage::open(&self.0, &settings(FLOWS), false, now_ms);
        let kept = |mut stored: Stored| {
            stored.new_directory.keep();
            stored
        };
        for _ in 0..50 {
            match open() {
                Err(StorageError::Taken { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
                opened => return opened.map(kept),
            }
        }
        open().map(kept)
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.file().read_exact_at(&mut word, at).unwrap();
        u64::from_ne_bytes(word)
    }

    fn change(&self, at: u64, change: impl Fn(u64) -> u64) {
        self.file().write_all_at(&change(self.word(at)).to_ne_bytes(), at).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const FLOWS: usize = 512;
/// Times of the insertions, and of the start of the next process.
const ENTERED_MS: u32 = 5000;
const NOW_MS: u32 = 9000;
/// The last generation of the previous process.
const NEWEST: Generation = Generation(7);

fn settings(flows_max: usize) -> ConntrackSettings {
    ConntrackSettings { flows_max, pod_quota_percent: 100, ..ConntrackSettings::default() }
}

fn v6(number: u64) -> u128 {
    0xfd00 << 112 | u128::from(number)
}

fn keys_of(number: u64, protocol: Protocol) -> [Key; 2] {
    // The lower end has sent the echo request; these are the bits of its type.
    let echo = if protocol == Protocol::ICMP { 1 << 40 | 8 << 42 } else { 0 };
    let word = (1000 + number) | 53 << 16 | u64::from(protocol.0) << 32 | echo;
    [Key::new(from_v4(0x0a00_0001), from_v4(0x0a00_0002), word), Key::new(v6(1), v6(2), word)]
}

/// Flows of every protocol and family, in valid states.
fn flows(numbers: std::ops::Range<u64>) -> Vec<(Key, NewFlow)> {
    let of_number = |number| {
        let states = [
            (Protocol::TCP, FlowState::Established),
            (Protocol::UDP, FlowState::UdpTwoWay),
            (Protocol::ICMP, FlowState::Echo),
            (Protocol::SCTP, FlowState::SctpEstablished),
            (Protocol(47), FlowState::Other),
        ];
        states.into_iter().flat_map(move |(protocol, state)| {
            let side = |end| TcpSide {
                end,
                max_end: end + 9,
                max_window: 9,
                acknowledged: end - 7,
                scale: 3,
                finished: false,
            };
            let tcp = (protocol == Protocol::TCP).then_some(TcpFlow { state, sides: [side(100), side(200)] });
            // Flows of UDP are translated.
            let virtual_end = |key: &Key| front_end(key.is_v4());
            keys_of(number, protocol).map(|key| {
                let end = (protocol == Protocol::UDP).then(|| virtual_end(&key));
                (key, NewFlow { virtual_end: end, ..flow(number, state, tcp) })
            })
        })
    };
    numbers.flat_map(of_number).collect()
}

fn front_end(is_v4: bool) -> FrontEnd {
    let (address, port) = if is_v4 { (from_v4(0x0a60_0001), 80) } else { (v6(9), 443) };
    FrontEnd { address, port, client_port: 5353, external_port: 61_001 }
}

fn flow(number: u64, state: FlowState, tcp: Option<TcpFlow>) -> NewFlow {
    NewFlow {
        opened_by_low: number.is_multiple_of(2),
        by_node_socket: number.is_multiple_of(7),
        pods: [true, number.is_multiple_of(3)],
        owner_port: PortId(number as u16 % 5),
        policy_epoch: NEWEST,
        state,
        tcp,
        virtual_end: None,
        hops: [Some(3), None],
    }
}

fn enter_all(stored: &Stored, flows: &[(Key, NewFlow)]) {
    let mut worker_state = WorkerState::new(WorkerId(0), 1);
    stored.table.start_batch(&mut worker_state);
    for (key, flow) in flows {
        let outcome = stored.table.insert(key, stored.table.hash(key), flow, ENTERED_MS, &mut worker_state);
        let InsertOutcome::Inserted(slot) = outcome else { panic!("{outcome:?}") };
        stored.table.on_state_change(slot, FlowState::SynSent, flow.state);
    }
    stored.storage.note_generation(NEWEST).unwrap();
}

/// Number of flows by port and class: as counted, and as found in the table.
fn owner_counts(table: &Conntrack) -> [BTreeMap<(u16, u8), u32>; 2] {
    let classes = [QuotaClass::Unassured, QuotaClass::Assured, QuotaClass::Ended];
    let of_port = |port| classes.map(|class| ((port, class as u8), table.flows_of(PortId(port), class)));
    let owner_port = (0..PORTS_MAX as u16).flat_map(of_port);
    let mut counted = BTreeMap::new();
    table.for_each(|_, _, entry| {
        let owner = entry.quota_owner().expect("a flow");
        *counted.entry((owner.port.0, owner.class as u8)).or_default() += 1;
        true
    });
    [owner_port.filter(|(_, count)| *count > 0).collect(), counted]
}

fn keys(table: &Conntrack) -> Vec<Key> {
    let mut keys = Vec::new();
    table.for_each(|_, key, _| {
        keys.push(*key);
        true
    });
    keys.sort_by_key(Key::words);
    keys
}

/// Result of a packet's lookup.
fn describe(table: &Conntrack, key: &Key) -> String {
    let slot = table.look_up(key, table.hash(key)).expect("a flow that was inserted");
    let entry = table.entry(slot);
    let tcp = (key.protocol() == Protocol::TCP).then(|| entry.load_tcp());
    let (flow_word, counts, owner) =
        ([true, false].map(|low| entry.flow_word(low)), entry.counts(), entry.quota_owner());
    format!("{flow_word:?} {counts:?} {owner:?} {tcp:?} idle {}", entry.idle_ms(NOW_MS))
}

#[test]
fn every_flow_of_a_process_that_ended_is_there_for_the_next_one_with_all_that_was_known_of_it() {
    let directory = Directory::new();
    let flows = flows(0..20);
    let first = directory.open().unwrap();
    assert_eq!(
        (first.generation, first.recovered, first.fresh),
        (Generation(0), Recovered::default(), Some("there was none"))
    );
    enter_all(&first, &flows);
    let entry = first.table.entry(first.table.look_up(&flows[0].0, first.table.hash(&flows[0].0)).unwrap());
    entry.count(true, 700, ENTERED_MS + 10);
    let described: Vec<String> = flows.iter().map(|(key, _)| describe(&first.table, key)).collect();
    let owner_port = owner_counts(&first.table);
    drop(first);
    for process in 1..4 {
        let next = directory.open().unwrap();
        assert_eq!(next.recovered, Recovered { flows: flows.len() as u64, torn: 0 });
        assert_eq!((next.generation, next.fresh), (Generation(NEWEST.0 + process), None));
        let described_again: Vec<String> = flows.iter().map(|(key, _)| describe(&next.table, key)).collect();
        assert_eq!(described_again, described);
        assert_eq!(owner_counts(&next.table), owner_port);
    }
}

#[test]
fn time_without_a_process_counts_as_idle_and_a_time_in_the_future_does_not() {
    let directory = Directory::new();
    let flows = flows(0..1);
    enter_all(&directory.open().unwrap(), &flows);
    let idle_at = |now_ms| {
        let stored = directory.open_at(now_ms).unwrap();
        let slot = stored.table.look_up(&flows[0].0, stored.table.hash(&flows[0].0)).unwrap();
        stored.table.entry(slot).idle_ms(now_ms.wrapping_add(1))
    };
    assert_eq!(idle_at(ENTERED_MS + 60_000), 60_001);
    assert_eq!(idle_at(ENTERED_MS - 1000), 1);
}

/// Offset of a word of an entry, and its damage.
type Change = (u64, fn(u64) -> u64);

/// Offsets of a slot's tag and entry in the file.
fn places(slot: u64) -> (u64, u64) {
    let tags = HEADER_BYTES as u64;
    let entries = (tags + FLOWS as u64).next_multiple_of(128);
    (tags + slot, entries + 128 * slot)
}

/// The slots that hold flows, by their tags.
fn taken_slots(directory: &Directory) -> Vec<u64> {
    let mut tags = [0; FLOWS];
    directory.file().read_exact_at(&mut tags, places(0).0).unwrap();
    (0..FLOWS as u64).filter(|slot| tags[*slot as usize] & 0x7f > 1).collect()
}

#[test]
fn a_translated_flow_keeps_its_virtual_end_and_one_of_the_other_family_is_torn() {
    let directory = Directory::new();
    enter_all(&directory.open().unwrap(), &flows(0..2));
    let stored = directory.open().unwrap();
    let mut translated = Vec::new();
    stored.table.for_each(|slot, key, entry| {
        if entry.flow_word(true).is_translated() {
            translated.push((slot, key.is_v4(), stored.table.virtual_end(slot)));
        }
        true
    });
    translated.sort_by_key(|(_, is_v4, _)| *is_v4);
    let ends: Vec<_> = translated.iter().map(|(.., end)| *end).collect();
    let [v4, v6] = [true, false].map(front_end);
    assert_eq!(ends, [v6, v6, v4, v4]);
    let (damaged, ..) = translated[0];
    drop(stored);
    directory.change(places(FLOWS as u64).1 + 32 * u64::from(damaged.0), |_| 0);
    directory.change(places(FLOWS as u64).1 + 32 * u64::from(damaged.0) + 8, |_| 0xffff_0a60_0001);
    let recovered = directory.open().unwrap().recovered;
    assert_eq!((recovered.flows, recovered.torn), (19, 1));
}

#[test]
fn an_entry_that_is_torn_in_any_way_is_no_flow_and_takes_no_slot() {
    const HIGH: u64 = 64;
    let flow_word = 24;
    let of_both = |change: fn(u64) -> u64| vec![(flow_word, change), (HIGH + flow_word, change)];
    let cases: Vec<(&str, Vec<Change>)> = vec![
        ("not published", vec![(0, |word| word & !(1 << 63))]),
        ("the higher end's half is of no flow", vec![(HIGH, |_| 0)]),
        ("another key at the lower end", vec![(0, |word| word ^ 1)]),
        ("another key at both ends", vec![(0, |word| word ^ 4), (HIGH, |word| word ^ 4)]),
        ("another address", vec![(8, |word| word ^ 1 << 33)]),
        ("another address at the higher end", vec![(HIGH + 8, |word| word ^ 1 << 33)]),
        ("opened by one end in one half, by the other in the other", vec![(flow_word, |word| word ^ 1 << 8)]),
        ("a pod in one half, none in the other", vec![(HIGH + flow_word, |word| word ^ 1 << 9)]),
        ("a state that there is not", of_both(|word| word | 0xff)),
        ("a state of another protocol", of_both(|word| word & !0x7f | u64::from((word & 0x7f) < 8) * 8)),
        ("by a socket of the node in one half, not in the other", vec![(flow_word, |word| word ^ 1 << 7)]),
        ("a generation to come", vec![(flow_word, |word| word | 1 << 63)]),
        ("owned by a port number beyond the last", vec![(0, |word| word | 0xfff << 48)]),
        (
            "another ICMP request, or one where there is none",
            vec![(0, |word| word | 1 << 42), (HIGH, |word| word | 1 << 42)],
        ),
    ];
    for (what, changes) in cases {
        let directory = Directory::new();
        let flows = flows(0..1);
        enter_all(&directory.open().unwrap(), &flows);
        let slots = taken_slots(&directory);
        assert_eq!(slots.len(), flows.len());
        for slot in &slots {
            changes.iter().for_each(|(at, change)| directory.change(places(*slot).1 + at, change));
        }
        let stored = directory.open().unwrap();
        assert_eq!((stored.recovered.flows, keys(&stored.table)), (0, vec![]), "{what}");
        let torn = if what == "not published" { 0 } else { flows.len() as u64 };
        assert_eq!(stored.recovered.torn, torn, "{what}");
        enter_all(&stored, &flows);
        assert_eq!(keys(&stored.table).len(), flows.len(), "{what}");
        assert_eq!(owner_counts(&stored.table)[0], owner_counts(&stored.table)[1], "{what}");
    }
}

#[test]
fn a_tag_without_its_flow_is_a_free_slot_and_of_two_entries_with_one_key_one_stays() {
    let directory = Directory::new();
    let flows = flows(0..1);
    enter_all(&directory.open().unwrap(), &flows);
    let slots = taken_slots(&directory);
    let free = |bucket: u64| (16 * bucket..16 * bucket + 16).find(|slot| !slots.contains(slot)).unwrap();
    // A claimed slot without a flow, and a tombstone; then a copy of a flow in another slot.
    let (claimed, buried) = (free(0), free(1));
    for (slot, tag) in [(claimed, 0x42), (buried, 1)] {
        directory.file().write_all_at(&[tag], places(slot).0).unwrap();
    }
    let original = *slots.iter().find(|slot| **slot / 16 > 1).unwrap();
    let copy = free(original / 16);
    let mut entry = [0; 128];
    directory.file().read_exact_at(&mut entry, places(original).1).unwrap();
    directory.file().write_all_at(&entry, places(copy).1).unwrap();
    let tag = directory.word(places(original).0) as u8;
    directory.file().write_all_at(&[tag], places(copy).0).unwrap();
    let stored = directory.open().unwrap();
    assert_eq!(stored.recovered, Recovered { flows: flows.len() as u64, torn: 1 });
    assert_eq!(keys(&stored.table).len(), flows.len());
    assert_eq!(owner_counts(&stored.table)[0], owner_counts(&stored.table)[1]);
    drop(stored);
    assert!([claimed, buried].iter().all(|slot| matches!(directory.word(places(*slot).0) as u8, 0 | 0x80)));
}

#[test]
fn a_file_of_another_layout_size_or_boot_or_of_somebody_else_is_replaced_and_the_reason_is_said() {
    let reason_after = |change: &dyn Fn(&Directory)| {
        let directory = Directory::new();
        enter_all(&directory.open().unwrap(), &flows(0..1));
        change(&directory);
        let stored = directory.open().unwrap();
        assert_eq!((stored.table.len(), stored.generation), (0, Generation(0)));
        let reason = stored.fresh.expect("a reason");
        enter_all(&stored, &flows(0..1));
        drop(stored);
        assert_eq!(directory.open().unwrap().recovered.flows, 10, "a fresh file serves the next process");
        reason
    };
    let table = |directory: &Directory| directory.0.join("table");
    let layout = "another version has written it, or it was not finished";
    assert_eq!(reason_after(&|directory| directory.change(8, |layout| layout + 1)), layout);
    assert_eq!(reason_after(&|directory| directory.change(0, u64::swap_bytes)), layout);
    assert_eq!(reason_after(&|directory| directory.change(72, |secret| secret ^ 1)), layout, "the seed");
    assert_eq!(
        reason_after(&|directory| directory.change(GENERATION_AT, |_| 3)),
        "its last generation is not readable"
    );
    let other_size = |directory: &Directory| {
        fs::remove_file(table(directory)).unwrap();
        drop(Storage::open(&directory.0, &settings(2 * FLOWS), false, 0).unwrap());
    };
    assert_eq!(reason_after(&other_size), "it has another number of flows ([conntrack] flows)");
    assert_eq!(
        reason_after(&|directory| directory.file().set_len(100).unwrap()),
        "it is shorter than its header"
    );
    let exposed = |directory: &Directory| {
        fs::set_permissions(table(directory), fs::Permissions::from_mode(0o666)).unwrap();
    };
    assert_eq!(reason_after(&exposed), "it is not a file of this user alone");
    let linked = |directory: &Directory| {
        fs::rename(table(directory), directory.0.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", table(directory)).unwrap();
    };
    assert_eq!(reason_after(&linked), "it cannot be opened");
    let other_boot = |directory: &Directory| {
        let mut page = [0; HEADER_BYTES];
        directory.file().read_exact_at(&mut page, 0).unwrap();
        let mut header = Header::parse(&page).unwrap();
        header.boot[0] ^= 1;
        directory.file().write_all_at(&header.bytes(), 0).unwrap();
    };
    assert_eq!(reason_after(&other_boot), "it is from before the node's last boot");
}

#[test]
fn a_directory_of_a_live_process_of_others_or_on_a_disk_is_refused_before_anything_is_touched() {
    let directory = Directory::new();
    let first = directory.open().unwrap();
    enter_all(&first, &flows(0..1));
    assert!(matches!(directory.open(), Err(StorageError::Taken { .. })));
    assert_eq!(keys(&first.table).len(), 10);
    drop(first);
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(directory.open(), Err(StorageError::Exposed { mode: 0o755, .. })));
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(directory.open().unwrap().recovered.flows, 10);
    let link = Directory::new();
    std::os::unix::fs::symlink(&directory.0, &link.0).unwrap();
    assert!(matches!(link.open(), Err(StorageError::Io { .. })), "the directory is a link");
    fs::remove_file(&link.0).unwrap();
    let sys = Storage::open(Path::new("/sys/fs"), &settings(FLOWS), false, 0);
    assert!(matches!(sys, Err(StorageError::Exposed { .. } | StorageError::OnDisk { .. })));
}

#[test]
fn a_file_system_without_room_is_an_error_at_the_start_that_leaves_nothing() {
    let directory = Directory::new();
    let error = Storage::open(&directory.0, &settings(1 << 40), false, 0).err().unwrap();
    assert!(matches!(error, StorageError::Full { .. }), "{error}");
    assert!(!directory.0.exists());
    assert!(directory.open().is_ok());
    let error = Storage::open(&directory.0, &settings(1 << 40), false, 0).err().unwrap();
    assert!(matches!(error, StorageError::Full { .. }), "{error}");
    assert!(directory.0.exists(), "another process has made it");
}

#[test]
fn a_directory_that_is_not_kept_goes_while_it_is_locked_and_one_of_a_process_before_stays() {
    let directory = Directory::new();
    let Stored { storage, new_directory, .. } =
        Storage::open(&directory.0, &settings(FLOWS), false, 0).unwrap();
    drop(new_directory);
    assert!(!directory.0.exists());
    drop(storage);
    drop(directory.open().unwrap());
    drop(Storage::open(&directory.0, &settings(FLOWS), false, 0).unwrap());
    assert!(directory.0.exists());
}

/// Compares the bytes of known flows with those of [`LAYOUT`]: a change needs another version.
#[test]
fn a_change_of_the_layout_changes_its_number() {
    let directory = Directory::new();
    drop(directory.open().unwrap());
    let mut page = [0; HEADER_BYTES];
    directory.file().read_exact_at(&mut page, 0).unwrap();
    let header = Header { secrets: [1, 2, 3, 4], ..Header::parse(&page).unwrap() };
    directory.file().write_all_at(&header.bytes(), 0).unwrap();
    let stored = directory.open().unwrap();
    let flows = flows(1..2);
    enter_all(&stored, &flows);
    drop(stored);
    let mut all = Vec::new();
    for slot in taken_slots(&directory) {
        let (tag, entry) = places(slot);
        all.push(slot << 8 | directory.word(tag) & 0x7f);
        all.extend((0..16).map(|word| directory.word(entry + 8 * word)));
        let virtual_end = places(FLOWS as u64).1 + 32 * slot;
        all.extend((0..4).map(|word| directory.word(virtual_end + 8 * word)));
    }
    assert_eq!((LAYOUT, check(&all)), (5, 13_885_982_027_049_575_532));
}

proptest! {
    #![proptest_config(crate::random::cases(300))]

    /// Damage of any bytes leads to no flow that was not inserted, to exact counts, and to a usable table.
    #[test]
    fn a_file_with_random_damage_gives_whole_flows_that_were_there_and_no_others(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 1..64_usize), 1..40),
        in_tags in any::<bool>(),
    ) {
        let directory = Directory::new();
        let before = flows(0..18);
        enter_all(&directory.open().unwrap(), &before);
        let (tags, entries) = places(0);
        let (start, end) = if in_tags { (tags, entries) } else { (tags, entries + 128 * FLOWS as u64) };
        for (at, byte, len) in &damage {
            let at = start + at.index((end - start) as usize) as u64;
            directory.file().write_all_at(&vec![*byte; *len], at).unwrap();
        }
        let stored = directory.open().unwrap();
        let known: Vec<Key> = before.iter().map(|(key, _)| *key).collect();
        let there = keys(&stored.table);
        prop_assert_eq!(there.len() as u64, stored.recovered.flows);
        prop_assert!(there.iter().all(|key| known.contains(key)));
        let [owner_port, counted] = owner_counts(&stored.table);
        prop_assert_eq!(owner_port, counted);
        // The table is usable: it takes missing flows again, and all flows can be removed.
        let mut worker_state = WorkerState::new(WorkerId(0), 1);
        stored.table.start_batch(&mut worker_state);
        for (key, flow) in &before {
            let hash = stored.table.hash(key);
            if stored.table.look_up(key, hash).is_none() {
                stored.table.insert(key, hash, flow, NOW_MS, &mut worker_state);
            }
            prop_assert!(stored.table.look_up(key, hash).is_some());
        }
        prop_assert_eq!(stored.table.len(), before.len());
        for _ in 0..2 {
            stored.table.sweep(FLOWS / BUCKET_SLOTS, NOW_MS, &mut worker_state, |_| true);
        }
        prop_assert_eq!((stored.table.len(), &owner_counts(&stored.table)[0]), (0, &BTreeMap::new()));
    }
}
