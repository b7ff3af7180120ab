//! The identity of a flow as policy sees it, from a packet or from a key.

use crate::dataplane::conntrack::{Key, PacketFlow};
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::pipeline::batch::Batch;
use crate::ids::PortId;

/// Direction and ports of a flow that a packet opens. The sender is always the initiator: nothing else in a packet tells
/// which end has opened a connection.
#[derive(Debug, Clone, Copy)]
pub(in crate::dataplane::pipeline) struct FlowInit {
    /// Whether the initiator is the lower endpoint of the key.
    pub(in crate::dataplane::pipeline) opened_by_low: bool,
    /// Whether the packet has the mark of the node's sockets.
    pub(in crate::dataplane::pipeline) is_marked: bool,
    /// The port of the initiator.
    pub(in crate::dataplane::pipeline) from: PortId,
    /// The port of the responder.
    pub(in crate::dataplane::pipeline) to: PortId,
}

impl FlowInit {
    /// Placeholder in arrays.
    pub(in crate::dataplane::pipeline) const NONE: FlowInit =
        FlowInit { opened_by_low: false, is_marked: false, from: PortId(0), to: PortId(0) };

    /// Whether a socket of the node has sent the packet, which came by the port `from`.
    #[inline]
    pub(in crate::dataplane::pipeline) fn by_node_socket(self, from: &PortView) -> bool {
        from.marks_node_sockets() && self.is_marked
    }

    /// Takes direction and ports from packet `i`, which has been routed.
    #[inline(always)]
    pub(in crate::dataplane::pipeline) fn of(batch: &Batch, i: usize, flow: &PacketFlow) -> FlowInit {
        FlowInit {
            opened_by_low: flow.from_low,
            is_marked: batch.packets[i].is_marked(),
            from: batch.in_ports[i],
            to: batch.adjacencies[i].out,
        }
    }
}

/// Converts a key to the flow that policy evaluates, in its original direction. `by_node_socket`: a socket of the node has
/// opened it.
pub(in crate::dataplane::pipeline) fn flow_of(key: &Key, opened_by_low: bool, by_node_socket: bool) -> Flow {
    let protocol = key.protocol();
    if opened_by_low {
        Flow { src: key.low(), dst: key.high(), protocol, dst_port: key.high_port(), by_node_socket }
    } else {
        Flow { src: key.high(), dst: key.low(), protocol, dst_port: key.low_port(), by_node_socket }
    }
}
