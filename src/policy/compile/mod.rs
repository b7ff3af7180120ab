//! Compile: groups and rules become rule tables, and stay right while objects change.
//!
//! Everything between the objects and the tables is a value that never changes, interned and counted: groups, classes
//! (the groups of an address), rule_sets (the rules of a pod), rows. A change to an object makes some of them and lets go
//! of others; what add_rule and goes is worked out in order, each step from the one before:
//!
//! 1. membership: which groups the affected namespaces, nodes and pods are in;
//! 2. pod_directions: which rule_sets the affected pods have, and so which groups rules name. Where all pods of a rule_set come to have
//!    the same other rules, the rule_set follows, and keeps what the rules that come and go are not about;
//! 3. groups that added or dropped: who is in them;
//! 4. classes of the addresses and prefixes so affected;
//! 5. rows and tables: each new class as each rule_set sees it, each new rule_set for all classes.
//!
//! A compile from scratch is the same with everything affected, from objects in order of name: so its numbers
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
