//! Pins that no process uses: what a switch has left that does not run.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::link::{Link, namespace_cookie};

/// BPF object: its kind (`link_id`, `map_id` or `prog_id` of `/proc/PID/fdinfo`), and the kernel's id.
type Object = (&'static str, u32);

const KINDS: [&str; 3] = ["link_id", "map_id", "prog_id"];

/// Pins of one network namespace.
#[derive(Debug)]
pub struct PinDirectory {
    /// The directory.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// Whether the network namespace is that of the calling thread.
    pub is_own: bool,
    /// Whether a process has one of the objects open.
    pub is_in_use: bool,
}

/// Lists the directories with pins below `root`; none where `root` is not there. Sees the processes of others only as root.
pub fn pin_directories(root: &Path) -> io::Result<Vec<PinDirectory>> {
    let own = namespace_cookie().map(|cookie| root.join(format!("netns-{cookie}"))).ok();
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut directories = Vec::new();
    let mut in_use = None;
    for path in entries.flatten().map(|entry| entry.path()) {
        let mut files: Vec<PathBuf> = fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
        if files.is_empty() {
            continue;
        }
        files.sort();
        let in_use = in_use.get_or_insert_with(objects_of_processes);
        let is_in_use = files.iter().any(|file| pinned_object(file).is_ok_and(|it| in_use.contains(&it)));
        let is_own = own.as_ref() == Some(&path);
        directories.push(PinDirectory { path, files, is_own, is_in_use });
    }
    directories.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(directories)
}

/// Whether a process has the object of a pin open.
pub fn is_pin_in_use(pin: &Path) -> bool {
    pinned_object(pin).is_ok_and(|object| objects_of_processes().contains(&object))
}

fn pinned_object(pin: &Path) -> io::Result<Object> {
    // The kernel opens a pin of any kind.
    let info = Link::open(pin)?.fdinfo()?;
    object_in(&info).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// BPF objects that other processes have open.
fn objects_of_processes() -> BTreeSet<Object> {
    let is_other = |process: &PathBuf| {
        let name = process.file_name().unwrap_or_default().to_string_lossy();
        name.parse::<u32>().is_ok_and(|process| process != std::process::id())
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    processes.filter(is_other).flat_map(|process| objects_of_process(&process)).collect()
}

fn objects_of_process(process: &Path) -> Vec<Object> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let is_bpf = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("anon_inode:bpf"))
    };
    let descriptors = descriptors.map(|entry| entry.path()).filter(is_bpf);
    let info = |path: PathBuf| fs::read_to_string(process.join("fdinfo").join(path.file_name()?)).ok();
    descriptors.filter_map(info).filter_map(|info| object_in(&info)).collect()
}

/// Reads the object from the contents of `/proc/PID/fdinfo/FD`. A link has the id of its program too, behind its own.
fn object_in(info: &str) -> Option<Object> {
    let value = |kind: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    };
    KINDS.into_iter().find_map(|kind| Some((kind, value(kind)?)))
}
