//! The CNI plugin with a real switch, real containers' namespaces and host-local.

mod faults;
mod kills;
mod older;
mod rig;

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use palisade::control::protocol::{PortRequest, PortState};
use palisade::dataplane::{Bandwidth, Bits, PortKind};
use serde_json::json;

use self::rig::{Container, Network, addresses, plugin, serve, talks};
use crate::support::closed::{FirstPacket, ProgramCounts, assert_dropped_by_program};
use crate::support::veth::{ip, try_ip};
use crate::support::{INGRESS, PORT, TIMEOUT, eventually, isolated};

fn only_from(app: &str, from: &str) -> String {
    crate::support::only_from(app, from)
}

#[test]
fn containers_reach_each_other_as_policy_says() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(2);
    let [web, db, other] = ["web", "db", "other"].map(Container::new);
    let (on_tap, on_veth) = (network.add(&web, "tap"), network.add(&db, "veth"));
    let third = network.add(&other, "auto");
    assert_eq!(
        third["interfaces"].as_array().unwrap().len(),
        1,
        "a tap device: flows are not offloaded here"
    );
    // The results: the pod's interface, and the node's end of a veth pair before it.
    assert_eq!(on_tap["interfaces"][0]["name"], "eth0");
    assert_eq!(on_tap["ips"][0]["interface"], 0);
    // A pod is alone on its link: behind a subnet's address, plugins for host ports masquerade its neighbours.
    let lengths = on_tap["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap());
    assert!(lengths.clone().all(|ip| ip.ends_with("/32") || ip.ends_with("/128")), "{on_tap}");
    let host_end = on_veth["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(on_veth["interfaces"][1]["sandbox"], db.path());
    assert_eq!(on_veth["ips"][1]["interface"], 1);
    let link = try_ip(&format!("-details link show dev {host_end}"));
    assert!(String::from_utf8_lossy(&link.stdout).contains("numtxqueues 2"), "{link:?}");
    let [to_v4, to_v6] = addresses(&on_veth)[..] else { panic!("{on_veth}") };
    let _servers = [db.serve(to_v4), db.serve(to_v6), web.serve(addresses(&on_tap)[0])];
    // No tables know the pods: they are closed.
    network.assert_denied(&web, to_v4, "unknown-pod");
    let all = [(&web, &on_tap), (&db, &on_veth), (&other, &third)];
    network.apply(&all, &only_from("db", "web"));
    web.assert_reaches(to_v4);
    web.assert_reaches(to_v6);
    db.assert_reaches(addresses(&on_tap)[0]);
    network.assert_denied(&other, to_v4, INGRESS);
    // Large packets between the pods of the node, those of an Ethernet to the outside.
    let routes = String::from_utf8(try_ip(&format!("-n {} route", web.netns)).stdout).unwrap();
    let route = |to: &str| routes.lines().find(|line| line.starts_with(to)).unwrap_or_default();
    assert!(route("default via 169.254.1.1 dev eth0").contains("mtu 1500"), "{routes}");
    assert!(route("10.88.0.0/16 via 169.254.1.1").contains("onlink"), "{routes}");
    assert!(!route("10.88.0.0/16").contains("mtu"), "{routes}");
    for container in [&web, &db, &other] {
        network.del(container);
        assert!(!container.has_interface());
        network.del(container);
    }
    network.assert_empty();
}

#[test]
fn check_compares_and_a_second_add_gives_the_first_result() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    for kind in ["tap", "veth"] {
        let web = Container::new("web");
        let config = network.with("interface", kind);
        let result = network.add(&web, kind);
        assert_eq!(network.call("ADD", &web, &config).json, result);
        let check = || {
            let mut config = config.clone();
            config["prevResult"] = result.clone();
            network.call("CHECK", &web, &config)
        };
        let answer = check();
        assert!(answer.success && answer.json.is_null(), "{answer:?}");
        let address = addresses(&result)[0];
        ip(&format!("-n {} address del {address}/32 dev eth0", web.netns));
        check().refused(100, &address.to_string());
        ip(&format!("-n {} address add {address}/32 dev eth0", web.netns));
        check().refused(100, "route");
        ip(&format!("-n {} link set eth0 down", web.netns));
        check().refused(100, "down");
        // A part of the attachment is gone: a further ADD makes it whole, with its addresses released and given anew.
        network.client().delete_pod(&"default/web".parse().unwrap()).unwrap();
        let again = network.add(&web, kind);
        assert!(network.client().pods().unwrap().iter().any(|pod| pod.addresses == addresses(&again)));
        assert_eq!(network.leases().len(), 1);
        network.del(&web);
        check().refused(3, "no attachment");
        network.assert_empty();
    }
}

#[test]
fn a_plugin_behind_it_takes_its_result_and_returns_it() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    for kind in ["tap", "veth"] {
        let [web, db] = ["web", "db"].map(Container::new);
        let [result, of_db] = [&web, &db].map(|container| network.add(container, kind));
        let mut tuning = network.with("type", "tuning");
        tuning["sysctl"] = json!({"net.core.somaxconn": "517"});
        tuning["prevResult"] = result.clone();
        let answer = network.call_chained("ADD", &web, &tuning);
        assert!(answer.success, "{answer:?}");
        assert_eq!(
            (addresses(&answer.json), &answer.json["interfaces"]),
            (addresses(&result), &result["interfaces"])
        );
        let limit = web.run(|| std::fs::read_to_string("/proc/sys/net/core/somaxconn")).unwrap();
        assert_eq!(limit.trim(), "517");
        let mut config = network.with("interface", kind);
        config["prevResult"] = answer.json;
        let checked = network.call("CHECK", &web, &config);
        assert!(checked.success, "{checked:?}");
        network.apply(&[(&web, &result), (&db, &of_db)], "");
        let to = addresses(&result)[0];
        let _server = web.serve(to);
        db.assert_reaches(to);
        let removed = network.call_chained("DEL", &web, &tuning);
        assert!(removed.success, "{removed:?}");
        [&web, &db].into_iter().for_each(|container| network.del(container));
        network.assert_empty();
    }
}

#[test]
fn a_runtime_limits_the_bandwidth_of_a_pod() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    for kind in ["tap", "veth"] {
        let web = Container::new("web");
        let mut config = network.with("interface", kind);
        // As containerd and CRI-O do for the annotation `kubernetes.io/egress-bandwidth: 10M`.
        config["runtimeConfig"]["bandwidth"] = if kind == "tap" {
            json!({"IngressRate": 0, "IngressBurst": 0, "EgressRate": 10_000_000, "EgressBurst": 4_294_967_295_u64})
        } else {
            json!({"egressRate": 10_000_000, "egressBurst": 34_359_738_359_u64})
        };
        config["capabilities"] = json!({"bandwidth": true});
        let answer = network.call("ADD", &web, &config);
        assert!(answer.success, "{answer:?}");
        let expected = Bandwidth { egress_rate: Some(Bits(10_000_000)), ..Bandwidth::default() };
        let limits = |network: &Network| network.client().pods().unwrap()[0].bandwidth;
        assert_eq!(limits(&network), expected);
        network.kill();
        network.start();
        assert_eq!(limits(&network), expected, "the pod is attached again");
        network.del(&web);
        config["runtimeConfig"]["bandwidth"] = json!({"egressRate": 999, "egressBurst": 1_000});
        network.call("ADD", &web, &config).refused(7, "egress_rate is 999, and must be from 1k to 1P bits");
        config["runtimeConfig"]["bandwidth"]["egressRate"] = json!("10M");
        network.call("ADD", &web, &config).refused(6, "runtimeConfig.bandwidth.egressRate");
        network.assert_empty();
    }
}

#[test]
fn ports_that_a_runtime_publishes_outlive_the_switch_and_one_of_a_gone_container_is_given_away() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let [web, next] = ["web", "next"].map(Container::new);
    let mut config = network.with("interface", "tap");
    config["capabilities"] = json!({"portMappings": true});
    // containerd repeats a port for each family; podman gives an address, and host port 0 publishes nothing.
    config["runtimeConfig"]["portMappings"] = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
        {"hostPort": 0, "containerPort": 81, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 5353, "protocol": "UDP", "hostIP": "0.0.0.0"},
    ]);
    let answer = network.call("ADD", &web, &config);
    assert!(answer.success, "{answer:?}");
    let mapped = |network: &Network| -> Vec<String> {
        let pods = network.client().pods().unwrap();
        pods.iter().flat_map(|pod| &pod.port_mappings).map(ToString::to_string).collect()
    };
    assert_eq!(mapped(&network), ["53:5353/udp", "8080:80/tcp"]);
    network.kill();
    network.start();
    assert_eq!(mapped(&network), ["53:5353/udp", "8080:80/tcp"], "the pod is attached again");
    network.call("ADD", &next, &config).refused(11, "already leads to pod");
    drop(web);
    let answer = network.call("ADD", &next, &config);
    assert!(answer.success, "{answer:?}");
    network.del(&next);
    for (wrong, text) in [
        (json!([{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]), "runtimeConfig.portMappings"),
        (json!([{"hostPort": 80, "containerPort": 80, "hostIP": "here"}]), "hostIP \"here\" is no address"),
    ] {
        config["runtimeConfig"]["portMappings"] = wrong;
        network.call("ADD", &next, &config).refused(7, text);
    }
    network.assert_empty();
}

#[test]
fn an_add_waits_for_policy_where_it_is_told_to() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    let [web, db] = ["web", "db"].map(Container::new);
    let result = network.add(&db, "tap");
    let mut call = network.start_call("ADD", &web, &network.with("waitForPolicy", 120));
    let web_is = |known: bool| {
        let pods = network.client().pods().unwrap();
        pods.iter().any(|info| info.pod.name == "web" && info.known == known)
    };
    eventually("the pod is attached, and closed", || web_is(false));
    assert!(call.try_wait().unwrap().is_none(), "the call does not wait");
    network.apply(&[(&db, &result), (&web, &result)], "");
    assert!(call.wait().unwrap().success() && web_is(true));
    // A wait that is over leaves the pod attached, and closed.
    let late = Container::new("late");
    assert!(network.call("ADD", &late, &network.with("waitForPolicy", 1)).success);
    for container in [&web, &db, &late] {
        network.del(container);
    }
    network.assert_empty();
}

#[test]
fn a_failed_add_leaves_nothing() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let [web, db] = ["web", "db"].map(Container::new);
    // The address of another pod, from another plugin.
    let result = network.add(&db, "tap");
    let taken = addresses(&result)[0];
    plugin(
        &mut network,
        "fixed",
        &format!(
            "cat >/dev/null; [ $CNI_COMMAND != ADD ] || echo '{{\"ips\": [{{\"address\": \"{taken}/24\"}}]}}'"
        ),
    );
    for kind in ["tap", "veth"] {
        let mut config = network.with("interface", kind);
        config["ipam"] = json!({"type": "fixed"});
        network.call("ADD", &web, &config).refused(11, "default/db");
        config["ipam"] = json!({"type": "nowhere"});
        network.call("ADD", &web, &config).refused(7, "nowhere");
        assert!(!web.has_interface());
        assert_eq!(network.client().ports().unwrap().len(), 1);
        assert_eq!((network.records("attached"), network.records("pending")), (1, 0));
    }
    // An interface of others is left alone.
    ip(&format!("-n {} link add eth0 type veth peer name other0", web.netns));
    network.call("ADD", &web, &network.config).refused(4, "exists already");
    network.del(&web);
    assert!(web.has_interface());
    // A container that has ended without DEL gives its name and addresses to the next.
    drop(db);
    let db = Container::new("db");
    let mut config = network.with("interface", "veth");
    config["ipam"] = json!({"type": "fixed"});
    let answer = network.call("ADD", &db, &config);
    assert!(answer.success, "{answer:?}");
    network.del(&db);
    network.assert_empty();
}

#[test]
fn a_switch_that_is_away_forgets_what_was_removed_meanwhile() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let containers = ["web", "db", "gone", "late"].map(Container::new);
    let [web, db, gone, late] = &containers;
    let (on_tap, on_veth) = (network.add(web, "tap"), network.add(db, "veth"));
    network.add(gone, "veth");
    network.add(late, "tap");
    network.apply(&[(web, &on_tap), (db, &on_veth)], "");
    let to = addresses(&on_veth)[0];
    let _server = db.serve(to);
    web.assert_reaches(to);
    let mut connection = web.connect(db, to);
    assert!(connection.goes_on(TIMEOUT));
    let host_end = on_veth["interfaces"][0]["name"].as_str().unwrap();
    network.kill();
    // Pods are closed, and the plugin says so.
    let of_web = addresses(&on_tap)[0];
    assert_dropped_by_program(|| ProgramCounts::on(host_end), || db.run(|| FirstPacket::tcp(of_web)));
    network.call("STATUS", web, &network.with("cniVersion", "1.1.0")).refused(51, "is it running?");
    network.call("ADD", &Container::new("new"), &network.config).refused(11, "is it running?");
    network.del(gone);
    network.del(late);
    assert!(!gone.has_interface() && !late.has_interface());
    assert_eq!((network.leases().len(), network.records("attached"), network.records("pending")), (2, 2, 2));
    network.start();
    // The other two are attached again.
    assert_eq!((network.client().pods().unwrap().len(), network.records("pending")), (2, 0));
    network.apply(&[(web, &on_tap), (db, &on_veth)], "");
    web.assert_reaches(to);
    assert!(connection.goes_on(TIMEOUT), "the flow has not survived");
    let answer = network.call("STATUS", web, &network.with("cniVersion", "1.1.0"));
    assert!(answer.success && answer.json.is_null(), "{answer:?}");
    network.del(web);
    network.del(db);
    network.assert_empty();
}

#[test]
fn a_plugin_that_is_killed_leaves_nothing_behind_its_next_call() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    // In the middle of ADD: the addresses are given, and the plugin dies before it hears of them.
    plugin(&mut network, "killer", "/usr/lib/cni/host-local; [ $CNI_COMMAND != ADD ] || kill -9 $PPID");
    let web = Container::new("web");
    let mut config = network.config.clone();
    config["ipam"]["type"] = "killer".into();
    let answer = network.call("ADD", &web, &config);
    assert!(!answer.success && answer.json.is_null(), "{answer:?}");
    assert_eq!((network.leases().len(), network.records("pending")), (1, 1));
    // Anywhere in it.
    let containers: Vec<Container> = (0..8).map(|number| Container::new(&format!("c{number}"))).collect();
    for (number, container) in containers.iter().enumerate() {
        let kind = if number % 2 == 0 { "tap" } else { "veth" };
        let mut child = network.start_call("ADD", container, &network.with("interface", kind));
        // A moment of its own, which may be behind the end of the call.
        std::thread::sleep(Duration::from_millis(8 * number as u64));
        let _ = child.kill();
        child.wait().unwrap();
    }
    // The IPAM plugins of the killed may still run.
    let gc = network.with("cniVersion", "1.1.0");
    let gc = {
        let mut config = gc;
        config["cni.dev/valid-attachments"] = json!([]);
        config
    };
    eventually("GC removes what the killed calls have left", || {
        let answer = network.call("GC", &web, &gc);
        assert!(answer.success, "{answer:?}");
        network.records("attached") + network.records("pending") == 0 && network.leases().is_empty()
    });
    network.assert_empty();
    assert!(containers.iter().chain([&web]).all(|container| !container.has_interface()));
    network.add(&web, "tap");
    network.del(&web);
    network.assert_empty();
}

#[test]
fn garbage_collection_keeps_what_the_runtime_knows() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    let [kept, leaked] = ["kept", "leaked"].map(Container::new);
    network.add(&kept, "veth");
    network.add(&leaked, "veth");
    let mut config = network.with("cniVersion", "1.1.0");
    config["name"] = "another".into();
    config["cni.dev/valid-attachments"] = json!([]);
    assert!(network.call("GC", &kept, &config).success);
    assert_eq!(network.records("attached"), 2);
    config["name"] = network.config["name"].clone();
    config["cni.dev/valid-attachments"] = json!([{"containerID": kept.id, "ifname": "eth0"}]);
    let answer = network.call("GC", &kept, &config);
    assert!(answer.success, "{answer:?}");
    assert!(kept.has_interface() && !leaked.has_interface());
    let pods = network.client().pods().unwrap();
    assert_eq!(pods.iter().map(|pod| pod.pod.name.as_str()).collect::<Vec<_>>(), ["kept"]);
    assert_eq!(network.leases().len(), 1);
    network.del(&kept);
    network.assert_empty();
}

#[test]
fn twenty_containers_at_once_and_one_many_times() {
    let Some(_isolated) = isolated() else { return };
    let network = &Network::up(1);
    let containers: Vec<Container> = (0..20).map(|number| Container::new(&format!("c{number}"))).collect();
    let results = std::thread::scope(|scope| {
        let add = |(number, container)| {
            let kind = if number % 2 == 0 { "tap" } else { "veth" };
            scope.spawn(move || network.add(container, kind))
        };
        let calls: Vec<_> = containers.iter().enumerate().map(add).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    let distinct: std::collections::BTreeSet<_> = results.iter().flat_map(addresses).collect();
    assert_eq!((distinct.len(), network.leases().len(), network.records("attached")), (40, 20, 20));
    // The monitor may have looked at an interface before its other end was up.
    eventually("every port is up", || {
        let ports = network.client().ports().unwrap();
        ports.len() == 20 && ports.iter().all(|port| port.state == PortState::Up)
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(network.add(&containers[0], "tap"), results[0]));
        }
    });
    std::thread::scope(|scope| {
        for container in &containers {
            scope.spawn(|| network.del(container));
        }
    });
    network.assert_empty();
}

#[test]
fn a_namespace_of_a_process_gets_a_name_of_its_own() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    let web = Container::new("web");
    let mut process =
        std::process::Command::new("ip").args(["netns", "exec", &web.netns, "sleep", "600"]).spawn().unwrap();
    eventually("the process is inside", || {
        let inside = std::fs::read_link(format!("/proc/{}/ns/net", process.id()));
        inside.is_ok_and(|link| web.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap()) == link)
    });
    // The runtime names the namespace by its process.
    let by_process = Container {
        netns: format!("../../proc/{}/ns/net", process.id()),
        id: web.id.clone(),
        pod: "web".to_owned(),
    };
    network.add(&by_process, "tap");
    let named = network.client().ports().unwrap()[0].name.clone();
    assert!(std::path::Path::new("/run/netns").join(&named).exists());
    process.kill().unwrap();
    process.wait().unwrap();
    network.del(&by_process);
    assert!(!std::path::Path::new("/run/netns").join(&named).exists() && !web.has_interface());
    network.assert_empty();
    std::mem::forget(by_process);
}

#[test]
fn the_node_reaches_its_containers_and_they_reach_it() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let [web, db] = ["web", "db"].map(Container::new);
    // The commands of docs/kubernetes.md.
    let [switch_end, node_end] = ["s", "n"].map(|end| format!("pal{}{end}", network.lab.id()));
    ip(&format!("link add {switch_end} type veth peer name {node_end}"));
    ip(&format!("link set {switch_end} up"));
    ip(&format!("link set {node_end} up"));
    let of_node = IpAddr::from([198, 18, 0, 1]);
    ip(&format!("address add {of_node}/32 dev {node_end}"));
    let request = PortRequest { addresses: vec![of_node], ..PortRequest::of(PortKind::Host) };
    network.client().put_port(&switch_end, &request).unwrap();
    network.config["nodeInterface"] = node_end.clone().into();
    let (on_tap, on_veth) = (network.add(&web, "tap"), network.add(&db, "veth"));
    // Nobody but the node reaches `db`.
    network.apply(&[(&web, &on_tap), (&db, &on_veth)], &only_from("db", "nobody"));
    let to = addresses(&on_veth)[0];
    let listener = TcpListener::bind((of_node, PORT)).unwrap();
    let _servers = [db.serve(to), serve(listener)];
    assert!(talks(to, TIMEOUT), "the node does not reach its pod");
    network.assert_denied(&web, to, INGRESS);
    web.assert_reaches(of_node);
    let routes = || String::from_utf8(try_ip(&format!("route show dev {node_end}")).stdout).unwrap();
    assert!(routes().contains(&format!("{to} via 169.254.1.1")), "{}", routes());
    network.del(&web);
    network.del(&db);
    assert!(!routes().contains("169.254.1.1"), "{}", routes());
    ip(&format!("link del {switch_end}"));
}
