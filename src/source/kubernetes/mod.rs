//! Agent: follows the objects of a cluster through the Kubernetes API, and keeps the tables and routes of one switch
//! current.
//!
//! One [`follow::Follower`] for each kind lists and watches its objects. [`cluster::Cluster`] knows them and owns the
//! compiler, and [`cluster::services`] the resolver. [`run`] gathers the changes of some milliseconds, and passes the
//! difference of the tables, then of the Services to a [`Target`]: the switch of this process, or one behind a control
//! socket.

mod closed;
mod cluster;
mod connection;
mod filter;
mod follow;
mod kinds;
mod lock;
mod message;
mod object;
mod parse;
mod routes;
mod run;
mod status;
mod stream;
mod target;

pub use connection::Access;
pub use lock::{Lock, LockError};
pub use message::Timing;
pub use run::{Settings, run};
pub use target::{Attachments, ClientTarget, SwitchTarget, Target, TargetError};
