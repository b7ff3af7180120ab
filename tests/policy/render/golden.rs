//! Renderings of the example policies, for a reader: `tests/data/snapshots/render-*.snap`; and the command.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

/// Root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `palisade render` in the repository. Returns exit code, standard output and standard error.
pub(super) fn render(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    let output = command.current_dir(root()).arg("render").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    // The scraper of the examples is a workload, which has no address.
    let is_of_scraper = |line: &str| line.starts_with("note: ") && line.contains(": observability/scraper;");
    let errors = text(output.stderr);
    let errors = errors.split_inclusive('\n').filter(|line| !is_of_scraper(line)).collect();
    (output.status.code().unwrap(), text(output.stdout), errors)
}

/// Temporary directory, removed on drop.
pub(super) struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    /// Empty directory.
    pub(super) fn new(name: &str) -> TemporaryDirectory {
        let path = std::env::temp_dir().join(format!("palisade-render-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("new")).unwrap();
        TemporaryDirectory(path)
    }

    /// Directory with a copy of the examples in `new`. There the office's network has one more exception, and the
    /// backend is none.
    fn with_changed_examples(name: &str) -> TemporaryDirectory {
        let directory = TemporaryDirectory::new(name);
        for entry in fs::read_dir(root().join("config/examples")).unwrap().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap();
            let text = text.replace("[192.0.2.128/25]", "[192.0.2.128/25, 192.0.2.7/32]");
            let text = text.replace("  labels: {role: backend}", "  labels: {role: batch}");
            fs::write(directory.0.join("new").join(entry.file_name()), text).unwrap();
        }
        directory
    }

    /// Path of a file.
    pub(super) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn assert_golden(name: &str, text: &str) {
    insta::with_settings!({snapshot_path => "../../data/snapshots", prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn the_examples_are_as_their_golden_files() {
    let changed = TemporaryDirectory::with_changed_examples("golden");
    let new = changed.path("new");
    let formats =
        ["nftables", "iptables", "contiv", "vpp-acl", "vpptcp", "openflow", "security-groups", "identity"];
    for format in formats {
        let (code, text, errors) = render(&["--to", format, "config/examples"]);
        assert_eq!((code, errors.as_str()), (0, ""));
        assert_golden(&format!("render-{format}"), &text);
        let (code, text, errors) = render(&["--to", format, "--since", "config/examples", &new]);
        assert_eq!((code, errors.as_str()), (0, ""));
        assert_golden(&format!("render-{format}-since"), &text);
    }
}

#[test]
fn files_of_all_formats_have_the_text_of_the_listing() {
    let changed = TemporaryDirectory::with_changed_examples("files");
    let directory = changed.path("out");
    let (code, text, _) = render(&["--to", "all", "config/examples"]);
    assert_eq!(code, 0);
    assert_eq!(render(&["--to", "all", "config/examples", "-o", &directory]).0, 0);
    let files = [
        "palisade.nft",
        "palisade.ipset",
        "palisade.iptables",
        "palisade.ip6tables",
        "palisade.ipset-final",
        "palisade.iptables-final",
        "palisade.ip6tables-final",
        "palisade.unused",
        "palisade.contiv",
        "palisade.vpp-acl",
        "palisade.vpptcp",
        "palisade.flows",
        "palisade.security-groups.json",
        "palisade.identity.json",
    ];
    let listed: Vec<String> = files
        .iter()
        .map(|file| {
            format!("### {file}\n{}\n", fs::read_to_string(changed.0.join("out").join(file)).unwrap())
        })
        .collect();
    assert_eq!(text, listed.concat());
    // Nothing changes from a state to itself.
    let (_, same, _) = render(&["--to", "nftables", "--since", "config/examples", "config/examples"]);
    assert_eq!(same.lines().count(), 1, "{same}");
}

#[test]
fn named_interfaces_are_bound_to_the_addresses_of_their_pods() {
    let changed = TemporaryDirectory::with_changed_examples("interfaces");
    let file = changed.path("interfaces");
    fs::write(&file, "# pods\n\ndefault/db veth1\ndefault/frontend veth2\n").unwrap();
    let (_, nft, _) = render(&["--to", "nftables", "--interfaces", &file, "config/examples"]);
    assert!(nft.contains("elements = { \"veth1\" . 10.1.0.2, \"veth2\" . 10.1.0.4 }"), "{nft}");
    assert!(nft.contains("ip saddr @routed-pods fib saddr . iif oif missing drop"), "{nft}");
    let (_, iptables, _) = render(&["--to", "iptables", "--interfaces", &file, "config/examples"]);
    assert!(iptables.contains("-A palisade-from -i veth1 -g pal-fi-veth1\n"), "{iptables}");
    assert!(
        iptables.contains("-A pal-fi-veth1 -s 10.1.0.2 -j RETURN\n-A pal-fi-veth1 -j DROP\n"),
        "{iptables}"
    );
    for (text, problem) in [
        ("default/db veth1 veth2\n", ":1: write NAMESPACE/NAME INTERFACE"),
        ("default/db veth1\ndefault/db veth2\n", ":2: pod default/db has a second line"),
        ("default/db veth1\ndefault/backend veth1\n", "another pod has the same"),
        ("default/db a;b\n", "a name has up to 15"),
    ] {
        fs::write(&file, text).unwrap();
        let (code, _, errors) = render(&["--to", "all", "--interfaces", &file, "config/examples"]);
        assert!(code == 2 && errors.contains(problem), "{errors}");
    }
}
