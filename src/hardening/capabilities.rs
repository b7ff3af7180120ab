//! Capabilities of the process (capabilities(7)).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
};

use super::paths::Paths;

/// Needed by ports that open at any time: tap devices and programs by netlink, AF_XDP sockets, locked packet memory,
/// namespaces and BPF links, the priority of the thread that closes new interfaces.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_NICE);
/// Parts of `CAP_SYS_ADMIN`, needed without it.
const PARTS: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);
const FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);
/// Most files of a directory that are tried.
const ENTRIES_MAX: usize = 10_000;

/// Drops the capabilities that a switch at these places does not need. Returns the names of the others, with the reasons
/// for the unusual ones.
///
/// A program that the process starts gets the capability to administer the network, if `starts_programs`, and no other.
pub(super) fn drop_unneeded(paths: &Paths, starts_programs: bool) -> io::Result<String> {
    let held = capabilities(None)?;
    // The paths are tried without the capabilities that would open any file.
    set_capabilities(None, CapabilitySets { effective: held.effective.difference(FILES), ..held })?;
    let unread = paths.named.iter().find_map(|path| unreadable(path));
    let unwritten = paths.written.iter().find(|path| is_denied(path, Access::WRITE_OK | Access::EXEC_OK));
    set_capabilities(None, held)?;

    let mut kept = held.permitted.intersection(NEEDED);
    if !kept.contains(CapabilitySet::SYS_ADMIN) {
        kept |= held.permitted.intersection(PARTS);
    }
    let mut reasons = Vec::new();
    let mut keep_for = |capability: CapabilitySet, path: Option<&Path>| {
        let Some(path) = path.filter(|_| held.permitted.contains(capability)) else { return };
        kept |= capability;
        reasons.push(format!("{} for {}", names(capability), path.display()));
    };
    keep_for(CapabilitySet::DAC_READ_SEARCH, unread.as_deref());
    keep_for(CapabilitySet::DAC_OVERRIDE, unwritten.map(PathBuf::as_path));

    // Only a program that this process starts could use the bounding set.
    for capability in CapabilitySet::all().difference(kept).iter() {
        if capability_is_in_bounding_set(capability).unwrap_or(false) {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    let effective = held.effective.union(kept).intersection(kept);
    let passed_on = if starts_programs { kept & CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
    set_capabilities(None, CapabilitySets { effective, permitted: kept, inheritable: passed_on })?;
    if !passed_on.is_empty() {
        configure_capability_in_ambient_set(passed_on, true)?;
    }
    Ok(match reasons.as_slice() {
        [] => names(kept),
        reasons => format!("{} ({})", names(kept), reasons.join(", ")),
    })
}

/// The first file at or directly below a path that the process may not read.
fn unreadable(path: &Path) -> Option<PathBuf> {
    if is_denied(path, Access::READ_OK) {
        return Some(path.to_owned());
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX);
    entries.map(|entry| entry.path()).find(|path| is_denied(path, Access::READ_OK))
}

fn is_denied(path: &Path, access: Access) -> bool {
    accessat(CWD, path, access, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::process::geteuid;

    use super::*;

    /// Drops capabilities in a thread of its own. Returns the message and the permitted set.
    fn dropped(paths: Paths) -> (String, CapabilitySet) {
        let thread = std::thread::spawn(move || {
            let kept = drop_unneeded(&paths, false).unwrap();
            let sets = capabilities(None).unwrap();
            assert!(sets.effective == sets.permitted && sets.inheritable.is_empty());
            (kept, sets.permitted)
        });
        thread.join().unwrap()
    }

    #[test]
    fn capabilities_about_files_are_kept_only_for_files_that_need_them() {
        if !geteuid().is_root() {
            eprintln!("skipped: without root there is nothing to drop");
            return;
        }
        let scratch = std::env::temp_dir().join(format!("palisade-capabilities-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let file = scratch.join("policy.yaml");
        fs::write(&file, "").unwrap();
        let paths = || Paths {
            named: vec![scratch.clone()],
            read: vec![],
            written: vec![scratch.clone()],
            ..Paths::default()
        };
        let (text, permitted) = dropped(paths());
        assert!(!text.contains("DAC") && permitted == NEEDED, "{text}");
        // A file of another user that only this one may read.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&file, Some(65_534), Some(65_534)).unwrap();
        let (text, permitted) = dropped(paths());
        assert!(text.contains(&format!("CAP_DAC_READ_SEARCH for {}", file.display())), "{text}");
        assert_eq!(permitted, NEEDED | CapabilitySet::DAC_READ_SEARCH);
        // And a directory that only this one may write to.
        std::os::unix::fs::chown(&scratch, Some(65_534), Some(65_534)).unwrap();
        let (text, permitted) = dropped(paths());
        assert_eq!(permitted, NEEDED | FILES, "{text}");
        fs::remove_dir_all(&scratch).unwrap();
    }
}
