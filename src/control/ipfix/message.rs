//! One IPFIX message: header, sets, records (RFC 7011 section 3).

use crate::limits::{IPFIX_MESSAGE_BYTES_MAX, IPFIX_MESSAGE_BYTES_MIN};

/// "Version of IPFIX […] 0x000a".
const VERSION: u16 = 10;
const HEADER_BYTES: usize = 16;
const SET_HEADER_BYTES: usize = 4;
/// Template records have this number of a set, and options template records the next one.
pub(super) const TEMPLATE_SET: u16 = 2;
/// See [`TEMPLATE_SET`].
pub(super) const OPTIONS_TEMPLATE_SET: u16 = 3;

/// Message under construction.
pub(super) struct Message {
    bytes: Vec<u8>,
    /// Most bytes of the message.
    bytes_max: usize,
    /// Start and number of the set that is open.
    set: Option<(usize, u16)>,
    /// Data records, those of options included.
    data_records: u32,
}

impl Message {
    /// An empty message of the least size that every path takes.
    pub(super) fn new() -> Message {
        let mut bytes = Vec::with_capacity(IPFIX_MESSAGE_BYTES_MAX);
        bytes.resize(HEADER_BYTES, 0);
        Message { bytes, bytes_max: IPFIX_MESSAGE_BYTES_MIN, set: None, data_records: 0 }
    }

    /// Sets the most bytes of the messages to come.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.min(IPFIX_MESSAGE_BYTES_MAX);
    }

    /// Adds a record to a set of this number. Returns false where the message has no room for it.
    pub(super) fn add(&mut self, set: u16, record: &[u8]) -> bool {
        let opens = self.set.is_none_or(|(_, open)| open != set);
        let bytes = record.len() + if opens { SET_HEADER_BYTES } else { 0 };
        if self.bytes.len() + bytes > self.bytes_max {
            return false;
        }
        if opens {
            self.close_set();
            self.set = Some((self.bytes.len(), set));
            self.bytes.extend(set.to_be_bytes());
            self.bytes.extend([0; 2]);
        }
        self.bytes.extend_from_slice(record);
        if set > OPTIONS_TEMPLATE_SET {
            self.data_records += 1;
        }
        true
    }

    /// Whether there is no record.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_BYTES
    }

    /// Data records so far.
    pub(super) fn data_records(&self) -> u32 {
        self.data_records
    }

    /// Completes the message. `sequence` is the number of data records before it, modulo 2^32, and `unix_s` its time.
    pub(super) fn finish(&mut self, unix_s: u32, sequence: u32, domain: u32) -> &[u8] {
        self.close_set();
        let length = self.bytes.len() as u16;
        let mut header = [0; HEADER_BYTES];
        header[0..2].copy_from_slice(&VERSION.to_be_bytes());
        header[2..4].copy_from_slice(&length.to_be_bytes());
        header[4..8].copy_from_slice(&unix_s.to_be_bytes());
        header[8..12].copy_from_slice(&sequence.to_be_bytes());
        header[12..16].copy_from_slice(&domain.to_be_bytes());
        self.bytes[..HEADER_BYTES].copy_from_slice(&header);
        &self.bytes
    }

    /// Empties the message.
    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
        (self.set, self.data_records) = (None, 0);
    }

    fn close_set(&mut self) {
        if let Some((start, _)) = self.set.take() {
            let length = (self.bytes.len() - start) as u16;
            self.bytes[start + 2..start + SET_HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_header_and_sets_with_their_lengths() {
        let mut message = Message::new();
        assert!(message.is_empty());
        assert!(message.add(TEMPLATE_SET, &[1, 2, 3, 4]) && message.add(256, &[5]) && message.add(256, &[6]));
        assert_eq!(message.data_records(), 2);
        let expected = [
            &[0, 10, 0, 30, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9][..],
            &[0, 2, 0, 8, 1, 2, 3, 4],
            &[1, 0, 0, 6, 5, 6],
        ];
        assert_eq!(message.finish(7, 8, 9), expected.concat());
        message.clear();
        assert_eq!((message.is_empty(), message.data_records()), (true, 0));
    }

    #[test]
    fn a_message_takes_no_record_beyond_its_size() {
        let mut message = Message::new();
        assert!(!message.add(256, &[0; IPFIX_MESSAGE_BYTES_MIN - HEADER_BYTES - SET_HEADER_BYTES + 1]));
        message.limit(usize::MAX);
        assert!(!message.add(256, &[0; IPFIX_MESSAGE_BYTES_MAX - HEADER_BYTES - SET_HEADER_BYTES + 1]));
        assert!(message.is_empty(), "a record that does not fit leaves no set");
        let count = (0..1000).take_while(|_| message.add(256, &[0; 100])).count();
        assert_eq!(count, 13);
        assert!(message.finish(0, 0, 0).len() <= IPFIX_MESSAGE_BYTES_MAX);
    }
}
