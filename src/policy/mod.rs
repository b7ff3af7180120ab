//! The story of a policy: objects -> store -> resolve -> compile -> rule tables. Pure functions, no I/O.

pub mod objects;

mod store;

mod resolve;

mod compile;

pub use compile::{Compiler, Options};
pub use resolve::{Group, NamespaceScope, PodSet};
pub use store::{Change, ObjectName};
