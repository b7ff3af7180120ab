//! Tests of traffic between pods through one switch, `palisade run` as a child process: forwarding, policy,
//! and drops.

mod bandwidth;
mod churn;
mod connection_flood;
mod forwarding;
mod fragments;
mod jumbo;
mod kernel_drops;
mod many_pods;
mod path_mtu;
mod ping;
mod policy;
mod reject;
mod services;
mod tap;
mod tcp_pickup;
mod tcp_resets;
