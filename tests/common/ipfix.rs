//! Collector of flows on a UDP socket. It decodes messages as RFC 7011 describes them, apart from the switch's own code.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use palisade::limits::IPFIX_MESSAGE_BYTES_MAX;

/// Private enterprise number of elements of the reverse direction (RFC 5103).
pub(crate) const REVERSE: u32 = 29305;
const TIMEOUT: Duration = Duration::from_mins(1);

/// Data record: values by private enterprise number (0 for IANA's elements) and number of the element.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Record {
    pub(crate) template: u16,
    pub(crate) values: HashMap<(u32, u16), Vec<u8>>,
}

impl Record {
    /// Value of an element as a number.
    pub(crate) fn number(&self, element: u16) -> u64 {
        self.value(0, element)
    }

    /// Value of an element of the reverse direction.
    pub(crate) fn reverse(&self, element: u16) -> u64 {
        self.value(REVERSE, element)
    }

    pub(crate) fn text(&self, element: u16) -> String {
        String::from_utf8(self.values[&(0, element)].clone()).unwrap()
    }

    fn value(&self, enterprise: u32, element: u16) -> u64 {
        let bytes = self.values.get(&(enterprise, element));
        let bytes = bytes.unwrap_or_else(|| panic!("{self:?} has no element {element}"));
        bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

type Field = (u32, u16, u16);

/// Socket of a collector, with the templates of the one exporter that sends to it.
pub(crate) struct Collector {
    socket: UdpSocket,
    templates: HashMap<u16, Vec<Field>>,
    /// Sequence number of the next message, `None` before the first one.
    sequence: Option<u32>,
    /// Whether the exporter may have sent messages before.
    is_late: bool,
    /// Records so far.
    pub(crate) records: Vec<Record>,
    /// Messages so far.
    pub(crate) messages: usize,
    /// Template records so far.
    pub(crate) template_records: usize,
    pub(crate) domain: u32,
    /// Messages as they came.
    pub(crate) raw: Vec<Vec<u8>>,
    /// Data messages that came before the templates, to a late collector.
    pub(crate) early: usize,
}

impl Collector {
    pub(crate) fn bind(address: &str) -> Collector {
        Collector::on(UdpSocket::bind(address).unwrap(), false)
    }

    /// With `is_late` the exporter may have sent messages before: data before the first templates is dropped.
    pub(crate) fn on(socket: UdpSocket, is_late: bool) -> Collector {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Collector {
            socket,
            templates: HashMap::new(),
            sequence: None,
            is_late,
            records: Vec::new(),
            messages: 0,
            template_records: 0,
            domain: 0,
            raw: Vec::new(),
            early: 0,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Receives messages until `done`.
    pub(crate) fn receive_until(&mut self, what: &str, mut done: impl FnMut(&Collector) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < TIMEOUT, "in vain: {what}: {:#?}", self.records);
            let mut buffer = [0; 65_536];
            if let Ok(length) = self.socket.recv(&mut buffer) {
                assert!(length <= IPFIX_MESSAGE_BYTES_MAX, "{length}");
                self.decode(&buffer[..length]);
            }
        }
    }

    /// Records that have an element.
    pub(crate) fn with_element(&self, element: u16) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.values.contains_key(&(0, element)))
    }

    fn decode(&mut self, message: &[u8]) {
        let mut rest = Bytes(message);
        assert_eq!((rest.u16(), usize::from(rest.u16())), (10, message.len()), "version and length");
        let (_time, sequence) = (rest.u32(), rest.u32());
        self.domain = rest.u32();
        self.raw.push(message.to_vec());
        if self.is_late && self.templates.is_empty() && rest.0[..2] != [0, 2] {
            self.early += 1;
            return;
        }
        let first = if self.is_late { sequence } else { 0 };
        assert_eq!(sequence, self.sequence.unwrap_or(first), "the sequence number counts data records");
        let before = self.records.len();
        while !rest.0.is_empty() {
            let (number, length) = (rest.u16(), usize::from(rest.u16()));
            let mut set = Bytes(rest.take(length - 4));
            while !set.0.is_empty() {
                match number {
                    2 | 3 => self.template(&mut set, number == 3),
                    _ => self.record(&mut set, number),
                }
            }
        }
        self.messages += 1;
        self.sequence = Some(sequence + (self.records.len() - before) as u32);
    }

    fn template(&mut self, set: &mut Bytes, has_scope: bool) {
        let (number, count) = (set.u16(), set.u16());
        if has_scope {
            assert!((1..=count).contains(&set.u16()), "an options template has a scope");
        }
        let field = |_| {
            let (element, length) = (set.u16(), set.u16());
            let enterprise = if element & 0x8000 == 0 { 0 } else { set.u32() };
            (enterprise, element & 0x7fff, length)
        };
        let fields: Vec<Field> = (0..count).map(field).collect();
        self.template_records += 1;
        let before = self.templates.insert(number, fields.clone());
        assert!(before.is_none_or(|before| before == fields), "a template stays as it is");
    }

    fn record(&mut self, set: &mut Bytes, number: u16) {
        let fields =
            self.templates.get(&number).unwrap_or_else(|| panic!("no template {number} before its data"));
        let mut record = Record { template: number, ..Record::default() };
        for (enterprise, element, length) in fields {
            let length = match *length {
                u16::MAX => match set.take(1)[0] {
                    255 => usize::from(set.u16()),
                    short => usize::from(short),
                },
                length => usize::from(length),
            };
            record.values.insert((*enterprise, *element), set.take(length).to_vec());
        }
        self.records.push(record);
    }
}

/// Rest of a message.
struct Bytes<'m>(&'m [u8]);

impl<'m> Bytes<'m> {
    fn take(&mut self, count: usize) -> &'m [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }
}
