//! The compiled trie of one address family: longest match in few loads, however many prefixes.
//!
//! A root of 65,536 slots is indexed by the first two bytes of an address. A slot, there and below, is one word: the
//! value itself, or a node that looks at further bytes. What covers a slot is pushed down into it, so that nothing
//! has to be remembered on the way. Three kinds of nodes:
//!
//! - *dense*: 256 slots, indexed by the next byte. Two loads after the root decide an IPv4 address;
//! - *sparse*: skips bytes that all prefixes below have in common (and checks them), then takes one byte; slots that
//!   repeat their neighbour are stored once and found by counting bits. A million scattered IPv4 prefixes take 15 MiB;
//! - *leaf*: one prefix, compared whole. An IPv6 address does not walk 16 levels to reach it.
//!
//! Most IPv4 addresses need the root, then a leaf or a dense node, then perhaps a dense node below: a batch takes these three
//! steps without a branch, and each for all addresses before the next. What waits for a load is then that load alone, many at
//! a time; one address after the other, the processor's window would be full of the few chains of loads that fit into it.
//!
//! | node | words |
//! |---|---|
//! | dense | 256 slots |
//! | sparse | key (4), slot where the key differs, first unit of the slots, ranks (2), bitmap of 256 bits (8) |
//! | leaf | length, value, value where it differs, key (IPv4: 1, IPv6: 4) |

mod address;
mod build;
mod slot;
mod trie;

pub(super) use address::{join, split};
pub(super) use slot::{DENSE_NODES_MIN, NO_MATCH};
pub(super) use trie::PrefixTrie;
