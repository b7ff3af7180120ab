//! Commands that add and remove ports, pods and routes, and that drain ports.

use palisade::control::protocol::RouteInfo;
use palisade::dataplane::PortKind;
use palisade::ids::PortId;
use serde_json::Value;

use crate::commands::palisade;
use crate::fixture::{Served, on_port, pod, pod_port};

/// Runs a command for the switch. Gives exit code, standard output and standard error.
fn run(served: &Served, arguments: &str) -> (i32, String, String) {
    let words: Vec<&str> =
        arguments.split(' ').chain(["--socket", served.socket().to_str().unwrap()]).collect();
    palisade(&words)
}

/// Runs a command that succeeds. Gives its output.
fn done(served: &Served, arguments: &str) -> String {
    let (code, out, err) = run(served, arguments);
    assert_eq!((code, err.as_str()), (0, ""), "{arguments}: {out}");
    out
}

/// Runs a command that fails, and changes nothing. Gives the error.
fn refused(served: &Served, arguments: &str) -> String {
    let before = served.dataplane.publications();
    let (code, out, err) = run(served, arguments);
    assert_eq!((code, out.as_str()), (2, ""), "{arguments}: {err}");
    assert_eq!(served.dataplane.publications(), before, "{arguments}");
    err
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn ports_are_added_and_removed_and_the_output_tells_what_a_restart_forgets() {
    let served = Served::start();
    let out = done(&served, "port add veth-db --kind pod");
    assert!(out.starts_with("port veth-db is open on interface veth-db\n"), "{out}");
    assert!(
        out.contains("configuration file is unchanged: a restart forgets") && out.contains("SIGHUP"),
        "{out}"
    );
    done(&served, "port add tap-web --kind tap --namespace web --interface eth0 --mtu 9000");
    done(&served, "port add node --kind host --address 10.9.0.1 --address fd00::1");
    let up = read(&done(&served, "port add up --kind uplink --vlan 7 --output json"));
    assert_eq!((&up["name"], &up["kind"], &up["vlan"]), (&"up".into(), &"uplink".into(), &7.into()));
    let ports = served.client.ports().unwrap();
    let tap = ports.iter().find(|port| port.name == "tap-web").unwrap();
    assert_eq!((tap.spec.kind, tap.spec.requested_mtu), (PortKind::Tap, Some(9000)));
    let list = done(&served, "port list");
    assert!(list.contains("FLOWS") && list.contains("eth0 in web") && list.lines().count() == 5, "{list}");

    for (arguments, says) in [
        ("port add veth-db --kind pod", "exists already"),
        ("port add x --kind tap", "needs the network namespace"),
        ("port add x --kind host", "needs the node's addresses"),
        ("port add absent --kind pod", "absent"),
        ("port add ../x --kind pod", "is not a port's name"),
        ("port add x --kind pod --interface a-name-that-is-too-long", "1 to 15 bytes"),
        ("port remove none", "there is no port \"none\""),
        ("port add x --kind cable", "possible values: pod, tap, host, uplink"),
        ("port add x --kind pod --vlan 99999", "99999"),
        ("port remove up --detach=perhaps", "perhaps"),
    ] {
        let err = refused(&served, arguments);
        assert!(err.contains(says), "{arguments}: {err}");
    }

    done(&served, "port remove veth-db --detach");
    done(&served, "port remove tap-web --detach=false");
    done(&served, "port remove up");
    let closed = served.dataplane.closed.lock().unwrap().clone();
    assert_eq!(closed, [(PortId(0), true), (PortId(1), false), (PortId(3), false)]);
}

#[test]
fn pods_are_attached_and_detached() {
    let served = Served::start();
    done(&served, "port add veth-db --kind pod");
    let out = done(&served, "pod attach default/db --port veth-db --address 10.1.0.2 --address fd00::2");
    assert!(
        out.starts_with("pod default/db is attached to port veth-db\nwarning: default/db: no rule tables"),
        "{out}"
    );
    assert!(done(&served, "pod list").contains("10.1.0.2, fd00::2"));
    for (arguments, says) in [
        ("pod attach default/db --port veth-db --address 10.1.0.3", "already attached"),
        ("pod attach default/x --port veth-db --address 10.1.0.3", "has pod default/db"),
        ("pod attach default/x --port none --address 10.1.0.3", "there is no port"),
        ("pod attach default/x --port veth-db --address 127.0.0.1", "a loopback address"),
        ("pod attach default/x --port veth-db", "--address"),
        ("pod attach a/b/c --port veth-db --address 10.1.0.3", "a/b/c"),
        ("pod detach default/x", "is not attached"),
        ("port remove veth-db", "detach the pod first"),
    ] {
        let err = refused(&served, arguments);
        assert!(err.contains(says), "{arguments}: {err}");
    }
    // The bandwidth changes, the attachment stays.
    let attachment = served.client.pods().unwrap()[0].attachment;
    let out = done(&served, "pod limit default/db --egress-rate 10M --ingress-rate 1G --ingress-burst 2M");
    assert!(out.starts_with("bandwidth of pod default/db: ingress 1G (burst 2M), egress 10M\n"), "{out}");
    assert!(done(&served, "show pods").contains("ingress 1G (burst 2M), egress 10M"));
    let limits = || {
        let desired = served.dataplane.desired();
        (desired.pods[0].id, desired.pods[0].bandwidth.egress().map(|limit| limit.rate))
    };
    assert_eq!(limits(), (attachment, Some(10_000_000)));
    for (arguments, says) in [
        ("pod limit default/x --egress-rate 10M", "is not attached"),
        ("pod limit default/db --egress-rate 10", "must be from 1k to 1P bits per second"),
        ("pod limit default/db --egress-rate 10Mbit", "whole number of bits"),
        ("pod limit default/db --egress-burst 10M", "--egress-rate"),
        ("pod attach default/db --port veth-db --address 10.1.0.2 --address fd00::2", "already attached"),
    ] {
        let err = refused(&served, arguments);
        assert!(err.contains(says), "{arguments}: {err}");
    }
    assert_eq!(limits(), (attachment, Some(10_000_000)));
    done(&served, "pod limit default/db --egress-rate 10M");
    done(&served, "pod limit default/db --egress-rate 10M");
    let out = done(&served, "pod limit default/db");
    assert!(out.starts_with("bandwidth of pod default/db: no limit\n"), "{out}");
    assert!(!done(&served, "pod list").contains("BANDWIDTH"));
    let out = done(&served, "pod detach default/db --output json");
    assert_eq!(read(&out), serde_json::json!({ "detached": "default/db" }));
    assert_eq!(served.client.pods().unwrap(), []);
}

#[test]
fn routes_are_added_and_removed() {
    let served = Served::start();
    done(&served, "port add up --kind uplink");
    // The fake dataplane reports no routes, so that none is seen in force.
    let out = done(&served, "route add 10.8.7.6/8 --port up --next-hop 192.0.2.1");
    assert!(
        out.starts_with("route 10.0.0.0/8, the prefix of 10.8.7.6/8, to port up ")
            && out.contains("a restart forgets"),
        "{out}"
    );
    let route: RouteInfo =
        serde_json::from_str(&done(&served, "route add ::/0 --port up --output json")).unwrap();
    assert_eq!((route.prefix.to_string().as_str(), route.port.as_deref()), ("::/0", Some("up")));
    let in_force = served.dataplane.desired().routes;
    let shown: Vec<_> = in_force.iter().map(|route| (route.prefix.to_string(), route.next_hop)).collect();
    assert_eq!(
        shown,
        [("10.0.0.0/8".to_owned(), Some("192.0.2.1".parse().unwrap())), ("::/0".to_owned(), None)]
    );
    for (arguments, says) in [
        ("route add 10.0.0.0/8 --port up", "exists already, to port \"up\""),
        ("route add 10.9.0.0/16 --port none", "there is no port \"none\""),
        ("route add 10.9.0.0/16 --port up --next-hop ::1", "is not of the prefix's address family"),
        ("route add 10.9.0.0/16 --port up --next-hop 224.0.0.1", "a multicast address"),
        ("route add 10.9.0.0/33 --port up", "10.9.0.0/33"),
        ("route add 10.9.0.0 --port up", "10.9.0.0"),
        ("route remove 10.9.0.0/16", "no configured route to 10.9.0.0/16"),
    ] {
        let err = refused(&served, arguments);
        assert!(err.contains(says), "{arguments}: {err}");
    }
    assert!(done(&served, "route list").contains("10.0.0.0/8"));
    done(&served, "route remove 10.1.2.3/8");
    done(&served, "port remove up");
    assert!(done(&served, "route list").contains("waits for its port"));
}

#[test]
fn a_drain_is_told_in_every_list_and_ends_with_its_pod() {
    let served = Served::start();
    for (name, address) in [("db", "10.1.0.2"), ("web", "10.1.0.9")] {
        served.client.put_port(name, &pod_port()).unwrap();
        served.client.put_pod(&pod(name), &on_port(name, address)).unwrap();
    }
    served.client.put_port("bare", &pod_port()).unwrap();
    assert!(refused(&served, "port drain none").contains("there is no port"));
    assert!(refused(&served, "port drain bare").contains("has no pod"));
    assert!(refused(&served, "port drain bare --undo").contains("has no pod"));

    // Flows go from 10.1.0.N to 10.1.0.N+1; the one from 9 is in time-wait, and has ended.
    let out = done(&served, "port drain db");
    assert_eq!(out, "port db is draining: 2 flows of pod default/db are left\n");
    let id = served.client.ports().unwrap().into_iter().find(|port| port.name == "db").unwrap().report.id;
    assert_eq!(served.dataplane.desired().draining, [id].into());
    let published = served.dataplane.publications();
    let (code, out, _) = run(&served, "port drain db --wait 0");
    let says = "port db is draining: 2 flows of pod default/db are left after ";
    assert!(code == 1 && out.starts_with(says), "{out}");
    assert_eq!(served.dataplane.publications(), published, "a drained port is not drained again");
    let (code, out, _) = run(&served, "port drain web --wait 1 --output json");
    assert_eq!((code, read(&out)["flows"].as_u64()), (1, Some(1)), "{out}");

    let ports = read(&done(&served, "port list --output json"));
    let of = |name: &str| ports.as_array().unwrap().iter().find(|port| port["name"] == name).unwrap().clone();
    assert_eq!((&of("db")["draining"], &of("db")["flows"]), (&true.into(), &2.into()));
    assert_eq!((&of("bare")["draining"], &of("bare")["flows"]), (&Value::Null, &Value::Null));
    for command in ["port list", "show ports"] {
        let shown = done(&served, command);
        assert_eq!(shown.matches("up, draining").count(), 2, "{shown}");
    }
    let status = done(&served, "show status");
    assert!(status.contains("port db is draining: no flow from or to pod default/db begins"), "{status}");

    // The flows end, and a wait with them.
    served
        .client
        .flush_flows(&palisade::control::protocol::FlowQuery { all: true, ..Default::default() })
        .unwrap();
    let out = done(&served, "port drain db --wait 60");
    assert!(out.starts_with("port db is draining: no flow of pod default/db is left after "), "{out}");
    assert_eq!(done(&served, "port drain web --undo"), "port web takes new flows again\n");
    assert_eq!(served.dataplane.desired().draining, [id].into());
    served.client.delete_pod(&pod("db")).unwrap();
    served.client.put_pod(&pod("db"), &on_port("db", "10.1.0.2")).unwrap();
    assert!(served.dataplane.desired().draining.is_empty(), "another attachment is not drained");
}

#[test]
fn a_wait_ends_when_the_drain_does() {
    let served = Served::start();
    served.client.put_port("db", &pod_port()).unwrap();
    served.client.put_pod(&pod("db"), &on_port("db", "10.1.0.2")).unwrap();
    let (code, out, err) = std::thread::scope(|scope| {
        let wait = scope.spawn(|| run(&served, "port drain db --wait 600"));
        while !served.client.ports().unwrap()[0].draining {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        served.client.drain_port("db", false).unwrap();
        wait.join().unwrap()
    });
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("somebody has ended the drain"), "{err}");
}
