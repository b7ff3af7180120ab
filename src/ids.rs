//! Identifiers. Each is its own type, so that a row cannot be looked up with a class.

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
            /// The id as an index into the array that it numbers.
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
    /// A set of addresses that no rule tells apart. Class 0 is the rest of the world.
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
    /// What a decision names: a rule of a policy, a default deny, or a pod that nothing isolates.
    RuleId,
    u32
);
id!(
    /// A port of the switch. Numbers are re-used after a port is removed.
    PortId,
    u16
);
id!(
    /// One attachment of one pod to one port. Never re-used in the life of a switch, so that a pod
    /// which gets the address of an earlier one inherits nothing from it. 0 is "no pod".
    AttachmentId,
    u32
);
id!(
    /// One published state of the tables, ports, pods and routes. Grows by one with each publication.
    Generation,
    u32
);
id!(
    /// A worker: its core, its queue of every port, its counters.
    WorkerId,
    u16
);

impl ClassId {
    /// The class of every address that no rule names.
    pub const WORLD: ClassId = ClassId(0);
}

impl AttachmentId {
    /// The endpoint is not a pod of this node.
    pub const NONE: AttachmentId = AttachmentId(0);
}
