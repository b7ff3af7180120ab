//! The whole packet path on memory ports, without threads, interfaces or a clock: the stages, the worker and conntrack of
//! the real switch, driven a batch at a time.
//!
//! `random` runs random packets, policies, pods and waits through the switch and through a naive model, and compares
//! everything that comes out; `claims` says the rules one by one, `checksums` and `icmp` those of their names, `pickup` those about
//! segments outside any flow; in `floods` hostile pods want the whole flow table; `tight` is about frames and bounds, `jumbo` about
//! packets longer than a frame of memory, `handover` about ports with fewer queues than workers, `restart` about flows that outlive a
//! switch.

#[path = "../common/frames/mod.rs"]
mod frames;
#[path = "../common/fuzz_input.rs"]
mod fuzz_input;
mod rig;
#[path = "../common/small_tables.rs"]
mod small_tables;

mod allocations;
mod backpressure;
mod checksums;
mod claims;
mod connection_floods;
mod explain;
mod fuzz;
mod handoff;
mod icmp;
mod jumbo;
mod pktgen;
mod random_packets;
mod restart;
mod tcp_pickup;
