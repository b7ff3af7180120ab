//! Pins and the processes that use them: those that no process uses are what a switch has left that does not run.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::link::{Link, namespace_cookie};

/// BPF object: its kind (`link_id`, `map_id` or `prog_id` of `/proc/PID/fdinfo`), and the kernel's id.
type Object = (&'static str, u32);

const KINDS: [&str; 3] = ["link_id", "map_id", "prog_id"];

/// Use of the pins of one network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinUse {
    /// A process has one of the objects open, or the program of one of the links.
    Open,
    /// No process has.
    Left,
    /// This process does not see all of the objects, or what a process that may be a switch has open, for a reason.
    Unseen(String),
}

/// Pins of one network namespace.
#[derive(Debug)]
pub struct PinDirectory {
    /// The directory.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// Whether the network namespace is that of the calling thread.
    pub is_own: bool,
    /// Use of the files. A switch that runs may use each of them, though it has not all of them open.
    pub used: PinUse,
}

/// Lists the directories with pins below `root`; none where `root` is not there.
pub fn pin_directories(root: &Path) -> io::Result<Vec<PinDirectory>> {
    let own = own_directory(root).ok();
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut directories = Vec::new();
    let mut processes = None;
    for path in entries.flatten().map(|entry| entry.path()) {
        let files = files_of(&path)?;
        if !files.is_empty() {
            let used = processes.get_or_insert_with(Processes::read).use_of(&files);
            directories.push(PinDirectory { is_own: own.as_ref() == Some(&path), path, files, used });
        }
    }
    directories.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(directories)
}

/// Use of the pins below `root` of the calling thread's network namespace. Those that are not there are left, unless a process
/// that may be a switch is not seen.
pub fn own_pin_use(root: &Path) -> PinUse {
    let files = own_directory(root).and_then(|directory| match files_of(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        files => files,
    });
    match files {
        Ok(files) => Processes::read().use_of(&files),
        Err(error) => PinUse::Unseen(format!("{}: {error}", root.display())),
    }
}

fn own_directory(root: &Path) -> io::Result<PathBuf> {
    namespace_cookie().map(|cookie| root.join(format!("netns-{cookie}")))
}

fn files_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

/// Other processes, by what they have open.
struct Processes {
    objects: BTreeSet<Object>,
    /// Reason for which there may be more.
    unseen: Option<String>,
}

impl Processes {
    fn read() -> Processes {
        let mut processes = Processes { objects: BTreeSet::new(), unseen: None };
        // A `/proc` with `hidepid` lists no processes of others.
        if let Err(error) = fs::metadata("/proc/1") {
            processes.unseen = Some(format!("process 1: {error}"));
        }
        let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
        for id in ids.filter(|id| *id != std::process::id()) {
            let process = Path::new("/proc").join(id.to_string());
            if let Err(error) = processes.add(&process)
                && let Some(name) = name_of_switch(&process)
            {
                processes.unseen.get_or_insert(format!("process {id} ({name}): {error}"));
            }
        }
        processes
    }

    fn add(&mut self, process: &Path) -> io::Result<()> {
        for descriptor in unless_gone(fs::read_dir(process.join("fd")))?.into_iter().flatten() {
            let Some(descriptor) = unless_gone(descriptor)? else { continue };
            let Some(target) = unless_gone(fs::read_link(descriptor.path()))? else { continue };
            if target.to_string_lossy().starts_with("anon_inode:bpf") {
                let info = process.join("fdinfo").join(descriptor.file_name());
                self.objects
                    .extend(unless_gone(fs::read_to_string(info))?.iter().flat_map(|it| objects_in(it)));
            }
        }
        Ok(())
    }

    fn use_of(&self, pins: &[PathBuf]) -> PinUse {
        let mut unseen = self.unseen.clone();
        for pin in pins {
            match pinned_objects(pin) {
                Ok(objects) if objects.iter().any(|object| self.objects.contains(object)) => {
                    return PinUse::Open;
                }
                Ok(_) => {}
                Err(error) => unseen = Some(format!("{}: {error}", pin.display())),
            }
        }
        unseen.map_or(PinUse::Left, PinUse::Unseen)
    }
}

/// Name of a process that may be a switch; `None` for every other one, of which root too may be unable to see more: that of a
/// security module, or of another sandbox.
fn name_of_switch(process: &Path) -> Option<String> {
    let name =
        |process: &Path| fs::read_to_string(process.join("comm")).map(|name| name.trim_end().to_owned());
    let (name, own) = (name(process).ok()?, name(Path::new("/proc/self")));
    (name.starts_with(env!("CARGO_PKG_NAME")) || own.is_ok_and(|own| own == name)).then_some(name)
}

/// Result of a read of `/proc`; `None` for a process or a descriptor that has gone meanwhile.
fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        read => read.map(Some),
    }
}

/// Objects of a pin: of a link its program too, which a switch keeps open where it has closed an interface and the link.
fn pinned_objects(pin: &Path) -> io::Result<Vec<Object>> {
    // The kernel opens a pin of any kind.
    Link::open(pin)?.fdinfo().map(|info| objects_in(&info))
}

/// Reads the objects from the contents of `/proc/PID/fdinfo/FD`: that of a link has its program too.
fn objects_in(info: &str) -> Vec<Object> {
    let value = |kind: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    };
    KINDS.into_iter().filter_map(|kind| Some((kind, value(kind)?))).collect()
}
