//! Sources of policy objects: files, and the directory that a running switch watches.
//!
//! [`load`] serves commands: everything is read once. [`PolicyDirectory`] serves the switch: it owns the compiler for as long as the
//! switch runs, reads the files that have changed, and gives the compiler the objects that differ.

pub mod files;

pub mod load;

mod manifests;

mod watch;

mod directory;

mod reload;

pub use directory::{PolicyDirectory, Ready, Reload};
pub use reload::Requests;
