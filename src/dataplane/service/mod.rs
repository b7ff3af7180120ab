//! Services: the lookup from virtual addresses to backends, and the bindings of flows to their backends.
//!
//! The stage `translate` (`pipeline/translate`) uses both. [`ServiceFib`] is a part of the snapshot, laid out from the
//! loaded [`ServiceSet`](crate::tables::ServiceSet). [`Bindings`] is shared by the workers, and outlives the process beside
//! the flow table.

mod address_filter;
mod address_ranges;
mod address_set;
mod binding_file;
mod bindings;
mod fib;
mod local_addresses;
mod maglev;
mod port_entry;
mod source_port;
mod translation;
mod uplink_ports;

pub(crate) use binding_file::{binding_bytes, open_bindings};
pub(crate) use bindings::{Binding, BindingEnd, BindingKey, BindingKind, BindingLookup, Bindings, Held};
pub(crate) use fib::{Owner, PAGES as SERVICE_PAGES, PlaceId, ServiceFib, ServiceMatch};
pub(crate) use local_addresses::LocalAddresses;
pub(crate) use port_entry::{BackendsFor, Pick};
pub(crate) use source_port::SourceChoice;
pub(crate) use translation::{Choice, Source, Translation, TranslationKind};
