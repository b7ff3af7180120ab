//! Where objects come from.

pub mod files;

pub mod directory;
