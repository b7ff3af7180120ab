//! Palisade: a virtual switch for one Linux node that enforces Kubernetes `NetworkPolicy`.
//!
//! The crate tells two stories. They meet in one data type, the rule [`tables`].
//!
//! **The story of a policy** ([`policy`]): Kubernetes objects become rule tables.
//! `objects -> store -> resolve -> compile -> rule tables -> (control socket) -> publish to the workers`
//!
//! **The story of a packet** ([`dataplane`]): workers take frames from AF_XDP rings ([`xdp`]) and decide on each one.
//! `receive -> parse -> anti-spoof -> local delivery -> lookup -> advance -> classify -> fragments -> rewrite -> count -> transmit`
//!
//! Modules in reading order: the vocabulary ([`ids`], [`limits`], [`net`]), the contract ([`tables`]), the two stories,
//! then what drives them: [`control`], [`source`], [`config`], [`lab`], [`cli`]. [`pktgen`] measures it all.

#![deny(unsafe_code)]

// Test fixtures that unit tests and integration tests share refer to the crate by its name.
#[cfg(test)]
extern crate self as palisade;

#[cfg(test)]
#[path = "../tests/common/random.rs"]
#[allow(dead_code)] // Integration tests use the rest.
mod random;

pub mod ids;
pub mod limits;
mod nearest;
pub mod net;
pub mod printable;

pub mod tables;

pub mod policy;

pub mod render;

pub mod mem;
pub mod tap;
pub mod xdp;

pub mod connect;

pub mod netlink;
pub mod threads;

pub mod dataplane;
pub mod kernel_dataplane;

pub mod pktgen;

pub mod cli;
pub mod cni;
pub mod config;
pub mod control;
pub mod daemon;
pub mod hardening;
pub mod lab;
pub mod source;
