//! Threads of the control side that run beside its requests.

mod drop_collector;
mod flow_exporter;
mod node_routes;
mod node_sockets;
mod periodic;

pub(crate) use self::drop_collector::collect_drops;
pub use self::flow_exporter::export_flows;
pub(crate) use self::node_routes::{keep_node_routes, remove_node_routes};
pub(crate) use self::node_sockets::{detach_node_sockets, keep_node_sockets};
pub use self::periodic::Periodic;
