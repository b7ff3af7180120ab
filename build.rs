//! Compiles the XDP programs of `src/xdp/bpf` to BPF objects, which `src/xdp/program.rs` embeds, and passes the commit
//! and the target of the build to `palisade --version`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, process};

#[path = "build/commit.rs"]
mod commit;

const SOURCES: &[&str] = &["count", "port", "uplink"];
const HOW_TO_INSTALL: &str = "sudo apt-get install clang linux-libc-dev   (or `make setup`)";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/commit.rs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    for name in SOURCES {
        let source = format!("src/xdp/bpf/{name}.bpf.c");
        println!("cargo::rerun-if-changed={source}");
        compile(&clang, Path::new(&source), &out.join(format!("{name}.bpf.o")));
    }
    describe_build();
}

/// Sets `PALISADE_VERSION`, `PALISADE_COMMIT`, `PALISADE_TARGET` and `PALISADE_PROFILE` for `src/cli`. A debug build carries no commit, so that a commit
/// compiles nothing again during development.
fn describe_build() {
    let variable = |name| env::var(name).unwrap_or_default();
    let (version, profile) = (variable("CARGO_PKG_VERSION"), variable("PROFILE"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let checkout = if profile == "debug" { commit::Checkout::default() } else { commit::checkout(&root) };
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
