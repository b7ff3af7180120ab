//! Tests of AF_XDP sockets and XDP programs on veth ports.

mod namespace;
mod packets;
mod throughput;
mod uplink;
mod wire;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{Xdp, XdpFlags};
use palisade::ids::PortId;
use palisade::limits::{BATCH_FRAMES_MAX, MTU_MAX, MTU_OF_ONE_FRAME_MAX};
use palisade::netlink::Interface;
use palisade::xdp::{PortQueue, Program, Umem, XdpError};

use self::namespace::Pod;
use self::packets::{RawSocket, datagram, frame};
use self::wire::{End, Wire, attach, open};
use crate::support::namespace::{in_namespace, output, run};

const PATIENCE: Duration = Duration::from_mins(1);
const SILENCE: Duration = Duration::from_millis(300);

/// Polls the wire until `done`; fails after a long wait.
fn turn_until(wire: &mut Wire, mut done: impl FnMut(&Wire) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(wire) {
        assert!(Instant::now() < deadline, "frames do not cross: {} did", wire.forwarded);
        wire.turn();
    }
}

/// Sends frames from one pod and expects exactly these, in order, at the other.
fn expect_across(wire: &mut Wire, from: &Pod, to: &Pod, frames: &[Vec<u8>]) {
    let (ready, started) = std::sync::mpsc::channel();
    let expected = frames.len();
    let receiver = to.enter(move || {
        let socket = RawSocket::open("eth0", PATIENCE);
        ready.send(()).unwrap();
        (0..expected).map_while(|_| socket.receive()).collect::<Vec<_>>()
    });
    started.recv().unwrap();
    let sending = frames.to_vec();
    let sender = from.enter(move || {
        let socket = RawSocket::open("eth0", PATIENCE);
        for frame in &sending {
            assert!(socket.send(frame));
        }
    });
    turn_until(wire, |_| receiver.is_finished());
    sender.join().unwrap();
    assert_eq!(receiver.join().unwrap(), frames);
}

#[test]
fn frames_cross_two_ports_that_share_one_umem_in_both_directions_and_intact() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        let (left, mode) = attach(a.host, 1);
        assert!(mode.native && mode.fallback.is_none(), "{mode:?}");
        let (right, _) = attach(b.host, 1);
        let mut wire = Wire::between([&left, &right], 0, 4096);
        let frames: Vec<_> = (0..200).map(|number| frame(number, 60 + 7 * number as usize)).collect();
        expect_across(&mut wire, &a, &b, &frames);
        expect_across(&mut wire, &b, &a, &frames);
        assert!(wire.ends.iter().all(|end| !end.queue.zero_copy()));
        assert!(wire.ends.iter().all(|end| end.queue.statistics().refused == 0));
        assert_eq!(wire.accounted(), wire.umem.frames_total());
    });
}

#[test]
fn busy_polling_is_set_and_frames_cross_with_it() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        let ((left, _), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        let mut wire = Wire::between([&left, &right], 0, 4096);
        wire.poll_busily();
        let option = |end: &End, option| {
            let (mut value, mut bytes) = (0i32, size_of::<i32>() as u32);
            let fd = end.queue.fd().unwrap().as_raw_fd();
            let value_at = (&raw mut value).cast();
            // SAFETY: the descriptor is open, and the value is one `int`, as its size says.
            let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, value_at, &raw mut bytes) };
            assert_eq!(done, 0);
            value
        };
        for end in &wire.ends {
            assert_eq!(option(end, libc::SO_PREFER_BUSY_POLL), 1);
            assert!(option(end, libc::SO_BUSY_POLL) > 0);
        }
        let frames: Vec<_> = (0..200).map(|number| frame(number, 60 + 7 * number as usize)).collect();
        expect_across(&mut wire, &a, &b, &frames);
        expect_across(&mut wire, &b, &a, &frames);
        assert_eq!(wire.accounted(), wire.umem.frames_total());
    });
}

#[test]
fn a_port_that_only_receives_goes_on_after_its_fill_ring_was_empty() {
    in_namespace(|| {
        let a = Pod::new("sw0", 1, 1);
        let (program, _) = attach(a.host, 1);
        let (mut umem, mut free) = Umem::new(512, false).unwrap();
        let mut queue = open(&umem, &program, 0, 0);
        let send = |numbers: std::ops::Range<u32>| {
            let sender = a.enter(move || {
                let socket = RawSocket::open("eth0", PATIENCE);
                numbers.for_each(|number| assert!(socket.send(&frame(number, 60))));
            });
            sender.join().unwrap();
        };
        let deadline = Instant::now() + PATIENCE;
        while queue.statistics().fill_ring_empty + queue.statistics().rx_dropped < 3 {
            assert!(
                Instant::now() < deadline,
                "frames without a place are not counted: {:?}",
                queue.statistics()
            );
            send(0..3);
        }
        // The port sends nothing, so no transmit kicks it.
        let mut batch = Vec::with_capacity(BATCH_FRAMES_MAX);
        for _ in 0..3 {
            queue.refill(&mut umem, &mut free, 8);
            send(0..8);
            let deadline = Instant::now() + PATIENCE;
            while batch.len() < 8 {
                assert!(Instant::now() < deadline, "{} frames have come", batch.len());
                queue.receive(&mut umem, &mut batch, BATCH_FRAMES_MAX);
            }
            free.append(&mut batch);
            send(0..2);
        }
    });
}

#[test]
fn each_of_two_queues_is_one_workers() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 2), Pod::new("sw1", 2, 2));
        assert_eq!(Interface::find("sw0").unwrap().queues(), 2);
        let ((left, _), (right, _)) = (attach(a.host, 2), attach(b.host, 2));
        let mut workers = [0, 1].map(|queue| Wire::between([&left, &right], queue, 1024));
        for worker in &mut workers {
            worker.turn();
        }
        let sender = a.enter(|| {
            let socket = RawSocket::open("eth0", PATIENCE);
            (0..200).for_each(|port| assert!(socket.send(&datagram(10_000 + port))));
        });
        sender.join().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while workers.iter().map(|worker| worker.forwarded).sum::<u64>() < 200 {
            assert!(Instant::now() < deadline, "not all arrive");
            for worker in &mut workers {
                worker.turn();
            }
        }
        for worker in &workers {
            assert!(worker.forwarded > 20, "flows spread over both queues: {}", worker.forwarded);
            assert_eq!(worker.accounted(), worker.umem.frames_total());
        }
    });
}

/// Starts a thread in a pod that sends until it is stopped.
fn flood(pod: &Pod, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let stop = stop.clone();
    pod.enter(move || {
        let socket = RawSocket::open("eth0", PATIENCE);
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            socket.send(&frame(number, 1000));
        }
    })
}

/// Writes into every free frame, and expects the same bytes there after a while in which pods send.
fn expect_left_alone(wire: &mut Wire, pods_send: impl FnOnce()) {
    for (number, frame) in wire.free.iter_mut().enumerate() {
        wire.umem.write(frame, &packets::frame(number as u32, 1500)).unwrap();
    }
    pods_send();
    std::thread::sleep(SILENCE);
    for (number, frame) in wire.free.iter().enumerate() {
        assert!(wire.umem.data(frame) == packets::frame(number as u32, 1500), "frame {number} is written to");
    }
}

#[test]
fn a_port_closed_under_load_gives_back_every_frame_and_the_kernel_leaves_them_alone() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        let ((left, _), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        let mut wire = Wire::between([&left, &right], 0, 256);
        let stop = Arc::new(AtomicBool::new(false));
        let floods = [flood(&a, &stop), flood(&b, &stop)];
        turn_until(&mut wire, |wire| wire.forwarded > 2000);
        assert_eq!(wire.accounted(), wire.umem.frames_total());

        // The first port closes with frames in all its rings, while the other one stays.
        wire.close(0);
        assert_eq!(wire.accounted(), wire.umem.frames_total());
        let other = wire.ends[0].queue.lent();
        assert_eq!(wire.free.len() + other, wire.umem.frames_total());
        expect_left_alone(&mut wire, || {}); // Both pods keep sending.

        wire.close(0);
        assert_eq!((wire.free.len(), wire.umem.frames_lent()), (wire.umem.frames_total(), 0));
        stop.store(true, Ordering::Relaxed);
        for flood in floods {
            flood.join().unwrap();
        }

        // The same queues open again, in the other order, and carry frames.
        let (umem, free) = (wire.umem, wire.free);
        let ends = [(&right, 1), (&left, 0)].map(|(program, port)| wire::End {
            queue: open(&umem, program, port, 0),
            waiting: Vec::with_capacity(256),
        });
        let mut wire = Wire { umem, free, ends: ends.into(), forwarded: 0 };
        wire.turn();
        expect_across(&mut wire, &b, &a, &[frame(7, 100)]);
        assert_eq!(wire.accounted(), wire.umem.frames_total());
    });
}

#[test]
fn a_closed_port_leaves_its_frames_alone_while_somebody_else_has_its_socket() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        let ((left, _), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        let mut wire = Wire::between([&left, &right], 0, 256);
        assert!(wire.ends.iter().all(|end| closes_on_exec(end.queue.fd().unwrap())));
        // A child process holds such a copy between `fork` and `exec`.
        let held = wire.ends[0].queue.fd().unwrap().try_clone_to_owned().unwrap();
        wire.turn();
        assert!(wire.ends[0].queue.lent() > 32, "it has frames to receive into");
        wire.close(0);
        expect_left_alone(&mut wire, || {
            let sender = a.enter(|| {
                let socket = RawSocket::open("eth0", PATIENCE);
                (0..32).for_each(|number| assert!(socket.send(&frame(number, 60))));
            });
            sender.join().unwrap();
        });
        drop(held);
        let again = open(&wire.umem, &left, 0, 0);
        wire.ends.insert(0, End { queue: again, waiting: Vec::with_capacity(256) });
        wire.turn();
        expect_across(&mut wire, &a, &b, &[frame(7, 100)]);
    });
}

fn closes_on_exec(fd: BorrowedFd<'_>) -> bool {
    rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC)
}

#[test]
fn an_interface_that_disappears_costs_no_frame() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        let ((left, _), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        let mut wire = Wire::between([&left, &right], 0, 256);
        expect_across(&mut wire, &a, &b, &[frame(1, 100)]);
        run("ip link delete sw0");
        wire.close(0);
        assert_eq!(wire.accounted(), wire.umem.frames_total());
        left.detach().unwrap();
        drop(a);
    });
}

/// Tells whether a frame from the pod reaches the node's own stack on the host end.
fn reaches_the_host(pod: &Pod) -> bool {
    let seen = RawSocket::open(pod.host, SILENCE);
    pod.enter(|| assert!(RawSocket::open("eth0", PATIENCE).send(&frame(1, 100)))).join().unwrap();
    seen.receive().is_some()
}

fn program_id(host: &str) -> Option<u32> {
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
        assert!(reaches_the_host(&a), "without a program the host's stack sees the pod's frames");

        let mut switch = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "xdp::switch_to_be_killed", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(switch.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line == "ready")), "the switch comes up");
        assert!(!reaches_the_host(&a));
        let earlier = program_id("sw0").expect("a program is attached");
        switch.kill().unwrap();
        switch.wait().unwrap();

        assert_eq!(program_id("sw0"), Some(earlier), "the program outlives the process");
        assert!(!reaches_the_host(&a), "and drops");

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
        assert!(reaches_the_host(&a));
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
        assert!(!reaches_the_host(&a), "the generic hook drops, too");
        let (right, _) = attach(b.host, 1);
        let mut wire = Wire::between([&left, &right], 0, 128);
        expect_across(&mut wire, &a, &b, &[frame(4, 900)]);
        wire.close(0);
        drop(left);

        a.run("ethtool -L eth0 tx 1");
        // A change of hook would leave the port without a program for a moment.
        let (left, mode) = attach(a.host, 1);
        assert!(!mode.native && mode.fallback.is_some_and(|reason| reason.contains("an earlier start")));
        assert!(!reaches_the_host(&a));
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
        assert!(reaches_the_host(&a));
    });
}

#[test]
fn what_cannot_work_is_refused_in_a_sentence() {
    in_namespace(|| {
        let a = Pod::new("sw0", 1, 1);
        let (program, _) = attach(a.host, 1);
        let (umem, _free) = Umem::new(64, false).unwrap();
        let refused = |umem: &Umem, queue| {
            PortQueue::open(&umem.binder(), PortId(0), program.interface(), queue, &program)
                .err()
                .expect("refused")
        };

        let error = refused(&umem, 1);
        assert!(matches!(&error, XdpError::NoQueue { queue: 1, queues: 1, .. }), "{error}");

        let queue = open(&umem, &program, 0, 0);
        let (other, _others) = Umem::new(64, false).unwrap();
        let error = refused(&other, 0);
        assert!(matches!(&error, XdpError::QueueTaken { queue: 0, .. }), "{error}");
        let _ = queue.close();

        let (memory, _tokens) = Umem::in_memory(64);
        let error = refused(&memory, 0);
        assert!(matches!(&error, XdpError::MemoryOnly { .. }), "{error}");

        run(&format!("ip link set sw0 mtu {}", MTU_MAX + 1));
        let error = Program::attach(&Interface::find("sw0").unwrap(), 1).err().expect("refused");
        assert!(matches!(&error, XdpError::Mtu { max: MTU_MAX, .. }), "{error}");

        run("ip link delete sw0");
        let error = Program::attach(program.interface(), 1).err().expect("refused");
        assert!(matches!(&error, XdpError::NoInterface { .. }), "{error}");
    });
}

#[test]
fn a_process_without_privilege_is_told_which_it_lacks() {
    in_namespace(|| {
        let a = Pod::new("sw0", 1, 1);
        let interface = Interface::find(a.host).unwrap();
        let nothing = rustix::thread::CapabilitySet::empty();
        let none =
            rustix::thread::CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
        let errors = std::thread::spawn(move || {
            rustix::thread::set_capabilities(None, none).unwrap();
            [Umem::new(64, false).err(), Program::attach(&interface, 1).err()]
        });
        for error in errors.join().unwrap() {
            let error = error.expect("refused");
            assert!(matches!(&error, XdpError::Privilege { .. }), "{error}");
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        }
    });
}

#[test]
fn a_umem_that_finds_no_huge_pages_makes_do_with_ordinary_ones() {
    in_namespace(|| {
        let (umem, frames) = Umem::new(1000, true).unwrap();
        assert!(frames.len() >= 1000);
        assert_eq!(umem.frames_total(), frames.len());
        assert!(umem.uses_huge_pages() || frames.len() == 1000);
    });
}

/// Version of the running kernel.
fn kernel() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().unwrap().to_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn kernels_that_know_packets_of_several_buffers_and_transmit_metadata_are_asked_for_them() {
    in_namespace(|| {
        let (umem, _frames) = Umem::new(64, false).unwrap();
        let mtu_max = if kernel() >= (6, 6) { MTU_MAX } else { MTU_OF_ONE_FRAME_MAX };
        assert_eq!(umem.binder().mtu_max(), mtu_max);
        assert_eq!(umem.leaves_checksums(), kernel() >= (6, 8));
    });
}

#[test]
fn packets_of_several_buffers_cross_intact_and_no_frame_is_lost() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        for (pod, host) in [(&a, "sw0"), (&b, "sw1")] {
            run(&format!("ip link set {host} mtu {MTU_MAX}"));
            pod.enter(|| run(&format!("ip link set eth0 mtu {MTU_MAX}"))).join().unwrap();
        }
        let ((left, _), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        let mut wire = Wire::between([&left, &right], 0, 8192);
        let lengths = [3840, 3841, 9014, 7680, 60_000, 14 + MTU_MAX];
        let frames: Vec<_> = (0..24).map(|number| frame(number, lengths[number as usize % 6])).collect();
        expect_across(&mut wire, &a, &b, &frames);
        expect_across(&mut wire, &b, &a, &frames);
        assert!(wire.ends.iter().all(|end| end.queue.statistics().refused == 0));
        assert!(wire.ends.iter().all(|end| end.queue.statistics().tx_invalid == 0));
        assert_eq!(wire.accounted(), wire.umem.frames_total());
    });
}
