//! Rules of the packet path, one test each: the packets that pass and the counters that move.

mod drain;
mod flows;
mod ingress;
mod policy;
mod routing;
