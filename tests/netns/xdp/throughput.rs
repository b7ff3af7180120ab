//! Throughput of the bare wire: a measurement to run by hand, in a release build.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::namespace::Pod;
use super::packets::{RawSocket, frame};
use super::wire::{Wire, attach};
use crate::support::namespace::in_namespace;

/// Runs with `cargo test --release --test netns throughput -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a claim"]
fn throughput_of_a_bare_wire() {
    in_namespace(|| {
        let (a, b) = (Pod::new("sw0", 1, 1), Pod::new("sw1", 2, 1));
        let ((left, _), (right, _)) = (attach(a.host, 1), attach(b.host, 1));
        let mut wire = Wire::between([&left, &right], 0, 8192);
        println!("60-byte frames from one sender: {:.3} Mpps", packets_per_second(&mut wire, &a) / 1e6);
        // Linux leaves the checksums of local traffic unfinished on veth, and the wire does not finish them.
        a.run("ethtool -K eth0 tx off");
        b.run("ethtool -K eth0 tx off");
        println!("TCP:\n{}", tcp(&mut wire, &a, &b));
        // With GRO a pod's end of the veth pair polls, and joins segments before its stack receives them.
        a.run("ethtool -K eth0 gro on");
        b.run("ethtool -K eth0 gro on");
        println!("TCP, with GRO in the pods:\n{}", tcp(&mut wire, &a, &b));
    });
}

fn packets_per_second(wire: &mut Wire, from: &Pod) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let sender = from.enter(move || {
        let (socket, small) = (RawSocket::open("eth0", Duration::from_secs(1)), frame(1, 60));
        while !told.load(Ordering::Relaxed) {
            socket.send(&small);
        }
    });
    let (start, before) = (Instant::now(), wire.forwarded);
    while start.elapsed() < Duration::from_secs(3) {
        wire.turn();
    }
    stop.store(true, Ordering::Relaxed);
    let rate = (wire.forwarded - before) as f64 / start.elapsed().as_secs_f64();
    sender.join().unwrap();
    rate
}

fn tcp(wire: &mut Wire, from: &Pod, to: &Pod) -> String {
    let lost = |wire: &Wire| wire.ends.iter().map(|end| end.queue.statistics().rx_dropped).sum::<u64>();
    let before = lost(wire);
    let mut server = to.command("iperf3 --server --one-off").stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let client =
        from.command("iperf3 --client 10.0.0.2 --time 4 --format g").stdout(Stdio::piped()).spawn().unwrap();
    let client = std::thread::spawn(move || client.wait_with_output().unwrap());
    while !client.is_finished() {
        if wire.turn() == 0 {
            // Client, server and wire may share fewer cores than three.
            std::thread::yield_now();
        }
    }
    let report = client.join().unwrap();
    server.wait().unwrap();
    let text = String::from_utf8_lossy(&report.stdout);
    let ends: Vec<_> =
        text.lines().filter(|line| line.ends_with("sender") || line.ends_with("receiver")).collect();
    format!("{}\nframes lost before the rx rings: {}", ends.join("\n"), lost(wire) - before)
}
