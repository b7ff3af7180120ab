//! Records of attachments on disk: a file each, in a directory that the plugin and the switch share.
//!
//! A file in `attached` is an attachment that ADD has completed. A file in `pending` is one whose ADD or DEL has not come
//! to its end: its process runs, or was killed, or could not undo a part. Files are replaced as a whole. A lock for each
//! attachment keeps calls for it apart; the kernel releases the lock of a process that ends.

mod file_name;

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::file_name::{attachment_of, file_name};
use super::config::InterfaceKind;
use super::environment::Attachment;
use super::error::{CniError, Code};
use super::result::CniResult;
use crate::control::protocol::{PodRequest, PortRequest};
use crate::dataplane::{Bandwidth, PortKind};
use crate::net::mac::Mac;
use crate::tables::{PodName, PortMapping};

/// Most bytes of a record.
const RECORD_BYTES_MAX: u64 = 256 << 10;
/// Most records that are read of a directory: several for each port of a switch.
const RECORDS_MAX: usize = 4096;
/// Longest wait for another call for the same attachment: longer than an IPAM plugin may take.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval of looks whether a lock is free.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Lock files, which attachments share by their hash.
const LOCKS: u64 = 256;

/// Record of an attachment: all that is needed to attach it again, and to undo it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Id of the container.
    pub container: String,
    /// Name of the interface inside the container.
    pub interface: String,
    /// Name of the network.
    pub network: String,
    /// Path of the container's network namespace.
    pub namespace: String,
    /// Cookie of the namespace: a path may lead to another one later, and an inode be that of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// Name that the plugin has given the namespace, for a path that ends with a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// Name of the pod.
    pub pod: PodName,
    /// Kind of the interface.
    pub kind: InterfaceKind,
    /// Ethernet address of the pod.
    pub mac: Mac,
    /// MTU of the interface, bytes.
    pub mtu: u32,
    /// Addresses of the pod; none before the IPAM plugin has given them.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Bandwidth of the pod.
    #[serde(default, skip_serializing_if = "Bandwidth::is_unlimited")]
    pub bandwidth: Bandwidth,
    /// Ports of the node that lead to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Interface of the node with routes to the addresses, and their gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeRoutes>,
    /// `CNI_ARGS` of ADD.
    #[serde(default)]
    pub arguments: String,
    /// Configuration of the network, for the IPAM plugin.
    pub config: Map<String, Value>,
    /// Result of a completed ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<CniResult>,
    /// Whether the IPAM plugin has released the addresses.
    #[serde(default)]
    pub released: bool,
}

/// Routes of the node's own network stack to a pod, each by way of the switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeRoutes {
    /// The node's end of the veth pair whose other end is the switch's host port.
    pub interface: String,
    /// Gateways of the switch.
    pub gateways: Vec<IpAddr>,
}

impl Record {
    /// Record of a removal that the switch alone has left. It names no namespace.
    pub(super) fn of_removal(attachment: &Attachment, network: &str, pod: PodName) -> Record {
        Record {
            container: attachment.container.clone(),
            interface: attachment.interface.clone(),
            network: network.to_owned(),
            namespace: String::new(),
            cookie: None,
            bound: None,
            pod,
            kind: InterfaceKind::default(),
            mac: mac_of(attachment),
            mtu: 0,
            addresses: Vec::new(),
            bandwidth: Bandwidth::default(),
            port_mappings: Vec::new(),
            node: None,
            arguments: String::new(),
            config: Map::new(),
            result: None,
            released: true,
        }
    }

    /// The attachment that the record is about.
    pub(super) fn attachment(&self) -> Attachment {
        Attachment { container: self.container.clone(), interface: self.interface.clone() }
    }

    /// Request for the port. A tap device is made in the namespace of the record alone, whatever has its path.
    pub(super) fn port_request(&self) -> PortRequest {
        match self.kind {
            InterfaceKind::Veth => PortRequest::of(PortKind::Pod),
            InterfaceKind::Tap => PortRequest {
                namespace_cookie: self.cookie,
                mtu: Some(self.mtu),
                mac: Some(self.mac),
                ..PortRequest::tap(self.bound.as_ref().unwrap_or(&self.namespace), &self.interface)
            },
        }
    }

    /// Request for the pod behind the port.
    pub(super) fn pod_request(&self) -> PodRequest {
        let port = port_name(&self.attachment());
        let addresses = self.addresses.clone();
        let (bandwidth, port_mappings) = (self.bandwidth, self.port_mappings.clone());
        PodRequest { port, addresses, mac: Some(self.mac), bandwidth, port_mappings }
    }
}

/// Part of the directory that a record is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Completed attachments.
    Attached,
    /// Attachments whose ADD or DEL has not come to its end.
    Pending,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Attached => "attached",
            Part::Pending => "pending",
        }
    }
}

/// Directory of records.
#[derive(Debug, Clone)]
pub(super) struct Records {
    directory: PathBuf,
}

/// Exclusive use of an attachment, until it is dropped. Plugins that this process starts inherit the file: one that outlives
/// a killed call keeps the lock, and may give an address until its end.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlike the end of this process, it releases the lock for all who have inherited the file.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Name of the port of an attachment, and of its interface on the node: 12 digits of a hash.
pub(super) fn port_name(attachment: &Attachment) -> String {
    format!("cni{:012x}", hash(attachment) >> 16)
}

/// Ethernet address of an attachment: locally administered, unicast (IEEE 802c).
pub(super) fn mac_of(attachment: &Attachment) -> Mac {
    let [a, b, c, d, e, ..] = hash(attachment).to_be_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// Hash that is the same in every process and version: FNV-1a (draft-eastlake-fnv), with a finish that spreads the last
/// bytes over all bits.
fn hash(Attachment { container, interface }: &Attachment) -> u64 {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        fn finish(&self) -> u64 {
            let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            mixed ^ (mixed >> 33)
        }
    }
    let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
    fnv.write(container.as_bytes());
    // No container id has a slash.
    fnv.write(b"/");
    fnv.write(interface.as_bytes());
    fnv.finish()
}

impl Records {
    /// Names a directory, whether it exists or not.
    pub(super) fn at(directory: impl Into<PathBuf>) -> Records {
        Records { directory: directory.into() }
    }

    /// Makes the directory, for its owner alone.
    pub(super) fn create(&self) -> Result<(), CniError> {
        for part in ["attached", "pending", "locks"] {
            let path = self.directory.join(part);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|error| CniError::io(&format!("create {}", path.display()), &error))?;
        }
        Ok(())
    }

    /// Waits until no other call for the attachment runs.
    ///
    /// # Errors
    /// One still runs when the time is over.
    pub(super) fn lock(&self, attachment: &Attachment, timeout: Duration) -> Result<Lock, CniError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_lock(attachment) {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) if Instant::now() < deadline => sleep(POLL_INTERVAL),
                Ok(None) => {
                    let Attachment { container, interface } = attachment;
                    let seconds = timeout.as_secs();
                    let what = format!(
                        "another call for {interface} of container {container} runs after {seconds} s"
                    );
                    return Err(CniError::new(Code::TRY_AGAIN, what));
                }
                Err(error) => {
                    return Err(CniError::io(&format!("lock {}", self.directory.display()), &error));
                }
            }
        }
    }

    /// Locks the attachment unless another call for it runs.
    pub(super) fn try_lock(&self, attachment: &Attachment) -> io::Result<Option<Lock>> {
        let path = self.directory.join("locks").join(format!("{:02x}", hash(attachment) % LOCKS));
        let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let lock = Lock(file);
                    fcntl_setfd(&lock.0, FdFlags::empty())?;
                    return Ok(Some(lock));
                }
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads a record; `None` without one. A file that is not a record is one too, and is removed with the attachment.
    pub(super) fn read(&self, part: Part, attachment: &Attachment) -> Result<Option<Record>, CniError> {
        let path = self.path(part, attachment);
        match read_file(&path) {
            Ok(record) => Ok(record.filter(|record| record.attachment() == *attachment)),
            Err(error) => Err(CniError::io(&format!("read {}", path.display()), &error)),
        }
    }

    /// Reads the record of an attachment in either part.
    pub(super) fn read_any(&self, attachment: &Attachment) -> Result<Option<Record>, CniError> {
        match self.read(Part::Pending, attachment)? {
            Some(record) => Ok(Some(record)),
            None => self.read(Part::Attached, attachment),
        }
    }

    /// Writes a record. A process that is killed meanwhile leaves the record before, or this one.
    pub(super) fn write(&self, part: Part, record: &Record) -> Result<(), CniError> {
        let path = self.path(part, &record.attachment());
        let next = self.next(&record.attachment());
        let text = serde_json::to_vec(record)
            .map_err(|error| CniError::new(Code::DECODE, format!("the record cannot be encoded: {error}")))?;
        if text.len() as u64 > RECORD_BYTES_MAX {
            let what =
                format!("the network configuration makes a record of more than {RECORD_BYTES_MAX} bytes");
            return Err(CniError::new(Code::INVALID_CONFIG, what));
        }
        let write = || {
            let mut file =
                fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
            file.write_all(&text)?;
            fs::rename(&next, &path)
        };
        write().map_err(|error| {
            // A part of a record has no effect, and may not be there.
            let _ = fs::remove_file(&next);
            CniError::io(&format!("write {}", path.display()), &error)
        })
    }

    /// Makes a completed attachment one that is not at its end. A full disk does not keep it from that.
    pub(super) fn reopen(&self, attachment: &Attachment) -> Result<(), CniError> {
        if self.read(Part::Pending, attachment)?.is_some() {
            return self.remove(Part::Attached, attachment);
        }
        let [from, to] = [Part::Attached, Part::Pending].map(|part| self.path(part, attachment));
        match fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CniError::io(&format!("move {} to {}", from.display(), to.display()), &error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a record. A removed one has no effect.
    pub(super) fn remove(&self, part: Part, attachment: &Attachment) -> Result<(), CniError> {
        let next = (part == Part::Pending).then(|| self.next(attachment));
        for path in next.into_iter().chain([self.path(part, attachment)]) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(CniError::io(&format!("remove {}", path.display()), &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Lists the attachments of a part, at most 4,096. Other files are left out.
    pub(super) fn list(&self, part: Part) -> Vec<Attachment> {
        self.list_files(part, ".json")
    }

    /// Lists the attachments with files of this suffix. `.next` has a record that a call is writing, or was when it ended.
    pub(super) fn list_files(&self, part: Part, suffix: &str) -> Vec<Attachment> {
        let entries = fs::read_dir(self.directory.join(part.name())).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let of = |name: String| attachment_of(&format!("{}.json", name.strip_suffix(suffix)?));
        names.filter_map(of).take(RECORDS_MAX).collect()
    }

    /// File that a record of either part is written to first. A call that is killed leaves it.
    fn next(&self, attachment: &Attachment) -> PathBuf {
        self.path(Part::Pending, attachment).with_extension("next")
    }

    fn path(&self, part: Part, attachment: &Attachment) -> PathBuf {
        self.directory.join(part.name()).join(file_name(attachment))
    }
}

/// Reads a file as a record; `None` without a file, or for one that is not a record.
fn read_file(path: &Path) -> io::Result<Option<Record>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str, interface: &str) -> Attachment {
        Attachment { container: container.to_owned(), interface: interface.to_owned() }
    }

    #[test]
    fn ports_of_different_attachments_have_names_that_fit_an_interface() {
        let names: std::collections::BTreeSet<String> = (0..10_000)
            .map(|i| port_name(&attachment(&format!("c{}", i / 2), &format!("eth{}", i % 2))))
            .collect();
        assert_eq!(names.len(), 10_000);
        assert!(names.iter().all(|name| name.len() == 15));
        assert!(mac_of(&attachment("c1", "eth0")).is_unicast());
        // Upgrades keep the names.
        assert_eq!(port_name(&attachment("c1", "eth0")), port_name(&attachment("c1", "eth0")));
    }
}
