//! Frames that the kernel drops before a worker has them are counted, and nothing is counted twice.

use std::process::Command;

use palisade::lab::POD_INTERFACE;
use rustix::process::{Pid, Signal, kill_process};

use crate::battery::PacketSocket;
use crate::support::{Rig, alone, assert_accounted, eventually};

#[test]
fn frames_that_a_worker_is_too_slow_for_are_counted() {
    let Some(_alone) = alone() else { return };
    let rig = Rig::up(&["one", "two"], 1);
    let (one, two) = (rig.pod("one"), rig.pod("two"));
    let socket = one.run(|| PacketSocket::open(POD_INTERFACE)).unwrap().unwrap();
    let pid = Pid::from_raw(rig.switch.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let mut frame = crate::frames::Spec::new(one.v4().into(), two.v4().into(), crate::frames::Transport::Udp { ports: [1, 2] });
    frame.src_mac = one.plan().mac.0;
    frame.dst_mac = palisade::dataplane::Gateway::default().mac.0;
    let bytes = frame.bytes();
    for _ in 0..5000 { socket.send(&bytes).unwrap(); }
    kill_process(pid, Signal::CONT).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let host = one.plan().host_interface.clone();
    eprintln!("{:?}", rig.counters().ports[&host]);
    for args in [vec!["ethtool","-S",&host], vec!["ip","-s","-s","link","show",&host], vec!["uname", "-r"]] {
        eprintln!("{}", String::from_utf8_lossy(&Command::new(args[0]).args(&args[1..]).output().unwrap().stdout));
    }
    eprintln!("{}", String::from_utf8_lossy(&one.output(Command::new("ip").args(["-s","-s","link","show","eth0"])).unwrap().stdout));
    eprintln!("{}", String::from_utf8_lossy(&one.output(Command::new("ethtool").args(["-S","eth0"])).unwrap().stdout));
}
