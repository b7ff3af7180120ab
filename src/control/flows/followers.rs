//! Readers of events of flows: each gets lines in its own buffer of bounded size, and is cut off when it reads too slowly.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::selection::Selection;
use crate::control::ApiError;
use crate::control::protocol::FlowEventLine;
use crate::dataplane::Flows;
use crate::limits::{FOLLOWER_BYTES_MAX, FOLLOWER_EVENTS_MAX, FOLLOWERS_MAX};

/// Longest time without a line: an empty one shows the server that the connection is in use.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const TOO_SLOW: &str =
    "cut off: the reader was too slow, and the switch does not wait for one; filter, or follow again";
const STOPPED: &str = "the switch has stopped";

/// Readers of events.
#[derive(Default)]
pub(in crate::control) struct Followers(Mutex<Readers>);

#[derive(Default)]
struct Readers {
    open: Vec<Reader>,
    /// Set when the switch stops.
    is_closed: bool,
    /// Events that workers have lost until the last collection.
    lost: u64,
}

/// Sending end of one reader's stream.
struct Reader {
    selection: Selection,
    only_reads: bool,
    lines: UnboundedSender<Bytes>,
    shared: Arc<StreamState>,
    last_line: Instant,
}

/// State that both ends of a stream share.
#[derive(Default)]
struct StreamState {
    /// Bytes that wait.
    waiting: AtomicUsize,
    /// Reason for the end of the stream.
    end: OnceLock<&'static str>,
}

/// Lines of one reader, as the body of a response.
pub(in crate::control) struct EventStream {
    lines: UnboundedReceiver<Bytes>,
    shared: Arc<StreamState>,
    has_ended: bool,
}

impl Followers {
    /// Adds a reader of the selected events. Those who only read leave half of the places to those who may change something.
    pub(in crate::control) fn add(
        &self,
        selection: Selection,
        only_reads: bool,
        flows: &dyn Flows,
    ) -> Result<EventStream, ApiError> {
        let mut followers = self.lock();
        let places = if only_reads { FOLLOWERS_MAX / 2 } else { FOLLOWERS_MAX };
        let taken = followers.open.iter().filter(|reader| reader.only_reads || !only_reads).count();
        if taken >= places || followers.is_closed {
            return Err(ApiError::TooManyFollowers);
        }
        if followers.open.is_empty() {
            // Events from before the last reader's end are not for this one.
            followers.lost = flows.take_events().lost;
            flows.follow(true);
        }
        let (sender, lines) = unbounded_channel();
        let shared = Arc::new(StreamState::default());
        let mut reader = Reader {
            selection,
            only_reads,
            lines: sender,
            shared: shared.clone(),
            last_line: Instant::now(),
        };
        // The first line, an empty one, tells the reader that the collection has begun.
        reader.send(b"\n".as_slice().into());
        followers.open.push(reader);
        Ok(EventStream { lines, shared, has_ended: false })
    }

    /// Whether there is a reader.
    pub(in crate::control) fn is_any(&self) -> bool {
        !self.lock().open.is_empty()
    }

    /// Sends events to the readers. `lost` is the number of events that workers have lost since the start.
    pub(in crate::control) fn send(&self, events: &[FlowEventLine], lost: u64, flows: &dyn Flows) {
        let mut followers = self.lock();
        let newly_lost = lost.saturating_sub(followers.lost);
        followers.lost = followers.lost.max(lost);
        let lines: Vec<Bytes> = events.iter().map(line).collect();
        followers.open.retain_mut(|reader| reader.send_selected(events, &lines, newly_lost));
        if followers.open.is_empty() {
            flows.follow(false);
        }
    }

    /// Ends all streams, because the switch stops.
    pub(in crate::control) fn close(&self, flows: &dyn Flows) {
        let mut followers = self.lock();
        followers.is_closed = true;
        for reader in followers.open.drain(..) {
            let _ = reader.shared.end.set(STOPPED);
        }
        flows.follow(false);
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Sends the lines of the selected events. Returns false where the stream ends.
    fn send_selected(&mut self, events: &[FlowEventLine], lines: &[Bytes], mut lost: u64) -> bool {
        let mut text = Vec::new();
        let selected = events.iter().zip(lines).filter(|(event, _)| {
            event.record().is_some_and(|record| {
                self.selection
                    .selects(&record.flow, Some(record.state.as_str()).filter(|state| !state.is_empty()))
            })
        });
        for (number, (_, line)) in selected.enumerate() {
            if number < FOLLOWER_EVENTS_MAX {
                text.extend_from_slice(line);
            } else {
                lost += 1;
            }
        }
        if lost > 0 {
            text.extend_from_slice(&line(&FlowEventLine::Lost { count: lost }));
        }
        if text.is_empty() && self.last_line.elapsed() >= SILENCE_MAX {
            text.push(b'\n');
        }
        if text.is_empty() { !self.lines.is_closed() } else { self.send(text.into()) }
    }

    fn send(&mut self, text: Bytes) -> bool {
        let bytes = text.len();
        if self.shared.waiting.load(Ordering::Relaxed) + bytes > FOLLOWER_BYTES_MAX {
            let _ = self.shared.end.set(TOO_SLOW);
            return false;
        }
        self.shared.waiting.fetch_add(bytes, Ordering::Relaxed);
        self.last_line = Instant::now();
        self.lines.send(text).is_ok()
    }
}

/// One event as a line of JSON.
fn line(event: &FlowEventLine) -> Bytes {
    // The message has no map with keys other than text, so that it is always JSON.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        self.lines.poll_recv(context).map(|text| {
            let text = text.unwrap_or_else(|| {
                self.has_ended = true;
                let reason = self.shared.end.get().copied().unwrap_or(STOPPED);
                line(&FlowEventLine::End { reason: reason.to_owned() })
            });
            if !self.has_ended {
                self.shared.waiting.fetch_sub(text.len(), Ordering::Relaxed);
            }
            Some(Ok(Frame::data(text)))
        })
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::protocol::{FlowEventRecord, FlowQuery, PacketFilter};
    use crate::control::state::State;
    use crate::dataplane::{FlowCounters, FlowEvents, FlowInfo, FlowTableReport, FlowsLeft, ServiceFlows};
    use crate::net::flow::{FlowKey, Protocol};
    use crate::tables::{RuleOrigin, ServicePortName};

    /// Records whether flows are followed.
    #[derive(Default)]
    struct Followed(std::sync::atomic::AtomicBool);

    impl Flows for Followed {
        fn report(&self) -> FlowTableReport {
            unreachable!()
        }

        fn for_each(&self, _: &mut dyn FnMut(FlowInfo) -> bool) {
            unreachable!()
        }

        fn origins(&self, _: &FlowKey) -> [Option<RuleOrigin>; 2] {
            unreachable!()
        }

        fn end(&self, _: &mut dyn FnMut(&FlowInfo) -> bool) -> Result<u64, FlowsLeft> {
            unreachable!()
        }

        fn follow(&self, is_followed: bool) {
            self.0.store(is_followed, Ordering::Relaxed);
        }

        fn take_events(&self) -> FlowEvents {
            FlowEvents::default()
        }

        fn counters(&self) -> &dyn FlowCounters {
            unreachable!()
        }

        fn of_services(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
            unreachable!()
        }
    }

    fn opened(port: u16) -> FlowEventLine {
        let key = FlowKey {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: Protocol::TCP,
            src_port: 4000,
            dst_port: port,
        };
        FlowEventLine::Opened(FlowEventRecord::new(1, key))
    }

    fn selection(port: Option<&str>) -> Selection {
        let port = port.map(|port| port.parse().unwrap());
        let query = FlowQuery::of(PacketFilter { port, ..PacketFilter::default() });
        Selection::new(&query, &State::default()).unwrap()
    }

    /// Reads a stream to its end.
    fn read(stream: EventStream) -> Vec<FlowEventLine> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(stream.collect()).unwrap().to_bytes();
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn each_reader_gets_the_events_of_its_filter_and_the_number_of_lost_ones() {
        let (followers, dataplane) = (Followers::default(), Followed::default());
        let all = followers.add(selection(None), false, &dataplane).unwrap();
        let web = followers.add(selection(Some("80")), false, &dataplane).unwrap();
        assert!(followers.is_any() && dataplane.0.load(Ordering::Relaxed));
        followers.send(&[opened(80), opened(443)], 3, &dataplane);
        followers.close(&dataplane);
        let end = || FlowEventLine::End { reason: STOPPED.to_owned() };
        let lost = || FlowEventLine::Lost { count: 3 };
        assert_eq!(read(all), [opened(80), opened(443), lost(), end()]);
        assert_eq!(read(web), [opened(80), lost(), end()]);
        assert!(!dataplane.0.load(Ordering::Relaxed));
        assert!(followers.add(selection(None), false, &dataplane).is_err(), "the switch stops");
    }

    #[test]
    fn a_reader_that_does_not_read_is_cut_off_with_a_last_line_and_the_others_go_on() {
        let (followers, dataplane) = (Followers::default(), Followed::default());
        let slow = followers.add(selection(None), false, &dataplane).unwrap();
        let quiet = followers.add(selection(Some("1")), false, &dataplane).unwrap();
        let flood: Vec<FlowEventLine> = (0..2 * FOLLOWER_EVENTS_MAX).map(|_| opened(80)).collect();
        let mut rounds = 0;
        while followers.lock().open.len() == 2 {
            followers.send(&flood, 0, &dataplane);
            rounds += 1;
            assert!(slow.shared.waiting.load(Ordering::Relaxed) <= FOLLOWER_BYTES_MAX);
            assert!(rounds < 1000, "the reader is not cut off");
        }
        let lines = read(slow);
        assert_eq!(lines.last(), Some(&FlowEventLine::End { reason: TOO_SLOW.to_owned() }));
        assert!(lines.contains(&FlowEventLine::Lost { count: FOLLOWER_EVENTS_MAX as u64 }));
        assert!(dataplane.0.load(Ordering::Relaxed));
        // A reader that has gone is forgotten, and the last one ends the collection.
        drop(quiet);
        followers.send(&[], 0, &dataplane);
        assert!(!followers.is_any() && !dataplane.0.load(Ordering::Relaxed));
    }

    #[test]
    fn there_are_only_so_many_readers() {
        let (followers, dataplane) = (Followers::default(), Followed::default());
        let streams: Vec<_> =
            (0..FOLLOWERS_MAX).map(|_| followers.add(selection(None), false, &dataplane).unwrap()).collect();
        assert!(followers.add(selection(None), false, &dataplane).is_err());
        drop(streams);
        followers.send(&[], 0, &dataplane);
        assert!(followers.add(selection(None), false, &dataplane).is_ok());
    }

    #[test]
    fn those_who_only_read_leave_places_to_others() {
        let (followers, dataplane) = (Followers::default(), Followed::default());
        let add = |only_reads| followers.add(selection(None), only_reads, &dataplane);
        let readers: Vec<_> = (0..FOLLOWERS_MAX).map_while(|_| add(true).ok()).collect();
        let others: Vec<_> = (0..FOLLOWERS_MAX).map_while(|_| add(false).ok()).collect();
        assert_eq!((readers.len(), others.len()), (FOLLOWERS_MAX / 2, FOLLOWERS_MAX / 2));
        drop(readers);
        followers.send(&[], 0, &dataplane);
        assert!(add(true).is_ok());
    }
}
