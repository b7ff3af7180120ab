//! Identifiers. Each has its own type, so that a class cannot index the rows.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// Index into the array that the id numbers.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A set of addresses that no rule distinguishes. Class 0 holds all addresses that no rule names.
    ClassId,
    u32
);
id!(
    /// A row: protocol and port intervals of one class in an ACL table.
    RowId,
    u32
);
id!(
    /// An ACL table: one direction of one or more pods.
    AclId,
    u32
);
id!(
    /// Origin of a decision: a rule of a policy, a default deny, or a pod that no policy isolates.
    RuleId,
    u32
);
id!(
    /// A port of the switch. The number of a removed port is reused.
    PortId,
    u16
);
id!(
    /// One attachment of one pod to one port. A number is never reused in the life of a switch, so that a pod
    /// with the address of an earlier one inherits nothing from it. 0 means no pod.
    AttachmentId,
    u32
);
id!(
    /// One published state of tables, ports, pods and routes. Each publication adds one.
    Generation,
    u32
);
id!(
    /// A worker, with its core, its queue of every port and its counters.
    WorkerId,
    u16
);

impl ClassId {
    /// Class of every address that no rule names.
    pub const WORLD: ClassId = ClassId(0);
}

impl AttachmentId {
    /// Endpoint that is not a pod of this node.
    pub const NONE: AttachmentId = AttachmentId(0);
}
