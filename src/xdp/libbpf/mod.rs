//! Loading of BPF programs: links and their pins, the log of libbpf and of the verifier, and the wait for programs that run.

pub(crate) mod kernel_log;
pub(super) mod link;
pub(super) mod pinned;
pub(crate) mod wait;
