//! Commands `palisade capture` and `palisade trace`: packets of the running switch with their verdicts.

mod pcapng;
mod text;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;

use self::pcapng::PacketFile;
use super::filter::PacketFilterArguments;
use super::output::{document, text as print};
use super::signals::interruption;
use super::{CliError, Output, SocketArguments, terminal};
use crate::control::Client;
use crate::control::protocol::{CaptureRequest, PacketRecord};
use crate::limits::PACKET_BYTES_MAX;

/// Interval of requests for packets.
const INTERVAL: Duration = Duration::from_millis(100);

/// Record packets of the running switch in a file, each with its verdict
///
/// The file is in the format pcapng, which tshark and Wireshark read. The comment of each packet has the verdict, the
/// stage and the reason, and the policy and rule. Packets are as the switch received them: those from tap ports may be
/// whole segments without a checksum.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade capture --drops -w drops.pcapng                     what is dropped, until Ctrl-C
  palisade capture --interface veth-db --seconds 10 -w db.pcapng    what one pod sends
  palisade capture --from default/web --to default/db -w - | tshark -r - -T fields -e frame.comment")]
pub(super) struct CaptureArguments {
    #[command(flatten)]
    selection: Selection,
    /// File for the packets; - is standard output
    #[arg(short, long, value_name = "FILE|-")]
    write: PathBuf,
    /// Bytes of each packet
    #[arg(long, value_name = "BYTES", default_value_t = PACKET_BYTES_MAX)]
    bytes: usize,
    /// End after this number of packets
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Show the way of packets through the stages of the running switch
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade trace --from default/web --to default/db     the next ten packets between two pods
  palisade trace --drops --count 3                      the next three packets that are dropped")]
pub(super) struct TraceArguments {
    #[command(flatten)]
    selection: Selection,
    /// End after this number of packets
    #[arg(long, value_name = "N", default_value_t = 10)]
    count: u64,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Args)]
struct Selection {
    #[command(flatten)]
    packets: PacketFilterArguments,
    /// Only packets that are dropped
    #[arg(long)]
    drops: bool,
    /// End after this time, in seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

pub(super) fn capture(arguments: &CaptureArguments) -> Result<ExitCode, CliError> {
    let count = arguments.count.unwrap_or(u64::MAX);
    let client = arguments.socket.client();
    // The file is made when the capture has begun: a command that fails leaves an earlier file as it is.
    let mut file = None;
    let ended = follow(&client, &arguments.selection, Some(arguments.bytes), count, |packets| {
        let file = match &mut file {
            Some(file) => file,
            None => file.insert(PacketFile::new(open(&arguments.write)?)?),
        };
        packets.iter().try_for_each(|packet| file.write(packet))?;
        Ok(file.flush()?)
    })?;
    terminal::note(&format!("{} packets captured, {} lost", ended.packets, ended.lost));
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path) -> Result<Box<dyn Write>, CliError> {
    if path != Path::new("-") {
        let file = File::create(path)
            .map_err(|error| CliError::Message(format!("{} cannot be written: {error}", path.display())))?;
        return Ok(Box::new(file));
    }
    if io::stdout().is_terminal() {
        return Err(CliError::Message("packets are not printed to a terminal: give -w a file".to_owned()));
    }
    Ok(Box::new(io::stdout()))
}

pub(super) fn trace(arguments: &TraceArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    let mut number = 0;
    let ended = follow(&client, &arguments.selection, None, arguments.count, |packets| {
        for packet in packets {
            number += 1;
            match arguments.output {
                Output::Json => document(&(serde_json::to_string(packet).map_err(io::Error::from)? + "\n"))?,
                Output::Table | Output::Wide => print(&text::describe(number, packet))?,
            }
        }
        Ok(())
    })?;
    if ended.lost > 0 {
        terminal::note(&format!("{} packets found no buffer: select fewer", ended.lost));
    }
    Ok(ExitCode::SUCCESS)
}

/// End of a capture.
struct Ended {
    packets: u64,
    lost: u64,
}

/// Runs a capture until `count` packets are captured, the time is over, or a signal arrives.
fn follow(
    client: &Client,
    selection: &Selection,
    bytes: Option<usize>,
    count: u64,
    mut see: impl FnMut(&[PacketRecord]) -> Result<(), CliError>,
) -> Result<Ended, CliError> {
    let Selection { packets, drops, seconds } = selection;
    let interrupted = interruption()?;
    let number = client.start_capture(&CaptureRequest {
        filter: packets.filter.filter(),
        interface: packets.interface.clone(),
        drops: *drops,
        reason: packets.reason,
        bytes,
    })?;
    let start = Instant::now();
    let mut ended = Ended { packets: 0, lost: 0 };
    loop {
        let is_last = interrupted.load(Ordering::Relaxed)
            || seconds.is_some_and(|seconds| start.elapsed() >= Duration::from_secs(seconds));
        let report = client.fetch_capture(number)?;
        let wanted = report.packets.len().min(usize::try_from(count - ended.packets).unwrap_or(usize::MAX));
        let seen = see(&report.packets[..wanted]);
        ended.packets += wanted as u64;
        ended.lost = report.lost;
        if seen.is_err() || is_last || ended.packets == count {
            client.stop_capture(number)?;
            seen?;
            return Ok(ended);
        }
        sleep(INTERVAL);
    }
}
