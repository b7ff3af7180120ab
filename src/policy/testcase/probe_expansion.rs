//! Probe expansion: the flows of each probe of a case.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::destination::Destination;
use super::endpoint_flows::{ProbeError, expand_probe, pods_of};
use super::format::{Case, Probe};
use super::placeholder_addresses::{PlaceholderRange, assign_placeholders_from};
use super::service_flows::expand_service;
use crate::net::flow::FlowKey;
use crate::policy::objects::Object;
use crate::tables::PodName;

/// Objects of a case, and the addresses of its pods.
#[derive(Debug)]
pub struct ProbeExpansion {
    objects: Vec<Object>,
    pods: BTreeMap<PodName, Vec<IpAddr>>,
}

impl ProbeExpansion {
    /// Expands a case. Pods without an address get a placeholder.
    pub fn new(case: &Case) -> ProbeExpansion {
        ProbeExpansion::with(case, PlaceholderRange::RESERVED)
    }

    /// Expands a case with placeholders from a given range. Policies in audit mode are not enforced, and left out.
    pub fn with(case: &Case, placeholders: PlaceholderRange) -> ProbeExpansion {
        let objects = case.objects.iter().map(|(object, _)| object);
        let mut objects: Vec<Object> = objects.filter(|object| !object.is_audited()).cloned().collect();
        assign_placeholders_from(placeholders, &mut [&mut objects]);
        ProbeExpansion { pods: pods_of(&objects), objects }
    }

    /// Objects of the case.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Running pods with addresses of their own: neither on the host's network nor finished.
    pub fn running_pods(&self) -> BTreeMap<PodName, Vec<IpAddr>> {
        let running = self.objects.iter().filter_map(|object| match object {
            Object::Pod(pod) if !pod.host_network && !pod.finished && !pod.addresses.is_empty() => {
                Some((pod.name.clone(), pod.addresses.clone()))
            }
            _ => None,
        });
        running.collect()
    }

    /// Flows of a probe. The probe holds if it holds for all of them. A probe to a Service has a flow to each
    /// backend; without a backend it has none, and is denied.
    pub fn flows(&self, probe: &Probe) -> Result<Vec<FlowKey>, ProbeError> {
        match &probe.to {
            Destination::Endpoint(to) => {
                expand_probe(&self.pods, &probe.from, to, probe.protocol, probe.port)
            }
            Destination::Service(to) => {
                expand_service(&self.objects, &probe.from, to, probe.protocol, probe.port)
                    .map(|(flows, _)| flows)
            }
        }
    }
}
