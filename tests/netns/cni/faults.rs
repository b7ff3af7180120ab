//! Interfaces, names and addresses after faults: those that calls leave alone, and those that they undo.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade::control::protocol::PortState;
use serde_json::{Value, json};

use super::rig::{Answer, Container, Network, addresses, plugin};
use crate::support::veth::ip;
use crate::support::{eventually, isolated};

/// File of the record of a container.
fn record(network: &Network, part: &str, container: &Container) -> PathBuf {
    network.lab.directory().join("cni").join(part).join(format!("{}@eth0.json", container.id))
}

/// Number of times that a process has gone to sleep (`proc_pid_status(5)`).
fn sleeps(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    switches.unwrap().trim().parse().unwrap()
}

/// GC, which finishes what other calls have left, with all of these containers valid.
fn collect(network: &Network, by: &Container) -> Answer {
    let mut config = network.with("cniVersion", "1.1.0");
    config["cni.dev/valid-attachments"] = json!([{"containerID": by.id, "ifname": "eth0"}]);
    network.call("GC", by, &config)
}

#[test]
fn what_a_killed_call_has_left_never_takes_the_interface_of_another() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    for kind in ["tap", "veth"] {
        let first = Container::new("first");
        network.add(&first, kind);
        let left = fs::read(record(&network, "attached", &first)).unwrap();
        network.del(&first);
        // Another container in the same namespace, while a call for the first one has ended in its middle.
        let second =
            Container { netns: first.netns.clone(), id: format!("{}b", first.id), pod: "second".to_owned() };
        network.add(&second, kind);
        fs::write(record(&network, "pending", &first), &left).unwrap();
        let answer = collect(&network, &second);
        assert!(answer.success && network.records("pending") == 0, "{answer:?}");
        assert!(second.has_interface(), "{kind}");
        network.del(&second);
        // A namespace that has got the path of the first one, with an interface of somebody else.
        let mut other: Value = serde_json::from_slice(&left).unwrap();
        other["cookie"] = (other["cookie"].as_u64().unwrap() + 1).into();
        let addition = if kind == "tap" {
            "tuntap add eth0 mode tap"
        } else {
            "link add eth0 type veth peer name other0"
        };
        ip(&format!("-n {} {addition}", first.netns));
        fs::write(record(&network, "pending", &first), other.to_string()).unwrap();
        network.del(&first);
        assert!(first.has_interface() && network.records("pending") == 0, "{kind}");
        std::mem::forget(second);
        network.assert_empty();
    }
}

#[test]
fn a_record_that_was_never_written_goes_with_the_next_collection() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    let [web, killed] = ["web", "killed"].map(Container::new);
    network.add(&web, "tap");
    fs::write(record(&network, "pending", &killed).with_extension("next"), "{").unwrap();
    assert!(collect(&network, &web).success);
    assert_eq!((network.records("attached"), network.records("pending")), (1, 0));
    network.del(&web);
    network.assert_empty();
}

#[test]
fn a_namespace_with_the_name_of_another_gets_no_port() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let [on_tap, on_veth] = ["web", "db"].map(Container::new);
    network.add(&on_tap, "tap");
    network.add(&on_veth, "veth");
    // The kernel gives the inode of the old namespace to the new one.
    for Container { netns, .. } in [&on_tap, &on_veth] {
        ip(&format!("netns delete {netns}"));
        ip(&format!("netns add {netns}"));
    }
    eventually("the switch finds another namespace", || {
        let ports = network.client().ports().unwrap();
        ports.iter().any(|port| port.reason.as_ref().is_some_and(|reason| reason.contains("is another one")))
    });
    network.kill();
    network.start();
    assert_eq!(network.client().pods().unwrap().len(), 0);
    assert!(network.client().ports().unwrap().iter().all(|port| port.state != PortState::Up));
    assert!(!on_tap.has_interface() && !on_veth.has_interface());
    // The containers have ended without DEL, and others have their names and addresses.
    network.del(&on_tap);
    network.del(&on_veth);
    network.assert_empty();
}

#[test]
fn addresses_that_a_broken_plugin_has_given_are_released() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let web = Container::new("web");
    for (end, code) in [("echo garbage", 6), ("echo '{}'", 7), ("kill -9 $$", 5)] {
        plugin(
            &mut network,
            "broken",
            &format!(
                "[ $CNI_COMMAND = ADD ] || exec /usr/lib/cni/host-local\n/usr/lib/cni/host-local > /dev/null\n{end}"
            ),
        );
        let mut config = network.config.clone();
        config["ipam"]["type"] = "broken".into();
        network.call("ADD", &web, &config).refused(code, "");
        network.assert_empty();
    }
}

#[test]
fn a_pod_gets_its_name_from_a_removal_that_has_not_come_to_its_end() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let [first, second] = ["web", "web"].map(Container::new);
    plugin(&mut network, "stuck", "[ $CNI_COMMAND = ADD ] || exit 1\nexec /usr/lib/cni/host-local");
    let mut config = network.config.clone();
    config["ipam"]["type"] = "stuck".into();
    assert!(network.call("ADD", &first, &config).success);
    // A DEL that was killed at once; its container runs.
    fs::rename(record(&network, "attached", &first), record(&network, "pending", &first)).unwrap();
    let result = network.add(&second, "tap");
    let pods = network.client().pods().unwrap();
    assert!(pods.len() == 1 && pods[0].addresses == addresses(&result), "{pods:?}");
    // The plugin does not release the addresses of the first one, which stays to be finished.
    assert_eq!((network.records("attached"), network.records("pending")), (1, 1));
    assert!(!first.has_interface() && second.has_interface());
    plugin(&mut network, "stuck", "exec /usr/lib/cni/host-local");
    network.del(&second);
    network.assert_empty();
}

#[test]
fn an_attachment_belongs_to_its_network_and_its_pod() {
    let Some(_isolated) = isolated() else { return };
    let network = Network::up(1);
    let web = Container::new("web");
    let result = network.add(&web, "veth");
    let mut another = network.with("interface", "veth");
    another["name"] = "another".into();
    another["prevResult"] = result.clone();
    network.call("ADD", &web, &another).refused(4, "belongs to network");
    network.call("CHECK", &web, &another).refused(3, "another");
    // The runtime undoes the ADD that was refused.
    assert!(network.call("DEL", &web, &another).success);
    assert!(web.has_interface() && network.records("attached") == 1);
    let renamed = Container { netns: web.netns.clone(), id: web.id.clone(), pod: "renamed".to_owned() };
    network.add(&renamed, "veth");
    let pods = network.client().pods().unwrap();
    assert_eq!(pods.iter().map(|info| info.pod.name.as_str()).collect::<Vec<_>>(), ["renamed"]);
    network.del(&web);
    std::mem::forget(renamed);
    network.assert_empty();
}

#[test]
fn a_runtime_that_reads_no_errors_gets_its_answer() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let web = Container::new("web");
    network.add(&web, "tap");
    network.kill();
    // Each note fails: the pipe has no reader.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let call = network.start_call_with("DEL", &web, &network.config, writer.into());
    let answer = Answer::of(&call.wait_with_output().unwrap());
    assert!(answer.success && !web.has_interface(), "{answer:?}");
    network.start();
    network.assert_empty();
}

#[test]
fn an_address_that_the_plugin_of_a_killed_call_gives_later_is_released() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let web = Container::new("web");
    let at = |name: &str| network.lab.directory().join(name);
    let (started, go) = (at("started"), at("go"));
    let wait = format!("touch {}; until [ -e {} ]; do sleep 0.01; done", started.display(), go.display());
    plugin(
        &mut network,
        "late",
        &format!("[ $CNI_COMMAND != ADD ] || {{ {wait}; }}\nexec /usr/lib/cni/host-local"),
    );
    network.config["ipam"]["type"] = "late".into();
    let mut add = network.start_call("ADD", &web, &network.config);
    eventually("the plugin runs", || started.exists());
    add.kill().unwrap();
    add.wait().unwrap();
    let mut del = network.start_call("DEL", &web, &network.config);
    eventually("DEL looks again and again whether the plugin has ended", || {
        assert!(del.try_wait().unwrap().is_none(), "DEL does not wait for the plugin");
        sleeps(del.id()) > 50
    });
    fs::write(&go, "").unwrap();
    assert!(del.wait().unwrap().success());
    network.assert_empty();
}

#[test]
fn a_namespace_may_go_or_be_replaced_in_the_middle_of_a_call() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let again = network.lab.directory().join("again");
    plugin(
        &mut network,
        "vanish",
        &format!(
            "[ $CNI_COMMAND = ADD ] || exec /usr/lib/cni/host-local\n/usr/lib/cni/host-local\n\
             name=$(basename $CNI_NETNS); ip netns delete $name; [ ! -e {} ] || ip netns add $name",
            again.display()
        ),
    );
    network.config["ipam"]["type"] = "vanish".into();
    for is_replaced in [false, true] {
        for kind in ["tap", "veth"] {
            let web = Container::new("web");
            let answer = network.call("ADD", &web, &network.with("interface", kind));
            // The veth pair is made in the namespace that the call has opened, which ends with it.
            assert!(kind == "veth" || !answer.success, "{answer:?}");
            assert!(!web.has_interface(), "{kind}");
            network.del(&web);
            network.assert_empty();
        }
        if !is_replaced {
            fs::write(&again, "").unwrap();
        }
    }
}

#[test]
fn a_full_disk_keeps_no_container_from_ending() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let [web, db, late] = ["web", "db", "late"].map(Container::new);
    let records = network.lab.directory().join("cni");
    fs::create_dir_all(&records).unwrap();
    let disk = Disk::small(&records);
    network.add(&web, "tap");
    network.add(&db, "veth");
    let filled = disk.fill();
    network.call("ADD", &late, &network.config).refused(5, "No space left on device");
    assert!(!late.has_interface());
    assert_eq!((network.leases().len(), network.client().ports().unwrap().len()), (2, 2));
    network.del(&late);
    network.del(&web);
    assert!(!web.has_interface() && network.leases().len() == 1);
    network.kill();
    network.del(&db);
    assert!(!db.has_interface() && network.leases().is_empty());
    network.start();
    // The record could not be changed, so that a call finishes it.
    assert_eq!((network.records("attached"), network.client().pods().unwrap().len()), (0, 0));
    fs::remove_file(filled).unwrap();
    let answer = collect(&network, &late);
    assert!(answer.success, "{answer:?}");
    network.assert_empty();
}

/// File system of a few pages, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn small(at: &Path) -> Disk {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=32k", "tmpfs"]).arg(at).status();
        assert!(mount.unwrap().success());
        Disk(at.to_owned())
    }

    /// Fills it. Returns the file that does.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn calls_for_one_container_at_the_same_time_leave_nothing() {
    let Some(_isolated) = isolated() else { return };
    let network = &Network::up(1);
    let containers = &["web", "db"].map(Container::new);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let container = &containers[number % 2];
            let config = network.with("interface", if number < 3 { "tap" } else { "veth" });
            scope.spawn(move || {
                for _ in 0..4 {
                    // One that finds the container of another network's call, or its interface, is refused.
                    network.call("ADD", container, &config);
                    if number % 3 == 0 {
                        assert!(collect(network, container).success);
                    }
                    network.del(container);
                }
            });
        }
    });
    for container in containers {
        network.del(container);
        assert!(!container.has_interface());
    }
    network.assert_empty();
}
