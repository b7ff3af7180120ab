//! Tunnels to other nodes (VXLAN, RFC 7348): frames that arrive lose the outer headers before the stage `parse`, and frames that
//! leave get them in `rewrite`. The stages between see the packets of pods.

mod decapsulate;
mod encapsulate;

pub(super) use self::decapsulate::decapsulate;
pub(super) use self::encapsulate::{Encapsulation, encapsulate_answers};
