//! Services of one node: from Services, `EndpointSlices`, pods and nodes to a [`ServiceTable`].
//!
//! `endpoints of each port -> the proxy rules of Kubernetes -> claims of virtual addresses -> table`
//!
//! [`Services`] lives as long as its source, and resolves only the Services that a change affects.
//! [`backends_for`] answers for one client, for commands that read manifests.
//!
//! [`ServiceTable`]: crate::tables::ServiceTable

mod candidates;
mod claims;
mod pod_index;
mod proxy_rules;
mod query;
mod resolver;

pub use candidates::target_port;
pub use query::{ServiceBackends, ServiceClient, ServiceError, UnusedEndpoint, backends_for};
pub use resolver::{Services, ServicesOptions};

#[cfg(test)]
mod tests;
