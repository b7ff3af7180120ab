//! XDP programs of a port: attachment, takeover after a killed switch, and programs of others.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use libbpf_rs::{Xdp, XdpFlags};
use palisade::netlink::Interface;
use palisade::xdp::{Program, Umem};

use super::namespace::Pod;
use super::packets::{RawSocket, frame};
use super::runs::Runs;
use super::wire::{Wire, attach, open};
use super::{TIMEOUT, expect_across};
use crate::support::eventually;
use crate::support::namespace::{in_namespace, output, run};

/// Asserts that a frame from the pod reaches the node's own stack on the host end.
fn assert_reaches_the_host(pod: &Pod) {
    let seen = RawSocket::open(pod.host, TIMEOUT);
    pod.enter(|| assert!(RawSocket::open("eth0", TIMEOUT).send(&frame(1, 100)))).join().unwrap();
    assert!(seen.receive().is_some(), "the host's stack sees the pod's frame");
}

/// Asserts that the program on the host end drops frames from the pod.
fn assert_dropped_at_the_host(pod: &Pod) {
    const FRAMES: u32 = 16;
    let (seen, runs) = (RawSocket::open(pod.host, TIMEOUT), Runs::of(pod.host));
    let send = || {
        let socket = RawSocket::open("eth0", TIMEOUT);
        (0..FRAMES).for_each(|number| assert!(socket.send(&frame(number, 100))));
    };
    pod.enter(send).join().unwrap();
    eventually("the program runs on each frame", || runs.count() >= u64::from(FRAMES));
    assert_eq!(seen.try_receive(), None, "the host's stack sees the pod's frame");
}

pub(super) fn program_id(host: &str) -> Option<u32> {
    let link = output(&format!("ip -details link show dev {host}"));
    let (_, after) = link.split_once("prog/xdp id ")?;
    after.split_whitespace().next()?.parse().ok()
}

/// Switch process that another test starts and kills. It holds its port until then.
#[test]
#[ignore = "the process that a_killed_switch_leaves_its_port_closed starts and kills"]
fn switch_to_be_killed() {
    let (program, _) = attach("sw0", 1);
    let (mut umem, mut free) = Umem::new(128, false).unwrap();
    let mut queue = open(&umem, &program, 0, 0);
    queue.refill(&mut umem, &mut free, 64);
    println!("\nready");
    loop {
        queue.receive(&mut umem, &mut free, 64);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_switch_leaves_its_port_closed_and_the_next_one_takes_over() {
    in_namespace(|| {
        let a = Pod::new("sw0", 1, 1);
        let b = Pod::new("sw1", 2, 1);
        assert_reaches_the_host(&a);

        let mut switch = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "xdp::program::switch_to_be_killed", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(switch.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line == "ready")), "the switch comes up");
        assert_dropped_at_the_host(&a);
        let earlier = program_id("sw0").expect("a program is attached");
        switch.kill().unwrap();
        switch.wait().unwrap();

        assert_eq!(program_id("sw0"), Some(earlier), "the program outlives the process");
        assert_dropped_at_the_host(&a);

        let ((left, mode), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        assert!(mode.native);
        assert!(
            program_id("sw0").is_some_and(|id| id != earlier),
            "the next start's program is in its place"
        );
        let mut wire = Wire::between([&left, &right], 0, 128);
        expect_across(&mut wire, &a, &b, &[frame(3, 200)]);
        wire.close(0);
        left.detach().unwrap();
        assert_eq!(program_id("sw0"), None);
        assert_reaches_the_host(&a);
    });
}

#[test]
fn a_driver_that_refuses_leaves_the_generic_hook_with_the_reason_until_it_is_detached() {
    in_namespace(|| {
        // The pod's end has more tx queues than the host's end has rx queues: veth refuses native XDP.
        let a = Pod::new("sw0", 1, 2);
        run("ethtool -L sw0 rx 1");
        let b = Pod::new("sw1", 2, 1);
        let (left, mode) = attach(a.host, 1);
        assert!(!mode.native);
        let reason = mode.fallback.expect("a fallback has a reason");
        assert!(reason.contains("queues"), "{reason}");
        assert_dropped_at_the_host(&a);
        let (right, _) = attach(b.host, 1);
        let mut wire = Wire::between([&left, &right], 0, 128);
        expect_across(&mut wire, &a, &b, &[frame(4, 900)]);
        wire.close(0);
        drop(left);

        a.run("ethtool -L eth0 tx 1");
        // A change of hook would leave the port without a program for a moment.
        let (left, mode) = attach(a.host, 1);
        assert!(!mode.native && mode.fallback.is_some_and(|reason| reason.contains("an earlier start")));
        assert_dropped_at_the_host(&a);
        left.detach().unwrap();
        let (left, mode) = attach(a.host, 1);
        assert!(mode.native, "{mode:?}");
        left.detach().unwrap();
        assert_eq!(program_id("sw0"), None);
    });
}

#[test]
fn a_program_that_is_detached_takes_only_itself_away() {
    in_namespace(|| {
        let a = Pod::new("sw0", 1, 1);
        let (earlier, _) = attach(a.host, 1);
        let (later, _) = attach(a.host, 1);
        let id = program_id("sw0");
        earlier.detach().unwrap();
        assert_eq!(program_id("sw0"), id, "the later one stays");
        later.detach().unwrap();
        assert_eq!(program_id("sw0"), None);
    });
}

/// Loads a program of two instructions, `return XDP_PASS`, with bpf(2).
fn somebody_elses_program() -> OwnedFd {
    const BPF_PROG_LOAD: libc::c_long = 5;
    const BPF_PROG_TYPE_XDP: u32 = 6;
    let code: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
    let license = c"GPL";
    // `union bpf_attr` for `BPF_PROG_LOAD`: type, count, code, license, then zeros up to the name.
    let mut attributes = [0u64; 8];
    attributes[0] = u64::from(BPF_PROG_TYPE_XDP) | (code.len() as u64) << 32;
    attributes[1] = code.as_ptr().expose_provenance() as u64;
    attributes[2] = license.as_ptr().expose_provenance() as u64;
    attributes[6] = u64::from_ne_bytes(*b"stranger");
    // SAFETY: the attributes, the code and the license outlive the call; the descriptor is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attributes, size_of_val(&attributes));
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd as i32)
    }
}

#[test]
fn somebody_elses_program_is_left_alone_and_named() {
    in_namespace(|| {
        let a = Pod::new("sw0", 1, 1);
        let interface = Interface::find("sw0").unwrap();
        let stranger = somebody_elses_program();
        for flags in [XdpFlags::DRV_MODE, XdpFlags::SKB_MODE] {
            let bits = flags.bits();
            Xdp::new(stranger.as_fd()).attach(interface.index as i32, flags).unwrap();
            let id = program_id("sw0").expect("attached");
            let error = Program::attach(&interface, 1).err().expect("refused").to_string();
            let named = format!("another XDP program, stranger (id {id})");
            assert!(error.contains(&named) && error.contains("ip link set dev sw0 xdp off"), "{error}");
            assert_eq!(program_id("sw0"), Some(id));
            let flags = XdpFlags::from_bits_retain(bits);
            Xdp::new(stranger.as_fd()).detach(interface.index as i32, flags).unwrap();
        }
        assert_reaches_the_host(&a);
    });
}
