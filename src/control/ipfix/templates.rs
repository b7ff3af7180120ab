//! Templates, and the records that they describe. Numbers of elements are those of the IANA registry "IPFIX Entities".

use std::net::IpAddr;

use super::deltas::{EndReason, FlowDelta};
use super::message::{OPTIONS_TEMPLATE_SET, TEMPLATE_SET};
use crate::net::flow::FlowKey;

/// "Reverse Information Element Private Enterprise Number" (RFC 5103 section 6.1).
const REVERSE: u32 = 29305;
/// "The Enterprise bit": a private enterprise number follows.
const ENTERPRISE_BIT: u16 = 0x8000;
/// "the length 65535 is reserved for variable-length Information Elements".
const VARIABLE: u16 = u16::MAX;
/// Longest text. An interface with two of them fits into the smallest message.
const TEXT_BYTES_MAX: usize = 220;

/// Number of the template for interfaces.
pub(super) const INTERFACES: u16 = 260;

/// An element with its length in bytes, and whether it is of the reverse direction.
type Field = (u16, u16, bool);

const ADDRESSES_V4: [Field; 2] = [(8, 4, false), (12, 4, false)];
const ADDRESSES_V6: [Field; 2] = [(27, 16, false), (28, 16, false)];
/// sourceTransportPort, destinationTransportPort, protocolIdentifier, ingressInterface, firewallEvent.
const COMMON: [Field; 5] = [(7, 2, false), (11, 2, false), (4, 1, false), (10, 4, false), (233, 1, false)];
/// egressInterface, octetDeltaCount and packetDeltaCount of both directions, flowStartMilliseconds, flowEndMilliseconds,
/// flowEndReason, biflowDirection.
const OF_FLOW: [Field; 9] = [
    (14, 4, false),
    (1, 8, false),
    (2, 8, false),
    (1, 8, true),
    (2, 8, true),
    (152, 8, false),
    (153, 8, false),
    (136, 1, false),
    (239, 1, false),
];
/// observationTimeMilliseconds.
const OF_DENIAL: [Field; 1] = [(323, 8, false)];
/// ingressInterface, the scope; then interfaceName and interfaceDescription.
const OF_INTERFACE: [Field; 3] = [(10, 4, false), (82, VARIABLE, false), (83, VARIABLE, false)];

/// "the Flow is […] initiator": the source has sent the first packet (RFC 5103 section 6.3).
const DIRECTION_INITIATOR: u8 = 1;
/// Values of firewallEvent.
const FLOW_DELETED: u8 = 2;
const FLOW_DENIED: u8 = 3;
const FLOW_UPDATE: u8 = 5;

/// Moment in milliseconds since 1970, and in milliseconds since the start of the switch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    pub(super) now_ms: u32,
    pub(super) unix_ms: u64,
}

impl Clock {
    /// Takes a new reading of the switch's clock, and readings of the system's clock from before and after it. The moment
    /// changes only as far as these three contradict it: delays between them do not move earlier times.
    pub(super) fn advance(&mut self, now_ms: u32, [before, after]: [u64; 2]) {
        let expected = self.unix_ms.saturating_add(now_ms.wrapping_sub(self.now_ms).into());
        // Both clocks are read in whole milliseconds.
        *self = Clock { now_ms, unix_ms: expected.clamp(before, after.max(before) + 1) };
    }

    /// Milliseconds since 1970 of a time of the switch that is not in the future.
    fn unix_ms_of(self, at_ms: u32) -> u64 {
        let ago = self.now_ms.wrapping_sub(at_ms);
        self.unix_ms.saturating_sub(if ago > u32::MAX / 2 { 0 } else { ago.into() })
    }
}

/// A packet that policy has denied, from the samples of dropped frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) key: FlowKey,
    pub(super) at_unix_ms: u64,
    /// Name of the port that it came from.
    pub(super) port: String,
}

/// Template records, each with the number of the set that it belongs to.
pub(super) fn templates() -> Vec<(u16, Vec<u8>)> {
    let of = |number: u16, fields: &[&[Field]]| {
        let mut record = number.to_be_bytes().to_vec();
        put_fields(&mut record, &fields.concat(), 0);
        (TEMPLATE_SET, record)
    };
    let mut interfaces = INTERFACES.to_be_bytes().to_vec();
    put_fields(&mut interfaces, &OF_INTERFACE, 1);
    vec![
        of(256, &[&ADDRESSES_V4, &COMMON, &OF_FLOW]),
        of(257, &[&ADDRESSES_V6, &COMMON, &OF_FLOW]),
        of(258, &[&ADDRESSES_V4, &COMMON, &OF_DENIAL]),
        of(259, &[&ADDRESSES_V6, &COMMON, &OF_DENIAL]),
        (OPTIONS_TEMPLATE_SET, interfaces),
    ]
}

/// Adds number of fields, number of scope fields (in an options template), and fields.
fn put_fields(record: &mut Vec<u8>, fields: &[Field], scopes: u16) {
    record.extend((fields.len() as u16).to_be_bytes());
    if scopes > 0 {
        record.extend(scopes.to_be_bytes());
    }
    for (element, length, is_reverse) in fields {
        let bit = if *is_reverse { ENTERPRISE_BIT } else { 0 };
        record.extend((element | bit).to_be_bytes());
        record.extend(length.to_be_bytes());
        if *is_reverse {
            record.extend(REVERSE.to_be_bytes());
        }
    }
}

/// Record of a flow between these interfaces, and the number of its template.
pub(super) fn flow(delta: &FlowDelta, interfaces: [u32; 2], clock: Clock) -> (u16, Vec<u8>) {
    let [ingress, egress] = interfaces;
    let event = if delta.reason == EndReason::Active { FLOW_UPDATE } else { FLOW_DELETED };
    let mut record = common(&delta.flow.key, ingress, event);
    record.extend(egress.to_be_bytes());
    for (packets, bytes) in delta.counts {
        record.extend(bytes.to_be_bytes());
        record.extend(packets.to_be_bytes());
    }
    let end = clock.unix_ms_of(delta.flow.last_seen_ms);
    record.extend(clock.unix_ms_of(delta.since_ms).min(end).to_be_bytes());
    record.extend(end.to_be_bytes());
    record.extend([delta.reason as u8, DIRECTION_INITIATOR]);
    (if delta.flow.key.src.is_ipv4() { 256 } else { 257 }, record)
}

/// Record of a denied packet, and the number of its template.
pub(super) fn denial(denial: &Denial, ingress: u32) -> (u16, Vec<u8>) {
    let mut record = common(&denial.key, ingress, FLOW_DENIED);
    record.extend(denial.at_unix_ms.to_be_bytes());
    (if denial.key.src.is_ipv4() { 258 } else { 259 }, record)
}

/// Record of the options of an interface: the name of the port, and the pod behind it.
pub(super) fn interface(number: u32, name: &str, description: &str) -> Vec<u8> {
    let mut record = number.to_be_bytes().to_vec();
    for text in [name, description] {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        record.push(text.len() as u8);
        record.extend(text.as_bytes());
    }
    record
}

fn common(key: &FlowKey, ingress: u32, event: u8) -> Vec<u8> {
    let mut record = Vec::with_capacity(100);
    for address in [key.src, key.dst] {
        match address {
            IpAddr::V4(address) => record.extend(address.octets()),
            IpAddr::V6(address) => record.extend(address.octets()),
        }
    }
    // The identifier of an echo is no port.
    let ports = if key.protocol.has_ports() { [key.src_port, key.dst_port] } else { [0; 2] };
    ports.iter().for_each(|port| record.extend(port.to_be_bytes()));
    record.push(key.protocol.0);
    record.extend(ingress.to_be_bytes());
    record.push(event);
    record
}

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;
    use crate::dataplane::FlowCount;
    use crate::ids::PortId;
    use crate::net::flow::Protocol;

    #[test]
    fn times_move_only_as_far_as_readings_contradict_them() {
        let mut clock = Clock::default();
        clock.advance(100, [50_000, 50_040]);
        assert_eq!(clock.unix_ms_of(90), 49_990);
        clock.advance(200, [50_080, 50_400]);
        assert_eq!(clock.unix_ms_of(90), 49_990, "a delay of the readings changes nothing");
        clock.advance(300, [50_210, 50_210]);
        assert_eq!(clock.unix_ms_of(90), 50_000, "the first reading was ten milliseconds early");
        clock.advance(400, [40_000, 40_001]);
        assert_eq!(clock.unix_ms_of(399), 40_001, "the system's clock was set back");
        clock.advance(500, [90_000, 90_000]);
        assert_eq!(clock.unix_ms_of(499), 89_999, "the system's clock was set forward");
    }

    fn key(address: fn(u8) -> IpAddr, protocol: Protocol) -> FlowKey {
        FlowKey { src: address(1), dst: address(2), protocol, src_port: 4000, dst_port: 80 }
    }

    fn v4(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn v6(last: u8) -> IpAddr {
        [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into()
    }

    /// Bytes of a record of a template.
    fn length_in_template(number: u16) -> usize {
        let templates = templates();
        let record = templates.iter().find(|(_, record)| record.starts_with(&number.to_be_bytes()));
        let mut fields = &record.unwrap().1[4..];
        let mut sum = 0;
        while let [first, _, high, low, rest @ ..] = fields {
            sum += usize::from(u16::from_be_bytes([*high, *low]));
            fields = if first & 0x80 != 0 { &rest[4..] } else { rest };
        }
        sum
    }

    #[test]
    fn a_record_has_the_length_of_its_template_for_both_families() {
        for address in [v4, v6] {
            let flow_count = FlowCount {
                key: key(address, Protocol::TCP),
                port: PortId(0),
                opened_ms: Some(5),
                last_seen_ms: 9,
                counts: [(1, 2), (3, 4)],
            };
            let delta = FlowDelta {
                flow: flow_count,
                counts: [(1, 2), (3, 4)],
                since_ms: 5,
                reason: EndReason::Idle,
            };
            let (number, record) = flow(&delta, [1, 2], Clock { now_ms: 10, unix_ms: 1000 });
            assert_eq!(record.len(), length_in_template(number));
            let ends = record.len() - 18;
            assert_eq!(record[ends..ends + 8], 995_u64.to_be_bytes());
            assert_eq!(record[ends + 8..ends + 16], 999_u64.to_be_bytes());
            assert_eq!(record[ends + 16..], [1, 1]);
            let denied = Denial { key: flow_count.key, at_unix_ms: 7, port: String::new() };
            let (number, record) = denial(&denied, 1);
            assert_eq!(record.len(), length_in_template(number));
        }
        let echo = common(&key(v4, Protocol::ICMP), 0, 0);
        assert_eq!(echo[8..13], [0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_long_or_foreign_text_is_cut_at_a_character() {
        let name = "é".repeat(200);
        let record = interface(3, &name, "");
        assert_eq!((record[4], record.len()), (220, 4 + 1 + 220 + 1));
        let record = interface(3, &format!("x{name}"), "a");
        assert_eq!((record[4], &record[record.len() - 2..]), (219, &[1, b'a'][..]));
    }

    #[test]
    fn the_smallest_message_takes_all_templates_and_each_record() {
        let mut message = Message::new();
        assert!(templates().iter().all(|(set, record)| message.add(*set, record)));
        let long = "x".repeat(300);
        assert!(Message::new().add(INTERFACES, &interface(3, &long, &long)));
        assert!(Message::new().add(257, &[0; 200]) && length_in_template(257) < 200);
    }

    #[test]
    fn a_time_that_another_worker_has_just_noted_is_not_in_the_future() {
        let clock = Clock { now_ms: 3, unix_ms: 1000 };
        assert_eq!([4, 3, 2, u32::MAX].map(|at| clock.unix_ms_of(at)), [1000, 1000, 999, 996]);
    }
}
