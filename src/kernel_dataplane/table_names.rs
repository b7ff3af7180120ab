//! Names of the tables in the kernel.

/// Names of the tables: one table of rules for each address family, and one about ports. A load of all rules takes the names
/// that the tables in force do not have, so that the new tables are whole before those end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TableNames {
    #[default]
    First,
    Second,
}

impl TableNames {
    pub(super) const BOTH: [TableNames; 2] = [TableNames::First, TableNames::Second];

    /// Name of the tables of rules, without the family.
    pub(super) fn rules(self) -> &'static str {
        match self {
            TableNames::First => "palisade",
            TableNames::Second => "palisade-2",
        }
    }

    /// Name of the table about ports, with the family.
    pub(super) fn ports(self) -> &'static str {
        self.all()[2]
    }

    /// Names of all tables, with their families.
    pub(super) fn all(self) -> [&'static str; 3] {
        match self {
            TableNames::First => ["ip palisade", "ip6 palisade", "inet palisade-ports"],
            TableNames::Second => ["ip palisade-2", "ip6 palisade-2", "inet palisade-ports-2"],
        }
    }

    /// Names of the other tables.
    pub(super) fn other(self) -> TableNames {
        match self {
            TableNames::First => TableNames::Second,
            TableNames::Second => TableNames::First,
        }
    }
}

/// Tests whether a table is one of Palisade.
pub(super) fn is_ours(family: &str, table: &str) -> bool {
    TableNames::BOTH
        .iter()
        .flat_map(|names| names.all())
        .any(|name| name.split_once(' ') == Some((family, table)))
}
