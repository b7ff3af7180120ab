//! The whole switch with the kernel's own TCP, UDP and ICMP behind its ports: namespaces as pods, `palisade run` as a child process. Needs root and
//! AF_XDP.

mod support;
mod talk;
#[path = "../tap/mod.rs"]
mod tap;
mod wiring;

mod crowd;
mod demo;
mod directory;
mod echo;
mod flood;
mod fragments;
mod interfaces;
mod jumbo;
mod lifecycle;
mod ownership;
mod path_mtu;
mod policy;
mod refusals;
mod resets;
mod restart;
mod traffic;
mod workers;
