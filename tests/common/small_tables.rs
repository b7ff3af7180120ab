//! Rule tables of one pod, for tests that load or edit tables.

use palisade::ids::{AclId, RowId, RuleId};
use palisade::tables::{
    Acl, Decision, Direction, PersistentMap, PodName, PodPolicy, Row, RuleOrigin, RuleTables,
};

/// Builds tables in which everyone may reach `db`, which has this address.
pub(crate) fn small_tables(address: &str) -> RuleTables {
    let mut tables = RuleTables::default();
    tables.rules.insert(RuleId(0), RuleOrigin::NotIsolated { direction: Direction::Ingress });
    tables.rows.insert(RowId(0), Row::uniform(Decision::allow(RuleId(0))));
    tables.acls.insert(AclId(0), Acl { rows: PersistentMap::new(), default: RowId(0) });
    let addresses = vec![address.parse().unwrap()];
    tables
        .pods
        .insert(PodName::new("default", "db"), PodPolicy { addresses, ingress: AclId(0), egress: AclId(0) });
    tables
}
