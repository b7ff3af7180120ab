//! Tests of the whole packet path on memory ports, without threads, interfaces or a clock: the pipeline, the
//! worker and conntrack of the real switch, driven one batch at a time. They need no privilege.
//!
//! `random_packets` compares the switch with the reference model in `rig` on random histories. Each other
//! module has the claims about its subject, one test each. `fuzz` has the fuzz targets of frames, headers and
//! files; `allocations` counts the calls of the allocator.

#[path = "../common/frames/mod.rs"]
mod frames;
#[path = "../common/fuzz_input.rs"]
mod fuzz_input;
#[path = "../common/hostile_frames/mod.rs"]
mod hostile_kinds;
#[path = "../common/random.rs"]
#[allow(dead_code)] // Tests of policies and of conntrack use the rest.
mod random;
mod rig;
#[path = "../common/small_tables.rs"]
mod small_tables;

use self::frames::checksum;

mod allocations;
mod backpressure;
mod bandwidth;
mod checksums;
mod connection_floods;
mod early_syns;
mod explain;
mod fragmentation;
mod fuzz;
mod handoff;
mod hostile_frames;
mod icmp;
mod jumbo;
mod masquerade;
mod packet_path;
mod pktgen;
mod random_packets;
mod reject;
mod restart;
mod services;
mod taps;
mod tcp_pickup;
mod tunnel;
