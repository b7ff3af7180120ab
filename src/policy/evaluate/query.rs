//! Query: one direction of a pod and a flow.

use std::net::IpAddr;

use crate::net::flow::Protocol;
use crate::policy::objects::{Node, Pod};
use crate::tables::Direction;

/// Peer address of a flow, seen from one pod.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct PeerAddress<'a> {
    pub(in crate::policy) address: IpAddr,
    pub(in crate::policy) owner: AddressOwner<'a>,
}

/// Owner of an address.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) enum AddressOwner<'a> {
    Pod(&'a Pod),
    Node(&'a Node),
    External,
}

/// Query for the verdict of one direction of a pod on a flow.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct Query<'a> {
    pub(in crate::policy) pod: &'a Pod,
    pub(in crate::policy) direction: Direction,
    pub(in crate::policy) peer: PeerAddress<'a>,
    pub(in crate::policy) protocol: Protocol,
    pub(in crate::policy) dst_port: u16,
}
