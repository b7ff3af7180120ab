//! The stage `translate`: packets to virtual addresses of Services get a backend as their destination, before conntrack and
//! policy see them; replies get the virtual address back, before they leave.
//!
//! [`translate`] changes the parsed [`Packet`](crate::dataplane::packet::Packet) alone, so that an ICMP error of the switch
//! quotes the packet as its sender sent it. [`finish_translations`] writes the addresses into the frames that leave.

mod bind;
mod collision;
mod destination;
mod finish;
mod forward;
mod fragment_key;
mod hairpin;
mod icmp_quote;
mod later_fragments;
mod masquerade;
mod pick;
mod remember;
mod reply;
mod tuple;

pub(super) use self::bind::forward_key;
pub(super) use self::collision::{has_flow_from_other_port, replace_source_port};
pub(super) use self::finish::{finish_translations, restore_destinations};
pub(in crate::dataplane) use self::forward::Translator;
pub(super) use self::forward::translate;
pub(super) use self::later_fragments::{bind_later_fragments, return_hop, translate_later_fragment};
pub(super) use self::masquerade::{choose_external_port, leaves_masqueraded, unmark};
pub(super) use self::remember::{cache_hop, remember, remember_opened};
pub(super) use self::reply::{FlowMatch, match_known_flow, translate_plain, translate_quoted};
