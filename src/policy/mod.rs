//! The story of a policy: objects -> store -> resolve -> compile -> rule tables. Pure functions, no I/O.

pub mod objects;
pub mod read;

mod replicas;

mod store;

mod resolve;

mod compile;

pub mod cases;

pub use compile::{Compiler, Options};
pub use resolve::{Group, NamespaceScope, PodSet};
pub use store::{Change, ObjectName};

pub mod finding;
pub mod stand_in;
pub mod trial;

pub mod oracle;

pub(crate) mod describe;
pub mod explain;

pub mod reach;

pub mod diff;
pub mod lint;
pub mod matrix;
