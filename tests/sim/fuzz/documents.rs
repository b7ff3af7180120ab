//! Fuzz targets of files: each input is refused with a reason or accepted whole.

use std::sync::Mutex;

use palisade::dataplane::{DesiredState, Settings, Simulation};
use palisade::pktgen::Capture;
use palisade::policy::parse::Source;
use palisade::source::load::{LoadOptions, load_sources};
use palisade::tables::RuleTables;

use super::seeds;
use crate::fuzz_input::{Accepted, DocumentEdit, Edit, TIME_MAX, json_bytes};
use crate::rig::{Setting, small_table};
use crate::small_tables::small_tables;

#[test]
fn recordings_are_read_or_refused() {
    let seeds = [seeds::recording()];
    let accepted = Accepted::default();
    assert_eq!(Capture::read(&seeds[0]).unwrap().len(), 2, "the seed is one");
    bolero::check!().with_iterations(5_000).with_test_time(TIME_MAX).with_type::<Edit>().for_each(|edit| {
        if let Ok(recording) = Capture::read(&edit.of(&seeds)) {
            assert!(recording.len() > 0);
            accepted.one();
        }
    });
    accepted.check(300);
}

#[test]
fn manifests_are_compiled_to_tables_that_hold_or_refused() {
    let file = |name: &str| std::fs::read(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let seeds = ["tests/data/cluster.yaml", "tests/data/wrong.yaml", "src/lab/demo/policy.yaml"].map(file);
    let accepted = Accepted::default();
    bolero::check!().with_iterations(2_000).with_test_time(TIME_MAX).with_type::<DocumentEdit>().for_each(
        |edit| {
            let text = String::from_utf8_lossy(&edit.of(&seeds)).into_owned();
            match load_sources(&[Source::new("fuzz.yaml", text)], &LoadOptions::default()) {
                Ok(compiled) => {
                    assert!(compiled.tables.check().is_ok());
                    accepted.one();
                }
                Err(rejected) => assert!(!rejected.to_string().is_empty()),
            }
        },
    );
    accepted.check(30);
}

#[test]
fn tables_are_published_or_refused() {
    let small = small_tables("10.1.0.2");
    let seeds = [json_bytes(&small), json_bytes(&*Setting::open().desired().tables.unwrap())];
    let settings = Settings {
        frames_per_worker: 64,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    let accepted = Accepted::default();
    let simulation = Mutex::new(Simulation::new(&settings).unwrap());
    bolero::check!().with_iterations(2_000).with_test_time(TIME_MAX).with_type::<DocumentEdit>().for_each(
        |edit| {
            let Ok(tables) = serde_json::from_slice::<RuleTables>(&edit.of(&seeds)) else { return };
            if tables.check().is_ok() {
                let desired = DesiredState { tables: Some(tables.into()), ..DesiredState::default() };
                simulation.lock().unwrap().publish(desired);
                accepted.one();
            }
        },
    );
    accepted.check(30);
}
