//! Where objects come from.

pub mod files;
