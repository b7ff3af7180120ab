//! What the benchmark of changes is made of.

pub(crate) mod directory;
pub(crate) mod policy;
