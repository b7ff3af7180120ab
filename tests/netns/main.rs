//! Tests with the kernel's own network stacks in network namespaces. They need root, and AF_XDP for all tests
//! of a switch.

#[path = "../kubernetes/server.rs"]
#[allow(dead_code)] // Tests of the agent use the rest.
mod api_server;
#[path = "../common/browser.rs"]
mod browser;
#[path = "../common/frames/checksum.rs"]
mod checksum;
#[path = "../common/frames/describe.rs"]
mod describe;
#[path = "../common/hostile_frames/mod.rs"]
mod hostile_frames;
#[path = "../common/ipfix.rs"]
mod ipfix_collector;
#[path = "../common/open_vswitch.rs"]
#[allow(dead_code)] // The benchmark uses the rest.
mod open_vswitch;
#[path = "../common/random.rs"]
#[allow(dead_code)] // Other tests use the rest.
mod random;
mod support;
#[path = "../common/tools.rs"]
mod tools;

mod battery;
mod cluster;
mod cni;
mod demo;
mod getting_started;
mod kernel_dataplane;
mod lab;
mod live;
mod pktgen;
mod process;
mod render;
mod traffic;
mod uplink;
mod xdp;
