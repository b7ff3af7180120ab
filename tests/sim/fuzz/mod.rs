//! Whatever strangers send: no parser panics, and every frame has exactly one verdict. In an ordinary test run each target takes a
//! bounded number of random inputs; `cargo bolero test` searches for as long as it is told (docs/testing.md).

mod seeds;

mod documents;
mod headers;
mod packets;
