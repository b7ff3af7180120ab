//! Compile: turns groups and rules into rule tables, and updates them with the objects.
//!
//! All values between objects and tables are immutable, interned and reference counted: groups, classes (the
//! groups of an address), rule sets (the rules of a pod direction), rows. A change of an object adds some of
//! them and removes others, in steps:
//!
//! 1. membership: groups of the affected namespaces, nodes and pods;
//! 2. rule sets of the affected pods, which determine the groups in use. A rule set whose pods all change to
//!    the same other rules carries over, with its table;
//! 3. members of added and removed groups;
//! 4. classes of the affected addresses and prefixes;
//! 5. rows and tables: each added class for every rule set, each added rule set for all classes.
//!
//! A compile from scratch treats all objects as affected, in the order of their names. Its ids therefore
//! follow from the content alone.

mod acls;
mod address_map;
mod carry_over;
mod classes;
mod compiler;
mod enforced_pod;
mod flatten;
mod output;
mod rows;
mod rule_sets;

#[cfg(test)]
mod tests;

pub use compiler::{Compiler, Options};
