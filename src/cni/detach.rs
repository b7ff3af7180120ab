//! Removal of attachments: DEL, the undoing of a failed ADD, and of calls that were killed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::config::NetworkConfig;
use super::environment::{Attachment, Environment};
use super::error::{CniError, Code, note};
use super::ipam::{self, Ipam};
use super::link::{PodNamespace, remove_links, unroute_from_node};
use super::record::{LOCK_TIMEOUT, Part, Record, Records, port_name};
use crate::control::{Client, ClientError};
use crate::netlink::NetworkNamespace;
use crate::tables::PodName;

/// Attachments of others that one call finishes at most, so that it stays short.
const OTHERS_MAX: usize = 16;

/// Longest time that ADD and DEL take for attachments of others.
pub(super) const OTHERS_BUDGET: Duration = Duration::from_secs(2);
/// Most attempts to remove a port whose pod another request attaches.
const DETACH_TRIES: u32 = 3;
/// Pod of an attachment whose call does not name one.
const POD_UNKNOWN: [&str; 2] = ["default", "unknown"];

/// Detaches the container: DEL.
pub(super) fn delete(
    environment: &Environment,
    config: &NetworkConfig,
    records: &Records,
    switch: &Client,
) -> Result<(), CniError> {
    let attachment = environment.attachment()?;
    records.create()?;
    let lock = records.lock(&attachment, LOCK_TIMEOUT)?;
    let remover = Remover::of(records, switch, &environment.path);
    let record = records.read_any(&attachment)?;
    if let Some(record) = &record
        && record.network != config.name
        && PodNamespace::of(record)?.is_some()
    {
        // The network has refused to attach the container.
        let Attachment { container, interface } = &attachment;
        note(&format!(
            "{interface} of container {container} stays: it belongs to network {}",
            record.network
        ));
        return Ok(());
    }
    let given = if record.is_some() {
        // The record has the configuration of ADD.
        None
    } else if let Some(given) = config.for_ipam(None)? {
        Some(given)
    } else {
        // Without a switch and a record nobody knows of addresses.
        let prefixes = switch.status().ok().map(|status| status.pod_prefixes);
        config.for_ipam(prefixes.as_deref()).ok().flatten()
    };
    let ipam = given.as_ref().map(|config| Ipam {
        path: &environment.path,
        config,
        arguments: &environment.arguments,
        timeout: ipam::TIMEOUT,
    });
    match remover.remove(&attachment, environment.namespace_if_any(), ipam)? {
        Forgotten::Yes => {
            drop(lock);
            remover.finish_others(Some(&attachment), OTHERS_BUDGET);
        }
        // A switch that runs may have the port, whatever has become of the record.
        Forgotten::Later if record.is_none() => {
            let pod = environment.pod(&attachment.container);
            let [namespace, name] = POD_UNKNOWN;
            let pod = pod.unwrap_or_else(|_| PodName::new(namespace, name));
            records.write(Part::Pending, &Record::of_removal(&attachment, &config.name, pod))?;
        }
        Forgotten::Later | Forgotten::ByItsEnd => {}
    }
    Ok(())
}

/// Whether the switch has forgotten an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forgotten {
    Yes,
    /// No switch runs, and one that starts knows of records alone.
    ByItsEnd,
    /// The switch did not answer.
    Later,
}

/// Remover of attachments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remover<'a> {
    records: &'a Records,
    switch: &'a Client,
    /// Directories of plugins.
    path: &'a [PathBuf],
    /// End of the time of IPAM plugins.
    deadline: Option<Instant>,
}

impl<'a> Remover<'a> {
    /// Remover for a call with these directories of plugins.
    pub(super) fn of(records: &'a Records, switch: &'a Client, path: &'a [PathBuf]) -> Remover<'a> {
        Remover { records, switch, path, deadline: None }
    }

    /// The same with IPAM plugins that end until then.
    pub(super) fn until(self, deadline: Instant) -> Remover<'a> {
        Remover { deadline: Some(deadline), ..self }
    }

    /// Removes an attachment that has a record, or none. The caller holds its lock. `ipam` releases addresses without a
    /// record.
    ///
    /// A switch that does not answer keeps the record in [`Part::Pending`], which it or a later call finishes.
    ///
    /// # Errors
    /// The interface stays, or the IPAM plugin does not release the addresses. The record stays too.
    pub(super) fn remove(
        &self,
        attachment: &Attachment,
        namespace: Option<&str>,
        ipam: Option<Ipam<'_>>,
    ) -> Result<Forgotten, CniError> {
        let record = self.records.read_any(attachment)?;
        let was_pending = self.records.read(Part::Pending, attachment)?.is_some();
        self.records.reopen(attachment)?;
        let mut left = self.detach(attachment);
        if let Err(error) = &left {
            note(&format!("the switch forgets {} later: {error}", port_name(attachment)));
        }
        let recorded = record.as_ref().map(PodNamespace::of).transpose()?.flatten();
        let opened = match (recorded, namespace) {
            (None, Some(path)) => PodNamespace::open_if_there(path)?,
            (recorded, _) => recorded,
        };
        remove_links(attachment, opened.as_ref(), record.as_ref())?;
        record.as_ref().map_or(Ok(()), unroute_from_node)?;
        let recorded = record.as_ref().filter(|record| !record.released).map(|record| self.ipam_of(record));
        let ipam = if record.is_some() { recorded } else { ipam };
        if let Some(ipam) = ipam {
            let recorded = record.as_ref().map(|record| record.namespace.as_str());
            ipam.del(attachment, namespace.or(recorded).unwrap_or_default())?;
        }
        if let Some(name) = record.as_ref().and_then(|record| record.bound.as_ref()) {
            let unbound = NetworkNamespace::unbind(name);
            unbound.map_err(|error| CniError::io(&format!("remove namespace name {name}"), &error))?;
        }
        if was_pending && left.is_ok() {
            // The switch may have come to the last request of a killed call in this time.
            left = self.detach(attachment);
        }
        match record {
            Some(record) if left.is_err() => {
                // The record stays in any case. Without this change the addresses are released once more.
                let released = Record { released: true, ..record };
                self.records.write(Part::Pending, &released).unwrap_or_else(|error| note(&error));
            }
            _ => self.records.remove(Part::Pending, attachment)?,
        }
        Ok(match left {
            Ok(()) => Forgotten::Yes,
            Err(ClientError::NotRunning { .. }) => Forgotten::ByItsEnd,
            Err(_) => Forgotten::Later,
        })
    }

    /// Removes an attachment by its record alone, with the configuration of its ADD.
    pub(super) fn remove_recorded(&self, attachment: &Attachment) -> Result<Forgotten, CniError> {
        if self.records.read_any(attachment)?.is_some() {
            return self.remove(attachment, None, None);
        }
        // The file is damaged. Its attachment is removed by its names.
        let left = self.detach(attachment);
        remove_links(attachment, None, None)?;
        left?;
        self.records.remove(Part::Pending, attachment)?;
        self.records.remove(Part::Attached, attachment)?;
        Ok(Forgotten::Yes)
    }

    /// Call of the IPAM plugin as at the ADD of a record.
    pub(super) fn ipam_of<'r>(&'r self, record: &'r Record) -> Ipam<'r> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let timeout = self.deadline.map_or(ipam::TIMEOUT, left);
        Ipam { path: self.path, config: &record.config, arguments: &record.arguments, timeout }
    }

    /// Finishes attachments that other calls have left unfinished, for as long as `budget` allows. One that a call is
    /// about is left to it.
    pub(super) fn finish_others(&self, except: Option<&Attachment>, budget: Duration) {
        let deadline = Instant::now() + budget;
        let mut others = self.records.list(Part::Pending);
        others.retain(|other| Some(other) != except);
        // Calls begin at different ones: one that hangs does not keep all calls from the rest.
        let first = std::process::id() as usize % others.len().max(1);
        others.rotate_left(first);
        for other in others.into_iter().take(OTHERS_MAX) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let Ok(Some(_lock)) = self.records.try_lock(&other) else { continue };
            // The call that had the lock may have finished it.
            if !self.records.list(Part::Pending).contains(&other) {
                continue;
            }
            let switch = Client::new(self.switch.socket()).with_patience(left);
            let remover = Remover { switch: &switch, ..*self }.until(deadline);
            match remover.remove_recorded(&other) {
                Ok(Forgotten::Yes) => {}
                // The switch does not answer now, and each question waits for it.
                Ok(_) => return,
                Err(error) => {
                    let Attachment { container, interface } = &other;
                    note(&format!("{interface} of container {container} is removed later: {error}"));
                    // The next one would wait as long for the same plugin or switch.
                    if error.code() == Code::TRY_AGAIN {
                        return;
                    }
                }
            }
        }
    }

    /// Removes port and pod of an attachment from the switch. Those that are not there have no effect.
    pub(super) fn detach(&self, attachment: &Attachment) -> Result<(), ClientError> {
        let port = port_name(attachment);
        let mut tries = DETACH_TRIES;
        loop {
            let pods = self.switch.pods()?;
            for pod in pods.into_iter().filter(|pod| pod.port == port) {
                absent_is_fine(self.switch.delete_pod(&pod.pod))?;
            }
            tries -= 1;
            match absent_is_fine(self.switch.delete_port_with(&port, true)) {
                // The last request of a killed call has attached its pod meanwhile.
                Err(error) if error.status() == Some(409) && tries > 0 => {}
                done => return done,
            }
        }
    }
}

fn absent_is_fine(result: Result<(), ClientError>) -> Result<(), ClientError> {
    match result {
        Err(error) if error.status() == Some(404) => Ok(()),
        other => other,
    }
}
