//! Services over the control socket: whole tables, differences, and what is refused.

use palisade::control::ClientError;
use palisade::control::protocol::ServicesPatch;
use palisade::ids::Generation;
use palisade::net::flow::Protocol;
use palisade::tables::{ServicePort, ServicePortName, ServiceTable, ServicesDiff};

use crate::fixture::Served;

fn name(name: &str) -> ServicePortName {
    ServicePortName {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        port: None,
        protocol: Protocol::TCP,
    }
}

pub(crate) fn port(cluster: &str, backends: &[&str]) -> ServicePort {
    ServicePort {
        cluster: vec![cluster.parse().unwrap()],
        internal_backends: backends.iter().map(|backend| backend.parse().unwrap()).collect(),
        ..ServicePort::default()
    }
}

pub(crate) fn table(ports: &[(&str, ServicePort)]) -> ServiceTable {
    let ports = ports.iter().map(|(service, port)| (name(service), port.clone())).collect();
    ServiceTable { node_addresses: vec!["192.0.2.1".parse().unwrap()], ports }
}

fn set(service: &str, port: &ServicePort) -> ServicesDiff {
    ServicesDiff { set: [(name(service), port.clone())].into(), ..ServicesDiff::default() }
}

#[test]
fn a_table_is_loaded_changed_and_reported() {
    let served = Served::start();
    let empty = served.client.services().unwrap();
    assert!(empty.since.is_none() && empty.ports.is_empty(), "{empty:?}");
    let web = port("10.96.0.1:80", &["10.0.0.2:8080", "10.0.0.3:8080"]);
    let loaded = served.client.put_services(&table(&[("web", web.clone())])).unwrap();
    let report = served.client.services().unwrap();
    assert_eq!((report.since, report.node_addresses.len()), (Some(loaded.generation), 1));
    assert_eq!((&report.ports[0].service, &report.ports[0].port), (&name("web"), &web));
    assert_eq!(report.ports[0].backends.len(), 2);

    let db = port("10.96.0.2:5432", &[]);
    let diff = ServicesDiff { removed: vec![name("web")], ..set("db", &db) };
    served.client.patch_services(&ServicesPatch { base: loaded.generation, diff }).unwrap();
    assert_eq!(served.dataplane.desired().services.unwrap().table(), table(&[("db", db)]));
    served.client.put_services(&ServiceTable::default()).unwrap();
    assert!(served.dataplane.desired().services.unwrap().is_empty());
}

#[test]
fn a_difference_to_other_services_is_a_conflict_and_changes_nothing() {
    let served = Served::start();
    let diff = set("web", &port("10.96.0.1:80", &[]));
    let patch = |base| served.client.patch_services(&ServicesPatch { base, diff: diff.clone() });
    let before = served.dataplane.publications();
    let status = |result: Result<_, ClientError>| result.map(|_| ()).unwrap_err().status();
    assert_eq!(status(patch(Generation(0))), Some(409), "no base");
    let first = served.client.put_services(&table(&[])).unwrap().generation;
    let second = served.client.put_services(&table(&[("db", port("10.96.0.2:1", &[]))])).unwrap().generation;
    assert_eq!(status(patch(first)), Some(409));
    assert_eq!(status(patch(Generation(second.0 + 1))), Some(409));
    assert_eq!(served.dataplane.publications(), before + 2);
    patch(second).unwrap();
    // A difference without a change publishes nothing, and keeps the base.
    let base = served.client.services().unwrap().since.unwrap();
    let nothing = ServicesPatch { base, diff: ServicesDiff::default() };
    served.client.patch_services(&nothing).unwrap();
    assert_eq!(served.dataplane.publications(), before + 3);
}

#[test]
fn invalid_services_are_refused_and_leave_those_in_force() {
    let served = Served::start();
    let web = table(&[("web", port("10.96.0.1:80", &[]))]);
    let base = served.client.put_services(&web).unwrap().generation;
    let taken = port("10.96.0.1:80", &[]);
    for (result, says) in [
        (
            served.client.put_services(&table(&[("web", taken.clone()), ("db", taken.clone())])),
            "both claim TCP 10.96.0.1:80",
        ),
        (served.client.put_services(&table(&[("web", port("127.0.0.1:80", &[]))])), "127.0.0.1:80"),
        (served.client.patch_services(&ServicesPatch { base, diff: set("db", &taken) }), "both claim"),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Some(422), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(served.dataplane.desired().services.unwrap().table(), web);
}
