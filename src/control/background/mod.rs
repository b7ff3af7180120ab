//! Threads of the control side that run beside its requests.

mod drop_collector;
mod flow_exporter;
mod node_routes;

pub(crate) use self::drop_collector::DropCollector;
pub use self::flow_exporter::FlowExporter;
pub(crate) use self::node_routes::NodeRoutes;
