//! Policy that the kernel enforces.

use super::rig::{assert_allowed, assert_denied, serve, up};
use crate::support::{alone, only_from};

#[test]
fn the_kernel_connects_pods_as_the_tables_say() {
    let Some(_alone) = alone() else { return };
    let rig = up(&["db", "client", "other"], "");
    let _servers = serve(&rig, &["db"]);
    assert_allowed(&rig, "client", "db");
    assert_allowed(&rig, "other", "db");
    rig.apply(&only_from("db", "client"));
    assert_denied(&rig, "other", "db");
}
