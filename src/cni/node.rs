//! Verbs about the whole node: GC and STATUS.

use std::time::Duration;

use serde_json::{Map, Value};

use super::config::NetworkConfig;
use super::detach::Remover;
use super::environment::{Attachment, Environment, Verb};
use super::error::{CniError, Code, note};
use super::ipam::{self, Ipam};
use super::record::{Part, Records};
use super::version::Version;
use crate::control::{Client, ClientError};

/// Longest time that GC takes for what killed calls have left: that of an IPAM plugin.
const OTHERS_BUDGET: Duration = ipam::TIMEOUT;
/// Longest answer of an IPAM plugin to STATUS, which runtimes call every few seconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses a verb that the version of the configuration does not have.
pub(super) fn check_version(verb: Verb, config: &NetworkConfig) -> Result<(), CniError> {
    if matches!(verb, Verb::Gc | Verb::Status) && config.version < Version::V1_1 {
        let what = format!("cniVersion {} has neither GC nor STATUS: set it to 1.1.0", config.version.text());
        return Err(CniError::new(Code::INCOMPATIBLE_VERSION, what));
    }
    Ok(())
}

/// Removes the attachments of the network that the runtime does not know, and what killed calls have left.
pub(super) fn collect(
    environment: &Environment,
    config: &NetworkConfig,
    records: &Records,
    switch: &Client,
) -> Result<(), CniError> {
    let valid = config.valid_attachments()?;
    config.for_ipam(None)?;
    records.create()?;
    let remover = Remover::of(records, switch, &environment.path);
    let mut failures = Vec::new();
    for attachment in records.list(Part::Attached) {
        if valid.contains(&attachment) {
            continue;
        }
        // A call that runs is about a container that the runtime has not listed yet.
        let Ok(Some(_lock)) = records.try_lock(&attachment) else { continue };
        let Attachment { container, interface } = &attachment;
        let removed = match records.read(Part::Attached, &attachment) {
            Ok(Some(record)) if record.network == config.name => {
                remover.remove_recorded(&attachment).map(drop)
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                // It may be of another network, whose container runs.
                note(&format!(
                    "the record of {interface} of container {container} is damaged: DEL removes it"
                ));
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            failures.push(format!("{interface} of container {container}: {error}"));
        }
    }
    remover.finish_others(None, OTHERS_BUDGET);
    remove_unwritten(records);
    let prefixes = switch.status().ok().map(|status| status.pod_prefixes);
    if let Ok(Some(given)) = config.for_ipam(prefixes.as_deref())
        && let Err(error) = ipam_of(environment, &given, ipam::TIMEOUT).pass_on("GC")
    {
        failures.push(error.to_string());
    }
    match failures.as_slice() {
        [] => Ok(()),
        failures => Err(CniError::new(Code::IO, format!("some attachments stay: {}", failures.join("; ")))),
    }
}

/// Removes the files of records that killed calls were writing, and that have never become records.
fn remove_unwritten(records: &Records) {
    for attachment in records.list_files(Part::Pending, ".next") {
        let Ok(Some(_lock)) = records.try_lock(&attachment) else { continue };
        if !records.list(Part::Pending).contains(&attachment)
            && let Err(error) = records.remove(Part::Pending, &attachment)
        {
            note(&error);
        }
    }
}

/// Tells whether ADD would be served.
pub(super) fn status(
    environment: &Environment,
    config: &NetworkConfig,
    records: &Records,
    switch: &Client,
) -> Result<(), CniError> {
    let status = switch.status().map_err(|error| {
        let code = match error {
            // Pods are closed while no switch runs.
            ClientError::NotRunning { .. } | ClientError::Broken { .. } => Code::LIMITED_CONNECTIVITY,
            _ => Code::NOT_AVAILABLE,
        };
        CniError::from(error).with_code(code)
    })?;
    let unavailable = |error: CniError| error.with_code(Code::NOT_AVAILABLE);
    records.create().map_err(unavailable)?;
    if let Some(given) = config.for_ipam(Some(&status.pod_prefixes)).map_err(unavailable)? {
        ipam_of(environment, &given, STATUS_TIMEOUT).pass_on("STATUS").map_err(unavailable)?;
    }
    Ok(())
}

fn ipam_of<'a>(environment: &'a Environment, config: &'a Map<String, Value>, timeout: Duration) -> Ipam<'a> {
    Ipam { path: &environment.path, config, arguments: &environment.arguments, timeout }
}
