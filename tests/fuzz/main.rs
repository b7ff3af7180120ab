//! Whatever strangers send: no parser panics, and every frame has exactly one verdict. In an ordinary test run each target takes a
//! bounded number of random inputs; `cargo bolero test` searches for as long as it is told (docs/testing.md).

#[path = "../control/fixture.rs"]
#[allow(dead_code)] // A switch and tables are used of it.
mod fixture;
#[path = "../frames/mod.rs"]
mod frames;
#[path = "../sim/policy.rs"]
#[allow(dead_code)] // As below.
mod policy;
#[path = "../sim/rig.rs"]
#[allow(dead_code)] // The rig is used of it, and not what single rules are tested with.
mod rig;

mod edit;
mod seeds;

mod documents;
mod headers;
mod packets;
