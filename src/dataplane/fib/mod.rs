//! The forwarding information base: the desired state, the snapshot that is built from it, and its publication to workers.

pub(super) mod desired_state;
pub(super) mod effective_acls;
pub(super) mod layout;
pub(super) mod next_hop;
pub(super) mod policer;
pub(super) mod port;
pub(super) mod publish;
pub(super) mod restored_pods;
pub(super) mod rule_counters;
pub(super) mod rules;
pub(super) mod snapshot;
pub(super) mod tunnel;

use super::parts;
