//! Errors of the end-to-end benchmark.

use std::io;

use palisade::lab::LabError;

/// Reason why a system does not run, or a measurement has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// Error of the switch's AF_XDP layer.
    #[error(transparent)]
    Xdp(#[from] palisade::xdp::XdpError),
    /// Error of a tap device.
    #[error(transparent)]
    Tap(#[from] palisade::tap::TapError),
    #[error("{program} is not installed (`make setup-peers` installs it)")]
    Missing { program: String },
    #[error("{what}: {said}")]
    Refused { what: String, said: String },
    #[error("{0}")]
    Other(String),
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Io(#[from] io::Error),
}
