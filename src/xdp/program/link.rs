//! BPF links: an XDP program that nothing but its link takes off an interface, and the files that keep the links.
//!
//! A link is the kernel's exclusive owner of an interface's XDP hook: no other program is attached while it is there, and
//! `ip link set dev NAME xdp off` does not take it off. It lives as long as somebody refers to it; a file of the BPF file
//! system does so while there is no process.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::{
    self, BPF_F_REPLACE, BPF_XDP, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_link_create_opts,
    bpf_link_info, bpf_link_update_opts,
};
use rustix::fs::statfs;
use rustix::net::{AddressFamily, SocketType, socket};

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// The directory of the BPF file system that keeps the links of one network namespace: a file an interface, named by the
/// kernel's number of the interface.
#[derive(Debug, Clone)]
pub struct Pins {
    directory: PathBuf,
}

impl Pins {
    /// Below `root`, the directory of the calling thread's network namespace. Fails with a reason where `root` is not on a BPF
    /// file system. Links whose interface is gone are removed.
    pub fn open(root: &Path) -> Result<Pins, String> {
        let there = root.ancestors().find(|path| path.exists()).unwrap_or(root);
        let is_bpf = statfs(there).is_ok_and(|system| system.f_type as u64 == BPF_FS_MAGIC);
        if !is_bpf {
            return Err(format!("{} is not on a BPF file system", root.display()));
        }
        let refused = |error: &dyn std::fmt::Display| format!("{} cannot be used: {error}", root.display());
        let cookie = namespace_cookie().map_err(|error| refused(&error))?;
        let directory = root.join(format!("netns-{cookie}"));
        fs::create_dir_all(&directory).map_err(|error| refused(&error))?;
        sweep(root);
        // The sweep has removed it where it was empty.
        fs::create_dir_all(&directory).map_err(|error| refused(&error))?;
        Ok(Pins { directory })
    }

    pub(in crate::xdp) fn path(&self, index: u32) -> PathBuf {
        self.directory.join(index.to_string())
    }
}

/// Removes the files of links whose interface is gone, and the directories that they leave empty, in all network namespaces.
pub fn sweep(root: &Path) {
    for directory in fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()) {
        for pin in fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let is_dead = Link::open(&pin).is_ok_and(|link| link.info().is_ok_and(|info| info.0 == 0));
            if is_dead {
                // A file that stays is swept the next time.
                let _ = fs::remove_file(&pin);
            }
        }
        // Fails, as it should, where links are left.
        let _ = fs::remove_dir(&directory);
    }
    let _ = fs::remove_dir(root);
}

/// The number of the calling thread's network namespace, which is never used again until the machine starts anew
/// (`SO_NETNS_COOKIE`, Linux 5.14).
fn namespace_cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let (mut cookie, mut length) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the descriptor is open, and the kernel writes no more than the eight bytes that the length says.
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
    /// Attaches a program to an interface whose hook is free.
    pub(in crate::xdp) fn create(code: BorrowedFd<'_>, index: u32, native: bool) -> io::Result<Link> {
        let flags = if native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE };
        let size = size_of::<bpf_link_create_opts>() as _;
        let options = bpf_link_create_opts { sz: size, flags, ..Default::default() };
        // SAFETY: the descriptor is open and the options outlive the call.
        owned(unsafe {
            libbpf_sys::bpf_link_create(code.as_raw_fd(), index.cast_signed(), BPF_XDP, &raw const options)
        })
    }

    /// The link that a file keeps.
    pub(in crate::xdp) fn open(pin: &Path) -> io::Result<Link> {
        let path = c_path(pin)?;
        // SAFETY: the string ends in zero and outlives the call.
        owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
    }

    /// Lets a file keep the link.
    pub(in crate::xdp) fn pin(&self, pin: &Path) -> io::Result<()> {
        if let Some(directory) = pin.parent() {
            fs::create_dir_all(directory)?;
        }
        let path = c_path(pin)?;
        // SAFETY: the descriptor is open; the string ends in zero and outlives the call.
        done(unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) })
    }

    /// Puts a program in the place of `expected`, at once; fails where another one is there.
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

    /// Takes the program off the interface, whoever else refers to the link.
    pub(in crate::xdp) fn detach(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        done(unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) })
    }

    /// The kernel's number of the interface, 0 where there is none any more, and the id of the program. Fails where it is no
    /// link of an XDP program.
    pub(in crate::xdp) fn info(&self) -> io::Result<(u32, u32)> {
        let (mut info, mut length) = (bpf_link_info::default(), size_of::<bpf_link_info>() as u32);
        // SAFETY: the descriptor is open, and the kernel writes no more bytes than the length says.
        done(unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(self.0.as_raw_fd(), (&raw mut info).cast(), &raw mut length)
        })?;
        if info.type_ != libbpf_sys::BPF_LINK_TYPE_XDP {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: for a link of this type the kernel has filled this member of the union; it is a number.
        Ok((unsafe { info.__bindgen_anon_1.xdp.ifindex }, info.prog_id))
    }
}

/// The program with this id.
pub(in crate::xdp) fn program_with(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number.
    owned::<OwnedFd>(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

impl From<OwnedFd> for Link {
    fn from(fd: OwnedFd) -> Link {
        Link(fd)
    }
}

/// The descriptor that a call of libbpf has opened, or the negative error number that it returned.
fn owned<T: From<OwnedFd>>(answer: libc::c_int) -> io::Result<T> {
    done(answer)?;
    // SAFETY: the kernel has just opened the descriptor for the caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) }.into())
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidFilename.into())
}
