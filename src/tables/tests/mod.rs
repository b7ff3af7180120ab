//! Input of tests.

pub(crate) mod arbitrary;
