//! Fuzz targets: no parser panics, and every frame has exactly one verdict. An ordinary test run gives each
//! target a bounded number of random inputs; `cargo bolero test` runs without a bound (docs/testing.md).

mod seeds;

mod documents;
mod headers;
mod packets;
