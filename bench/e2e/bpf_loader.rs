//! Loader of the benchmark's own eBPF programs: compiles them with clang and attaches them at tc ingress.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::Command;

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject, TC_INGRESS, TcHookBuilder};

use crate::error::BenchError;
use crate::process::run;
use crate::rig::Rig;

/// Compiles a program and loads it.
pub(crate) fn load(rig: &Rig, name: &str, source: &str) -> Result<Object, BenchError> {
    let object = compile(rig, name, source)?;
    ObjectBuilder::default().open_file(&object).and_then(OpenObject::load).map_err(bpf_error)
}

fn compile(rig: &Rig, name: &str, source: &str) -> Result<PathBuf, BenchError> {
    let object = rig.lab().directory().join(format!("{name}.bpf.o"));
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"]);
    clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    clang.args(["-x", "c", "-c", "-", "-o"]).arg(&object);
    run(&mut clang, source)?;
    Ok(object)
}

/// Attaches a program at tc ingress of an interface of the calling thread's namespace. The kernel removes it
/// with the interface.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32) -> Result<(), BenchError> {
    let mut builder = TcHookBuilder::new(program);
    let mut hook =
        builder.ifindex(interface.cast_signed()).replace(true).handle(1).priority(1).hook(TC_INGRESS);
    hook.create().and_then(|mut hook| hook.attach()).map_err(bpf_error)?;
    Ok(())
}

/// Finds a map of a loaded object.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, BenchError> {
    let found = object.maps().find(|map| map.name() == name);
    let found = found.ok_or_else(|| BenchError::Other(format!("the object has no map {name}")))?;
    MapHandle::try_from(&found).map_err(bpf_error)
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
pub(crate) fn bpf_error(error: libbpf_rs::Error) -> BenchError {
    BenchError::Refused { what: "the kernel's BPF".to_owned(), said: format!("{error:#}") }
}
