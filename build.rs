//! Compiles the XDP, tc and cgroup programs of `src/xdp/bpf` and `src/connect` to BPF objects, which these embed, and passes the commit
//! and the target of the build to `palisade --version`. It reads the commit from `.git` without git, in the layout of
//! gitrepository-layout(5).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

const SOURCES: &[&str] = &[
    "connect/connect",
    "xdp/bpf/count",
    "xdp/bpf/node",
    "xdp/bpf/offload",
    "xdp/bpf/port",
    "xdp/bpf/uplink",
];
/// Header that several of them include.
const HEADER: &str = "src/xdp/bpf/offload.h";
const HOW_TO_INSTALL: &str = "sudo apt-get install clang linux-libc-dev   (or `make setup`)";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed={HEADER}");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    for path in SOURCES {
        let source = format!("src/{path}.bpf.c");
        let name = path.rsplit('/').next().unwrap_or(path);
        println!("cargo::rerun-if-changed={source}");
        compile(&clang, Path::new(&source), &out.join(format!("{name}.bpf.o")));
    }
    describe_build();
}

/// Sets `PALISADE_VERSION`, `PALISADE_COMMIT`, `PALISADE_TARGET` and `PALISADE_PROFILE` for `src/cli`. A debug
/// build carries no commit, so that a commit compiles nothing again during development.
fn describe_build() {
    let variable = |name| env::var(name).unwrap_or_default();
    let (version, profile) = (variable("CARGO_PKG_VERSION"), variable("PROFILE"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let checkout = if profile == "debug" { Checkout::default() } else { checkout(&root) };
    for path in &checkout.watched {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let short = checkout.commit.as_ref().map(|commit| format!(" ({})", &commit[..12])).unwrap_or_default();
    println!("cargo::rustc-env=PALISADE_VERSION={version}{short}");
    println!("cargo::rustc-env=PALISADE_COMMIT={}", checkout.commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=PALISADE_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=PALISADE_PROFILE={profile}");
}

fn compile(clang: &str, source: &Path, object: &Path) {
    let mut command = Command::new(clang);
    // -g: maps are declared through BTF, which is debug information.
    command.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c"]);
    // Debian keeps asm/types.h, which linux/bpf.h includes, in a directory of the machine's architecture.
    if let Ok(arch) = env::var("CARGO_CFG_TARGET_ARCH") {
        command.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    }
    match command.arg(source).arg("-o").arg(object).status() {
        Ok(status) if status.success() => {}
        Ok(_) => fail(&format!(
            "{clang} cannot compile {}: its messages stand above; where it misses linux/bpf.h or the BPF target: {HOW_TO_INSTALL}",
            source.display()
        )),
        Err(error) => fail(&format!(
            "{clang} compiles the XDP program and does not start ({error}): {HOW_TO_INSTALL}; \
             or name another clang in the environment variable CLANG"
        )),
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    process::exit(1);
}

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
