//! Translation of one packet, a column of the batch.

use super::bindings::BindingPlace;
use super::fib::PlaceId;
use super::port_entry::BackendsFor;
use crate::net::address::Address;

/// Kind of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TranslationKind {
    /// The destination was virtual.
    #[default]
    Forward,
    /// The source becomes virtual.
    Reply,
    /// The source becomes an address of the node, with the external port of the flow.
    Masquerade,
    /// The destination was that end. It is a pod.
    MasqueradeReply,
    /// An ICMP error to the client of a translated flow: the quoted destination becomes virtual, and with `is_bound` the
    /// source of the error too.
    ErrorToClient,
    /// An ICMP error to a backend: its destination, and the quoted source, were virtual.
    ErrorToBackend,
    /// An ICMP error of a pod about a reply of a masqueraded flow: its source, and the quoted destination, become the external
    /// end.
    ErrorToOutside,
    /// A packet of a pod to itself: the source becomes another one.
    Hairpin,
    /// An ICMP error of a pod about such a packet, to itself: the source becomes another one, and the quoted packet that which
    /// the pod has sent.
    ErrorToItself,
}

/// Translation of one packet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Translation {
    /// Kind of the translation.
    pub kind: TranslationKind,
    /// Whether the flow is bound, and both of its bindings were checked in this second.
    pub is_bound: bool,
    /// Virtual address; of a packet of a pod to itself, its new source.
    pub address: Address,
    /// Its port.
    pub port: u16,
    /// Source of the backend.
    pub source: Source,
}

/// Source of the backend of a packet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Source {
    /// Another one than a binding or a choice.
    #[default]
    Other,
    /// The binding of the flow.
    Binding(BindingPlace),
    /// This batch has chosen it.
    Choice(Choice),
}

impl Translation {
    /// A translation of this kind by this virtual end.
    #[inline]
    pub(crate) fn new(kind: TranslationKind, is_bound: bool, (address, port): (Address, u16)) -> Translation {
        Translation { kind, is_bound, address, port, source: Source::Other }
    }
}

// A batch has 256 of them.
const _: () = assert!(size_of::<Translation>() == 32);

/// Backend that the packet of a new flow has got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    /// Port of the Service.
    pub place: PlaceId,
    /// List of the backend.
    pub backends: BackendsFor,
    /// Index of the backend in its list.
    pub index: u16,
}
