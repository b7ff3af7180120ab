//! Rights of a running switch: given up by every thread, and enough for ports that open later.

use std::fs;

use palisade::lab::traffic::{Server, Services};

use crate::support::{PORT, Rig, assert_allowed, isolated};

/// Values of a line of `status` of all threads of a process.
fn of_threads(process: u32, line: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let values = texts.filter_map(|text| {
        let value = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    });
    values.collect()
}

/// Sum of the kept capabilities, by their numbers in `linux/capability.h`: `NET_ADMIN`, `NET_RAW`, `IPC_LOCK`,
/// `SYS_ADMIN` and `SYS_NICE`.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 21 | 1 << 23;

#[test]
fn every_thread_has_the_capabilities_of_ports_and_no_other_right() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "server"], 2, "[http]\nlisten = \"127.0.0.1:0\"\n");
    let (process, log) = (rig.switch.pid(), rig.switch.log().unwrap());
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().count();
    assert!(threads > 4, "{threads}");
    for line in ["CapEff", "CapPrm", "CapBnd"] {
        let sets = of_threads(process, line);
        assert!(sets.len() > 4);
        for set in sets {
            assert_eq!(u64::from_str_radix(&set, 16).unwrap(), KEPT, "{line} {set}");
        }
    }
    assert!(of_threads(process, "NoNewPrivs").iter().all(|value| value == "1"));
    assert!(of_threads(process, "Seccomp").iter().all(|value| value == "2"));
    for text in ["capabilities kept: CAP_", "system calls: ", "files"] {
        assert!(log.contains(text), "{log}");
    }
    // Two pods of the lab, whose ports have opened through the control socket after the start, are connected.
    let (client, server) = (rig.pod("client"), rig.pod("server"));
    let _server = Server::start(&server, &[PORT], Services::Tcp).unwrap();
    assert_allowed(&client, server.v4().into());
    // A port that closes and opens again needs no right that was given up.
    for _ in 0..2 {
        rig.switch.detach(&server).unwrap();
        rig.switch.attach(&server).unwrap();
        assert_allowed(&client, server.v4().into());
    }
    assert!(!rig.switch.log().unwrap().contains("ermission"), "{}", rig.switch.log().unwrap());
}

#[test]
fn without_landlock_by_configuration_the_log_says_so() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client"], 1, "[hardening]\nlandlock = false\n");
    let log = rig.switch.log().unwrap();
    assert!(log.contains("files are not restricted: hardening.landlock is off"), "{log}");
}
