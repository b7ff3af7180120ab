//! Initial values of a flow.

use super::super::state::FlowState;
use super::super::tcp::TcpFlow;
use super::super::virtual_end::FrontEnd;
use crate::ids::{Generation, PortId};

/// Initial values of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFlow {
    /// Whether the lower endpoint of the key opened it.
    pub opened_by_low: bool,
    /// Whether a socket of the node opened it.
    pub by_node_socket: bool,
    /// Whether initiator and responder are pods of this node.
    pub pods: [bool; 2],
    /// The port that the flow counts against: its first packet came from there.
    pub owner_port: PortId,
    /// The generation that evaluated it.
    pub policy_epoch: Generation,
    /// Its first state.
    pub state: FlowState,
    /// Sequence numbers and windows of a TCP connection; `None` for other protocols.
    pub tcp: Option<TcpFlow>,
    /// Front end of a translated flow.
    pub virtual_end: Option<FrontEnd>,
    /// Hops of packets of the lower and of the higher end under that generation, where they are known.
    pub hops: [Option<u16>; 2],
}
