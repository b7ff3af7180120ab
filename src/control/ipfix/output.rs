//! Messages on their way to the collector.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::message::Message;
use super::session::{Session, is_of_earlier_message, is_passing};
use super::shared::Shared;
use super::templates::{INTERFACES, templates};
use crate::control::IpfixSettings;

/// Messages that are sent without a pause: a collector's buffer takes them.
const BURST: u32 = 64;
/// Pause after a burst.
const PAUSE: Duration = Duration::from_millis(2);
/// Interval of templates and names while the collector is away.
const RETRY: Duration = Duration::from_secs(1);

/// Connection to the collector. It collects records into messages.
pub(super) struct Output {
    link: Link,
    message: Message,
    /// Time at which templates and names were last tried.
    tried: Option<Instant>,
    /// Whether a message of this refresh was not sent.
    has_failed: bool,
}

/// Way to the collector.
struct Link {
    settings: IpfixSettings,
    /// `None` before the first message, and after an error.
    session: Option<Session>,
    /// Messages of the burst.
    burst: u32,
    /// Time of the last answer that nobody listens there.
    refused: Option<Instant>,
}

impl Output {
    pub(super) fn new(settings: IpfixSettings) -> Output {
        let link = Link { settings, session: None, burst: 0, refused: None };
        Output { link, message: Message::new(), tried: None, has_failed: false }
    }

    /// Adds a record. Sends the message if it is full.
    pub(super) fn add(&mut self, (set, record): (u16, &[u8]), unix_s: u32, shared: &Shared) {
        if !self.message.add(set, record) {
            self.flush(unix_s, shared);
            self.message.add(set, record);
        }
    }

    /// Sends the templates and the names of all interfaces if it is time, or else the `changed` names.
    pub(super) fn refresh(&mut self, options: &[Vec<u8>], changed: &[Vec<u8>], unix_s: u32, shared: &Shared) {
        if let Some(error) = self.link.session.as_ref().and_then(Session::take_error) {
            self.link.note_earlier(&error, shared);
        }
        let interval = self.link.settings.template_interval;
        let refreshed = self.link.session.as_ref().and_then(|session| session.refreshed);
        let may_try = self.tried.is_none_or(|tried| tried.elapsed() >= RETRY.min(interval));
        let is_due = may_try && refreshed.is_none_or(|sent| sent.elapsed() >= interval);
        if is_due {
            self.tried = Some(Instant::now());
            self.has_failed = self.link.send_templates(unix_s, shared).is_err();
        }
        for record in if is_due { options } else { changed } {
            self.add((INTERFACES, record), unix_s, shared);
        }
        if is_due {
            self.flush(unix_s, shared);
            if let Some(session) = self.link.session.as_mut().filter(|_| !self.has_failed) {
                session.refreshed = Some(Instant::now());
                session.follow_path_mtu();
            }
        }
    }

    /// Sends the message, if it has a record. A message that cannot be sent is counted and forgotten.
    pub(super) fn flush(&mut self, unix_s: u32, shared: &Shared) {
        if self.message.is_empty() {
            return;
        }
        // "The Exporting Process SHOULD transmit the Template Set and Options Template Set in advance of any Data Sets that
        // use that (Options) Template ID" (RFC 7011 section 8). A collector that has been away has forgotten them.
        let has_templates = self.link.session.as_ref().is_some_and(|session| session.has_templates);
        let ready = if has_templates { Ok(()) } else { self.link.send_templates(unix_s, shared) };
        let sent = ready.and_then(|()| self.link.send(&mut self.message, unix_s, shared));
        let records = u64::from(self.message.data_records());
        let counter = if sent.is_ok() { &shared.records } else { &shared.unsent_records };
        counter.fetch_add(records, Relaxed);
        self.has_failed |= sent.is_err();
        if let Some(session) = &mut self.link.session {
            session.count(&self.message);
            self.message.limit(session.bytes_max());
        }
        self.message.clear();
    }
}

impl Link {
    /// Sends the templates, in a message of their own.
    fn send_templates(&mut self, unix_s: u32, shared: &Shared) -> io::Result<()> {
        let mut message = Message::new();
        // All of them fit into the smallest message.
        for (set, record) in templates() {
            message.add(set, &record);
        }
        self.send(&mut message, unix_s, shared)?;
        if let Some(session) = &mut self.session {
            session.has_templates = true;
        }
        Ok(())
    }

    /// Sends a message. An error is counted.
    fn send(&mut self, message: &mut Message, unix_s: u32, shared: &Shared) -> io::Result<()> {
        let sent = self.try_send(message, unix_s, shared);
        if let Err(error) = &sent {
            shared.note_error(Some(error));
            if !is_passing(error) {
                // Addresses and routes of the node may have changed: the next message has another socket.
                self.session = None;
            }
            return sent;
        }
        shared.messages.fetch_add(1, Relaxed);
        if self.refused.is_none_or(|refused| refused.elapsed() > 2 * RETRY) {
            shared.note_error(None);
        }
        self.burst += 1;
        if self.burst >= BURST {
            self.burst = 0;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn try_send(&mut self, message: &mut Message, unix_s: u32, shared: &Shared) -> io::Result<()> {
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(Session::open(self.settings.collector)?),
        };
        let domain = self.settings.observation_domain;
        let sent = session.send(message, unix_s, domain);
        match &sent {
            Err(error) if is_of_earlier_message(error) => {
                // This message has not been tried.
                self.note_earlier(error, shared);
                self.session.as_ref().map_or(sent, |session| session.send(message, unix_s, domain))
            }
            _ => sent,
        }
    }

    /// Notes the answer to an earlier message that the collector did not get.
    fn note_earlier(&mut self, error: &io::Error, shared: &Shared) {
        shared.note_error(Some(error));
        let Some(session) = &mut self.session else { return };
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.refused = Some(Instant::now());
            // A collector that comes back needs templates and names first.
            (session.has_templates, session.refreshed) = (false, None);
        }
        session.follow_path_mtu();
    }
}
