//! Command `palisade pktgen`: generates traffic and measures its delivery.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::signals::interruption;
use super::{CliError, Output, output};
use crate::net::mac::Mac;
use crate::net::tcp::Flags;
use crate::pktgen::{
    Capture, ConnectionReport, Content, Distribution, FlowSpace, FrameSize, Kind, PktgenError, Rate, Receive,
    Replay, Report, Session, Setup, Target, TcpSession, TcpTraffic, Traffic, ndr,
};

mod print;

/// Generate traffic on AF_XDP, receive it, and measure its delivery
///
/// Sends on one interface, open loop, and receives on another. Each is INTERFACE, or INTERFACE@NETNS for an
/// interface in another network namespace. Frame sizes include the frame check sequence, as is usual: 64 is
/// the least. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade pktgen --tx eth0@pod1 --rx eth0@pod2 --src 10.0.0.1 --dst 10.0.0.2 --rate 100kpps
  palisade pktgen --tx eth0@pod1 --rx eth0@pod2 --src 10.0.0.1 --dst 10.0.0.2 --receive count \\
      --flows 10000 --size imix --rate max --cores 1
  palisade pktgen --tx eth0@pod1 --rx eth0@pod2 --src 10.0.0.1 --dst 10.0.0.2 --ndr --loss 0.001
  palisade pktgen --tx eth0@pod1 --rx eth0@pod2 --src 10.0.0.1 --dst 10.0.0.2 --connections --rate 20000
  palisade pktgen --tx eth0@pod1 --replay trace.pcap --rate recorded

A receiver that counts is an XDP program and costs next to nothing; one that measures is a thread, and tells
duplicates, reordering and one-way latency besides.")]
pub(super) struct PktgenArguments {
    /// Interface to send on
    #[arg(long, value_name = "PLACE")]
    tx: Target,
    /// Interface to receive on
    #[arg(long, value_name = "PLACE")]
    rx: Option<Target>,
    /// Kind of receiver [default: measure with --rx, none without]
    #[arg(long, value_enum)]
    receive: Option<ReceiverKind>,
    #[command(flatten)]
    frames: FrameArguments,
    /// Send the frames of this recording (classic pcap) instead of generated ones
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Rounds through the recording; 0 for as many as the time allows
    #[arg(long, value_name = "N", default_value_t = 1, requires = "replay")]
    rounds: u64,
    /// Open and close whole TCP connections at --rate instead, generated at both ends
    #[arg(long, requires = "rx", conflicts_with_all = ["replay", "ndr", "receive", "queues"])]
    connections: bool,
    /// Most concurrent connections
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "connections")]
    concurrent: u32,
    /// Frames, or connections, a second: 1000, 500kpps, 1.2mpps; max for as fast as possible; recorded for a
    /// recording's own times
    #[arg(long, value_name = "RATE", default_value = "max")]
    rate: Rate,
    /// Length of a trial
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    search: SearchArguments,
    /// Queues to send on, with a thread each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    queues: u16,
    /// Cores for the sending threads and then the receiving one
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Contents of generated frames.
#[derive(Debug, Args)]
struct FrameArguments {
    /// udp, tcp, icmp (echo requests), sctp (DATA) or sctp-init
    #[arg(long, value_name = "NAME", default_value = "udp")]
    protocol: Kind,
    /// Control bits of TCP segments, of fin, syn, rst, ack
    #[arg(long, value_name = "BIT,BIT…", value_delimiter = ',', default_value = "ack")]
    tcp_flags: Vec<Bit>,
    /// Source: an address, or a network whose addresses are used in turn
    #[arg(long, value_name = "ADDRESS", value_parser = network)]
    src: Option<IpNet>,
    /// Destination, likewise
    #[arg(long, value_name = "ADDRESS", value_parser = network)]
    dst: Option<IpNet>,
    /// Source ports; identifiers of ICMP
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports, default_value = "1024-65535")]
    src_ports: RangeInclusive<u16>,
    /// Destination ports
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports, default_value = "9000")]
    dst_ports: RangeInclusive<u16>,
    /// Ethernet source [default: that of the sending interface; a recording's own]
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Mac>,
    /// Ethernet destination [default: that of the next hop; a recording's own]
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<Mac>,
    /// 802.1Q tag
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,
    /// Concurrent flows: source ports vary first, then destination ports, then addresses
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: u32,
    /// Distribution of frames over flows: sequence, uniform, zipf or zipf:EXPONENT
    #[arg(long, value_name = "NAME", default_value = "sequence")]
    distribution: Distribution,
    /// Fresh flows a second, each in place of the oldest; max for one with each frame
    #[arg(long, value_name = "RATE")]
    new_flows: Option<Rate>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Bytes of a frame with its frame check sequence, or imix (64, 594 and 1518 as 7:4:1)
    #[arg(long, value_name = "BYTES", default_value = "64")]
    size: FrameSize,
}

/// Parameters of the search for the no-drop rate.
#[derive(Debug, Args)]
struct SearchArguments {
    /// Search the highest rate with at most --loss, as in RFC 2544
    #[arg(long, requires = "rx")]
    ndr: bool,
    /// Lost frames that a trial may have, as a share of those sent
    #[arg(long, value_name = "SHARE", default_value_t = 0.001)]
    loss: f64,
    /// Width of the last interval, as a share of the rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    precision: f64,
    /// Trials at each rate; more than half of them must pass
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReceiverKind {
    /// No receiver
    None,
    /// An XDP program that counts and drops
    Count,
    /// A thread that reads every frame
    Measure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bit {
    Fin,
    Syn,
    Rst,
    Ack,
}

pub(super) fn pktgen(arguments: &PktgenArguments) -> Result<ExitCode, CliError> {
    if !(arguments.seconds > 0.0 && arguments.seconds < 1e6) {
        return Err(CliError::Message("--seconds is a number above 0".to_owned()));
    }
    let stop = interruption()?;
    if let (true, Some(rx)) = (arguments.connections, &arguments.rx) {
        return connect(arguments, rx, &stop);
    }
    let mut session = Session::open(&arguments.setup()?)?;
    let time = Duration::from_secs_f64(arguments.seconds);
    if arguments.search.ndr {
        return search(arguments, &mut session, time, &stop);
    }
    let report = Report::from(&session.trial(arguments.rate, time, &stop)?);
    match arguments.output {
        Output::Json => output::json(&report)?,
        Output::Table | Output::Wide => output::text(&print::report(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens and closes whole connections.
fn connect(arguments: &PktgenArguments, rx: &Target, stop: &AtomicBool) -> Result<ExitCode, CliError> {
    let traffic = arguments.frames.traffic(&arguments.tx)?;
    let dialogue = TcpTraffic { concurrent: arguments.concurrent, ..TcpTraffic::from(&traffic) };
    let mut connections = TcpSession::open(&arguments.tx, rx, dialogue, &arguments.cores)?;
    let time = Duration::from_secs_f64(arguments.seconds);
    let report = ConnectionReport::from(&connections.trial(arguments.rate, time, stop)?);
    match arguments.output {
        Output::Json => output::json(&report)?,
        Output::Table | Output::Wide => output::text(&print::connections(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Searches the no-drop rate, and runs one more trial at that rate.
fn search(
    arguments: &PktgenArguments,
    session: &mut Session,
    time: Duration,
    stop: &AtomicBool,
) -> Result<ExitCode, CliError> {
    let max_per_s = match arguments.rate {
        Rate::PerSecond(rate) => rate,
        _ => session.trial(Rate::Max, time, stop)?.sent_per_s(),
    };
    let SearchArguments { loss, precision, trials, .. } = arguments.search;
    let found = ndr::search(&ndr::Search { max_per_s, loss_max: loss, precision, trials }, |rate| {
        let trial = session.trial(Rate::PerSecond(rate), time, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Err(CliError::Message("interrupted: the search has no result".to_owned()));
        }
        Ok(ndr::Outcome { sent_per_s: trial.sent_per_s(), loss: trial.loss().unwrap_or(1.0) })
    })?;
    let passes = found.rate_per_s > 0.0;
    let last = passes.then(|| session.trial(Rate::PerSecond(found.rate_per_s), time, stop)).transpose()?;
    let report = last.map(|trial| Report::from(&trial));
    match arguments.output {
        Output::Json => output::json(&print::NdrReport::new(&found, report))?,
        Output::Table | Output::Wide => {
            let report = report.as_ref().map(print::report).unwrap_or_default();
            output::text(&(print::search(&found) + &report))?;
        }
    }
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl PktgenArguments {
    fn setup(&self) -> Result<Setup, CliError> {
        let how = self.receive.unwrap_or(if self.rx.is_some() {
            ReceiverKind::Measure
        } else {
            ReceiverKind::None
        });
        let receive = match how {
            ReceiverKind::None => Receive::Nothing,
            ReceiverKind::Count => Receive::Count,
            ReceiverKind::Measure => Receive::Measure,
        };
        let content = match &self.replay {
            Some(file) => {
                let recording = Capture::open(file)?;
                Content::Replay(Replay::new(recording, self.frames.src_mac, self.frames.dst_mac, self.rounds))
            }
            None => Content::Generated(self.frames.traffic(&self.tx)?),
        };
        Ok(Setup {
            tx: self.tx.clone(),
            rx: self.rx.clone(),
            receive,
            content,
            queues: self.queues,
            cores: self.cores.clone(),
        })
    }
}

impl FrameArguments {
    fn traffic(&self, tx: &Target) -> Result<Traffic, CliError> {
        let missing =
            |what: &str| CliError::Message(format!("no address to send {what}: give --src and --dst"));
        let src = self.src.ok_or_else(|| missing("from"))?;
        let dst = self.dst.ok_or_else(|| missing("to"))?;
        let bits = |bits: &[Bit]| bits.iter().fold(0, |sum, bit| sum | bit.bits());
        Ok(Traffic {
            kind: if let Kind::Tcp(_) = self.protocol {
                Kind::Tcp(bits(&self.tcp_flags))
            } else {
                self.protocol
            },
            src_mac: self.src_mac.map_or_else(|| tx.mac(), Ok)?,
            dst_mac: self.dst_mac.map_or_else(|| tx.next_hop_mac(some_address(dst)), Ok)?,
            vlan: self.vlan,
            space: FlowSpace {
                src,
                dst,
                src_ports: self.src_ports.clone(),
                dst_ports: if self.protocol == Kind::IcmpEcho { 0..=0 } else { self.dst_ports.clone() },
            },
            flows: self.flows,
            distribution: self.distribution,
            new_flows_per_s: match self.new_flows {
                None | Some(Rate::Recorded) => 0.0,
                Some(Rate::PerSecond(rate)) => rate,
                // A rate above any rate of frames: every frame starts a flow.
                Some(Rate::Max) => 1e9,
            },
            size: self.size,
            seed: self.seed,
        })
    }
}

impl Bit {
    fn bits(self) -> u8 {
        match self {
            Bit::Fin => Flags::FIN,
            Bit::Syn => Flags::SYN,
            Bit::Rst => Flags::RST,
            Bit::Ack => Flags::ACK,
        }
    }
}

/// First host address of a network, as the destination of its frames.
fn some_address(network: IpNet) -> IpAddr {
    network.hosts().next().unwrap_or(network.addr())
}

/// Parses a network, or an address as a network of one.
fn network(text: &str) -> Result<IpNet, String> {
    let address = |_| IpAddr::from_str(text).map(IpNet::from);
    IpNet::from_str(text)
        .or_else(address)
        .map_err(|_| "write an address (10.0.0.1, fd00::1) or a network (10.0.0.0/24)".to_owned())
}

/// Parses a range of ports, or one port.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err("write a port (9000) or the first and the last one (1024-65535)".to_owned()),
    }
}

impl From<PktgenError> for CliError {
    fn from(error: PktgenError) -> CliError {
        CliError::Message(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_ports_are_read_short_and_long() {
        assert_eq!(network("10.0.0.1"), network("10.0.0.1/32"));
        assert_eq!(network("fd00::1"), network("fd00::1/128"));
        assert!(network("pod").is_err());
        assert_eq!((ports("80"), ports("1-9")), (Ok(80..=80), Ok(1..=9)));
        assert!(ports("9-1").is_err() && ports("x").is_err());
    }
}
