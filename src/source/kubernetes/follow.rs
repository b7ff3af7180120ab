//! Follower of one kind: lists its objects, watches their changes, and begins again where necessary.

mod presence;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Method;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant as Deadline, sleep, timeout_at};

use super::connection::{Connection, Failure};
use super::filter::Piece;
use super::kinds::{INITIAL_EVENTS_END, KINDS, Kind};
use super::message::{Event, Message, Timing, jittered};
use super::object::{Entry, entry, key, metadata_of};
use super::stream::{Reader, object_of, type_of_cut};

/// Streaming lists that may fail before pages are read: an old server may ignore the request for one.
const FAILED_STREAMS_MAX: u32 = 2;

/// Watches in a row that may be too old before their kind counts as not followed.
const OLD_WATCHES_MAX: u32 = 2;

/// Follower of one kind.
pub(super) struct Follower {
    pub(super) index: usize,
    pub(super) connection: Arc<Connection>,
    pub(super) timing: Timing,
    pub(super) sender: mpsc::Sender<(usize, Message)>,
    /// Number that changes when all objects are to be listed again.
    pub(super) restart: watch::Receiver<u64>,
    /// Version of the API in which the kind is read.
    api_version: &'static str,
    /// Version from which a watch continues. `None`: the objects are to be listed.
    version: Option<String>,
    /// Whether the server refuses streaming lists.
    refuses_streams: bool,
    /// Streaming lists that have failed since the last complete list.
    failed_streams: u32,
    has_page_size: bool,
    /// Failures since a watch was last followed.
    attempts: u32,
    /// Whether the last watch was followed: it had an event behind the list, or lasted.
    is_settled: bool,
    absent_since: Option<Instant>,
    was_present: bool,
}

/// Event of a watch, without its object.
#[derive(Deserialize)]
struct Head {
    r#type: String,
    object: Option<ErrorStatus>,
}

/// `Status` in an event of type `ERROR`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorStatus {
    code: Option<u16>,
    message: String,
}

/// Events of a watch that are to be sent.
#[derive(Default)]
struct Batch {
    events: Vec<Event>,
    /// Version of the last of them, or of a bookmark behind it.
    version: Option<String>,
}

/// The receiver of the messages is gone: the agent stops.
struct Stopped;

impl Follower {
    pub(super) fn new(
        index: usize,
        connection: Arc<Connection>,
        timing: Timing,
        sender: mpsc::Sender<(usize, Message)>,
        restart: watch::Receiver<u64>,
    ) -> Follower {
        Follower {
            index,
            connection,
            timing,
            sender,
            restart,
            api_version: KINDS[index].versions[0],
            version: None,
            refuses_streams: false,
            failed_streams: 0,
            has_page_size: true,
            attempts: 0,
            is_settled: false,
            absent_since: None,
            was_present: false,
        }
    }

    fn kind(&self) -> &'static Kind {
        &KINDS[self.index]
    }

    /// Follows the kind until the receiver of the messages is gone.
    pub(super) async fn run(mut self) {
        let mut restart = self.restart.clone();
        loop {
            tokio::select! {
                result = self.turn() => if let Err(Stopped) = result {
                    return;
                },
                changed = restart.changed() => match changed {
                    Ok(()) => self.version = None,
                    Err(_) => return,
                },
            }
        }
    }

    /// Makes an attempt, and waits for the next one.
    async fn turn(&mut self) -> Result<(), Stopped> {
        self.is_settled = false;
        let wait = match self.attempt().await {
            Err(Attempt::Stopped) => return Err(Stopped),
            // The server ends each watch at times, but not at once.
            Ok(()) if self.is_settled => jittered(self.timing.retry_min),
            Ok(()) => self.backed_off(),
            Err(Attempt::Failed(verb, failure)) => self.failed(verb, &failure).await?,
        };
        sleep(wait).await;
        Ok(())
    }

    /// Handles a failure. Returns the wait before the next attempt.
    async fn failed(&mut self, verb: &str, failure: &Failure) -> Result<Duration, Stopped> {
        let kind = self.kind();
        if failure.code() == Some(410) {
            tracing::info!(
                kind = kind.name,
                "the watch is too old ({failure}): the objects are listed again"
            );
            self.version = None;
            // A page that has expired is of a list that takes too long in pages.
            self.has_page_size = verb == "watch";
            if self.attempts >= OLD_WATCHES_MAX {
                self.send(Message::Away(failure.describe(verb, kind))).await?;
            }
            return Ok(self.backed_off());
        }
        if matches!(failure.code(), Some(400 | 422)) && self.streams() && self.version.is_none() {
            tracing::info!(kind = kind.name, "the API server offers no streaming lists: pages are read");
            self.refuses_streams = true;
            return Ok(Duration::ZERO);
        }
        if matches!(failure.code(), Some(400 | 422)) {
            // The version may be of another cluster, which has this address now.
            self.version = None;
        }
        if failure.code() == Some(404) && kind.is_custom {
            return self.absent().await;
        }
        self.absent_since = None;
        let reason = failure.describe(verb, kind);
        self.send(Message::Away(reason)).await?;
        let wait = self.backed_off();
        Ok(failure.retry_after().map_or(wait, |asked| wait.max(asked)))
    }

    /// Handles a kind to whose requests the server answers 404. It is absent if the list of APIs lacks it: a server
    /// that starts, or a gateway before it, answers 404 too. The objects of a kind that was there count as gone after a
    /// while.
    async fn absent(&mut self) -> Result<Duration, Stopped> {
        self.version = None;
        let kind = self.kind();
        match presence::find(&self.connection, kind, self.api_version, self.timing.idle).await {
            Ok(None) => {}
            Ok(Some(version)) => {
                tracing::info!(kind = kind.name, "the API server has the kind in version {version}");
                self.api_version = version;
                return Ok(self.backed_off());
            }
            Err(reason) => {
                self.absent_since = None;
                let reason =
                    format!("the API server answers 404 to requests for {}: {reason}", kind.resource());
                self.send(Message::Away(reason)).await?;
                return Ok(self.backed_off());
            }
        }
        let since = *self.absent_since.get_or_insert_with(Instant::now);
        if self.was_present && since.elapsed() < self.timing.vanished {
            let reason = format!("the API server no longer has {}", kind.resource());
            self.send(Message::Away(reason)).await?;
            return Ok(jittered(self.timing.retry_min.saturating_mul(8).min(self.timing.vanished / 4)));
        }
        self.was_present = false;
        self.send(Message::Absent).await?;
        Ok(jittered(self.timing.absent))
    }

    /// Wait before the next attempt after a failure; longer after each.
    fn backed_off(&mut self) -> Duration {
        let wait = self.timing.wait(self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        wait
    }

    fn streams(&self) -> bool {
        !self.refuses_streams && self.failed_streams < FAILED_STREAMS_MAX
    }

    async fn send(&self, message: Message) -> Result<(), Stopped> {
        self.sender.send((self.index, message)).await.map_err(|_| Stopped)
    }

    async fn attempt(&mut self) -> Result<(), Attempt> {
        if self.version.is_none() && !self.streams() {
            self.list().await?;
        }
        self.watch().await
    }

    /// Lists the objects in pages.
    async fn list(&mut self) -> Result<(), Attempt> {
        self.send(Message::Begin).await?;
        let mut rest = String::new();
        loop {
            let limit =
                if self.has_page_size { format!("?limit={}", self.timing.page) } else { String::new() };
            let rest_query =
                if rest.is_empty() { String::new() } else { format!("&continue={}", escaped(&rest)) };
            let path = format!("{}{limit}{rest_query}", self.kind().path(self.api_version));
            let head = self.page(&path).await?;
            rest = head.r#continue.filter(|_| self.has_page_size).unwrap_or_default();
            if rest.is_empty() {
                self.version =
                    Some(head.resource_version.ok_or_else(|| broken("list", "the list has no version"))?);
                (self.has_page_size, self.failed_streams) = (true, 0);
                self.present();
                return Ok(self.send(Message::End).await?);
            }
        }
    }

    /// Reads a page. Returns its metadata.
    async fn page(&mut self, path: &str) -> Result<ListMetadata, Attempt> {
        let response =
            self.connection.send(Method::GET, path, None).await.map_err(|failure| failed("list", failure))?;
        let mut body = response.into_body();
        let mut reader = Reader::new(&self.kind().list, self.timing.idle);
        let mut last = None;
        while let Some(pieces) = reader.next(&mut body).await.map_err(|failure| failed("list", failure))? {
            let mut events = Vec::new();
            for piece in pieces {
                if piece.is_item {
                    events
                        .push(Event::Upsert(self.entry(&piece).map_err(|failure| failed("list", failure))?));
                } else {
                    last = Some(piece.text);
                }
            }
            if !events.is_empty() {
                self.send(Message::Events(events)).await?;
            }
        }
        let list = last.and_then(|text| serde_json::from_str::<List>(&text).ok());
        list.map(|list| list.metadata).ok_or_else(|| broken("list", "the list ends in its middle"))
    }

    /// Watches from the current version, or from a streaming list. Returns when the server ends the watch.
    async fn watch(&mut self) -> Result<(), Attempt> {
        let seconds = jittered(self.timing.watch).as_secs().max(1);
        let from = match &self.version {
            Some(version) => format!("&resourceVersion={}", escaped(version)),
            None => "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=".to_owned(),
        };
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}{from}",
            self.kind().path(self.api_version)
        );
        let response = self
            .connection
            .send(Method::GET, &path, None)
            .await
            .map_err(|failure| failed("watch", failure))?;
        let mut is_listing = self.version.is_none();
        if is_listing {
            self.failed_streams += 1;
            self.send(Message::Begin).await?;
        } else {
            self.present();
        }
        let mut settles_at = Deadline::now() + self.timing.settle;
        let mut body = response.into_body();
        let mut reader = Reader::new(&self.kind().event, self.timing.idle);
        loop {
            let next = reader.next(&mut body);
            let next = if is_listing || self.is_settled {
                next.await
            } else if let Ok(next) = timeout_at(settles_at, next).await {
                next
            } else {
                self.settled().await?;
                continue;
            };
            let Some(pieces) = next.map_err(|failure| failed("watch", failure))? else { break };
            let mut batch = Batch::default();
            let mut has_event = false;
            for piece in pieces {
                if let Err(failure) = self.event(&piece, is_listing, &mut batch) {
                    // The events before it have come, and a watch goes on after them.
                    self.flush(&mut batch).await?;
                    if matches!(failure, Failure::Broken(_)) {
                        self.version = None;
                    }
                    return Err(failed("watch", failure));
                }
                has_event |= !is_listing;
                if is_listing && batch.version.is_some() {
                    (is_listing, self.failed_streams) = (false, 0);
                    self.flush(&mut batch).await?;
                    self.present();
                    self.send(Message::End).await?;
                    self.send(Message::Following).await?;
                    settles_at = Deadline::now() + self.timing.settle;
                }
            }
            self.flush(&mut batch).await?;
            if has_event && !self.is_settled {
                self.settled().await?;
            }
        }
        if self.version.is_none() {
            return Err(broken("watch", "the server ended the watch within its initial events"));
        }
        Ok(())
    }

    /// The watch is followed: it has an event, or lasts.
    async fn settled(&mut self) -> Result<(), Stopped> {
        (self.is_settled, self.attempts) = (true, 0);
        self.send(Message::Following).await
    }

    /// Sends the events of a batch. A watch continues after them from then on.
    async fn flush(&mut self, batch: &mut Batch) -> Result<(), Stopped> {
        let Batch { events, version } = std::mem::take(batch);
        if !events.is_empty() {
            self.send(Message::Events(events)).await?;
        }
        if version.is_some() {
            self.version = version;
        }
        Ok(())
    }

    fn present(&mut self) {
        (self.was_present, self.absent_since) = (true, None);
    }

    /// Reads an event of a watch into a batch.
    fn event(&self, piece: &Piece, is_listing: bool, batch: &mut Batch) -> Result<(), Failure> {
        let unreadable =
            |reason: &str| Failure::Broken(format!("an event of the watch cannot be read: {reason}"));
        let head = match serde_json::from_str::<Head>(&piece.text) {
            Ok(head) => head.r#type,
            Err(_) if piece.is_cut => type_of_cut(&piece.text).ok_or_else(|| unreadable("it is too long"))?,
            Err(error) => return Err(unreadable(&error.to_string())),
        };
        if head == "ERROR" {
            let status = serde_json::from_str::<Head>(&piece.text)
                .ok()
                .and_then(|head| head.object)
                .unwrap_or_default();
            let message = crate::printable::line(&crate::printable::cut(&status.message, 300)).into_owned();
            return Err(Failure::Status { code: status.code.unwrap_or(500), message, retry_after: None });
        }
        let metadata = metadata_of(&piece.text).ok_or_else(|| unreadable("it has no metadata"))?;
        let is_end = metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true");
        let object = object_of(piece);
        match head.as_str() {
            "BOOKMARK" => {}
            "ADDED" | "MODIFIED" => batch.events.push(Event::Upsert(self.entry(&object)?)),
            "DELETED" => {
                batch.events.push(Event::Delete(key(&object).ok_or_else(|| unreadable("it has no name"))?));
            }
            other => return Err(unreadable(&format!("its type is {other:?}"))),
        }
        if (!is_listing || is_end && head == "BOOKMARK") && !metadata.resource_version.is_empty() {
            batch.version = Some(metadata.resource_version);
        }
        Ok(())
    }

    fn entry(&self, piece: &Piece) -> Result<Entry, Failure> {
        entry(self.kind(), self.api_version, piece).map_err(|error| Failure::Broken(error.to_string()))
    }
}

/// End of an attempt.
enum Attempt {
    Stopped,
    /// Request of this verb has failed.
    Failed(&'static str, Failure),
}

impl From<Stopped> for Attempt {
    fn from(Stopped: Stopped) -> Attempt {
        Attempt::Stopped
    }
}

fn failed(verb: &'static str, failure: Failure) -> Attempt {
    Attempt::Failed(verb, failure)
}

fn broken(verb: &'static str, reason: &str) -> Attempt {
    Attempt::Failed(verb, Failure::Broken(reason.to_owned()))
}

#[derive(Deserialize)]
struct List {
    metadata: ListMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

/// Escapes a value of a query.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
#[path = "follow/tests.rs"]
mod tests;
