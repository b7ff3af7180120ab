//! Compiled trie of one address family: longest-prefix match in few loads, whatever the number of prefixes.
//!
//! The first two bytes of an address index a root of 65,536 slots. A slot is one word: a value, or a node for
//! further bytes. The value of a covering prefix is pushed down into every slot (leaf pushing), so a lookup
//! keeps no state. There are three kinds of nodes:
//!
//! - *dense*: 256 slots, indexed by the next byte. Two loads after the root decide an IPv4 address;
//! - *sparse*: skips and checks the bytes that all inner prefixes share, then takes one byte. Slots that
//!   repeat their neighbor are stored once and found by a population count. A million scattered IPv4 prefixes
//!   take 15 MiB;
//! - *leaf*: one prefix, compared as a whole. An IPv6 address does not traverse 16 levels to reach it.
//!
//! Most IPv4 addresses need the root, then a leaf or a dense node, then possibly another dense node. A batch
//! takes these three steps without a branch, each for all addresses before the next. The loads of a step
//! overlap. Address by address, the few chains of dependent loads would fill the reorder window of the
//! processor.
//!
//! | node | words |
//! |---|---|
//! | dense | 256 slots |
//! | sparse | key (4), slot for other keys, first unit of the slots, ranks (2), bitmap of 256 bits (8) |
//! | leaf | length, value, value for other keys, key (IPv4: 1, IPv6: 4) |

mod address;
mod build;
mod slot;
mod trie;

pub(super) use address::{join, split};
pub(super) use slot::{DENSE_NODES_MIN, NO_MATCH};
pub(super) use trie::PrefixTrie;
