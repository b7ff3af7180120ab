//! Pods and their ports in a file for the next process of the switch, so that a flow continues only between
//! the pods that had it.
//!
//! A flow names its ends by address. The file beside the flow table has, for each pod, its addresses, its
//! interface, and the generation since which it has been attached. The switch writes it before workers see a
//! change. The next process awaits these pods for a while. A pod that is attached again, with the same name,
//! addresses and interface, counts as attached since that generation. Every other pod counts as attached
//! since the next one, and inherits no flow.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::DesiredState;
use super::conntrack::storage::{Storage, private_file_options};
use super::fib::restored_pods::{RestoredPods, is_before};
use super::fib::snapshot::Snapshot;
use crate::ids::{AttachmentId, Generation, PortId};
use crate::limits::{AWAITED_PODS_MS, ENDPOINTS_BYTES_MAX, POD_ADDRESSES_MAX, PORTS_MAX};
use crate::net::address::{Address, pack};
use crate::net::mac::Mac;

/// Identity of an interface: one that is made later under the same name differs from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub interface: String,
    /// Interface index.
    pub index: u32,
    pub mac: Mac,
    /// Inode of its network namespace.
    pub namespace: u64,
}

impl Link {
    /// Whether two interfaces have one name, of which each network namespace has its own.
    fn is_named_as(&self, other: &Link) -> bool {
        (&self.interface, self.namespace) == (&other.interface, other.namespace)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedPod {
    pod: crate::tables::PodName,
    port: PortId,
    link: Link,
    addresses: Vec<IpAddr>,
    since: Generation,
}

#[derive(Serialize, Deserialize)]
struct PodsFile {
    /// [`Storage::id`] of the table that it belongs to.
    table: u64,
    pods: Vec<SavedPod>,
}

/// Pods of the previous process and of this one, on the control side.
#[derive(Default)]
pub(super) struct Endpoints {
    storage: Option<Storage>,
    links: BTreeMap<PortId, Link>,
    awaited: Vec<SavedPod>,
    awaited_until_ms: u32,
    /// Content of the file; `None` where it is unknown.
    written: Option<Vec<SavedPod>>,
    problem: SaveProblem,
}

/// Reason why the last pods were not saved, for the operator.
#[derive(Debug, Clone, Default)]
pub(super) struct SaveProblem(Arc<Mutex<Option<String>>>);

impl SaveProblem {
    /// The problem, if there is one.
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, problem: Option<String>) {
        if let Some(text) = &problem {
            tracing::error!("{text}");
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl Endpoints {
    /// Problem of the last save, to be read at any time.
    pub(super) fn problem(&self) -> SaveProblem {
        self.problem.clone()
    }

    /// Reads the pods that the previous process has left with the table of `storage`, whose flows were all
    /// evaluated before generation `next`. The second value is the reason why there are none, for the
    /// operator.
    pub(super) fn restore(storage: Storage, next: Generation, now_ms: u32) -> (Endpoints, Option<String>) {
        let awaited_until_ms = now_ms.wrapping_add(AWAITED_PODS_MS);
        let mut endpoints = Endpoints { storage: Some(storage), awaited_until_ms, ..Endpoints::default() };
        if next == Generation(0) {
            return (endpoints, None);
        }
        match endpoints.read(next) {
            Ok(pods) => {
                endpoints.awaited = pods;
                (endpoints, None)
            }
            Err(error) => (
                endpoints,
                Some(format!("which pods had them cannot be told ({error}), so flows of pods end")),
            ),
        }
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.storage.as_ref()?.directory().join("pods.json"))
    }

    fn read(&self, next: Generation) -> io::Result<Vec<SavedPod>> {
        let (Some(path), Some(storage)) = (self.path(), &self.storage) else { return Ok(Vec::new()) };
        let file = private_file_options().read(true).open(path)?;
        if !file.metadata()?.is_file() || file.metadata()?.nlink() != 1 {
            return Err(io::Error::other("it is not a file"));
        }
        let mut text = Vec::new();
        file.take(ENDPOINTS_BYTES_MAX).read_to_end(&mut text)?;
        let record: PodsFile = serde_json::from_slice(&text)?;
        let is_sound = |pod: &SavedPod| {
            pod.since < next && pod.port.index() < PORTS_MAX && pod.addresses.len() <= POD_ADDRESSES_MAX
        };
        if record.table != storage.id() || record.pods.len() > PORTS_MAX || !record.pods.iter().all(is_sound)
        {
            return Err(io::Error::other("it belongs to another table"));
        }
        Ok(record.pods)
    }

    /// The number for a port on this interface: the number that it had in the previous process, so that flows
    /// count against the same pods; else the lowest number that is free and that no awaited pod had; else the
    /// lowest free one.
    pub(super) fn port_for(&self, link: Option<&Link>, is_open: impl Fn(PortId) -> bool) -> Option<PortId> {
        let had = self.awaited.iter().find(|pod| Some(&pod.link) == link).map(|pod| pod.port);
        let reserved: BTreeSet<PortId> = self.awaited.iter().map(|pod| pod.port).collect();
        let mut free = (0..PORTS_MAX as u16).map(PortId).filter(|port| !is_open(*port));
        let mut others = free.clone();
        had.filter(|port| !is_open(*port))
            .or_else(|| free.find(|port| !reserved.contains(port)))
            .or_else(|| others.next())
    }

    pub(super) fn add_port(&mut self, port: PortId, link: Option<Link>) {
        self.links.extend(link.map(|link| (port, link)));
    }

    pub(super) fn remove_port(&mut self, port: PortId) {
        self.links.remove(&port);
    }

    /// Matches awaited pods with those that `desired` adds. Pods that take an awaited pod's name, address or
    /// interface replace it.
    pub(super) fn match_restored(
        &mut self,
        before: &DesiredState,
        desired: &DesiredState,
        now_ms: u32,
    ) -> RestoredPods {
        if !is_before(now_ms, self.awaited_until_ms) {
            self.awaited.clear();
        }
        let there: BTreeSet<AttachmentId> = before.pods.iter().map(|pod| pod.id).collect();
        let mut since = BTreeMap::new();
        for pod in desired.pods.iter().filter(|pod| !there.contains(&pod.id)) {
            let link = self.links.get(&pod.port);
            let is_back = |awaited: &SavedPod| {
                awaited.pod == pod.pod && awaited.addresses == pod.addresses && Some(&awaited.link) == link
            };
            since.extend(
                self.awaited.iter().find(|awaited| is_back(awaited)).map(|pod_then| (pod.id, pod_then.since)),
            );
            // The pod replaces awaited ones with its name, its interface or one of its addresses.
            self.awaited.retain(|awaited| {
                awaited.pod != pod.pod
                    && link.is_none_or(|link| !awaited.link.is_named_as(link))
                    && !awaited.addresses.iter().any(|address| pod.addresses.contains(address))
            });
        }
        let mut awaited: Vec<Address> =
            self.awaited.iter().flat_map(|pod| &pod.addresses).copied().map(pack).collect();
        awaited.sort_unstable();
        RestoredPods { since, awaited, awaited_until_ms: self.awaited_until_ms }
    }

    /// Writes the generation and the pods of a snapshot for the next process, before workers see the
    /// snapshot.
    pub(super) fn save(&mut self, desired: &DesiredState, snapshot: &Snapshot) {
        let Some(storage) = &self.storage else { return };
        if let Err(error) = storage.note_generation(snapshot.generation) {
            let problem = format!(
                "the file of the flow table takes no generation ({error}): flows end with this process"
            );
            self.problem.set(Some(problem));
            self.forget();
        } else if snapshot.layout_generation == snapshot.generation {
            let there = |pod: &super::PodAttachment| {
                let port = snapshot.port(pod.port).filter(|port| port.attachment == pod.id)?;
                Some(SavedPod {
                    pod: pod.pod.clone(),
                    port: pod.port,
                    link: self.links.get(&pod.port)?.clone(),
                    addresses: pod.addresses.clone(),
                    since: port.attached_since()?,
                })
            };
            let pods = desired.pods.iter().filter_map(there).chain(self.awaited.iter().cloned()).collect();
            self.write(pods);
        }
    }

    fn write(&mut self, pods: Vec<SavedPod>) {
        if self.written.as_ref() == Some(&pods) {
            return;
        }
        let (Some(path), Some(storage)) = (self.path(), &self.storage) else { return };
        let record = PodsFile { table: storage.id(), pods };
        let beside = path.with_extension("new");
        let written = serde_json::to_vec(&record).map_err(io::Error::from).and_then(|text| {
            let mut file = private_file_options().write(true).create(true).truncate(true).open(&beside)?;
            file.write_all(&text)?;
            std::fs::rename(&beside, &path)
        });
        match written {
            Ok(()) => {
                self.written = Some(record.pods);
                self.problem.set(None);
            }
            Err(error) => {
                let path = path.display();
                let problem =
                    format!("{path} cannot be written ({error}): flows of pods end with this process");
                self.problem.set(Some(problem));
                self.forget();
            }
        }
    }

    /// Removes the file: for the next process no pod is better than a wrong one.
    fn forget(&mut self) {
        self.written = None;
        if let Some(path) = self.path() {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::{Bandwidth, ConntrackSettings, PodAttachment};
    use crate::tables::PodName;

    fn link(index: u32) -> Link {
        Link { interface: "veth-a".to_owned(), index, mac: Mac([2, 0, 0, 0, 0, 1]), namespace: 5 }
    }

    fn record(pod: &str, port: u16, link: Link, address: &str) -> SavedPod {
        let (pod, addresses) = (PodName::new("default", pod), vec![address.parse().unwrap()]);
        SavedPod { pod, port: PortId(port), link, addresses, since: Generation(3) }
    }

    fn awaiting(awaited: Vec<SavedPod>) -> Endpoints {
        Endpoints { awaited, awaited_until_ms: 1000, ..Endpoints::default() }
    }

    fn attached(id: u32, pod: &str, address: &str) -> DesiredState {
        let pod = PodAttachment {
            id: AttachmentId(id),
            pod: PodName::new("default", pod),
            port: PortId(0),
            addresses: vec![address.parse().unwrap()],
            mac: None,
            bandwidth: Bandwidth::default(),
        };
        DesiredState { pods: vec![pod], ..DesiredState::default() }
    }

    const ADDRESS: &str = "10.0.0.2";

    fn awaited_address() -> Address {
        pack(ADDRESS.parse().unwrap())
    }

    #[test]
    fn a_pod_is_restored_by_its_name_addresses_and_interface_and_every_other_pod_is_new() {
        let cases = [
            ("a", ADDRESS, Some(link(7)), true),
            ("other", ADDRESS, Some(link(7)), false),
            ("a", "10.0.0.3", Some(link(7)), false),
            ("a", ADDRESS, Some(link(8)), false),
            ("a", ADDRESS, Some(Link { mac: Mac([2; 6]), ..link(7) }), false),
            ("a", ADDRESS, Some(Link { namespace: 6, ..link(7) }), false),
            ("a", ADDRESS, None, false),
        ];
        for (pod, address, behind, is_back) in cases {
            let mut endpoints = awaiting(vec![record("a", 0, link(7), ADDRESS)]);
            endpoints.add_port(PortId(0), behind.clone());
            let before = endpoints.match_restored(&DesiredState::default(), &DesiredState::default(), 10);
            assert!(before.awaits(awaited_address(), 999) && !before.awaits(awaited_address(), 1000));
            let desired = attached(1, pod, address);
            let restored = endpoints.match_restored(&DesiredState::default(), &desired, 10);
            let since = restored.since.get(&AttachmentId(1));
            assert_eq!(since, is_back.then_some(&Generation(3)), "{pod} {address} {behind:?}");
            assert!(!restored.awaits(awaited_address(), 10), "its place is taken");
            // A pod that one process removes and adds again inherits nothing.
            endpoints.match_restored(&desired, &DesiredState::default(), 10);
            assert!(
                endpoints
                    .match_restored(&DesiredState::default(), &attached(2, "a", ADDRESS), 10)
                    .since
                    .is_empty()
            );
        }
    }

    #[test]
    fn a_pod_that_comes_too_late_is_new() {
        let mut endpoints = awaiting(vec![record("a", 0, link(7), ADDRESS)]);
        endpoints.add_port(PortId(0), Some(link(7)));
        let restored = endpoints.match_restored(&DesiredState::default(), &attached(1, "a", ADDRESS), 1000);
        assert!(restored.since.is_empty() && restored.awaited.is_empty());
    }

    #[test]
    fn a_port_gets_the_number_that_its_interface_had_and_others_avoid_it() {
        let endpoints = awaiting(vec![record("a", 1, link(7), ADDRESS), record("b", 0, link(9), "10.0.0.3")]);
        let open = |ports: &'static [u16]| move |port: PortId| ports.contains(&port.0);
        assert_eq!(endpoints.port_for(Some(&link(7)), open(&[])), Some(PortId(1)));
        assert_eq!(endpoints.port_for(Some(&link(7)), open(&[1])), Some(PortId(2)));
        assert_eq!(
            endpoints.port_for(Some(&link(8)), open(&[])),
            Some(PortId(2)),
            "made anew under its name"
        );
        assert_eq!(endpoints.port_for(None, open(&[])), Some(PortId(2)));
        let but_those = |port: PortId| port.0 > 1;
        assert_eq!(endpoints.port_for(None, but_those), Some(PortId(0)), "there are no others");
        assert_eq!(endpoints.port_for(None, |_| true), None);
    }

    #[test]
    fn the_written_file_is_read_unless_it_is_damaged_or_of_another_table() {
        let directory = PathBuf::from(format!("/dev/shm/palisade-endpoints-{}", std::process::id()));
        let settings = ConntrackSettings { flows_max: 1024, ..ConntrackSettings::default() };
        let open = || {
            let mut stored = Storage::open(&directory, &settings, false, 0).unwrap();
            stored.new_directory.keep();
            stored.storage
        };
        let pods = vec![record("a", 1, link(7), ADDRESS), record("b", 2, link(8), "fd00::7")];
        let mut endpoints = Endpoints { storage: Some(open()), ..Endpoints::default() };
        endpoints.write(pods.clone());
        let path = endpoints.path().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        drop(endpoints);
        let read = || {
            let (endpoints, error) = Endpoints::restore(open(), Generation(4), 0);
            assert_eq!(error.is_some(), endpoints.awaited.is_empty(), "{error:?}");
            endpoints.awaited
        };
        assert_eq!(read(), pods);
        let id = text.split([':', ',']).nth(1).unwrap();
        for damaged in [
            &text[..text.len() / 2],
            "",
            &text.replace(id, "1"),
            &text.replace("\"since\":3", "\"since\":4"),
            &text.replace("\"port\":1", "\"port\":1024"),
        ] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read(), [], "{damaged}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(), []);
        // A file that cannot be written is a problem until one can.
        let (mut endpoints, _) = Endpoints::restore(open(), Generation(4), 0);
        let problem = endpoints.problem();
        std::fs::create_dir(path.with_extension("new")).unwrap();
        endpoints.write(pods.clone());
        assert!(problem.get().is_some_and(|text| text.contains("flows of pods end with this process")));
        std::fs::remove_dir(path.with_extension("new")).unwrap();
        endpoints.write(pods);
        assert_eq!(problem.get(), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
