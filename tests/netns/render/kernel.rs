//! Renderings in the kernel: its own packet filters between pods that it routes.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use palisade::dataplane::Mac;
use palisade::net::flow::Protocol;

use super::{AFTER, ALWAYS, BEFORE, BLOCKED_TOO, FRAGMENTED, Pods, RANGE, connected, is_answered, sorted};
use crate::support::packet_log::{Packet, PacketLog};
use crate::support::{TIMEOUT, eventually, isolated};
use crate::tools::run_if_installed;

/// Blocks beside that of the pod, all of lower addresses.
const BLOCKS: usize = 2000;
/// Loads of the same state.
const RELOADS: usize = 3;

/// Pods that the kernel of the node routes between, in both families.
fn routed() -> Pods {
    let pods = Pods::up();
    pods.node.route(Mac([2, 0, 0, 0, 0, 1])).unwrap();
    let ends = pods.lab.pods().map(|pod| {
        let (end, address) = (&pod.plan().host_interface, pod.v6());
        format!(
            "sysctl -qw net.ipv6.conf.{end}.disable_ipv6=0
            ip address add fe80::1/64 dev {end} nodad
            ip route add {address} dev {end}
            "
        )
    });
    let script = format!("sysctl -qw net.ipv6.conf.all.forwarding=1\n{}", ends.collect::<String>());
    pods.shell(&script);
    pods
}

#[test]
fn nftables_decides_as_the_tables() {
    let Some(_isolated) = isolated() else { return };
    if run_if_installed("nft", &["--version"], b"").is_none() {
        return;
    }
    let pods = routed();
    let old = pods.manifests("old.yaml", RANGE);
    let new = pods.manifests("new.yaml", BLOCKED_TOO);
    let load = |arguments: &[&str]| {
        let file = pods.render("nftables", arguments).join("palisade.nft");
        pods.run(&format!("nft -f {}", file.display()));
    };
    let drops = |packets: &[Packet], send: &mut dyn FnMut()| drops_in(&pods, packets, send);
    load(&[&old]);
    pods.check(&[&ALWAYS[..], &BEFORE].concat(), &drops);
    pods.check_icmp_and_node(&drops);
    connections_may_begin_in_fragments(&pods);
    load(&["--since", &old, &new]);
    pods.check(&[&ALWAYS[..], &AFTER].concat(), &drops);
    let changed = pods.run("nft --stateless list ruleset");
    load(&[&new]);
    assert_eq!(sorted(&changed), sorted(&pods.run("nft --stateless list ruleset")));
    pods.guards_against_forged_addresses(&drops, || {
        pods.shell("nft flush chain ip palisade guard; nft flush chain ip6 palisade guard");
    });
}

/// Variants of iptables, if they and ipset are installed.
fn installed_variants() -> impl Iterator<Item = &'static str> {
    let is_installed = |program| run_if_installed(program, &["--version"], b"").is_some();
    let variants =
        ["iptables-legacy", "iptables-nft"].into_iter().filter(move |variant| is_installed(variant));
    variants.filter(move |_| is_installed("ipset"))
}

#[test]
fn iptables_decides_as_the_tables() {
    let Some(_isolated) = isolated() else { return };
    for variant in installed_variants() {
        let pods = routed();
        let variants = [variant.to_owned(), variant.replace("ip", "ip6")];
        let old = pods.manifests("old.yaml", RANGE);
        let new = pods.manifests("new.yaml", BLOCKED_TOO);
        // Interfaces of two pods are named, and the others are found by their addresses. The pod whose address is forged is not
        // among them: its address would pass at no other interface without the guard either.
        let interfaces = pods.interfaces(&["db", "blocked"]);
        let render = |arguments: &[&str]| {
            let files = pods.render("iptables", &[&["--interfaces", &interfaces], arguments].concat());
            files.display().to_string()
        };
        let load_files = |files: &str, ends: &[&str]| {
            for end in ends {
                pods.run(&format!("ipset -exist restore -file {files}/palisade.ipset{end}"));
                for (variant, name) in variants.iter().zip(["iptables", "ip6tables"]) {
                    pods.run(&format!("{variant}-restore --noflush {files}/palisade.{name}{end}"));
                }
            }
            let [v4, v6] = &variants;
            pods.shell(&format!("IPTABLES={v4} IP6TABLES={v6} sh {files}/palisade.unused"));
        };
        let load_whole = |state: &str| load_files(&render(&[state]), &["", "-final"]);
        let state = || {
            let saved = variants.each_ref().map(|variant| pods.run(&format!("{variant}-save")));
            without_counters(&sorted(&(saved.concat() + &pods.run("ipset save"))))
        };
        load_whole(&old);
        for variant in &variants {
            pods.run(&format!("{variant} -t raw -I PREROUTING -j palisade-guard"));
            pods.run(&format!("{variant} -I FORWARD -j palisade-forward"));
            pods.run(&format!("{variant} -I INPUT -j palisade-input"));
        }
        let drops = |packets: &[Packet], send: &mut dyn FnMut()| drops_in(&pods, packets, send);
        pods.check(&[&ALWAYS[..], &BEFORE].concat(), &drops);
        pods.check_icmp_and_node(&drops);
        connections_may_begin_in_fragments(&pods);
        load_files(&render(&["--since", &old, &new]), &[""]);
        pods.check(&[&ALWAYS[..], &AFTER].concat(), &drops);
        let changed = state();
        load_whole(&new);
        assert_eq!(changed, state(), "{variant}");
        let large = pods.manifests("large.yaml", &many_blocks());
        let files = render(&[&large]);
        load_files(&files, &["", "-final"]);
        no_gap(&pods, || load_files(&files, &["", "-final"]));
        pods.guards_against_forged_addresses(&drops, || {
            variants.iter().for_each(|variant| _ = pods.run(&format!("{variant} -t raw -F palisade-guard")));
        });
    }
}

#[test]
fn iptables_drops_the_addresses_of_pods_at_interfaces_that_are_not_theirs() {
    let Some(_isolated) = isolated() else { return };
    for variant in installed_variants() {
        let pods = routed();
        let manifests = pods.manifests("pods.yaml", RANGE);
        let variants = [variant.to_owned(), variant.replace("ip", "ip6")];
        let load = |interfaces: &str| {
            let files = pods.render("iptables", &["--interfaces", interfaces, &manifests]);
            let files = files.display();
            for end in ["", "-final"] {
                pods.run(&format!("ipset -exist restore -file {files}/palisade.ipset{end}"));
                for (variant, name) in variants.iter().zip(["iptables", "ip6tables"]) {
                    pods.run(&format!("{variant}-restore --noflush {files}/palisade.{name}{end}"));
                }
            }
        };
        let drops = |packets: &[Packet], send: &mut dyn FnMut()| drops_in(&pods, packets, send);
        // Nothing forges an address, so that the guard has nothing to drop: it is not hooked.
        load(&pods.interfaces(&["db", "client"]));
        for variant in &variants {
            pods.run(&format!("{variant} -I FORWARD -j palisade-forward"));
            pods.run(&format!("{variant} -I INPUT -j palisade-input"));
        }
        let to_db = |is_allowed| ("client", "db", Protocol::TCP, 6379, is_allowed);
        let to_other = |is_allowed| ("blocked", "other", Protocol::TCP, 7000, is_allowed);
        pods.check(&[to_db(true), to_other(true)], &drops);
        // The file names the interface of a former pod. No policy is about `blocked`, and the line has its address too.
        let end = |pod: &str| pods.pod(pod).plan().host_interface.clone();
        let stale = format!("default/db gone0\ndefault/blocked gone1\ndefault/client {}\n", end("client"));
        load(&pods.file("stale", &stale));
        pods.check(&[to_db(false), to_other(false)], &drops);
        // Interfaces of pods that have no line.
        let prefix = end("db").trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let some = format!("pods {prefix}\ndefault/db {}\ndefault/client {}\n", end("db"), end("client"));
        load(&pods.file("some", &some));
        pods.check(&[to_db(true), to_other(false)], &drops);
        // The node itself reaches the pods that have lines.
        for address in pods.addresses("db") {
            let connect = || TcpStream::connect_timeout(&SocketAddr::new(address, 6379), TIMEOUT);
            pods.node.run(connect).unwrap().unwrap();
        }
    }
}

/// Asserts that the first datagram of an allowed flow passes in fragments: the kernel joins them before its rules.
fn connections_may_begin_in_fragments(pods: &Pods) {
    for address in pods.addresses("db") {
        let socket = connected(&pods.pod("client"), address, 5353);
        assert!(is_answered(&socket, FRAGMENTED), "{address}");
    }
}

/// Rule that admits a pod by the last of many blocks: its set takes long to fill.
fn many_blocks() -> String {
    let others = (0..BLOCKS).map(|n| format!("{{ipBlock: {{cidr: 10.{}.{}.0/24}}}}", n / 256, n % 256));
    let others: Vec<String> = others.collect();
    format!(
        "  - from: [{}, {{ipBlock: {{cidr: BLOCKED4/32}}}}]\n    ports: [{{protocol: UDP, port: 5353}}]\n",
        others.join(", ")
    )
}

/// Sends packets, and asserts that the kernel of the node drops them.
fn drops_in(pods: &Pods, packets: &[Packet], send: &mut dyn FnMut()) {
    let run = |command: &mut Command| pods.node.output(command).unwrap();
    let log = PacketLog::of(packets, &run);
    send();
    log.assert_dropped();
}

/// Asserts that each flow that a pod opens passes while `reload` runs again and again.
fn no_gap(pods: &Pods, reload: impl Fn()) {
    let (blocked, [db, _]) = (pods.pod("blocked"), pods.addresses("db"));
    let (is_over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Each flow has a port of its own, so none belongs to a tracked connection.
            while !is_over.load(Ordering::Relaxed) {
                let before = opened.load(Ordering::Relaxed);
                assert!(is_answered(&connected(&blocked, db, 5353), 10), "after {before} flows");
                opened.store(before + 1, Ordering::Relaxed);
            }
        });
        for _ in 0..RELOADS {
            let before = opened.load(Ordering::Relaxed);
            reload();
            eventually("flows are opened beside it", || opened.load(Ordering::Relaxed) > before);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Lines without the counters and the seeds of hashes, which differ.
fn without_counters(lines: &[String]) -> Vec<String> {
    let lines = lines
        .iter()
        .map(|line| line.split(" [").next().unwrap().split(" hashsize").next().unwrap().to_owned());
    lines.collect()
}
