//! A flow to record, and the record that has it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::ids::{Generation, PortId};
use crate::net::address::{Address, is_v4};
use crate::net::flow::Protocol;
use crate::xdp::offload::layout::{Head, Record, address_words};

/// A flow to record. The first end is the lower one of its key in conntrack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OffloadedFlow {
    /// Addresses of the ends.
    pub addresses: [Address; 2],
    /// Their transport ports.
    pub transport_ports: [u16; 2],
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Ports of the switch that the ends are behind.
    pub ports: [PortId; 2],
    /// By direction, from the end of its number, the generation that has evaluated it. `None`: packets of the direction are
    /// upcalls.
    pub epochs: [Option<Generation>; 2],
    /// Front end of a flow to a Service, or of a masqueraded one.
    pub front: Option<OffloadedFront>,
    /// Next hop behind an uplink.
    pub gateway: Gateway,
    /// TCP: numbers of the ends.
    pub numbers: [TcpNumbers; 2],
}

/// Next hop of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Gateway {
    /// Its destination itself, on the link of an uplink; or both ends are pods.
    #[default]
    None,
    /// The gateway of this number.
    Number(u16),
}

impl Gateway {
    pub(super) fn number(self) -> Option<u16> {
        match self {
            Gateway::None => None,
            Gateway::Number(number) => Some(number),
        }
    }
}

/// Numbers of one end of a TCP connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TcpNumbers {
    /// One more than the highest sequence number that it sent.
    pub end: u32,
    /// Highest number that it acknowledged.
    pub acknowledged: u32,
    /// Bytes that no window that it offered exceeds.
    pub max_window: u32,
    /// Shift count of its windows.
    pub scale: u8,
}

impl TcpNumbers {
    pub(super) fn of(record: &Record, end: usize) -> TcpNumbers {
        TcpNumbers {
            end: record.sequence_ends[end].load(Relaxed),
            acknowledged: record.acknowledged[end].load(Relaxed),
            max_window: 1 << record.windows[end].load(Relaxed).min(30),
            scale: record.head().shifts[end],
        }
    }
}

/// The least power of two that is no less than a window, bytes, as its exponent: 30 at most (RFC 7323 section 2.3).
pub(super) fn log_of_window(bytes: u32) -> u8 {
    bytes.clamp(1, 1 << 30).next_power_of_two().trailing_zeros() as u8
}

/// Protocol of a record's flow.
pub(super) fn protocol_of(head: &Head) -> Protocol {
    if head.is_tcp { Protocol::TCP } else { Protocol::UDP }
}

/// Front end of a flow to a Service, or of a masqueraded one: the node's, to which the end outside sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffloadedFront {
    /// Number of the end that is the client.
    pub client: usize,
    /// Address to which the client sends.
    pub address: Address,
    /// Its port.
    pub port: u16,
    /// Number of the Service's epoch; of a masqueraded flow the one that does not change.
    pub service: u16,
    /// Generation that has compared the flow with the Services. `None`: the one before has.
    pub epoch: Option<Generation>,
}

impl OffloadedFlow {
    /// Writes the flow into a record that no bucket names.
    pub(super) fn fill(&self, record: &Record) {
        for (words, address) in record.addresses.iter().zip(self.addresses) {
            for (word, value) in words.iter().zip(address_words(address)) {
                word.store(value, Relaxed);
            }
        }
        record.head.store(self.head(), Relaxed);
        for (word, port) in record.ports.iter().zip(self.ports) {
            word.store(port.0, Relaxed);
        }
        if let Some(front) = &self.front {
            let virtual_end = address_words(front.address);
            let backend = address_words(self.addresses[1 - front.client]);
            record.front.iter().zip(virtual_end).for_each(|(word, value)| word.store(value, Relaxed));
            record.front_port.store(front.port.to_be(), Relaxed);
            record.service.store(front.service, Relaxed);
            record.service_epoch.store(0, Relaxed);
            record.difference.store(Record::difference_of(virtual_end, backend), Relaxed);
        }
        for (end, numbers) in self.numbers.iter().enumerate() {
            record.sequence_ends[end].store(numbers.end, Relaxed);
            record.acknowledged[end].store(numbers.acknowledged, Relaxed);
            record.windows[end].store(log_of_window(numbers.max_window), Relaxed);
        }
        self.store_epochs(record);
    }

    pub(super) fn head(&self) -> u64 {
        let head = Head {
            transport_ports: self.transport_ports,
            is_tcp: self.protocol == Protocol::TCP,
            is_v4: is_v4(self.addresses[0]),
            client: self.front.map(|front| front.client),
            shifts: self.numbers.map(|numbers| numbers.scale),
            gateway: self.gateway.number(),
        };
        head.word()
    }

    /// Whether this is the flow of a record, whatever its evaluation.
    pub(super) fn is_in(&self, record: &Record) -> bool {
        let is_same = |words: &[AtomicU64; 2], address: Address| {
            words.iter().zip(address_words(address)).all(|(word, value)| word.load(Relaxed) == value)
        };
        record.head.load(Relaxed) == self.head()
            && record.addresses.iter().zip(self.addresses).all(|(words, address)| is_same(words, address))
            && record.ports.iter().zip(self.ports).all(|(word, port)| word.load(Relaxed) == port.0)
            && self.front.is_none_or(|front| {
                is_same(&record.front, front.address)
                    && record.front_port.load(Relaxed) == front.port.to_be()
                    && record.service.load(Relaxed) == front.service
            })
    }

    /// Writes the evaluation of a recorded flow.
    pub(super) fn store_epochs(&self, record: &Record) {
        let service_epoch = self.front.and_then(|front| front.epoch);
        let service_epoch = service_epoch.map(|epoch| (&record.service_epoch, epoch.0));
        let by_direction = self.epochs.map(|epoch| epoch.map_or(0, |epoch| epoch.0));
        for (word, epoch) in record.epochs.iter().zip(by_direction).chain(service_epoch) {
            if word.load(Relaxed) != epoch {
                word.store(epoch, Relaxed);
            }
        }
    }
}
