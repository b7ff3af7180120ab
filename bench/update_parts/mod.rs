//! What the benchmark of changes is made of.

pub(crate) mod policy;
