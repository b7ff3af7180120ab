//! Tables of the bridge, and the words of both address families.

use crate::render::plan::Family;
use crate::tables::Verdict;

/// Table of the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Table {
    Guard = 0,
    LinkLocal = 1,
    Kind = 2,
    State = 3,
    Source = 4,
    DestinationClass = 5,
    Egress = 6,
    Destination = 7,
    SourceClass = 8,
    Ingress = 9,
    Shared = 10,
    Output = 11,
}

impl Table {
    pub(super) fn describe(self) -> String {
        let text = match self {
            Table::Guard => "addresses of named interfaces",
            Table::LinkLocal => "other packets of named interfaces: neighbour discovery and address probes",
            Table::Kind => "ARP, neighbour discovery, IP",
            Table::State => "replies, a pod and itself",
            Table::Source => "rule list of the source",
            Table::DestinationClass => "class of the destination",
            Table::Egress => "rules of egress",
            Table::Destination => "further lists of the source, and the rule list of the destination",
            Table::SourceClass => "class of the source",
            Table::Ingress => "rules of ingress",
            Table::Shared => "further lists of the destination",
            Table::Output => "output",
        };
        format!("Table {}: {text}", self as u8)
    }
}

/// Direction of a packet, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// From the pod: egress.
    From,
    /// To the pod: ingress.
    To,
}

impl Side {
    /// Table that finds the list of a pod.
    pub(super) fn dispatch(self) -> Table {
        self.choose(Table::Source, Table::Destination)
    }

    /// Table that finds the class of the peer.
    pub(super) fn class(self) -> Table {
        self.choose(Table::DestinationClass, Table::SourceClass)
    }

    /// Table of rules.
    pub(super) fn rules(self) -> Table {
        self.choose(Table::Egress, Table::Ingress)
    }

    /// Table of packets that a list allows.
    pub(super) fn after(self) -> Table {
        self.choose(Table::Destination, Table::Shared)
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Side::From => "out",
            Side::To => "in",
        }
    }

    /// Field of the peer's address.
    pub(super) fn peer_field(self, family: Family) -> &'static str {
        let [source, destination] = address_fields(family);
        match self {
            Side::From => destination,
            Side::To => source,
        }
    }

    /// Actions of a verdict.
    pub(super) fn actions(self, verdict: Verdict) -> String {
        match verdict {
            Verdict::Allow => goto(self.after()),
            Verdict::Deny => "drop".to_owned(),
        }
    }

    fn choose(self, from: Table, to: Table) -> Table {
        match self {
            Side::From => from,
            Side::To => to,
        }
    }
}

pub(super) fn goto(table: Table) -> String {
    format!("goto_table:{}", table as u8)
}

/// Match on all packets of a family.
pub(super) fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ipv6",
    }
}

/// Fields of source and destination.
pub(super) fn address_fields(family: Family) -> [&'static str; 2] {
    match family {
        Family::V4 => ["nw_src", "nw_dst"],
        Family::V6 => ["ipv6_src", "ipv6_dst"],
    }
}
