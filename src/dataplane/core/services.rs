//! Services of the published snapshot for the control side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::dataplane::ServiceFlows;
use crate::dataplane::service::ServiceFib;
use crate::limits::AWAITED_PODS_MS;
use crate::tables::ServicePortName;
use crate::xdp::ServiceDestinations;

impl Core {
    /// Flows that the ports of Services of the published snapshot have opened.
    pub(in crate::dataplane) fn service_flows(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        self.shared.snapshot.current().services().map(ServiceFib::flows).unwrap_or_default()
    }

    /// Destinations of Services that uplinks take from the kernel, and whether those of the process before stay beside them: for
    /// two minutes from the start on, unless Services are loaded.
    pub(in crate::dataplane) fn uplink_services(&self) -> (Arc<ServiceDestinations>, bool) {
        let (snapshot, desired) = self.in_force();
        let are_awaited =
            !desired.has_services() && self.started.elapsed() < Duration::from_millis(AWAITED_PODS_MS.into());
        let destinations = snapshot.services().map(|services| services.uplink_destinations().clone());
        (destinations.unwrap_or_default(), are_awaited)
    }

    /// Number of destinations of Services that stay with the kernel because uplinks take no more.
    pub(in crate::dataplane) fn services_left_out(&self) -> usize {
        self.shared.snapshot.current().services().map_or(0, ServiceFib::uplink_left_out)
    }
}
