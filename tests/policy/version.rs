//! `palisade --version`, and the commit that the build script reads from a checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use build_script::{Checkout, checkout};

/// The build script as a module: its `main` is not called here.
#[path = "../../build.rs"]
#[allow(dead_code)]
mod build_script;

/// Git repository with one commit, removed on drop.
struct Repository(PathBuf);

impl Repository {
    fn new(name: &str) -> Repository {
        let path = std::env::temp_dir().join(format!("palisade-version-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("tree")).unwrap();
        let repository = Repository(path);
        repository.git("init --quiet --initial-branch=topic/one");
        repository.commit();
        repository
    }

    fn tree(&self) -> PathBuf {
        self.0.join("tree")
    }

    fn git_in(&self, tree: &str, arguments: &str) -> String {
        let output = Command::new("git")
            .current_dir(self.0.join(tree))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env_remove("GIT_DIR")
            .args(["-c", "user.name=test", "-c", "user.email=test@example.com"])
            .args(arguments.split(' '))
            .output()
            .expect("git runs");
        assert!(output.status.success(), "git {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn git(&self, arguments: &str) -> String {
        self.git_in("tree", arguments)
    }

    fn commit(&self) {
        self.git("commit --quiet --allow-empty -m empty");
    }

    /// Checks that `tree` reads as the commit that git reports, and that every watched path exists: cargo
    /// rebuilds at each call for a path that does not.
    fn agrees_with_git(&self, tree: &str) -> Checkout {
        let read = checkout(&self.0.join(tree));
        assert_eq!(read.commit, Some(self.git_in(tree, "rev-parse HEAD")));
        assert!(read.watched.iter().all(|path| path.exists()), "{:?}", read.watched);
        read
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn contents(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths.iter().map(|path| fs::read(path).ok()).collect()
}

#[test]
fn the_commit_of_a_branch_is_that_of_its_file() {
    let repository = Repository::new("loose");
    let first = repository.agrees_with_git("tree");
    let before = contents(&first.watched);
    repository.commit();
    let second = repository.agrees_with_git("tree");
    assert_ne!(first.commit, second.commit);
    assert_eq!(first.watched, second.watched);
    assert_ne!(before, contents(&first.watched), "a commit changes a watched file");
}

#[test]
fn the_commit_of_a_packed_branch_is_that_of_packed_refs() {
    let repository = Repository::new("packed");
    repository.git("branch one");
    repository.git("pack-refs --all");
    let packed = repository.agrees_with_git("tree");
    assert!(packed.watched.iter().any(|path| path.ends_with("packed-refs")));
    let refs =
        packed.watched.iter().find(|path| path.is_dir()).expect("a directory of references is watched");
    let entries = || fs::read_dir(refs).unwrap().count();
    let before = entries();
    repository.commit();
    assert_ne!(before, entries(), "a commit changes the watched directory");
    repository.agrees_with_git("tree");
}

#[test]
fn a_worktree_and_a_detached_head_have_their_own_commit() {
    let repository = Repository::new("worktree");
    repository.git("worktree add --quiet -b side ../side");
    repository.commit();
    let main = repository.agrees_with_git("tree");
    let side = repository.agrees_with_git("side");
    assert_ne!(main.commit, side.commit);
    repository.git("checkout --quiet --detach HEAD~1");
    repository.agrees_with_git("tree");
}

#[test]
fn a_tarball_and_an_unborn_branch_have_no_commit() {
    let repository = Repository::new("tarball");
    assert_eq!(checkout(&repository.0), Checkout::default());
    repository.git("checkout --quiet --orphan unborn");
    let unborn = checkout(&repository.tree());
    assert_eq!(unborn.commit, None);
    assert!(unborn.watched.iter().all(|path| path.exists()), "{:?}", unborn.watched);
}

#[test]
fn the_command_prints_its_version_and_build() {
    let print = |option: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_palisade")).arg(option).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let line = concat!("palisade ", env!("CARGO_PKG_VERSION"));
    let short = print("-V");
    let long = print("--version");
    let field = |name: &str| {
        let value = long.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("{name} is in {long}")).trim().to_owned()
    };
    assert!(long.starts_with(line), "{long}");
    assert_eq!(field("target:"), format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    // A build without optimization carries no commit: it would be compiled again after each one.
    let commit = checkout(Path::new(env!("CARGO_MANIFEST_DIR"))).commit;
    match commit.filter(|_| field("profile:") != "debug") {
        Some(commit) => {
            assert_eq!(field("commit:"), commit);
            assert_eq!(short, format!("{line} ({})\n", &commit[..12]));
        }
        None => assert_eq!(short, format!("{line}\n")),
    }
}
