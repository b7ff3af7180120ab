//! Objects by which the agent says in the cluster what is enforced: Events on objects, and conditions of policies.

mod conditions;
mod events;
mod lease;

pub(super) use self::conditions::{Condition, write_conditions};
pub(super) use self::events::Notifier;
