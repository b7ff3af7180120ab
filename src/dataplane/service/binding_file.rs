//! The file of the bindings, `services` beside the flow table's, so that translated flows outlive the process.
//!
//! It belongs to one flow table, whose identifier it has: a fresh flow table begins with fresh bindings.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::bindings::{Addresses, Bindings, Slot};
use crate::dataplane::conntrack::storage::{Storage, private_file_options};
use crate::mem::{FileMemory, HUGE_PAGE_BYTES};

/// Version of the layout of slots.
const LAYOUT: u64 = 4;
const MAGIC: u64 = u64::from_ne_bytes(*b"bindings");
/// Permissions of others than the owner.
const OTHERS: u32 = 0o077;
const HEADER_BYTES: usize = 4096;

/// Opens the bindings for a flow table of so many flows, in huge pages if requested and available. The second value is a note for the operator: bindings that are in no
/// file end with the process.
pub(crate) fn open_bindings(
    storage: Option<&Storage>,
    flows: usize,
    huge_pages: bool,
) -> io::Result<(Bindings, Option<String>)> {
    let Some(storage) = storage else { return Ok((Bindings::new(flows, huge_pages)?, None)) };
    let path = storage.directory().join("services");
    match map(&path, storage.id(), Bindings::slots_for(flows), huge_pages) {
        Ok(bindings) => Ok((bindings, None)),
        Err(error) => {
            let note = format!(
                "connections to Services end with this process, because {} cannot be used ({error})",
                path.display()
            );
            Ok((Bindings::new(flows, huge_pages)?, Some(note)))
        }
    }
}

fn map(path: &Path, table: u64, slots: usize, huge_pages: bool) -> io::Result<Bindings> {
    let header = [MAGIC, LAYOUT, slots as u64, table].map(u64::to_ne_bytes).concat();
    let bytes = file_bytes(slots) as u64;
    let file = if let Some(file) = left(path, &header, bytes) {
        file
    } else {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = private_file_options().read(true).write(true).create_new(true).open(path)?;
        let allocated = fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from);
        // The header comes last: a file without one is not used.
        if let Err(error) = allocated.and_then(|()| file.write_all_at(&header, 0)) {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        file
    };
    let mut memory = FileMemory::map(file, bytes as usize)?;
    memory.skip(HEADER_BYTES);
    let (slots, addresses) =
        (memory.take(slots, Slot::from_words)?, memory.take(slots, Addresses::from_words)?);
    if huge_pages {
        memory.collapse();
    }
    Ok(Bindings::of(slots, addresses))
}

/// Length of a file with this many slots, in whole huge pages.
fn file_bytes(slots: usize) -> usize {
    (HEADER_BYTES + slots * (size_of::<Slot>() + size_of::<Addresses>())).next_multiple_of(HUGE_PAGE_BYTES)
}

/// Length of the file for a flow table of so many flows.
pub(crate) fn binding_bytes(flows: usize) -> usize {
    file_bytes(Bindings::slots_for(flows))
}

/// Opens the file that a process has left, if it is of use.
fn left(path: &Path, header: &[u8], bytes: u64) -> Option<fs::File> {
    let file = private_file_options().read(true).write(true).open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_private = about.is_file() && about.nlink() == 1 && about.mode() & OTHERS == 0;
    if !is_private || about.len() != bytes {
        return None;
    }
    let mut found = vec![0; header.len()];
    file.read_exact_at(&mut found, 0).ok()?;
    // A write to a page that the file system cannot provide would kill the process.
    let has_pages = fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok();
    (found == header && has_pages).then_some(file)
}
