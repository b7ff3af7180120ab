//! `files` of a policy test: manifests where they are, and not copied into the test.

use super::{PODS, Scratch, policy};

/// Scratch with pods and a policy in `manifests/`, and a test of them in `tests/`.
fn scratch(name: &str, files: &str) -> Scratch {
    let scratch = Scratch::new(name);
    for directory in ["manifests", "manifests/shop", "tests"] {
        std::fs::create_dir(scratch.0.join(directory)).unwrap();
    }
    scratch.write("manifests/pods.yaml", PODS);
    scratch.write("manifests/shop/policy.yaml", &policy("api", 5432, 5432));
    let probe = |from: &str, expect: &str| {
        format!("  - {{from: {{pod: shop/{from}}}, to: {{pod: shop/db}}, port: 5432, expect: {expect}}}\n")
    };
    let case =
        format!("name: database\nfiles: {files}\nprobes:\n{}{}", probe("api", "allow"), probe("web", "deny"));
    scratch.write("tests/case.yaml", &case);
    scratch
}

#[test]
fn a_test_is_about_the_files_that_it_names_from_its_own_directory() {
    for (number, files) in
        ["[../manifests]", "[../manifests/pods.yaml, ../manifests/*/policy.yaml]", "[../manifests/**/*.yaml]"]
            .into_iter()
            .enumerate()
    {
        let scratch = scratch(&format!("files-{number}"), files);
        let (code, printed, errors) = scratch.palisade("test tests/case.yaml");
        assert_eq!((code, errors.as_str()), (0, ""), "{files}: {printed}");
        assert!(printed.ends_with("probes: 2 passed, 0 failed\n"), "{printed}");
        // A wider policy shows: the manifests are read, and the place that is named is theirs.
        scratch.write("manifests/shop/policy.yaml", &policy("web", 5432, 5432));
        let (code, printed, _) = scratch.palisade("test tests/case.yaml");
        assert_eq!(code, 1, "{files}: {printed}");
        assert!(printed.contains("manifests/shop/policy.yaml:1"), "{printed}");
    }
}

#[test]
fn a_test_whose_files_are_not_there_or_wrong_is_refused() {
    let scratch = scratch("files-missing", "[../manifests, ../manifests/none-*.yaml, \"[\"]");
    let (code, printed, _) = scratch.palisade("test tests/case.yaml");
    assert_eq!(code, 2, "{printed}");
    for said in
        ["tests/case.yaml:2:23: case \"database\" files[1]", "file has such a name", "invalid range pattern"]
    {
        assert!(printed.contains(said), "{said}: {printed}");
    }
    let scratch = self::scratch("files-wrong", "[../manifests]");
    scratch.write(
        "manifests/shop/policy.yaml",
        &policy("api", 5432, 5432).replace("podSelector", "podSelecter"),
    );
    let (code, printed, _) = scratch.palisade("test tests/case.yaml");
    assert_eq!(code, 2, "{printed}");
    assert!(printed.contains("manifests/shop/policy.yaml:") && printed.contains("did you mean"), "{printed}");
}

#[test]
fn patterns_that_overlap_read_a_file_once_and_none_follows_a_loop_or_reads_hidden_names() {
    let scratch =
        scratch("files-overlap", "[../manifests, \"../manifests/**/*.yaml\", \"../manifests/./shop/*\"]");
    std::os::unix::fs::symlink("..", scratch.0.join("manifests/shop/loop")).unwrap();
    std::fs::create_dir(scratch.0.join("manifests/.git")).unwrap();
    scratch.write("manifests/.git/broken.yaml", "{{");
    scratch.write("manifests/shop/README.md", "# [");
    let (code, printed, errors) = scratch.palisade("test tests/case.yaml");
    assert_eq!((code, errors.as_str()), (0, ""), "{printed}");
}

#[test]
fn a_pipe_is_not_waited_for_and_is_named_where_a_pattern_means_it() {
    let scratch = scratch("files-pipe", "[../manifests/p*.yaml, ../manifests/shop]");
    let pipe = scratch.0.join("manifests/waits.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (code, printed, _) = scratch.palisade("test tests/case.yaml");
    assert_eq!(code, 0, "{printed}");
    let case = std::fs::read_to_string(scratch.0.join("tests/case.yaml")).unwrap();
    for files in ["../manifests/*.yaml", "../manifests/waits.yaml", "../manifests"] {
        scratch.write("tests/case.yaml", &case.replace("../manifests/p*.yaml", files));
        let (code, printed, _) = scratch.palisade("test tests/case.yaml");
        assert_eq!(code, 2, "{files}: {printed}");
        assert!(printed.contains("manifests/waits.yaml is a FIFO"), "{files}: {printed}");
    }
}
