//! Fragments: policy holds for each fragment of a datagram, though only the first one has the ports.
//!
//! The first fragment of a datagram goes through the stages like any packet, and the switch keeps its
//! verdict. Later fragments get the same verdict. Those that come before it wait, in a bounded store, and go
//! through the stages when it has come. The switch keeps the parts of a datagram that have come, so that no
//! fragment replaces a part of another (RFC 1858, RFC 3128, RFC 5722): it drops a fragment that repeats
//! earlier parts, and where a fragment repeats only some of them, all that follow. It reassembles nothing.
//!
//! Each worker has its own datagrams. The kernel may deliver the fragments of one datagram to several queues,
//! so workers share the verdicts on first fragments and the ends of these: no transport header is replaced by
//! way of another worker.
//!
//! A worker forgets a datagram when all of it has come, for its identification may come again soon.

mod coverage;
mod datagrams;
mod first_fragment_table;
mod first_verdict;
mod fragment_info;
mod parts;
mod store;

pub(crate) use first_fragment_table::FirstFragmentTable;
pub(crate) use first_verdict::FirstVerdict;
pub(crate) use fragment_info::FragmentInfo;
pub(crate) use store::{Environment, Fragments, LaterVerdict};

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;
