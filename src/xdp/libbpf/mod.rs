//! Loading of BPF programs: links and their pins, the log of libbpf and of the verifier, and the wait for programs that run.

pub(crate) mod kernel_log;
pub(super) mod link;
pub(crate) mod wait;
