//! Files and requests: refused with a reason, or taken whole.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use palisade::control::SwitchSettings;
use palisade::control::protocol::{PodRequest, PortRequest, TablesPatch};
use palisade::dataplane::{Settings, Simulation, World};
use palisade::pktgen::Recording;
use palisade::policy::parse::Source;
use palisade::source::load::{LoadOptions, load_sources};
use palisade::tables::{RuleTables, TablesDiff};
use serde::Serialize;
use serde_json::json;

use crate::edit::Edit;
use crate::rig::Setting;
use crate::{fixture, seeds};

/// How many inputs were taken: were it none, the target would test the first check of a parser only.
#[derive(Default)]
struct Taken(AtomicU32);

impl Taken {
    fn one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn check(&self) {
        assert!(self.0.load(Relaxed) > 0, "no input was taken");
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

#[test]
fn recordings_are_read_or_refused() {
    let seeds = [seeds::recording()];
    let taken = Taken::default();
    assert_eq!(Recording::read(&seeds[0]).unwrap().len(), 2, "the seed is one");
    bolero::check!().with_iterations(5_000).with_type::<Edit>().for_each(|edit| {
        if let Ok(recording) = Recording::read(&edit.of(&seeds)) {
            assert!(recording.len() > 0);
            taken.one();
        }
    });
    taken.check();
}

#[test]
fn manifests_are_compiled_to_tables_that_hold_or_refused() {
    let file = |name: &str| std::fs::read(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let seeds = ["tests/data/cluster.yaml", "tests/data/wrong.yaml", "src/lab/demo/policy.yaml"].map(file);
    let taken = Taken::default();
    bolero::check!().with_iterations(1_000).with_type::<Edit>().for_each(|edit| {
        let text = String::from_utf8_lossy(&edit.of(&seeds)).into_owned();
        match load_sources(&[Source::new("fuzz.yaml", text)], &LoadOptions::default()) {
            Ok(compiled) => {
                assert!(compiled.tables.check().is_ok());
                taken.one();
            }
            Err(rejected) => assert!(!rejected.to_string().is_empty()),
        }
    });
    taken.check();
}

#[test]
fn tables_are_published_or_refused() {
    let small = fixture::tables("10.1.0.2");
    let seeds = [json(&small), json(&*Setting::open().world().tables.unwrap())];
    let settings = Settings { frames_per_worker: 64, huge_pages: false, ..Settings::default() };
    let taken = Taken::default();
    let simulation = Mutex::new(Simulation::new(&settings).unwrap());
    bolero::check!().with_iterations(2_000).with_type::<Edit>().for_each(|edit| {
        let Ok(tables) = serde_json::from_slice::<RuleTables>(&edit.of(&seeds)) else { return };
        if tables.check().is_ok() {
            let world = World { tables: Some(tables.into()), ..World::default() };
            simulation.lock().unwrap().publish(world);
            taken.one();
        }
    });
    taken.check();
}

#[test]
fn requests_are_obeyed_or_refused() {
    let prepared = || {
        let (_engine, switch) = fixture::switch(SwitchSettings::default());
        switch.put_port("veth0", &fixture::pod_port()).unwrap();
        let base = switch.put_tables(fixture::tables("10.1.0.2")).unwrap().generation;
        (switch, base)
    };
    let patch = TablesPatch { base: prepared().1, diff: TablesDiff::default() };
    let port = json!({"kind": "pod", "interface": "veth1", "vlan": 7});
    let pod = json!({"port": "veth0", "addresses": ["10.1.0.2", "fd00::2"], "mac": "02:00:00:00:00:02"});
    let seeds = [json(&fixture::tables("10.1.0.2")), json(&patch), json(&port), json(&pod)];
    let taken = [(); 4].map(|()| Taken::default());
    let obeyed = |request: usize, is_ok: bool| {
        if is_ok {
            taken[request].one();
        }
    };
    bolero::check!().with_iterations(1_000).with_type::<Vec<Edit>>().for_each(|edits| {
        let (switch, _) = prepared();
        for edit in edits {
            let body = edit.of(&seeds);
            if let Ok(tables) = serde_json::from_slice::<RuleTables>(&body) {
                obeyed(0, switch.put_tables(tables).is_ok());
            }
            if let Ok(patch) = serde_json::from_slice::<TablesPatch>(&body) {
                obeyed(1, switch.patch_tables(&patch).is_ok());
            }
            if let Ok(port) = serde_json::from_slice::<PortRequest>(&body) {
                obeyed(2, switch.put_port("veth1", &port).is_ok());
            }
            if let Ok(pod) = serde_json::from_slice::<PodRequest>(&body) {
                obeyed(3, switch.put_pod(&fixture::pod("db"), &pod).is_ok());
            }
        }
        assert!(switch.tables().is_none_or(|tables| tables.check().is_ok()));
    });
    taken.iter().for_each(Taken::check);
}
