//! Watch of a path with inotify(7): reports changes, and files that are being written.
//!
//! A file is complete after its writer closes it (`IN_CLOSE_WRITE`) or moves it into place (`IN_MOVED_TO`). A
//! file that stays open is complete after [`OPEN_QUIET`] without a write. A file without events (written
//! before the watch existed, or without inotify) is complete [`QUIET`] after its last write.
//!
//! The watch polls if the kernel grants no inotify watches, and on network file systems, which report no
//! remote changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::files::{Listing, Stamp, is_manifest};

/// Time without a write after which a file without events is complete.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// Time without a write after which an open file is complete.
const OPEN_QUIET: Duration = Duration::from_secs(30);
/// Interval of checks without events. They find changes that inotify does not report, such as a renamed
/// parent directory.
const RESYNC: Duration = Duration::from_secs(10);
/// Interval of checks without inotify.
const POLL: Duration = Duration::from_secs(1);
/// Maximum number of symbolic links on a path (`MAXSYMLINKS` of `linux/namei.h`).
const LINKS_MAX: usize = 40;

/// Network file systems by `f_type` of statfs(2): NFS, SMB, CIFS, SMB2, FUSE, 9P, Ceph, AFS.
const REMOTE: [u32; 8] =
    [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400, 0x5346_414f];

/// Events of interest.
fn wanted() -> WatchFlags {
    WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::ATTRIB
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR
}

/// Watch of a path.
#[derive(Debug)]
pub(super) struct Watch {
    root: PathBuf,
    /// inotify descriptor; `None` if the watch polls or checks on request only.
    inotify: Option<OwnedFd>,
    /// Interval of checks without events; `None` without a watch.
    interval: Option<Duration>,
    /// Watched directories by watch descriptor.
    directories: BTreeMap<i32, Directory>,
    /// Files that were written and not closed, with links resolved.
    writing: BTreeMap<PathBuf, Writing>,
    /// Files, directories and links that were recently closed or moved into place.
    complete: BTreeMap<PathBuf, Instant>,
    /// Changed files without events: their stamp, and the time since which they have it.
    seen: BTreeMap<PathBuf, (Stamp, Instant)>,
    /// File that was renamed while being written. The cookie identifies the event with its next name.
    moved_from: Option<(u32, Writing)>,
    last_check: Instant,
    is_due: bool,
}

/// Watched directory.
#[derive(Debug)]
struct Directory {
    /// Path with links resolved.
    path: PathBuf,
    /// Names of interest; all if `None`.
    names: Option<BTreeSet<OsString>>,
    /// Start of the watch.
    since: SystemTime,
}

/// File that is being written.
#[derive(Debug, Clone, Copy)]
struct Writing {
    last: Instant,
    quiet_period: Duration,
}

impl Watch {
    /// Watches `root`, which need not exist. Logs if it must poll.
    pub(super) fn new(root: &Path) -> Watch {
        let remote = rustix::fs::statfs(root).is_ok_and(|found| REMOTE.contains(&(found.f_type as u32)));
        let inotify = match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            _ if remote => {
                tracing::info!(path = %root.display(), "a network file system: it is last_check at every {POLL:?}");
                None
            }
            Ok(inotify) => Some(inotify),
            Err(error) => {
                warn_poll(root, error);
                None
            }
        };
        let interval = Some(if inotify.is_some() { RESYNC } else { POLL });
        Watch { inotify, interval, ..Watch::off(root) }
    }

    /// Polls at an interval.
    #[cfg(test)]
    pub(super) fn polling(root: &Path) -> Watch {
        Watch { interval: Some(POLL), ..Watch::off(root) }
    }

    /// Checks on request only.
    pub(super) fn off(root: &Path) -> Watch {
        Watch {
            root: root.to_owned(),
            inotify: None,
            interval: None,
            directories: BTreeMap::new(),
            writing: BTreeMap::new(),
            complete: BTreeMap::new(),
            seen: BTreeMap::new(),
            moved_from: None,
            last_check: Instant::now(),
            is_due: false,
        }
    }

    /// Descriptor that is readable if there are events.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Time of the next check, if no event comes before.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let due = if self.is_due {
            Some(self.last_check)
        } else {
            self.interval.map(|interval| self.last_check + interval)
        };
        let written = self.writing.iter().filter(|(path, _)| is_manifest(path));
        written.map(|(_, writing)| writing.last + writing.quiet_period).chain(due).min()
    }

    /// Processes pending events. Returns `true` if a check is due.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.take_events(now);
        std::mem::take(&mut self.is_due) || self.next_look().is_some_and(|at| at <= now)
    }

    /// Watches the directories of a listing. Returns `true` if one of them was not watched before: a second
    /// listing finds its changes.
    pub(super) fn watch_listing(&mut self, listing: &Listing, now: Instant) -> bool {
        self.last_check = now;
        self.complete.retain(|_, at| now < *at + 2 * QUIET);
        self.writing.retain(|_, writing| now < writing.last + writing.quiet_period);
        self.seen.retain(|path, _| listing.files.contains_key(path));
        let Some(inotify) = &self.inotify else { return false };
        let mut kept = BTreeMap::new();
        let mut is_larger = false;
        for (path, names) in self.wanted_directories(listing) {
            match inotify::add_watch(inotify, &path, wanted()) {
                Ok(id) => {
                    let before = self.directories.remove(&id).filter(|before| before.path == path);
                    is_larger |= before.is_none();
                    let since = before.map_or_else(SystemTime::now, |before| before.since);
                    kept.insert(id, Directory { path, names, since });
                }
                // ENOSPC: the limit fs.inotify.max_user_watches is reached.
                Err(error @ (Errno::NOSPC | Errno::NOMEM)) => {
                    warn_poll(&self.root, error);
                    *self = Watch { interval: Some(POLL), last_check: now, ..Watch::off(&self.root) };
                    return false;
                }
                // The directory was removed or is unreadable: the listing reports that.
                Err(_) => {}
            }
        }
        for id in std::mem::replace(&mut self.directories, kept).into_keys() {
            // The kernel has removed the watches of removed directories.
            let _ = inotify::remove_watch(inotify, id);
        }
        is_larger
    }

    /// Directories with entries that affect the listing, and the names of these entries.
    fn wanted_directories(&self, listing: &Listing) -> BTreeMap<PathBuf, Option<BTreeSet<OsString>>> {
        let mut wanted: BTreeMap<PathBuf, Option<BTreeSet<OsString>>> =
            listing.directories.iter().map(|path| (path.clone(), None)).collect();
        let mut name = |directory: PathBuf, name: OsString| {
            if let Some(names) = wanted.entry(directory).or_insert_with(|| Some(BTreeSet::new())) {
                names.insert(name);
            }
        };
        for path in std::iter::once(&self.root).chain(&listing.links) {
            let resolved = Resolved::of(path);
            for link in resolved.links.iter().chain([&resolved.real]) {
                if let (Some(parent), Some(last)) = (link.parent(), link.file_name()) {
                    name(parent.to_owned(), last.to_owned());
                }
            }
        }
        wanted
    }

    /// Time at which a changed file may be read; `None` if it may be read at once.
    pub(super) fn complete_at(&mut self, path: &Path, stamp: &Stamp, now: Instant) -> Option<Instant> {
        let resolved = Resolved::of(path);
        if let Some(writing) = self.writing.get(&resolved.real) {
            let until = writing.last + writing.quiet_period;
            return (until > now).then_some(until);
        }
        if self.has_seen_close(&resolved, stamp) {
            return None;
        }
        let quiet_in = QUIET.checked_sub(age(stamp)?).filter(|rest| !rest.is_zero())?;
        Some(now + quiet_in)
    }

    /// Time at which a file may be read, by the stamps that this process has seen: for file systems with the
    /// clock of another machine.
    pub(super) fn unchanged_at(&mut self, path: &Path, stamp: &Stamp, now: Instant) -> Option<Instant> {
        if self.inotify.is_some() || self.interval.is_none() {
            return None;
        }
        let seen = self.seen.entry(path.to_owned()).or_insert((*stamp, now));
        if seen.0 != *stamp {
            *seen = (*stamp, now);
        }
        let until = seen.1 + QUIET;
        (until > now).then_some(until)
    }

    /// Tests whether events show that the file is complete: the file, or a directory or link of its path, was
    /// moved into place; or all writes happened under a watch and the last writer closed it.
    fn has_seen_close(&self, resolved: &Resolved, stamp: &Stamp) -> bool {
        let Some(directory) = resolved.real.parent() else { return false };
        let written = UNIX_EPOCH + Duration::new(stamp.modified.0.max(0) as u64, stamp.modified.1 as u32);
        let is_watched = |watched: &Directory| watched.path == directory && watched.since <= written;
        self.directories.values().any(is_watched)
            || resolved.real.ancestors().any(|above| self.complete.contains_key(above))
            || resolved.links.iter().any(|link| self.complete.contains_key(link))
    }

    /// Processes pending events.
    pub(super) fn take_events(&mut self, now: Instant) {
        let Some(inotify) = self.inotify.take() else { return };
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(&inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => self.take_event(&event, now),
                Err(Errno::INTR) => {}
                // EAGAIN: no more events.
                Err(_) => break,
            }
        }
        self.inotify = Some(inotify);
    }

    fn take_event(&mut self, event: &Event<'_>, now: Instant) {
        let kind = event.events();
        if kind.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.reset_after_overflow(now);
        }
        let Some(directory) = self.directories.get(&event.wd()) else { return };
        let Some(name) = event.file_name() else {
            // Event of the directory itself: removed, moved, or changed permissions.
            self.is_due = true;
            return;
        };
        let name = OsStr::from_bytes(name.to_bytes());
        if directory.names.as_ref().is_some_and(|names| !names.contains(name)) {
            return;
        }
        let path = directory.path.join(name);
        let is_directory = kind.contains(ReadFlags::ISDIR);
        if kind.contains(ReadFlags::MODIFY) {
            self.complete.remove(&path);
            self.writing.insert(path, Writing { last: now, quiet_period: OPEN_QUIET });
        } else if kind.contains(ReadFlags::CREATE) {
            let is_file =
                !is_directory && std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
            if is_file {
                // A writer opens the file and closes it later, or the event is for a hard link of a complete
                // file.
                self.complete.remove(&path);
                self.writing.insert(path, Writing { last: now, quiet_period: QUIET });
            } else {
                self.is_due = true;
            }
        } else if kind.contains(ReadFlags::CLOSE_WRITE) {
            self.writing.remove(&path);
            self.complete.insert(path, now);
            self.is_due = true;
        } else if kind.contains(ReadFlags::MOVED_TO) {
            let moved = self.moved_from.take_if(|(cookie, _)| *cookie == event.cookie());
            if let Some((_, writing)) = moved {
                self.writing.insert(path, writing);
            } else {
                self.writing.remove(&path);
                self.complete.insert(path, now);
            }
            self.is_due = true;
        } else {
            if kind.contains(ReadFlags::MOVED_FROM) {
                self.moved_from = self.writing.get(&path).map(|writing| (event.cookie(), *writing));
            }
            if kind.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
                self.writing.remove(&path);
                self.complete.remove(&path);
            }
            self.is_due = true;
        }
    }

    /// Handles a queue overflow: only stamps tell which files are complete.
    fn reset_after_overflow(&mut self, now: Instant) {
        self.complete.clear();
        for writing in self.writing.values_mut() {
            *writing = Writing { last: now, quiet_period: QUIET };
        }
        for directory in self.directories.values_mut() {
            directory.since = SystemTime::now();
        }
        self.is_due = true;
    }
}

fn warn_poll(root: &Path, error: Errno) {
    tracing::warn!(
        path = %root.display(),
        "the kernel gives no inotify watches ({error}): the path is last_check at every {POLL:?}, and changes are in force \
         {QUIET:?} later. Raise fs.inotify.max_user_watches and fs.inotify.max_user_instances"
    );
}

/// Time since the last write. `None` for a time in the future, after a change of the clock or of the file
/// time.
fn age(stamp: &Stamp) -> Option<Duration> {
    let (seconds, nanoseconds) = stamp.modified;
    let written = UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds as u32);
    SystemTime::now().duration_since(written).ok()
}

/// Path with links resolved, and the links on it.
#[derive(Debug)]
struct Resolved {
    real: PathBuf,
    /// Links, each by its path with resolved parents.
    links: Vec<PathBuf>,
}

impl Resolved {
    fn of(path: &Path) -> Resolved {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut rest: VecDeque<OsString> = components(&path).collect();
        let (mut real, mut links) = (PathBuf::from("/"), Vec::new());
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                real.pop();
                continue;
            }
            let next = real.join(&name);
            match std::fs::read_link(&next) {
                Ok(target) if links.len() < LINKS_MAX => {
                    if target.is_absolute() {
                        real = PathBuf::from("/");
                    }
                    components(&target).rev().for_each(|name| rest.push_front(name));
                    links.push(next);
                }
                Ok(_) | Err(_) => real = next,
            }
        }
        Resolved { real, links }
    }
}

fn components(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::source::load::scratch::Scratch;

    #[test]
    fn links_of_a_path_are_found_at_every_step() {
        let scratch = Scratch::new();
        let base = std::fs::canonicalize(&scratch.0).unwrap();
        scratch.write("releases/5/p.yaml", "x");
        symlink("releases/5", base.join("current")).unwrap();
        symlink(base.join("current/../5"), base.join("policies")).unwrap();
        let resolved = Resolved::of(&base.join("policies/p.yaml"));
        assert_eq!(resolved.real, base.join("releases/5/p.yaml"));
        assert_eq!(resolved.links, [base.join("policies"), base.join("current")]);
        symlink("loop", base.join("loop")).unwrap();
        assert!(Resolved::of(&base.join("loop")).links.len() <= LINKS_MAX);
    }

    #[test]
    fn the_time_of_an_old_file_or_of_one_from_the_future_holds_nothing_up() {
        let scratch = Scratch::new();
        let path = scratch.write("p.yaml", "x");
        let mut watch = Watch::off(&scratch.0);
        let now = Instant::now();
        let stamp = |path: &Path| super::super::files::list(path).files[path];
        assert!(
            watch.complete_at(&path, &stamp(&path), now).is_some(),
            "written just now, by whom is not known"
        );
        let file = std::fs::File::options().append(true).open(&path).unwrap();
        for time in [SystemTime::now() - Duration::from_mins(1), SystemTime::now() + Duration::from_hours(1)]
        {
            file.set_modified(time).unwrap();
            assert_eq!(watch.complete_at(&path, &stamp(&path), now), None);
        }
    }
}
