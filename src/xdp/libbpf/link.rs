//! BPF links, which hold XDP programs on interfaces, and their pins in a BPF file system.
//!
//! A link owns the XDP hook of an interface exclusively: no other program can be attached, and `ip link set
//! dev NAME xdp off` does not detach it. The kernel keeps a link while a descriptor or a file refers to it.
//! The pin, a file of the BPF file system, keeps it without a process.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::{
    self, BPF_F_BEFORE, BPF_F_REPLACE, BPF_TCX_INGRESS, BPF_XDP, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE,
    bpf_link_create_opts, bpf_link_info, bpf_link_update_opts, bpf_prog_query_opts,
};
use rustix::fs::statfs;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::netlink::NetworkNamespace;

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Directory of the kernel for a BPF file system.
const BPF_FS_PLACE: &str = "/sys/fs/bpf";

/// End of the names of the files of programs of flow offload.
const INGRESS: &str = "-ingress";

/// Directory of the pins of one network namespace, with one file per interface, named by the index of the
/// interface.
#[derive(Debug, Clone)]
pub struct Pins {
    /// Directory of all network namespaces.
    root: PathBuf,
    directory: PathBuf,
}

impl Pins {
    /// Opens the directory of the calling thread's network namespace below `root`. Fails with a reason if
    /// `root` is not on a BPF file system. Pins of removed interfaces are removed.
    pub fn open(root: &Path) -> Result<Pins, String> {
        if let Some(NoBpfFileSystem { what, remedy }) = NoBpfFileSystem::at(root) {
            return Err(format!("{what}: {remedy}"));
        }
        let refused = |error: &dyn std::fmt::Display| format!("{} cannot be used: {error}", root.display());
        let cookie = namespace_cookie().map_err(|error| refused(&error))?;
        let directory = root.join(format!("netns-{cookie}"));
        fs::create_dir_all(&directory).map_err(|error| refused(&error))?;
        sweep(root);
        // The sweep removes an empty directory.
        fs::create_dir_all(&directory).map_err(|error| refused(&error))?;
        Ok(Pins { root: root.to_owned(), directory })
    }

    /// Pins of the calling thread's network namespace, below the same root.
    pub(in crate::xdp) fn of_this_namespace(&self) -> Result<Pins, String> {
        Pins::open(&self.root)
    }

    pub(in crate::xdp) fn path(&self, index: u32) -> PathBuf {
        self.directory.join(index.to_string())
    }

    /// File of something else than a link to an interface.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Files whose names begin so.
    pub fn named(&self, prefix: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(prefix));
        files.map(|file| file.path()).collect()
    }

    /// Removes the directories if they are empty.
    pub fn remove_empty(&self) {
        // The removal fails for a directory with pins, as intended.
        [&self.directory, &self.root].into_iter().for_each(|directory| _ = fs::remove_dir(directory));
    }

    /// File of a tc program on egress: at the node's end of a host port, or at an upcall device.
    pub(in crate::xdp) fn egress_path(&self, index: u32) -> PathBuf {
        self.directory.join(format!("{index}-egress"))
    }

    /// File of a program of flow offload.
    pub(in crate::xdp) fn ingress_path(&self, index: u32) -> PathBuf {
        self.directory.join(format!("{index}{INGRESS}"))
    }
}

/// Pin below `root` that holds a program of flow offload at an interface of the calling thread's network namespace.
pub fn offload_pin(root: &Path, index: u32) -> Option<PathBuf> {
    pin_named(root, &format!("{index}{INGRESS}"))
}

/// Pin below `root` that holds the XDP program of an interface of the calling thread's network namespace.
pub fn program_pin(root: &Path, index: u32) -> Option<PathBuf> {
    pin_named(root, &index.to_string())
}

fn pin_named(root: &Path, name: &str) -> Option<PathBuf> {
    let pin = root.join(format!("netns-{}", namespace_cookie().ok()?)).join(name);
    pin.exists().then_some(pin)
}

/// Tests whether a path, or the nearest ancestor that exists, is on a BPF file system.
pub fn is_on_bpf_file_system(path: &Path) -> bool {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
    statfs(there).is_ok_and(|system| system.f_type as u64 == BPF_FS_MAGIC)
}

/// Reason for which a directory is on no BPF file system, and the step that ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoBpfFileSystem {
    /// The reason.
    pub what: String,
    /// Command, or change of the command that starts the switch.
    pub remedy: String,
}

impl NoBpfFileSystem {
    /// `None` for a directory on a BPF file system.
    pub fn at(root: &Path) -> Option<NoBpfFileSystem> {
        (!is_on_bpf_file_system(root)).then(|| {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            NoBpfFileSystem::with_mounts(root, &mounts, |name| NetworkNamespace::path_of(name).exists())
        })
    }

    /// `mounts` has the form of `/proc/self/mountinfo`.
    fn with_mounts(root: &Path, mounts: &str, is_namespace: impl Fn(&str) -> bool) -> NoBpfFileSystem {
        let shown = root.display();
        if let Some(namespace) =
            source_of_sys(mounts).filter(|source| root.starts_with("/sys") && is_namespace(source))
        {
            return NoBpfFileSystem {
                what: format!(
                    "{shown} is hidden by the /sys that `ip netns exec {namespace}` has mounted over the node's"
                ),
                remedy: format!(
                    "`nsenter --net=/run/netns/{namespace} COMMAND` enters the network namespace and leaves the node's /sys"
                ),
            };
        }
        // A mount at a directory above another one than the kernel's own place would hide what lies beside it.
        let remedy = if root.starts_with(BPF_FS_PLACE) {
            format!("`mount -t bpf bpf {BPF_FS_PLACE}`")
        } else {
            format!("`mkdir -p {shown} && mount -t bpf bpf {shown}`")
        };
        NoBpfFileSystem { what: format!("{shown} is not on a BPF file system"), remedy }
    }
}

/// Source of the `sysfs` on `/sys`. That of `ip netns exec` has the name of the network namespace (`netns_switch` of iproute2's
/// `lib/namespace.c`).
fn source_of_sys(mounts: &str) -> Option<&str> {
    let mut on_sys = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/sys"));
    let (_, system) = on_sys.next_back()?.split_once(" - ")?;
    let mut fields = system.split(' ');
    let (kind, source) = (fields.next()?, fields.next()?);
    (kind == "sysfs").then_some(source)
}

/// Removes the pins of removed interfaces, and the directories that they leave empty, in all network
/// namespaces.
pub fn sweep(root: &Path) {
    for directory in fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()) {
        for pin in fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let is_dead = Link::open(&pin).is_ok_and(|link| link.info().is_ok_and(|info| info.0 == 0));
            if is_dead {
                // The next sweep removes a file that stays.
                let _ = fs::remove_file(&pin);
            }
        }
        // The removal fails for a directory with pins, as intended.
        let _ = fs::remove_dir(&directory);
    }
    let _ = fs::remove_dir(root);
}

/// Reads the cookie of the calling thread's network namespace, which is unique until the next boot
/// (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn namespace_cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let (mut cookie, mut length) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the descriptor is open, and the kernel writes at most the eight bytes of the length.
    let answer = unsafe {
        libc::getsockopt(
            any.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if answer == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// A link of an XDP program to an interface.
#[derive(Debug)]
pub(in crate::xdp) struct Link(OwnedFd);

impl Link {
    /// Attaches a program to an interface with a free hook.
    pub(in crate::xdp) fn create(code: BorrowedFd<'_>, index: u32, native: bool) -> io::Result<Link> {
        let flags = if native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE };
        let size = size_of::<bpf_link_create_opts>() as _;
        let options = bpf_link_create_opts { sz: size, flags, ..Default::default() };
        // SAFETY: the descriptor is open and the options outlive the call.
        owned(unsafe {
            libbpf_sys::bpf_link_create(code.as_raw_fd(), index.cast_signed(), BPF_XDP, &raw const options)
        })
    }

    /// Attaches a tc program to the frames that an interface receives or sends (tcx, Linux 6.6): `hook` is `BPF_TCX_INGRESS` or
    /// `BPF_TCX_EGRESS`. It runs behind the programs that are there, or before them with `is_first`.
    pub(in crate::xdp) fn create_tc(
        code: BorrowedFd<'_>,
        index: u32,
        hook: u32,
        is_first: bool,
    ) -> io::Result<Link> {
        let size = size_of::<bpf_link_create_opts>() as _;
        let flags = if is_first { BPF_F_BEFORE } else { 0 };
        let options = bpf_link_create_opts { sz: size, flags, ..Default::default() };
        let (code, index) = (code.as_raw_fd(), index.cast_signed());
        // SAFETY: the descriptor is open and the options outlive the call.
        owned(unsafe { libbpf_sys::bpf_link_create(code, index, hook, &raw const options) })
    }

    /// Opens the link of a pin.
    pub(in crate::xdp) fn open(pin: &Path) -> io::Result<Link> {
        let path = c_path(pin)?;
        // SAFETY: the string ends in zero and outlives the call.
        owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
    }

    /// Contents of its file in `/proc/self/fdinfo`.
    pub(in crate::xdp) fn fdinfo(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))
    }

    /// Pins the link to a file.
    pub(in crate::xdp) fn pin(&self, pin: &Path) -> io::Result<()> {
        if let Some(directory) = pin.parent() {
            fs::create_dir_all(directory)?;
        }
        let path = c_path(pin)?;
        // SAFETY: the descriptor is open; the string ends in zero and outlives the call.
        done(unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) })
    }

    /// Replaces the program `expected` atomically. Fails if the link has another one.
    pub(in crate::xdp) fn update(&self, code: BorrowedFd<'_>, expected: BorrowedFd<'_>) -> io::Result<()> {
        let options = bpf_link_update_opts {
            sz: size_of::<bpf_link_update_opts>() as _,
            flags: BPF_F_REPLACE,
            old_prog_fd: expected.as_raw_fd().cast_unsigned(),
            ..Default::default()
        };
        // SAFETY: the descriptors are open and the options outlive the call.
        done(unsafe { libbpf_sys::bpf_link_update(self.0.as_raw_fd(), code.as_raw_fd(), &raw const options) })
    }

    /// Detaches the program from the interface, whatever else refers to the link.
    pub(in crate::xdp) fn detach(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        done(unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) })
    }

    /// Reads the index of the interface, 0 for a removed one, and the id of the program. Fails for a link of
    /// another kind.
    pub(in crate::xdp) fn info(&self) -> io::Result<(u32, u32)> {
        let (mut info, mut length) = (bpf_link_info::default(), size_of::<bpf_link_info>() as u32);
        // SAFETY: the descriptor is open, and the kernel writes at most the bytes of the length.
        done(unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(self.0.as_raw_fd(), (&raw mut info).cast(), &raw mut length)
        })?;
        // SAFETY: the kernel fills this member of the union for a link of this type; it is a number.
        let index = match info.type_ {
            libbpf_sys::BPF_LINK_TYPE_XDP => unsafe { info.__bindgen_anon_1.xdp.ifindex },
            libbpf_sys::BPF_LINK_TYPE_TCX => unsafe { info.__bindgen_anon_1.tcx.ifindex },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok((index, info.prog_id))
    }
}

/// Checks that the kernel has tcx, the hook of flow offload.
pub fn check_tcx() -> io::Result<()> {
    /// Interface `lo`, which every network namespace has first.
    const LOOPBACK: i32 = 1;
    let mut options = bpf_prog_query_opts { sz: size_of::<bpf_prog_query_opts>() as _, ..Default::default() };
    // SAFETY: the options outlive the call, and have no room for programs.
    let done = unsafe { libbpf_sys::bpf_prog_query_opts(LOOPBACK, BPF_TCX_INGRESS, &raw mut options) };
    match io::Error::last_os_error() {
        _ if done == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(io::Error::other("it needs tcx, which is there from Linux 6.6 on"))
        }
        error => Err(error),
    }
}

/// Opens the program with this id.
pub(in crate::xdp) fn program_with(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number, and no pointer.
    owned::<OwnedFd>(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

impl From<OwnedFd> for Link {
    fn from(fd: OwnedFd) -> Link {
        Link(fd)
    }
}

/// Converts the answer of libbpf: a descriptor that it has opened, or a negative error number.
fn owned<T: From<OwnedFd>>(answer: libc::c_int) -> io::Result<T> {
    done(answer)?;
    // SAFETY: libbpf has opened the descriptor for the caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) }.into())
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidFilename.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_bpf_file_system_has_the_command_that_fits_it() {
        let node = "22 1 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n";
        let inside = "22 1 0:21 / /sys rw - sysfs sysfs rw\n90 80 0:55 / /sys rw,relatime - sysfs blue rw\n";
        let says = |root: &str, mounts: &str| {
            NoBpfFileSystem::with_mounts(Path::new(root), mounts, |name| name == "blue")
        };
        assert_eq!(says("/sys/fs/bpf/palisade", node).remedy, "`mount -t bpf bpf /sys/fs/bpf`");
        for root in ["/run/palisade-bpf", "/run/bpf/pins", "/pins"] {
            let remedy = format!("`mkdir -p {root} && mount -t bpf bpf {root}`");
            assert_eq!(says(root, node).remedy, remedy, "nothing beside it is hidden");
            assert_eq!(says(root, inside).remedy, remedy);
        }
        let hidden = says("/sys/fs/bpf/palisade", inside);
        assert!(hidden.what.contains("`ip netns exec blue`"), "{hidden:?}");
        assert!(hidden.remedy.contains("nsenter --net=/run/netns/blue"), "{hidden:?}");
    }
}
