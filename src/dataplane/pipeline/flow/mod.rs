//! Packets against flows: admission of new flows, state of known ones, revalidation after a change of policy.

pub(super) mod admit;
pub(in crate::dataplane) mod early_syn;
pub(super) mod established;
pub(super) mod init;
pub(super) mod offload;
pub(super) mod revalidate;
mod state;
mod tcp_segment;
