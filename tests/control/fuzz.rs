//! Random edits of requests to the control API: obeyed, or refused with a reason.

use palisade::control::SwitchSettings;
use palisade::control::protocol::{PodRequest, PortRequest, TablesPatch};
use palisade::tables::{RuleTables, TablesDiff};
use serde_json::json;

use crate::fixture;
use crate::fuzz_input::{Accepted, DocumentEdit, TIME_MAX, json_bytes};
use crate::small_tables::small_tables;

#[test]
fn requests_are_obeyed_or_refused() {
    let prepared = || {
        let (_engine, switch) = fixture::switch(SwitchSettings::default());
        switch.put_port("veth0", &fixture::pod_port()).unwrap();
        let base = switch.put_tables(small_tables("10.1.0.2")).unwrap().generation;
        (switch, base)
    };
    let patch = TablesPatch { base: prepared().1, diff: TablesDiff::default() };
    let port = json!({"kind": "pod", "interface": "veth1", "vlan": 7});
    let pod = json!({"port": "veth0", "addresses": ["10.1.0.2", "fd00::2"], "mac": "02:00:00:00:00:02"});
    let seeds =
        [json_bytes(&small_tables("10.1.0.2")), json_bytes(&patch), json_bytes(&port), json_bytes(&pod)];
    let accepted = [(); 4].map(|()| Accepted::default());
    let obeyed = |request: usize, is_ok: bool| {
        if is_ok {
            accepted[request].one();
        }
    };
    bolero::check!().with_iterations(800).with_test_time(TIME_MAX).with_type::<Vec<DocumentEdit>>().for_each(
        |edits| {
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
        },
    );
    accepted.iter().for_each(|accepted| accepted.check(100));
}
