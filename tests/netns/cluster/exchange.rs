//! Exchanges between two networks, of which the server tells the client's address: TCP, UDP and echo requests.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::host::Network;
use crate::support::TIMEOUT;

/// Bytes of a TCP transfer in each direction: more than windows and segments.
const TRANSFER: usize = 300_000;
/// Time that a lost datagram is waited for.
pub(crate) const RESEND: Duration = Duration::from_millis(500);
/// Bytes of datagrams: small, near an MTU of 1500, in fragments.
const DATAGRAMS: [usize; 3] = [10, 1400, 4000];

/// Port of the servers.
pub(crate) const PORT: u16 = 7000;

/// Exchanges data with a server at an address of `server`, which the client reaches by `to`. Returns the address that the server
/// has seen, if all arrives.
pub(crate) fn exchange(client: &impl Network, server: &impl Network, to: IpAddr) -> Result<IpAddr, String> {
    exchange_at(client, server, SocketAddr::new(to, PORT))
}

/// Does so with a client that sends to another port.
pub(crate) fn exchange_at(
    client: &impl Network,
    server: &impl Network,
    to: SocketAddr,
) -> Result<IpAddr, String> {
    let tcp = tcp(client, server, to).map_err(|error| format!("TCP: {error}"))?;
    let udp = udp(client, server, to).map_err(|error| format!("UDP: {error}"))?;
    if tcp == udp { Ok(tcp) } else { Err(format!("TCP came from {tcp}, UDP from {udp}")) }
}

fn any(to: SocketAddr) -> SocketAddr {
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    SocketAddr::new(any.parse().unwrap(), PORT)
}

/// Listens at the server. A child process that another test has forked has the listener before until it runs its program.
fn listen(server: &impl Network, to: SocketAddr) -> std::io::Result<TcpListener> {
    let start = Instant::now();
    loop {
        match server.enter(|| TcpListener::bind(any(to))) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && start.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            listening => return listening,
        }
    }
}

fn tcp(client: &impl Network, server: &impl Network, to: SocketAddr) -> std::io::Result<IpAddr> {
    let listener = listen(server, to)?;
    listener.set_nonblocking(true)?;
    let serve: JoinHandle<std::io::Result<IpAddr>> = std::thread::spawn(move || {
        let start = Instant::now();
        let (mut stream, from) = loop {
            match listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => break other?,
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut data = vec![0; TRANSFER];
        stream.read_exact(&mut data)?;
        stream.write_all(&data)?;
        Ok(from.ip())
    });
    let mut stream = client.enter(|| TcpStream::connect_timeout(&to, TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    assert_eq!(stream.peer_addr()?, to, "the client sees another address than it has connected to");
    stream.set_read_timeout(Some(TIMEOUT))?;
    let data: Vec<u8> = (0..TRANSFER).map(|n| (n % 251) as u8).collect();
    stream.write_all(&data)?;
    let mut back = vec![0; TRANSFER];
    stream.read_exact(&mut back)?;
    assert!(back == data, "the data came back changed");
    serve.join().unwrap()
}

/// Whether a connection to this address is one to `server` by now.
pub(crate) fn connects(client: &impl Network, server: &impl Network, to: SocketAddr) -> bool {
    let listener = listen(server, to).unwrap();
    listener.set_nonblocking(true).unwrap();
    let Ok(_stream) = client.enter(|| TcpStream::connect_timeout(&to, RESEND)) else { return false };
    let start = Instant::now();
    while listener.accept().is_err() {
        if start.elapsed() > RESEND {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn udp(client: &impl Network, server: &impl Network, to: SocketAddr) -> std::io::Result<IpAddr> {
    let serving = server.enter(|| UdpSocket::bind(any(to)))?;
    let asking = client.enter(|| UdpSocket::bind(SocketAddr::new(any(to).ip(), 0)))?;
    for socket in [&serving, &asking] {
        socket.set_read_timeout(Some(RESEND))?;
    }
    let mut seen = None;
    for bytes in DATAGRAMS {
        let data = vec![7; bytes];
        let mut buffer = vec![0; 65_536];
        let exchange = |buffer: &mut Vec<u8>| -> std::io::Result<IpAddr> {
            asking.send_to(&data, to)?;
            let (length, from) = serving.recv_from(buffer)?;
            serving.send_to(&buffer[..length], from)?;
            let (back, by) = asking.recv_from(buffer)?;
            assert_eq!(
                (back, by),
                (bytes, to),
                "a datagram of another length or by another address came back"
            );
            Ok(from.ip())
        };
        // A datagram may be lost while neighbours are resolved, or be too large for the path at first.
        let start = Instant::now();
        let answered = std::iter::repeat_with(|| exchange(&mut buffer))
            .take_while(|_| start.elapsed() < TIMEOUT)
            .find_map(Result::ok);
        let lost = || std::io::Error::other(format!("a datagram of {bytes} bytes is lost"));
        let from = answered.ok_or_else(lost)?;
        if seen.is_some_and(|seen| seen != from) {
            return Err(std::io::Error::other("datagrams came from different addresses"));
        }
        seen = Some(from);
    }
    Ok(seen.expect("datagrams were exchanged"))
}

/// Whether echo requests of this many bytes are answered.
pub(crate) fn pings(client: &impl Network, to: IpAddr, bytes: usize) -> bool {
    let start = Instant::now();
    std::iter::repeat_with(|| ping(client, to, bytes))
        .take_while(|is_answered| *is_answered || start.elapsed() < TIMEOUT)
        .any(|is_answered| is_answered)
}

/// Sends one echo request, which need not be answered.
pub(crate) fn ping_once(client: &impl Network, to: IpAddr) {
    ping(client, to, 56);
}

fn ping(client: &impl Network, to: IpAddr, bytes: usize) -> bool {
    let mut command = Command::new("ping");
    command.args(["-n", "-c", "1", "-W", "1", "-s", &bytes.to_string(), &to.to_string()]);
    client.enter(|| command.output().unwrap().status.success())
}
