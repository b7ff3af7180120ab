//! The file that holds the table, so that flows outlive the process.
//!
//! ```text
//!   DIRECTORY/table    [header: a page][buckets][entries][virtual ends]    mapped, locked by the process that uses it
//! ```
//!
//! The header has everything that a process must have in common with the previous one to read its table:
//! layout, number of buckets, hash seed, and the boot, from which times count. A process writes it once,
//! after the rest of a fresh file. The last generation that workers may have used is beside it, so that
//! generations continue from there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock, fstatfs};
use rustix::process::geteuid;

use super::entry::Entry;
use super::key::HashSeed;
use super::recover::Recovered;
use super::table::{BUCKET_SLOTS, BucketTags, Conntrack};
use super::virtual_end::VirtualEnd;
use crate::dataplane::ConntrackSettings;
use crate::ids::Generation;
use crate::mem::{FileMemory, HUGE_PAGE_BYTES, HugeArray};

/// Version of the layout of entries and buckets and of the key hash. A process reads no file with another
/// version.
const LAYOUT: u32 = 5;
const _: () =
    assert!(size_of::<Entry>() == 128 && size_of::<VirtualEnd>() == 32, "other sizes need another LAYOUT");
const MAGIC: u64 = u64::from_ne_bytes(*b"palisade");
const HEADER_BYTES: usize = 4096;
/// Offset of the last generation in the header's page: its value, and behind it its complement.
const GENERATION_AT: u64 = 2048;
/// Permissions of others than a file's owner.
const OTHERS: u32 = 0o077;
/// Last generation after which a process may use the file: behind it the numbers might run out in the life of
/// the process.
const GENERATION_MAX: u64 = 1 << 31;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `linux/magic.h`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Reasons why a file cannot hold the flow table.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("{path} cannot be {what}: {source}", path = path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "another process has the flow table in {path}: stop it, or give this switch another directory \
         ([conntrack] directory)",
        path = path.display()
    )]
    Taken { path: PathBuf },
    #[error(
        "{path} belongs to user {owner} and has permissions {mode:o}: whoever may write to it decides what pods may do; remove it, \
         or make it this user's alone (chmod 700)",
        path = path.display()
    )]
    Exposed { path: PathBuf, owner: u32, mode: u32 },
    #[error(
        "{path} is on a disk, where writing to it would hold packets up: set [conntrack] directory to one in memory \
         (/run is), or to \"\" for flows that end with the process",
        path = path.display()
    )]
    OnDisk { path: PathBuf },
    #[error(
        "{path} has no room for a flow table of {bytes} bytes ({source}): configure fewer flows ([conntrack] flows), make the \
         file system larger, or set [conntrack] directory to \"\" for flows that end with the process",
        path = path.display()
    )]
    Full { path: PathBuf, bytes: usize, source: io::Error },
}

/// A table in a file.
pub(crate) struct Stored {
    /// This field drops first, while `storage` has the lock.
    pub(crate) new_directory: NewDirectory,
    pub(crate) table: Conntrack,
    pub(crate) storage: Storage,
    /// The generation to begin with, later than any that evaluated a flow of the table.
    pub(crate) generation: Generation,
    pub(crate) recovered: Recovered,
    /// The reason why nothing was recovered, if the file is a fresh one.
    pub(crate) fresh: Option<&'static str>,
    /// Whether it is in huge pages.
    pub(crate) huge: bool,
}

/// The file and its directory, which is locked for this process as long as this lives.
pub(crate) struct Storage {
    directory: PathBuf,
    file: File,
    /// Random identifier of this table.
    id: u64,
    _lock: File,
}

/// Directory that this process has made, if it has, removed on drop. Whoever has it keeps the lock longer.
#[derive(Default)]
pub(crate) struct NewDirectory(Option<PathBuf>);

impl NewDirectory {
    /// Leaves the directory to the next process.
    pub(crate) fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        if let Some(directory) = &self.0
            && let Err(error) = fs::remove_dir_all(directory)
        {
            tracing::warn!("the flow table in {} stays: {error}", directory.display());
        }
    }
}

/// Fields of the header that must match for a process to read the file.
struct Header {
    buckets: u64,
    boot: [u64; 5],
    secrets: [u64; 4],
    id: u64,
}

impl Storage {
    /// Opens the table in `directory`, which it makes if need be, and locks it for this process. Replaces a
    /// table of another layout, size or boot. `now_ms` counts from the boot.
    pub(crate) fn open(
        directory: &Path,
        settings: &ConntrackSettings,
        huge_pages: bool,
        now_ms: u32,
    ) -> Result<Stored, StorageError> {
        // The last one drops first.
        let (lock, new_directory) = lock_directory(directory)?;
        let path = directory.join("table");
        let buckets = Conntrack::buckets_for(settings);
        let io = |what| {
            let path = path.clone();
            move |source| StorageError::Io { what, path, source }
        };
        let left = read_left(&path, buckets);
        let (file, header, newest, fresh) = match left {
            Ok((file, header, newest)) => (file, header, Some(newest), None),
            Err(reason) => {
                let (file, header) = create(&path, buckets)?;
                (file, header, None, Some(reason))
            }
        };
        let shared = file.try_clone().map_err(io("used"))?;
        let seed = HashSeed::of(header.secrets);
        let mapped = map(file, buckets).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => StorageError::Taken { path: directory.to_owned() },
            _ => io("mapped")(source),
        });
        let (memory, tags, entries, virtual_ends) = mapped?;
        let huge = huge_pages && memory.collapse();
        let table = Conntrack::of(tags, (entries, virtual_ends), seed, settings);
        let storage = Storage { directory: directory.to_owned(), file: shared, id: header.id, _lock: lock };
        let mut stored = Stored {
            new_directory,
            table,
            storage,
            generation: Generation(0),
            recovered: Recovered::default(),
            fresh,
            huge,
        };
        if let Some(newest) = newest {
            stored.recovered = stored.table.recover(newest, now_ms);
            stored.generation = Generation(newest.0 + 1);
        }
        stored.storage.note_generation(stored.generation).map_err(io("written"))?;
        Ok(stored)
    }

    /// Records that workers may use this generation from now on.
    pub(crate) fn note_generation(&self, generation: Generation) -> io::Result<()> {
        let number = u64::from(generation.0);
        self.file.write_all_at(&to_bytes(&[number, !number]), GENERATION_AT)
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Random identifier of this table.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// Locks the directory for this process, and makes it if need be.
fn lock_directory(directory: &Path) -> Result<(File, NewDirectory), StorageError> {
    let io = |what| move |source| StorageError::Io { what, path: directory.to_owned(), source };
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent).map_err(io("made"))?;
    }
    let made = match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io("made")(error)),
        made => made.is_ok(),
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(directory);
    let lock = lock.map_err(io("opened"))?;
    let about = lock.metadata().map_err(io("opened"))?;
    if !is_private(&about) {
        let (path, owner, mode) = (directory.to_owned(), about.uid(), about.mode() & 0o7777);
        return Err(StorageError::Exposed { path, owner, mode });
    }
    let kind = fstatfs(&lock).map_err(|errno| io("looked at")(errno.into()))?.f_type;
    if !IN_MEMORY.contains(&(kind as u64)) {
        if made {
            let _ = fs::remove_dir(directory);
        }
        return Err(StorageError::OnDisk { path: directory.to_owned() });
    }
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((lock, NewDirectory(made.then(|| directory.to_owned())))),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StorageError::Taken { path: directory.to_owned() }),
        Err(errno) => Err(io("locked")(errno.into())),
    }
}

/// Whether only this process's user may read or write it.
fn is_private(about: &fs::Metadata) -> bool {
    about.uid() == geteuid().as_raw() && about.mode() & OTHERS == 0
}

/// Options to open a file as its owner's alone, without following links.
pub(crate) fn private_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// Opens the file that a process has left. Returns it with its header and its last generation, or the reason
/// why it is of no use.
fn read_left(path: &Path, buckets: usize) -> Result<(File, Header, Generation), &'static str> {
    let file =
        private_file_options().read(true).write(true).open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "there was none",
            _ => "it cannot be opened",
        })?;
    let about = file.metadata().map_err(|_| "it cannot be opened")?;
    if !about.is_file() || !is_private(&about) || about.nlink() != 1 {
        return Err("it is not a file of this user alone");
    }
    let mut page = [0; HEADER_BYTES];
    file.read_exact_at(&mut page, 0).map_err(|_| "it is shorter than its header")?;
    let header = Header::parse(&page).ok_or("another version has written it, or it was not finished")?;
    if header.boot != boot().ok_or("the boot cannot be told")? {
        return Err("it is from before the node's last boot");
    }
    if header.buckets != buckets as u64 || about.len() != file_bytes(buckets).ok_or("it is too large")? as u64
    {
        return Err("it has another number of flows ([conntrack] flows)");
    }
    let at = GENERATION_AT as usize;
    // A write to a page that the file system cannot provide would kill the process.
    fallocate(&file, FallocateFlags::empty(), 0, about.len())
        .map_err(|_| "its file system has no room for it")?;
    let [generation, complement] = [at, at + 8].map(|at| word_at(&page, at));
    if generation != !complement || generation > GENERATION_MAX {
        return Err("its last generation is not readable");
    }
    Ok((file, header, Generation(generation as u32)))
}

/// Makes a fresh file and allocates all its pages, so that a file system without room fails here.
fn create(path: &Path, buckets: usize) -> Result<(File, Header), StorageError> {
    let io = |what| move |source| StorageError::Io { what, path: path.to_owned(), source };
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("replaced")(error)),
        _ => {}
    }
    let file =
        private_file_options().read(true).write(true).create_new(true).open(path).map_err(io("made"))?;
    let secrets = HashSeed::random().secrets();
    let [id, ..] = HashSeed::random().secrets();
    let header = Header { buckets: buckets as u64, boot: boot().unwrap_or_default(), secrets, id };
    let bytes = file_bytes(buckets).unwrap_or(usize::MAX);
    let made = fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).map_err(io::Error::from);
    if let Err(source) = made.and_then(|()| file.write_all_at(&header.bytes(), 0)) {
        let _ = fs::remove_file(path);
        return Err(StorageError::Full { path: path.to_owned(), bytes, source });
    }
    Ok((file, header))
}

/// Parts of a file in memory.
type Parts = (FileMemory, HugeArray<BucketTags>, HugeArray<Entry>, HugeArray<VirtualEnd>);

/// Maps the parts of a file.
fn map(file: File, buckets: usize) -> io::Result<Parts> {
    let bytes = file_bytes(buckets).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut memory = FileMemory::map(file, bytes)?;
    memory.skip(HEADER_BYTES);
    let tags = memory.take(buckets, BucketTags::from_words)?;
    let entries = memory.take(buckets * BUCKET_SLOTS, Entry::from_words)?;
    let virtual_ends = memory.take(buckets * BUCKET_SLOTS, VirtualEnd::from_words)?;
    Ok((memory, tags, entries, virtual_ends))
}

/// Length of a file with this many buckets, in whole huge pages.
fn file_bytes(buckets: usize) -> Option<usize> {
    let of_bucket = size_of::<BucketTags>() + BUCKET_SLOTS * (size_of::<Entry>() + size_of::<VirtualEnd>());
    let bytes = buckets.checked_mul(of_bucket)?.checked_add(HEADER_BYTES + size_of::<Entry>())?;
    bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)
}

/// Length of the file of a table with these settings.
pub(crate) fn table_bytes(settings: &ConntrackSettings) -> usize {
    file_bytes(Conntrack::buckets_for(settings)).unwrap_or(usize::MAX)
}

/// Identifier of this boot of the kernel, as text.
fn boot() -> Option<[u64; 5]> {
    let text = fs::read_to_string(BOOT_ID).ok()?;
    let mut bytes = [0; 40];
    bytes.get_mut(..text.trim_end().len())?.copy_from_slice(text.trim_end().as_bytes());
    Some(std::array::from_fn(|i| word_at(&bytes, 8 * i)))
}

impl Header {
    /// First words of every file of this layout, in the machine's byte order: a file in another byte order
    /// does not match.
    fn fixed() -> [u64; 3] {
        let sizes = (size_of::<BucketTags>() as u64) << 32 | size_of::<Entry>() as u64;
        [MAGIC, u64::from(LAYOUT), sizes]
    }

    fn words(&self) -> Vec<u64> {
        let mut words = Header::fixed().to_vec();
        words.push(self.buckets);
        words.extend(self.boot);
        words.extend(self.secrets);
        words.push(self.id);
        words.push(check(&words));
        words
    }

    fn bytes(&self) -> Vec<u8> {
        to_bytes(&self.words())
    }

    fn parse(page: &[u8]) -> Option<Header> {
        let word = |i: usize| word_at(page, 8 * i);
        let header = Header {
            buckets: word(3),
            boot: std::array::from_fn(|i| word(4 + i)),
            secrets: std::array::from_fn(|i| word(9 + i)),
            id: word(13),
        };
        page.starts_with(&header.bytes()).then_some(header)
    }
}

/// Check sum of words.
fn check(words: &[u64]) -> u64 {
    // Fowler, Noll and Vo's hash (FNV-1a, 64 bits), of words.
    words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}

fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests;
