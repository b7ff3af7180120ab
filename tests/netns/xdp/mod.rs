//! Tests of AF_XDP sockets and XDP programs on veth ports.

mod namespace;
mod packets;
mod program;
mod runs;
mod uplink;
mod wire;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use palisade::ids::PortId;
use palisade::limits::{BATCH_FRAMES_MAX, MTU_MAX, MTU_OF_ONE_FRAME_MAX};
use palisade::netlink::Interface;
use palisade::xdp::{PortQueue, Program, Umem, XdpError};

use self::namespace::Pod;
use self::packets::{RawSocket, datagram, frame};
use self::runs::Runs;
use self::wire::{End, Wire, attach, open};
use crate::support::eventually;
use crate::support::namespace::{in_namespace, run};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Polls the wire until `done`; fails after a long wait.
fn turn_until(wire: &mut Wire, mut done: impl FnMut(&Wire) -> bool) {
    let deadline = Instant::now() + TIMEOUT;
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
        let socket = RawSocket::open("eth0", TIMEOUT);
        ready.send(()).unwrap();
        (0..expected).map_while(|_| socket.receive()).collect::<Vec<_>>()
    });
    started.recv().unwrap();
    let sending = frames.to_vec();
    let sender = from.enter(move || {
        let socket = RawSocket::open("eth0", TIMEOUT);
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
                let socket = RawSocket::open("eth0", TIMEOUT);
                numbers.for_each(|number| assert!(socket.send(&frame(number, 60))));
            });
            sender.join().unwrap();
        };
        let deadline = Instant::now() + TIMEOUT;
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
            let deadline = Instant::now() + TIMEOUT;
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
            let socket = RawSocket::open("eth0", TIMEOUT);
            (0..200).for_each(|port| assert!(socket.send(&datagram(10_000 + port))));
        });
        sender.join().unwrap();
        let deadline = Instant::now() + TIMEOUT;
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
        let socket = RawSocket::open("eth0", TIMEOUT);
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            socket.send(&frame(number, 1000));
        }
    })
}

/// Writes into every free frame, and expects the same bytes there after the programs of `interfaces` have run `frames`
/// times, on frames that pods send.
fn expect_left_alone(wire: &mut Wire, interfaces: &[&'static str], frames: u64, pods_send: impl FnOnce()) {
    for (number, frame) in wire.free.iter_mut().enumerate() {
        wire.umem.write(frame, &packets::frame(number as u32, 1500)).unwrap();
    }
    let runs: Vec<Runs> = interfaces.iter().map(|interface| Runs::of(interface)).collect();
    pods_send();
    eventually("frames come to closed ports", || runs.iter().all(|runs| runs.count() >= frames));
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
        expect_left_alone(&mut wire, &[a.host, b.host], 1000, || {}); // Both pods keep sending.

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
        expect_left_alone(&mut wire, &[a.host], 32, || {
            let sender = a.enter(|| {
                let socket = RawSocket::open("eth0", TIMEOUT);
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
