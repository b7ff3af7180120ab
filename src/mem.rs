//! Memory primitives.
