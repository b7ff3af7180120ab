//! Sources of policy objects: files, and the directory that a running switch watches.
//!
//! [`load`] serves commands and reads everything once. [`PolicyDirectory`] serves the switch: it owns the
//! compiler while the switch runs, reads changed files, and passes changed objects to the compiler.

pub mod excluded;
pub mod files;

pub mod load;
pub mod patterns;

mod audit;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;

mod manifests;

mod watch;

mod directory;

mod reload;

pub use audit::Audited;
pub use directory::{PolicyDirectory, Ready, Reload};
pub use reload::Requests;
