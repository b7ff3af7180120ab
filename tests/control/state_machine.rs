//! State of the switch: accepted requests, and requests that are refused without a change.

use std::net::IpAddr;

use palisade::config::{Config, Policy};
use palisade::control::protocol::{FlowQuery, PodRequest, PolicyOrigin, PortRequest, TablesPatch};
use palisade::control::{ApiError, CoverageCheck, PortRoute, Switch, SwitchSettings};
use palisade::daemon::configure;
use palisade::dataplane::{Gateway, Mac, PortKind};
use palisade::ids::{AttachmentId, Generation, PortId, RowId};
use palisade::source::{PolicyDirectory, Reload};
use palisade::tables::{PersistentMap, RuleTables, TablesDiff, TablesError};

use crate::fixture::{FakeDataplane, Scratch, on_port, pod, pod_port, switch};
use crate::small_tables::small_tables;

/// Asserts that a request is refused with a status, and that nothing was published.
fn refused<T: std::fmt::Debug>(
    dataplane: &FakeDataplane,
    status: u16,
    request: impl FnOnce() -> Result<T, ApiError>,
) -> String {
    let before = dataplane.publications();
    let refusal = request().unwrap_err();
    assert_eq!(refusal.status(), status, "{refusal}");
    assert_eq!(dataplane.publications(), before, "a refused request was published: {refusal}");
    refusal.to_string()
}

fn host_port(address: &str) -> PortRequest {
    let addresses = vec![address.parse().unwrap()];
    PortRequest { kind: PortKind::Host, addresses, ..pod_port() }
}

fn with_db(switch: &Switch) {
    switch.put_port("veth-db", &pod_port()).unwrap();
    switch.put_pod(&pod("db"), &on_port("veth-db", "10.1.0.2")).unwrap();
}

#[test]
fn a_switch_starts_closed_and_empty() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    let desired = dataplane.desired();
    assert!(
        desired.tables.is_none() && !desired.fail_open && desired.pods.is_empty() && desired.node.is_none()
    );
    assert_eq!(switch.status().generation, Generation(1));
    assert!(!switch.status().tables_loaded);
}

#[test]
fn ports_and_pods_reach_the_desired_state() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    let info = switch.put_port("veth-db", &pod_port()).unwrap();
    assert_eq!((info.spec.interface.as_str(), info.report.id, info.pod), ("veth-db", PortId(0), None));
    let mac: Mac = "02:00:00:00:00:02".parse().unwrap();
    let request = PodRequest { mac: Some(mac), ..on_port("veth-db", "10.1.0.2") };
    assert_eq!(switch.put_pod(&pod("db"), &request).unwrap().attachment, AttachmentId(1));
    switch
        .put_port("node", &PortRequest { interface: Some("veth-node".to_owned()), ..host_port("10.1.0.1") })
        .unwrap();
    let desired = dataplane.desired();
    let [attached] = desired.pods.as_slice() else { panic!("{:?}", desired.pods) };
    assert_eq!((&attached.pod, attached.port, attached.mac), (&pod("db"), PortId(0), Some(mac)));
    assert_eq!(desired.node.unwrap().addresses, ["10.1.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(switch.ports().len(), 2);
    assert_eq!(switch.ports()[1].pod, Some(pod("db")));
    assert_eq!(switch.status().generation, Generation(dataplane.publications() as u32));
}

#[test]
fn an_attachment_number_is_never_used_again() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    with_db(&switch);
    switch.delete_pod(&pod("db")).unwrap();
    assert!(dataplane.desired().pods.is_empty());
    let again = switch.put_pod(&pod("db"), &on_port("veth-db", "10.1.0.2")).unwrap();
    assert_eq!(again.attachment, AttachmentId(2));
}

#[test]
fn conflicts_between_pods_and_ports_are_refused() {
    let gateway = Gateway { addresses: vec!["10.1.0.254".parse().unwrap()], ..Gateway::default() };
    let (dataplane, switch) = switch(SwitchSettings { gateway, ..SwitchSettings::default() });
    with_db(&switch);
    switch.put_port("spare", &pod_port()).unwrap();
    switch.put_port("node", &host_port("10.1.0.1")).unwrap();
    let put_pod = |name: &str, port: &str, address: &str| {
        let request = on_port(port, address);
        let switch = &switch;
        let name = pod(name);
        move || switch.put_pod(&name, &request)
    };
    let said = refused(&dataplane, 409, put_pod("db", "spare", "10.1.0.3"));
    assert!(said.contains("default/db is already attached to port \"veth-db\""), "{said}");
    let said = refused(&dataplane, 409, put_pod("web", "veth-db", "10.1.0.3"));
    assert!(said.contains("port \"veth-db\" has pod default/db"), "{said}");
    for (address, owner) in
        [("10.1.0.2", "pod default/db"), ("10.1.0.1", "the node"), ("10.1.0.254", "the gateway")]
    {
        let said = refused(&dataplane, 409, put_pod("web", "spare", address));
        assert!(said.contains(&format!("address {address} already belongs to {owner}")), "{said}");
    }
    refused(&dataplane, 404, put_pod("web", "nowhere", "10.1.0.3"));
    refused(&dataplane, 422, put_pod("web", "node", "10.1.0.3"));
    refused(&dataplane, 409, || switch.put_port("spare", &pod_port()));
    let other_name = PortRequest { interface: Some("spare".to_owned()), ..pod_port() };
    refused(&dataplane, 409, || switch.put_port("other", &other_name));
    refused(&dataplane, 409, || switch.put_port("host2", &host_port("10.1.0.9")));
    refused(&dataplane, 409, || switch.delete_port("veth-db", None));
    refused(&dataplane, 404, || switch.delete_port("nowhere", None));
    refused(&dataplane, 404, || switch.delete_pod(&pod("web")));
    assert_eq!(dataplane.ports.lock().unwrap().len(), 3, "a refused port was opened");
    assert!(dataplane.closed.lock().unwrap().is_empty(), "a refused removal closed a port");
}

#[test]
fn a_request_that_makes_no_sense_is_refused() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    switch.put_port("p", &pod_port()).unwrap();
    for name in ["", "a b", "a/b", &"x".repeat(64)] {
        refused(&dataplane, 422, || switch.put_port(name, &pod_port()));
    }
    for interface in ["", "sixteen-letters-", "a b", "a/b"] {
        let request = PortRequest { interface: Some(interface.to_owned()), ..pod_port() };
        let said = refused(&dataplane, 422, || switch.put_port("q", &request));
        assert!(said.starts_with("interface: "), "{said}");
    }
    for vlan in [0, 4095] {
        refused(&dataplane, 422, || switch.put_port("q", &PortRequest { vlan: Some(vlan), ..pod_port() }));
    }
    refused(&dataplane, 422, || switch.put_port("q", &PortRequest { kind: PortKind::Host, ..pod_port() }));
    refused(&dataplane, 422, || {
        switch.put_port("q", &PortRequest { kind: PortKind::Uplink, ..host_port("10.1.0.1") })
    });
    refused(&dataplane, 422, || switch.put_port("absent", &pod_port()));
    for address in
        ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1", "::ffff:10.0.0.1"]
    {
        let said = refused(&dataplane, 422, || switch.put_pod(&pod("db"), &on_port("p", address)));
        assert!(said.starts_with("addresses: "), "{said}");
    }
    let none = PodRequest { addresses: Vec::new(), ..on_port("p", "10.1.0.2") };
    refused(&dataplane, 422, || switch.put_pod(&pod("db"), &none));
    let twice = PodRequest { addresses: vec!["10.1.0.2".parse().unwrap(); 2], ..on_port("p", "10.1.0.2") };
    refused(&dataplane, 422, || switch.put_pod(&pod("db"), &twice));
    for mac in ["00:00:00:00:00:00", "01:00:5e:00:00:01", &Gateway::default().mac.to_string()] {
        let request = PodRequest { mac: Some(mac.parse().unwrap()), ..on_port("p", "10.1.0.2") };
        let said = refused(&dataplane, 422, || switch.put_pod(&pod("db"), &request));
        assert!(said.starts_with("mac: "), "{said}");
    }
    refused(&dataplane, 422, || switch.put_pod(&pod("a/b"), &on_port("p", "10.1.0.2")));
}

#[test]
fn a_removed_port_leaves_the_world_before_it_closes_and_its_number_is_free() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    switch.put_port("node", &host_port("10.1.0.1")).unwrap();
    switch.delete_port("node", None).unwrap();
    assert!(dataplane.desired().node.is_none());
    assert_eq!(*dataplane.closed.lock().unwrap(), [(PortId(0), false)]);
    switch.put_port("other", &pod_port()).unwrap();
    switch.delete_port("other", Some(true)).unwrap();
    assert_eq!(dataplane.closed.lock().unwrap().last(), Some(&(PortId(0), true)));
}

#[test]
fn a_port_that_does_not_close_stays_in_the_world() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    let stuck = PortRequest { interface: Some("stuck0".to_owned()), ..host_port("10.1.0.1") };
    switch.put_port("node", &stuck).unwrap();
    assert_eq!(switch.delete_port("node", None).unwrap_err().status(), 500);
    assert!(dataplane.desired().node.is_some());
    assert_eq!(switch.ports().len(), 1);
}

#[test]
fn a_route_holds_while_its_port_is_open() {
    let routes = vec![PortRoute {
        prefix: "0.0.0.0/0".parse().unwrap(),
        port: "up".to_owned(),
        next_hop: None,
        node: false,
    }];
    let pod_prefixes = vec!["10.244.1.0/24".parse().unwrap()];
    let settings = SwitchSettings { routes, pod_prefixes: pod_prefixes.clone(), ..SwitchSettings::default() };
    let (dataplane, switch) = switch(settings);
    assert!(dataplane.desired().routes.is_empty());
    assert_eq!(dataplane.desired().pod_prefixes, pod_prefixes, "known before the first port opens");
    switch.put_port("first", &pod_port()).unwrap();
    switch.put_port("up", &PortRequest { kind: PortKind::Uplink, ..pod_port() }).unwrap();
    assert_eq!(dataplane.desired().routes[0].port, PortId(1));
    switch.delete_port("up", None).unwrap();
    assert!(dataplane.desired().routes.is_empty());
}

#[test]
fn tables_that_do_not_check_leave_the_running_ones() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    switch.put_tables(small_tables("10.1.0.2")).unwrap();
    let mut dangling = small_tables("10.1.0.2");
    dangling.rows = PersistentMap::new();
    let said = refused(&dataplane, 422, || switch.put_tables(dangling));
    assert!(said.contains("acls[0] names rows[0]"), "{said}");
    refused(&dataplane, 422, || switch.put_tables(RuleTables { format: 2, ..RuleTables::default() }));
    let diff = TablesDiff { rows: [(RowId(0), None)].into(), ..TablesDiff::default() };
    let base = switch.status().generation;
    refused(&dataplane, 422, || switch.patch_tables(&TablesPatch { base, diff }));
    assert_eq!(*switch.tables().unwrap(), small_tables("10.1.0.2"));
}

#[test]
fn a_difference_holds_against_any_generation_with_the_same_tables() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    let patch =
        |base| TablesPatch { base, diff: small_tables("10.1.0.2").difference(&small_tables("10.1.0.3")) };
    refused(&dataplane, 409, || switch.patch_tables(&patch(Generation(1))));
    let before = switch.status().generation;
    let loaded = switch.put_tables(small_tables("10.1.0.2")).unwrap().generation;
    with_db(&switch);
    refused(&dataplane, 409, || switch.patch_tables(&patch(before)));
    let future = Generation(switch.status().generation.0 + 1);
    let refusal = switch.patch_tables(&patch(future)).unwrap_err();
    assert!(matches!(refusal, ApiError::Tables(TablesError::Base { .. })), "{refusal}");
    let patched = switch.patch_tables(&patch(loaded)).unwrap().generation;
    assert_eq!(*switch.tables().unwrap(), small_tables("10.1.0.3"));
    assert_eq!(**dataplane.desired().tables.as_ref().unwrap(), small_tables("10.1.0.3"));
    refused(&dataplane, 409, || switch.patch_tables(&patch(loaded)));
    assert!(switch.delete_tables().unwrap().generation > patched);
    assert!(dataplane.desired().tables.is_none() && switch.tables().is_none());
}

#[test]
fn a_pod_that_the_tables_do_not_know_or_know_otherwise_carries_a_warning() {
    let (_, switch) = switch(SwitchSettings::default());
    with_db(&switch);
    let db = || switch.pods().remove(0);
    assert!(!db().known && db().warnings[0].contains("no rule tables are loaded"));
    let origin = PolicyOrigin::control_socket(None, None);
    switch.replace_tables(RuleTables::default(), origin, CoverageCheck::Skip).unwrap();
    assert!(!db().known && db().warnings[0].contains("do not know the pod: its traffic is dropped"));
    switch.put_tables(small_tables("10.1.0.9")).unwrap();
    assert!(db().known && db().warnings[0].contains("[10.1.0.9], and it is attached with [10.1.0.2]"));
    switch.put_tables(small_tables("10.1.0.2")).unwrap();
    assert!(db().known && db().warnings.is_empty());
}

#[test]
fn open_is_said_to_the_workers_and_in_the_warnings() {
    let (dataplane, switch) = switch(SwitchSettings { fail_open: true, ..SwitchSettings::default() });
    with_db(&switch);
    assert!(dataplane.desired().fail_open);
    assert!(switch.pods()[0].warnings[0].contains("passes unchecked"));
}

#[test]
fn the_summary_counts_what_is_loaded() {
    let (_, switch) = switch(SwitchSettings::default());
    assert!(!switch.tables_summary().loaded);
    switch.put_tables(small_tables("10.1.0.2")).unwrap();
    let summary = switch.tables_summary();
    assert_eq!((summary.rules, summary.rows, summary.acls, summary.pods), (1, 1, 1, 1));
    assert_eq!((summary.classes, summary.prefixes), (1, 0), "the rest of the world is a class");
}

#[test]
fn flows_of_one_pod_are_those_of_its_addresses() {
    let (_, switch) = switch(SwitchSettings::default());
    with_db(&switch);
    assert_eq!(switch.flows(&FlowQuery::first(100)).unwrap().flows.len(), 9);
    assert_eq!(switch.flows(&FlowQuery::first(4)).unwrap().flows.len(), 4);
    let of_db = switch.flows(&FlowQuery::of_pod(&pod("db"))).unwrap();
    assert_eq!((of_db.flows.len(), of_db.matched, of_db.total), (2, 2, 9), "one from 10.1.0.2, one to it");
    let names: Vec<_> = of_db.flows.iter().map(|flow| (&flow.source_pod, &flow.destination_pod)).collect();
    assert_eq!(names, [(&Some(pod("db")), &None), (&None, &Some(pod("db")))]);
    assert_eq!(switch.flows(&FlowQuery::of_pod(&pod("web"))).unwrap_err().status(), 404);
}

#[test]
fn compiled_tables_in_a_directory_are_followed_and_a_broken_file_keeps_the_running_tables() {
    let scratch = Scratch::new();
    let write = |tables: &RuleTables| scratch.write("t.json", &serde_json::to_string(tables).unwrap());
    let file = write(&small_tables("10.1.0.2"));
    let config = Policy { directory: Some(file.clone()), ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    let (dataplane, switch) = switch(SwitchSettings::default());
    switch.put_tables(directory.load().unwrap().tables).unwrap();
    directory.started(&switch);
    let before = dataplane.publications();
    assert!(matches!(directory.turn(false, &switch), Reload::NotDue));
    assert!(matches!(directory.turn(true, &switch), Reload::Same));

    scratch.write("t.json", r#"{"format": 1, "#);
    let Reload::Rejected(errors) = directory.turn(false, &switch) else { panic!("broken tables loaded") };
    assert!(errors[0].contains("t.json"), "{errors:?}");
    assert!(matches!(directory.turn(false, &switch), Reload::NotDue), "told twice");
    assert!(matches!(directory.turn(true, &switch), Reload::Rejected(_)));
    assert_eq!(*switch.tables().unwrap(), small_tables("10.1.0.2"));
    assert_eq!(dataplane.publications(), before);

    write(&small_tables("10.1.0.100"));
    let Reload::Loaded { generation, .. } = directory.turn(false, &switch) else { panic!("not loaded") };
    assert_eq!(generation, switch.status().generation);
    assert_eq!(*switch.tables().unwrap(), small_tables("10.1.0.100"));
}

#[test]
fn an_unwatched_directory_is_read_when_asked_to() {
    let scratch = Scratch::new();
    let write = |address: &str| {
        let file = scratch.write("t.json", &serde_json::to_string(&small_tables(address)).unwrap());
        let minute_ago = std::time::SystemTime::now() - std::time::Duration::from_mins(1);
        std::fs::File::options().append(true).open(&file).unwrap().set_modified(minute_ago).unwrap();
        file
    };
    let config = Policy { directory: Some(write("10.1.0.2")), watch: false, ..Policy::default() };
    let mut directory = PolicyDirectory::of(&config).unwrap();
    let (_, switch) = switch(SwitchSettings::default());
    switch.put_tables(directory.load().unwrap().tables).unwrap();
    directory.started(&switch);
    write("10.1.0.3");
    assert!(matches!(directory.turn(false, &switch), Reload::NotDue));
    assert!(matches!(directory.turn(true, &switch), Reload::Loaded { .. }));
    assert_eq!(*switch.tables().unwrap(), small_tables("10.1.0.3"));
}

#[test]
fn tables_that_know_none_of_the_attached_pods_are_refused_unless_allowed() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    with_db(&switch);
    let said = refused(&dataplane, 422, || switch.put_tables(RuleTables::default()));
    assert!(said.contains("none of the 1 that are attached: all these would be closed"), "{said}");
    let base = switch.put_tables(small_tables("10.1.0.2")).unwrap().generation;
    refused(&dataplane, 422, || switch.put_tables(RuleTables::default()));
    let none = small_tables("10.1.0.2").difference(&RuleTables::default());
    refused(&dataplane, 422, || switch.patch_tables(&TablesPatch { base, diff: none.clone() }));
    let origin = || PolicyOrigin::control_socket(Some(0), Some(1));
    switch.change_tables(base, &none, origin(), CoverageCheck::Skip).unwrap();
    // A difference to tables that close every pod already closes none.
    let base = switch.status().generation;
    switch.patch_tables(&TablesPatch { base, diff: TablesDiff::default() }).unwrap();
    switch.replace_tables(RuleTables::default(), origin(), CoverageCheck::Skip).unwrap();
    assert_eq!(switch.status().policy.unwrap().origin, origin());
}

#[test]
fn a_configuration_is_opened_in_order_and_stops_at_what_is_refused() {
    let text = r#"
        [[ports]]
        name = "db"
        kind = "pod"
        interface = "veth-db"
        pod = "default/db"
        pod_addresses = ["10.1.0.2"]
        [[ports]]
        name = "absent"
        kind = "pod"
        [[routes]]
        prefix = "10.9.0.0/16"
        port = "db"
    "#;
    let config = Config::parse(text, "palisade.toml".as_ref()).unwrap();
    let (dataplane, switch) = switch(config.switch_settings(vec![0]));
    let error = configure(&switch, &config, Some(small_tables("10.1.0.2"))).unwrap_err().to_string();
    assert_eq!(
        error,
        "port \"absent\": interface absent does not exist: create it first, or correct its name"
    );
    let published = dataplane.published.lock().unwrap();
    assert!(
        published.iter().all(|desired| desired.pods.is_empty() || desired.tables.is_some()),
        "pod before its tables"
    );
    assert_eq!(published.last().unwrap().routes.len(), 1);
    drop(published);
    assert!(switch.pods()[0].known);
}

#[test]
fn a_change_that_a_worker_does_not_take_is_made_and_said_to_have_failed() {
    let (dataplane, switch) = switch(SwitchSettings::default());
    dataplane.is_late.store(true, std::sync::atomic::Ordering::Relaxed);
    let refusal = switch.put_tables(small_tables("10.1.0.2")).unwrap_err();
    assert_eq!(refusal.status(), 503);
    assert!(refusal.to_string().contains("worker 1 has not taken it"), "{refusal}");
    assert!(switch.status().tables_loaded, "the worker takes them as soon as it goes on");
    assert_eq!(switch.status().generation, Generation(dataplane.publications() as u32));
}
