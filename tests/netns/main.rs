//! The whole switch with the kernel's own TCP, UDP and ICMP behind its ports: namespaces as pods, `palisade run` as a child process. Needs root and
//! AF_XDP.

mod support;

mod crowd;
mod demo;
mod fragments;
mod jumbo;
mod lifecycle;
mod policy;
mod refusals;
mod traffic;
