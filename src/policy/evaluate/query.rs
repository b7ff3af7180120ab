//! Query of one direction of a pod.

use std::net::IpAddr;

use crate::net::flow::Protocol;
use crate::policy::objects::{Node, Pod};
use crate::tables::Direction;

/// The other end of a flow, as one pod's policies see it.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct PeerAddress<'a> {
    pub(in crate::policy) address: IpAddr,
    pub(in crate::policy) owner: AddressOwner<'a>,
}

/// Who has an address.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) enum AddressOwner<'a> {
    Pod(&'a Pod),
    Node(&'a Node),
    External,
}

/// One direction of a pod, and a flow that it is verdicts about.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct Query<'a> {
    pub(in crate::policy) pod: &'a Pod,
    pub(in crate::policy) direction: Direction,
    pub(in crate::policy) peer: PeerAddress<'a>,
    pub(in crate::policy) protocol: Protocol,
    pub(in crate::policy) dst_port: u16,
}
