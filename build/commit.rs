//! The commit that a checkout has, read from its `.git` without git, in the layout of gitrepository-layout(5).

use std::fs;
use std::path::{Path, PathBuf};

/// The commit of a checkout, and the files that change with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkout {
    /// Object name of the commit in hexadecimal digits; `None` outside a checkout and before its first commit.
    pub(crate) commit: Option<String>,
    /// Existing paths, one of which changes when `HEAD` names another commit.
    pub(crate) watched: Vec<PathBuf>,
}

/// Reads the checkout whose working tree is `root`. A directory without `.git`, as of a tarball, has no commit.
pub(crate) fn checkout(root: &Path) -> Checkout {
    let Some(git_dir) = git_dir(root) else { return Checkout::default() };
    let head = git_dir.join("HEAD");
    let Ok(text) = fs::read_to_string(&head) else { return Checkout::default() };
    let mut watched = vec![head];
    // "ref: refs/heads/main" on a branch, an object name where HEAD is detached.
    let commit = match text.trim_end().strip_prefix("ref: ") {
        Some(name) => resolve(&common_dir(&git_dir), name, &mut watched),
        None => object_name(&text),
    };
    Checkout { commit, watched }
}

/// `.git` itself, or the directory that it names: in a worktree `.git` is a file with the line "gitdir: PATH".
fn git_dir(root: &Path) -> Option<PathBuf> {
    let entry = root.join(".git");
    if entry.is_dir() {
        return Some(entry);
    }
    let text = fs::read_to_string(&entry).ok()?;
    Some(root.join(text.trim_end().strip_prefix("gitdir: ")?))
}

/// The directory of the references, which worktrees share.
fn common_dir(git_dir: &Path) -> PathBuf {
    // commondir: "If this file exists, $GIT_COMMON_DIR will be set to the path specified in this file … If the specified
    // path is relative, it is relative to $GIT_DIR."
    match fs::read_to_string(git_dir.join("commondir")) {
        Ok(path) => git_dir.join(path.trim_end()),
        Err(_) => git_dir.to_owned(),
    }
}

/// Reads a reference from its own file, or else from `packed-refs`.
fn resolve(common_dir: &Path, name: &str, watched: &mut Vec<PathBuf>) -> Option<String> {
    let loose = common_dir.join(name);
    if let Ok(text) = fs::read_to_string(&loose) {
        watched.push(loose);
        return object_name(&text);
    }
    // The next commit creates the reference's own file in this directory.
    watched.extend(loose.ancestors().skip(1).find(|directory| directory.is_dir()).map(Path::to_owned));
    let packed = common_dir.join("packed-refs");
    let text = fs::read_to_string(&packed).ok()?;
    watched.push(packed);
    // "<object name> <reference>", one a line.
    text.lines().find_map(|line| object_name(line.strip_suffix(name)?.strip_suffix(' ')?))
}

/// An object name: 40 hexadecimal digits (SHA-1) or 64 (SHA-256).
fn object_name(text: &str) -> Option<String> {
    let name = text.trim_end();
    let valid = matches!(name.len(), 40 | 64) && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| name.to_owned())
}
