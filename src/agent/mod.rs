//! Where policy objects come from: files and directories.

pub mod files;

pub mod load;

pub mod directory;
