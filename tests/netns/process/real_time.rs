//! Workers under a real-time policy: before all other threads of their core, and with a share of it for these.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use palisade::lab::traffic::{Server, Services};
use palisade::lab::{Lab, LabSpec, Switch, SwitchSpec};

use super::workers::thread_of;
use crate::support::{PORT, Rig, assert_allowed, eventually, isolated, pods_manifest, spec_of};

/// The last core that this process may use: that of a switch with one worker.
fn last_core() -> usize {
    core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).max().unwrap()
}

/// Counts on a core until it is told to end.
fn count_on(core: usize, count: Arc<AtomicU64>, ended: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
        while !ended.load(Ordering::Relaxed) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    })
}

/// Policy and priority of a thread (`proc_pid_stat(5)`, fields 41 and 40).
fn policy_of(process: u32, thread: i32) -> (u32, u32) {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap();
    let after_name: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (after_name[38].parse().unwrap(), after_name[37].parse().unwrap())
}

#[test]
fn a_real_time_worker_without_a_sleep_rests_so_that_other_threads_of_its_core_run() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec { workers: 1, ..spec_of(&["client", "server"]) }).unwrap();
    let mut spec = SwitchSpec::of(env!("CARGO_BIN_EXE_palisade"));
    spec.config = "[workers]\npolling = \"busy\"\nscheduling = \"real-time\"\n".to_owned();
    let switch = Switch::start(&mut lab, &spec).unwrap();
    switch.attach_all(&lab).unwrap();
    switch.apply(&pods_manifest(&lab)).unwrap();
    let rig = Rig { switch, lab };
    let process = rig.switch.pid();
    let fifo = u32::try_from(libc::SCHED_FIFO).unwrap();
    assert_eq!(policy_of(process, thread_of(process, "palisade-w0")), (fifo, 1));
    assert_eq!(
        policy_of(process, i32::try_from(process).unwrap()),
        (0, 0),
        "other threads keep their policy"
    );

    let server = rig.pod("server");
    let _server = Server::start(&server, &[PORT], Services::Both).unwrap();
    let (count, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let counter = count_on(last_core(), count.clone(), ended.clone());
    assert_allowed(&rig.pod("client"), server.addresses()[0]);
    // The worker goes to sleep by itself, and the other thread runs each time. The kernel's own twentieth would be an
    // involuntary switch.
    for _ in 0..20 {
        let before = (rests(process), count.load(Ordering::Relaxed));
        eventually("the worker rests, and another thread of its core runs", || {
            rests(process) > before.0 && count.load(Ordering::Relaxed) > before.1
        });
    }
    ended.store(true, Ordering::Relaxed);
    counter.join().unwrap();
}

/// Times that worker 0 has left its core by itself (`proc_pid_status(5)`).
fn rests(process: u32) -> u64 {
    let thread = thread_of(process, "palisade-w0");
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap();
    let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    switches.unwrap().trim().parse().unwrap()
}

#[test]
fn a_start_without_the_privilege_for_real_time_says_so() {
    let Some(_isolated) = isolated() else { return };
    let lab = Lab::up(&LabSpec::of(&["client"]).unwrap()).unwrap();
    let config = lab.directory().join("real-time.toml");
    let socket = lab.directory().join("real-time.sock");
    let text = format!(
        "[workers]\nframes = 4096\nscheduling = \"real-time\"\n[conntrack]\nflows = 4096\n[control]\nsocket = \"{}\"\n",
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-sys_nice", "--bounding-set=-sys_nice", env!("CARGO_BIN_EXE_palisade"), "run"]);
    let output = command.arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("CAP_SYS_NICE") && said.contains("workers.scheduling"), "{said}");
    assert!(!socket.exists());
}
