//! Attachments after a start of the switch: pods of completed records are attached again.

use std::path::Path;

use super::record::{Part, Record, Records, port_name};
use crate::control::{ApiError, Switch};
use crate::dataplane::Bandwidth;

/// Attaches the pods of the records in a directory. Each record that fails is logged and stays, for the runtime to remove.
/// Records of removals that only a switch had left are done with its start, and go.
pub fn restore(switch: &Switch, directory: &Path) {
    let records = Records::at(directory);
    for attachment in records.list(Part::Pending) {
        // A call that runs finishes its record itself.
        let Ok(Some(_lock)) = records.try_lock(&attachment) else { continue };
        let is_released = records
            .read(Part::Pending, &attachment)
            .is_ok_and(|record| record.is_some_and(|record| record.released));
        if is_released && let Err(error) = records.remove(Part::Pending, &attachment) {
            tracing::warn!("{error}");
        }
    }
    let pending = records.list(Part::Pending);
    let mut restored = 0;
    for attachment in records.list(Part::Attached) {
        let Ok(Some(_lock)) = records.try_lock(&attachment) else { continue };
        if pending.contains(&attachment) {
            continue;
        }
        let container = &attachment.container;
        match records.read(Part::Attached, &attachment) {
            Ok(Some(record)) => match attach(switch, &record) {
                Ok(()) => restored += 1,
                Err(error) => {
                    tracing::warn!(pod = %record.pod, %container, "a container is not attached again: {error}");
                }
            },
            Ok(None) => tracing::warn!(%container, "the record of a container's attachment is damaged"),
            Err(error) => tracing::warn!(%container, "{error}"),
        }
    }
    if restored > 0 {
        tracing::info!(
            "{restored} pods of containers are attached again (records in {})",
            directory.display()
        );
    }
}

fn attach(switch: &Switch, record: &Record) -> Result<(), ApiError> {
    let port = port_name(&record.attachment());
    let info = switch.put_port(&port, &record.port_request())?;
    for warning in &info.report.warnings {
        tracing::warn!(port, "{warning}");
    }
    let mut request = record.pod_request();
    if !request.bandwidth.is_unlimited() && switch.require_rates().is_err() {
        tracing::warn!(pod = %record.pod, "the bandwidth of the pod has no effect with this backend");
        request.bandwidth = Bandwidth::default();
    }
    if !request.port_mappings.is_empty() && switch.require_rates().is_err() {
        tracing::warn!(pod = %record.pod, "the published ports of the pod have no effect with this backend");
        request.port_mappings.clear();
    }
    let attached = match switch.put_pod(&record.pod, &request) {
        Err(error @ ApiError::PortMappingTaken { .. }) => {
            tracing::warn!(pod = %record.pod, "the pod is attached without its published ports: {error}");
            request.port_mappings.clear();
            switch.put_pod(&record.pod, &request)
        }
        other => other,
    };
    match attached {
        Ok(_) => Ok(()),
        // The interface stays closed to the container.
        Err(error) => switch.delete_port(&port, Some(false)).and(Err(error)),
    }
}
