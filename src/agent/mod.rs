//! Where policy objects come from: files and directories.

pub mod directory;
pub mod files;
