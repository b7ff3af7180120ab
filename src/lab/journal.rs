//! Journal of a lab: the names of everything that it makes, written before it is made.
//!
//! Each lab has a file `/run/palisade/lab/ID.json`, and a directory `/run/palisade/lab/ID/` for its other
//! files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::error::Context;
use super::plan::{netns_name, plan};
use super::process::Process;
use super::{LabError, LabSpec, PodPlan};
use crate::dataplane::{SHARED_MEMORY, flow_directory_in_shared_memory};

/// Directory of journals.
const DIRECTORY: &str = "/run/palisade/lab";
/// Attempts to find an unused id.
const TRIES: u32 = 16;

/// Contents of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Id of the lab.
    pub id: String,
    /// Process whose guard removes the lab; `None` for a lab that stays until `palisade lab clean`.
    pub owner: Option<Process>,
    /// Queues of the veth pairs.
    pub workers: u16,
    /// MTU of the veth pairs, bytes.
    pub mtu: u32,
    /// Routes to the outside with a smaller MTU. The pods' prefixes then have routes of their own.
    #[serde(default)]
    pub outside: Option<Outside>,
    /// Pods.
    pub pods: Vec<PodPlan>,
    /// Processes of the lab outside its namespaces.
    pub processes: Vec<Process>,
}

/// Routes of a pod to the outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// Largest packet to the outside, bytes.
    pub mtu: u32,
    /// Prefixes of the pods.
    pub pods: [IpNet; 2],
}

impl Journal {
    /// Plans a lab with an unused id, and writes its journal.
    pub(super) fn create(spec: &LabSpec) -> Result<Journal, LabError> {
        fs::create_dir_all(DIRECTORY).context(|| format!("create {DIRECTORY}"))?;
        for _ in 0..TRIES {
            let id = random_id();
            let pods = plan(&id, spec)?;
            let journal = Journal {
                id,
                owner: Process::this(),
                workers: spec.workers,
                mtu: spec.mtu,
                outside: (spec.outside_mtu < spec.mtu)
                    .then(|| Outside { mtu: spec.outside_mtu, pods: [spec.v4.into(), spec.v6.into()] }),
                pods,
                processes: vec![],
            };
            if journal.write(RenameFlags::NOREPLACE)? {
                return Ok(journal);
            }
        }
        Err(LabError::Plan(format!(
            "{DIRECTORY} is full of labs: `palisade lab clean` removes those left behind"
        )))
    }

    /// Names of the host ends of the pods that have one.
    pub(super) fn host_ends(&self) -> impl Iterator<Item = &str> {
        self.pods.iter().filter(|pod| pod.has_host_end()).map(|pod| pod.host_interface.as_str())
    }

    /// Reads every journal, and returns errors for those that cannot be read.
    pub fn all() -> Result<(Vec<Journal>, Vec<LabError>), LabError> {
        let entries = match fs::read_dir(DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((vec![], vec![])),
            entries => entries.context(|| format!("list {DIRECTORY}"))?,
        };
        let files = entries.filter_map(Result::ok).map(|entry| entry.path());
        let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
        let (mut journals, mut errors) = (vec![], vec![]);
        for file in files {
            match read(&file) {
                Ok(Some(journal)) => journals.push(journal),
                Ok(None) => (),
                Err(error) => errors.push(error),
            }
        }
        journals.sort_by(|a, b| a.id.cmp(&b.id));
        Ok((journals, errors))
    }

    /// Reads the journal of one lab.
    pub fn of(id: &str) -> Result<Journal, LabError> {
        let missing = || LabError::NoLab { id: id.to_owned() };
        if !id.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(missing());
        }
        read(&file_of(id))?.ok_or_else(missing)
    }

    /// Writes the journal again.
    pub(super) fn update(&self) -> Result<(), LabError> {
        self.write(RenameFlags::empty()).map(|_| ())
    }

    /// Whether the owner of the lab still runs.
    pub fn is_owned(&self) -> bool {
        self.owner.is_some_and(|owner| owner.is_alive())
    }

    /// Mark of everything that this lab makes: an interface alias.
    pub fn mark(&self) -> String {
        format!("palisade-lab {}", self.id)
    }

    /// Name of the namespace of the lab's bridge.
    pub(super) fn bridge_netns(&self) -> String {
        // No pod name has an underscore, so no pod's namespace has this name.
        netns_name(&self.id, "_bridge")
    }

    /// Name of the namespace of the lab's node.
    pub(super) fn node_netns(&self) -> String {
        netns_name(&self.id, "_node")
    }

    /// Directory of the lab's files.
    pub fn directory(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.id)
    }

    /// Removes the lab's files, the journal last.
    pub(super) fn remove(&self) -> Result<(), LabError> {
        let directory = self.directory();
        gone(fs::remove_dir_all(&directory)).context(|| format!("remove {}", directory.display()))?;
        remove_flow_directories(&directory);
        let file = file_of(&self.id);
        gone(fs::remove_file(&file)).context(|| format!("remove {}", file.display()))?;
        // The removal fails while there are other labs, as intended.
        let _ = fs::remove_dir(DIRECTORY);
        Ok(())
    }

    /// Writes the journal. Returns whether it did: with `NOREPLACE`, not over an existing one.
    fn write(&self, how: RenameFlags) -> Result<bool, LabError> {
        let file = file_of(&self.id);
        let draft = file.with_extension(format!("draft-{}", std::process::id()));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from);
        let text = text.context(|| "write the record of a lab".to_owned())?;
        fs::write(&draft, text).context(|| format!("write {}", draft.display()))?;
        match renameat_with(CWD, &draft, CWD, &file, how) {
            Ok(()) => Ok(true),
            Err(error) => {
                gone(fs::remove_file(&draft)).context(|| format!("remove {}", draft.display()))?;
                if error == rustix::io::Errno::EXIST {
                    Ok(false)
                } else {
                    Err(error).context(|| format!("write {}", file.display()))
                }
            }
        }
    }
}

fn read(file: &Path) -> Result<Option<Journal>, LabError> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.context(|| format!("read {}", file.display()))?,
    };
    let wrong = |reason: String| LabError::Journal { file: file.display().to_string(), reason };
    let journal: Journal = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if file_of(&journal.id) == file {
        Ok(Some(journal))
    } else {
        Err(wrong(format!("it is of lab {}", journal.id)))
    }
}

/// Removes the flow tables in shared memory of switches with control sockets in this directory.
fn remove_flow_directories(of: &Path) {
    let prefix = flow_directory_in_shared_memory(&of.join(""));
    let Some(prefix) = prefix.file_name().and_then(|name| name.to_str()) else { return };
    for entry in fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn file_of(id: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{id}.json"))
}

/// Six hexadecimal digits, for which an interface name has room.
fn random_id() -> String {
    use std::hash::BuildHasher;
    // Every `RandomState` has random keys.
    let random = std::hash::RandomState::new().hash_one(std::process::id());
    format!("{:06x}", random & 0xff_ffff)
}

/// Treats a missing file as a removed one.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
