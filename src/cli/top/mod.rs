//! Command `palisade top`: a live view of the running switch.

mod sample;
mod screen;
mod view;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;

use self::sample::Sample;
use self::view::View;
use super::output::text;
use super::signals::interruption;
use super::{CliError, SocketArguments, terminal};
use crate::control::Client;

/// Longest time until a key or a signal is noticed.
const NOTICE: Duration = Duration::from_millis(100);
/// Size of a frame that is printed as text.
const TEXT_AREA: Rect = Rect { x: 0, y: 0, width: 120, height: 60 };

/// Watch the running switch: throughput, drops, workers, latency, flows, denied pairs
///
/// q or Ctrl-C ends it. Without a terminal, or on a dumb one, one frame is printed as text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade top                      until q
  palisade top --once | head -20    one frame as text, over a second")]
pub(super) struct TopArguments {
    /// Time between two frames, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print one frame as text, for pipes
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

/// Samples of the switch, or the reason for which there is none.
type Update = Result<Box<Sample>, String>;

pub(super) fn top(arguments: &TopArguments) -> Result<ExitCode, CliError> {
    let interval = Duration::from_secs(arguments.interval);
    let client = arguments.socket.client();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if arguments.once || is_dumb || !stdout().is_terminal() {
        once(&client, interval)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_over = interruption()?;
    let (sender, updates) = sync_channel(1);
    // The thread may wait long for a switch that stands still. The end of the process ends it.
    spawn(move || take_samples(&client, interval, &sender));
    let colors = !terminal::forbids_colors();
    // Restores the terminal after a panic, too.
    let mut screen = ratatui::try_init()?;
    let ended = watch(&mut screen, &updates, colors, &is_over);
    let restored = ratatui::try_restore();
    ended?;
    restored?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the frame of one interval.
fn once(client: &Client, interval: Duration) -> Result<(), CliError> {
    let mut view = View::default();
    view.add(Sample::take(client)?);
    sleep(interval);
    view.add(Sample::take(client)?);
    let mut buffer = Buffer::empty(TEXT_AREA);
    screen::draw(&view, None, false, TEXT_AREA, &mut buffer);
    let width = usize::from(TEXT_AREA.width);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    };
    let lines: Vec<String> = buffer.content.chunks(width).map(line).collect();
    Ok(text(&(lines.join("\n").trim_end().to_owned() + "\n"))?)
}

/// Takes samples until nobody wants them.
fn take_samples(client: &Client, interval: Duration, sender: &SyncSender<Update>) {
    loop {
        let sample = Sample::take(client).map(Box::new).map_err(|error| error.to_string());
        if sender.send(sample).is_err() {
            return;
        }
        sleep(interval);
    }
}

/// Shows updates until a key or a signal ends it.
fn watch(
    screen: &mut DefaultTerminal,
    updates: &Receiver<Update>,
    colors: bool,
    is_over: &AtomicBool,
) -> Result<(), CliError> {
    let mut view = View::default();
    let mut problem = None;
    let mut is_changed = true;
    while !is_over.load(Ordering::Relaxed) {
        match updates.try_recv() {
            Ok(Ok(sample)) => {
                view.add(*sample);
                (problem, is_changed) = (None, true);
            }
            Ok(Err(error)) => (problem, is_changed) = (Some(error), true),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(CliError::Message("the requests to the switch have failed".to_owned()));
            }
        }
        if is_changed {
            screen.draw(|frame| {
                screen::draw(&view, problem.as_deref(), colors, frame.area(), frame.buffer_mut());
            })?;
        }
        is_changed = false;
        if event::poll(NOTICE)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    _ => {}
                },
                Event::Resize(..) => is_changed = true,
                _ => {}
            }
        }
    }
    Ok(())
}
