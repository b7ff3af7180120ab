//! Forwarding while many clients read streams of the control socket and send requests.

use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade::control::protocol::{CaptureRequest, FlowQuery, PacketFilter};
use palisade::control::{Client, DropQuery};
use palisade::lab::Pod;
use palisade::limits::CAPTURES_MAX;
use palisade::tables::PodName;

use crate::support::{PORT, Rig, TIMEOUT, assert_pings, eventually, isolated, only_from};

/// Readers of flow events, and of drops, beside those of all captures.
const EVENT_READERS: usize = 20;
const DROP_READERS: usize = 10;
/// Readers of flow events among these that read nothing.
const SILENT_READERS: usize = 5;
/// Requests of each of the clients.
const REQUESTS: u64 = 50;
const REQUESTERS: u64 = 8;
/// Time between two packets of the steady traffic.
const PACKET_INTERVAL: Duration = Duration::from_millis(1);
/// Number of a packet that follows the last one.
const END: u64 = u64::MAX;
/// Time between two of the flows that the readers are told of.
const FLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Flag that ends threads, set on drop too, so that a failure ends them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends numbered datagrams until `stop`. Returns their number.
fn send_numbered(socket: &UdpSocket, stop: &AtomicBool) -> u64 {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        socket.send(&number.to_be_bytes()).unwrap();
        number += 1;
        // A late sender does not catch up by a burst.
        std::thread::sleep(PACKET_INTERVAL);
    }
    number
}

/// Sends the packets of many flows until `stop`.
fn send_of_many_flows(socket: &UdpSocket, to: &Pod, stop: &AtomicBool) {
    for port in (10_000..60_000).cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let _ = socket.send_to(b"many", (to.v4(), port));
        std::thread::sleep(FLOW_INTERVAL);
    }
}

/// Receives the numbers of all packets. Behind the last one the sender repeats an end until it arrives.
fn numbers_until_end(sender: &UdpSocket, receiver: &UdpSocket) -> Vec<u64> {
    let stop_end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop_end);
        scope.spawn(|| {
            while !stop_end.load(Ordering::Relaxed) {
                sender.send(&END.to_be_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut buffer = [0; 16];
        let numbers = std::iter::from_fn(|| {
            let length = receiver.recv(&mut buffer).expect("the end arrives");
            let number = u64::from_be_bytes(buffer[..length].try_into().unwrap());
            (number != END).then_some(number)
        });
        numbers.collect::<Vec<_>>()
    })
}

/// Sends requests, and returns the number of those that were answered.
fn request(client: &Client) -> u64 {
    let answered = |n: u64| match n % 100 {
        0 => client.flows(&FlowQuery { limit: Some(10), ..FlowQuery::default() }).is_ok(),
        n if n % 4 == 1 => client.counters().is_ok(),
        n if n % 4 == 2 => client.ports().is_ok(),
        n if n % 4 == 3 => client.pods().is_ok(),
        _ => client.status().is_ok(),
    };
    (0..REQUESTS).map(|n| u64::from(answered(n))).sum()
}

#[test]
fn what_is_lost_beside_readers_of_every_stream_and_many_requests_is_counted() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::up(&["client", "stranger", "server", "sink"], 1);
    rig.apply(&only_from("server", "client"));
    let [client, stranger, server, sink] = ["client", "stranger", "server", "sink"].map(|name| rig.pod(name));
    // The first packets make the Ethernet addresses known.
    assert_pings(&client, sink.addresses()[0]);
    assert_pings(&server, stranger.addresses()[0]);
    // Frames that a queue had no place for, and those that the switch has dropped.
    let lost = || -> u64 {
        let ports = rig.counters().ports;
        let of = |pod: &Pod| &ports[&pod.plan().host_interface];
        let lost = [&client, &server, &sink].map(|pod| of(pod).lost.values().sum::<u64>());
        lost.iter().sum::<u64>() + of(&client).drops.values().sum::<u64>()
    };
    let lost_before = lost();
    let udp = |pod: &Pod| {
        let address = pod.v4();
        pod.run(|| UdpSocket::bind((address, PORT))).unwrap().unwrap()
    };
    let (sender, receiver) = (udp(&client), udp(&sink));
    sender.connect((sink.v4(), PORT)).unwrap();
    // A receiver that gets no core for a while loses nothing.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(receiver.as_fd(), 64 << 20).unwrap();
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let noise = [udp(&stranger), udp(&server)];

    let socket = rig.switch.client().socket().to_owned();
    let [stop_reading, stop_steady, stop_noise] = [(); 3].map(|()| AtomicBool::new(false));
    let [events, drops, packets] = [(); 3].map(|()| AtomicU64::new(0));
    let silent: Vec<UnixStream> = (0..SILENT_READERS)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET /v1/flows/events HTTP/1.1\r\nHost: palisade\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let follow = || {
        while !stop_reading.load(Ordering::Relaxed) {
            let see = |_| {
                events.fetch_add(1, Ordering::Relaxed);
                !stop_reading.load(Ordering::Relaxed)
            };
            Client::new(&socket).follow_flows(&FlowQuery::default(), see).unwrap();
        }
    };
    let read_drops = || {
        let (client, mut filter) = (Client::new(&socket), DropQuery::default());
        while !stop_reading.load(Ordering::Relaxed) {
            let report = client.drops(&filter).unwrap();
            filter.after = report.last;
            drops.fetch_add(report.drops.len() as u64, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let capture = |request: &CaptureRequest| {
        let client = Client::new(&socket);
        let mut number = client.start_capture(request).unwrap();
        while !stop_reading.load(Ordering::Relaxed) {
            match client.fetch_capture(number) {
                Ok(report) => _ = packets.fetch_add(report.packets.len() as u64, Ordering::Relaxed),
                // A reader that got no core for ten seconds has lost its capture.
                Err(_) => number = client.start_capture(request).unwrap(),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let _ = client.stop_capture(number);
    };
    let every_packet = CaptureRequest::default();
    let of_flows = CaptureRequest {
        filter: PacketFilter::of_pod(&PodName::new("default", "stranger")),
        ..every_packet.clone()
    };
    let (sent, answered) = std::thread::scope(|scope| {
        let stops = [Stop(&stop_noise), Stop(&stop_steady), Stop(&stop_reading)];
        // Policy denies the packets to the server, and allows those to the sink.
        scope.spawn(|| send_of_many_flows(&noise[0], &server, &stop_noise));
        scope.spawn(|| send_of_many_flows(&noise[1], &sink, &stop_noise));
        let mut readers: Vec<_> = (SILENT_READERS..EVENT_READERS).map(|_| scope.spawn(follow)).collect();
        readers.extend((0..DROP_READERS).map(|_| scope.spawn(read_drops)));
        readers.extend((1..CAPTURES_MAX).map(|_| scope.spawn(|| capture(&of_flows))));
        readers.push(scope.spawn(|| capture(&every_packet)));
        eventually("readers of each kind get something", || {
            [&events, &drops, &packets].iter().all(|count| count.load(Ordering::Relaxed) > 0)
        });

        // Steady traffic begins before the requests, and ends after them.
        let steady = scope.spawn(|| send_numbered(&sender, &stop_steady));
        let requesters: Vec<_> =
            (0..REQUESTERS).map(|_| scope.spawn(|| request(&Client::new(&socket)))).collect();
        let answered: u64 = requesters.into_iter().map(|requester| requester.join().unwrap()).sum();
        let [noise, steady_stop, reading] = stops;
        drop(steady_stop);
        let sent = steady.join().unwrap();
        // The events that end a reader are those of the noise.
        drop(reading);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop(noise);
        (sent, answered)
    });
    drop(silent);
    println!("{sent} packets, {events:?} events, {drops:?} drops, {packets:?} captured");
    assert_eq!(answered, REQUESTS * REQUESTERS);
    let received = numbers_until_end(&sender, &receiver);
    assert!(received.is_sorted_by(|before, after| before < after), "packets come again, or in another order");
    let missing = sent - received.len() as u64;
    let counted = lost() - lost_before;
    assert!(missing <= counted, "{missing} of {sent} packets are missing, {counted} are counted as lost");
}
