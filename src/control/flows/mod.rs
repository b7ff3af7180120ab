//! Flows of the running switch: list, holders, flush, and events.

mod events;
mod followers;
mod list;
mod selection;

pub(super) use events::describe as describe_events;
pub(super) use followers::{EventStream, Followers};
pub(super) use list::{flush, list};
pub(super) use selection::{KeptNames, Selection};
