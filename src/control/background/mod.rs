//! Threads of the control side that run beside its requests.

mod drop_collector;
mod flow_exporter;

pub(crate) use self::drop_collector::DropCollector;
pub use self::flow_exporter::FlowExporter;
