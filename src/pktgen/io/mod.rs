//! The ends of a link: queues of an interface or memory ports, and the threads that send and receive by them.

pub(crate) mod link_end;

pub(crate) mod sender;

pub(crate) mod receiver;
mod sequence_tracker;
