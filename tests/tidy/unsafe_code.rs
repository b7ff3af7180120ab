//! Unsafe code: three places may have it, and each block gives its reason.

use crate::text::{files, name_of, read, root};

#[test]
fn unsafe_code_is_allowed_in_three_places_only() {
    for path in files("src", "rs") {
        let name = name_of(&path);
        let may = ["src/xdp/", "src/mem/", "src/tap/ioctl.rs"].iter().any(|place| name.starts_with(place));
        assert!(may || !read(&path).contains("allow(unsafe_code)"), "{name} allows unsafe code");
    }
}

#[test]
fn every_unsafe_block_gives_its_reason() {
    let mut blocks = 0;
    for path in files("src", "rs") {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let opens = code.contains("unsafe {") || code.contains("unsafe impl");
            let above = &lines[number.saturating_sub(8)..=number];
            let reasoned = above.iter().any(|line| line.contains("SAFETY:"));
            assert!(!opens || reasoned, "{}:{} has no SAFETY reason", name_of(&path), number + 1);
            blocks += usize::from(opens);
        }
    }
    assert!(blocks > 0, "no unsafe block in {}: the rule checks nothing", root().display());
}
