//! The whole switch with the kernel's own TCP, UDP and ICMP behind its ports: namespaces as pods, `palisade run` as a child process. Needs root and
//! AF_XDP.

#[path = "../frames/mod.rs"]
mod frames;
#[path = "../namespace/mod.rs"]
mod namespace;
mod support;
mod talk;
#[path = "../tap/mod.rs"]
mod tap;
mod wiring;

mod battery;
mod crowd;
mod demo;
mod directory;
mod echo;
mod flood;
mod fragments;
mod interfaces;
mod jumbo;
mod lifecycle;
mod losses;
mod ownership;
mod path_mtu;
mod pickup;
mod policy;
mod refusals;
mod resets;
mod restart;
mod traffic;
mod workers;
