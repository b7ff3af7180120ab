//! The story of a policy: objects -> store -> resolve -> compile -> rule tables. Pure functions, no I/O.

pub mod objects;
pub mod read;

pub mod cases;
