//! Services: destinations and replies translated, backends that come and go, and pods that try to deceive.

mod attacks;
mod backends;
mod cached_hops;
mod collisions;
mod elsewhere;
pub(crate) mod errors;
pub(crate) mod fixture;
mod floods;
pub(crate) mod fragments;
mod hairpin;
mod outside;
mod passing;
mod restart;
