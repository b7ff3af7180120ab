//! Models of loom: `make test-loom` selects them by the name of their module, `loom_tests`.

use crate::text::{files, name_of, parts, read};

#[test]
fn every_loom_model_is_in_a_module_that_make_test_loom_selects() {
    let uses_loom = |path: &std::path::PathBuf| parts(&read(path)).code.contains("loom::model");
    let models: Vec<String> =
        files("src", "rs").iter().filter(|path| uses_loom(path)).map(|path| name_of(path)).collect();
    assert!(!models.is_empty(), "no model of loom was found");
    let elsewhere: Vec<&String> = models.iter().filter(|name| !name.contains("/loom_tests")).collect();
    assert!(elsewhere.is_empty(), "`make test-loom` does not run {elsewhere:?}");
}
