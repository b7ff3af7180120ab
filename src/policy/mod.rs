//! Policy compiler: objects -> store -> resolve -> compile -> rule tables. Pure functions without I/O.

pub mod objects;
pub mod parse;

mod store;

mod resolve;

mod compile;

mod audit;

pub mod services;

pub mod testcase;

pub use audit::{audited_policies, policy_of};
pub use compile::{Compiler, Options};
pub use resolve::{AddressGroup, NamespaceScope, PodSet};
pub use store::{Change, ObjectName};

pub mod evaluate;

pub(crate) mod display;
pub mod explain;

pub mod connectivity;

pub mod lint;
