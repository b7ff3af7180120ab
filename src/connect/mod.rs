//! Services for the node's own sockets: cgroup programs give a socket a backend when it connects or sends, so that packets
//! of the node's processes need no translation (`connect.bpf.c`).
//!
//! Pinned BPF links hold the programs. They serve on while no switch runs, with the backends of then, and the next start
//! replaces them once it has Services.

mod lists;
mod maps;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libbpf_rs::{Link, Object, ObjectBuilder, OpenObject};

use self::lists::{Change, Lists};
use self::maps::Maps;
use crate::limits::{SOCKET_BACKENDS_MAX, SOCKET_SERVICES_MAX};
use crate::tables::ServiceSet;
use crate::xdp::libbpf::kernel_log;
use crate::xdp::{Pins, namespace_cookie};

/// `connect.bpf.c`, compiled by build.rs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connect.bpf.o"));
/// Beginning of the names of the pinned links.
const PIN_PREFIX: &str = "sockets-";
/// Pin of the map that leads from sockets and their backends to Services: it outlives the programs that fill it.
const ORIGINS: &str = "sockets-origins";
/// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Reason for which the node's sockets do not have the Services.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No cgroup2 file system.
    #[error(
        "{path} is no cgroup2 file system, nor is {path}/unified: mount one (`mount -t cgroup2 cgroup2 DIRECTORY`), and name \
         it in services.cgroup"
    )]
    NoCgroup {
        /// The configured directory.
        path: PathBuf,
    },
    /// The kernel refuses a step.
    #[error("the kernel does not {action}: {reason}")]
    Refused {
        /// The step, as an infinitive.
        action: &'static str,
        /// The kernel's reason.
        reason: String,
    },
}

impl ConnectError {
    fn refused(action: &'static str, error: &dyn std::fmt::Display) -> ConnectError {
        ConnectError::Refused { action, reason: format!("{error:#}") }
    }
}

/// Programs for the sockets of the calling thread's network namespace. Dropping them leaves those that are pinned attached.
pub struct NodeSockets {
    object: Object,
    maps: Maps,
    lists: Lists,
    /// Changes that the maps do not have yet.
    pending: Vec<Change>,
    links: Vec<Link>,
    cgroup: File,
    pins: Option<Pins>,
}

impl NodeSockets {
    /// Loads the programs. They are attached to the cgroup2 hierarchy at `cgroup` with the first Services.
    pub fn load(cgroup: &Path, pins: Option<Pins>) -> Result<NodeSockets, ConnectError> {
        let cgroup = File::open(cgroup_at(cgroup)?)
            .map_err(|error| ConnectError::refused("open the directory of the cgroup", &error))?;
        let network = namespace_cookie()
            .map_err(|error| ConnectError::refused("tell the cookie of the network namespace", &error))?;
        // Before Linux 6.1 a refused socket call gets EPERM.
        let load = |has_errors| {
            kernel_log::captured(|| prepare(network, has_errors, pins.as_ref()).and_then(OpenObject::load))
        };
        let (loaded, said) = match load(true) {
            (Err(_), _) => load(false),
            loaded => loaded,
        };
        let object = loaded.map_err(|error| ConnectError::Refused {
            action: "take the programs of the node's sockets",
            reason: kernel_log::reason(&said, &format!("{error:#}")),
        })?;
        let maps = Maps::of(&object)
            .map_err(|error| ConnectError::refused("give the maps of the node's sockets", &error))?;
        let (lists, pending, links) = (Lists::default(), Vec::new(), Vec::new());
        Ok(NodeSockets { object, maps, lists, pending, links, cgroup, pins })
    }

    /// Gives the sockets these Services from now on. Returns how many addresses of Services have no room.
    pub fn set(&mut self, services: &Arc<ServiceSet>) -> Result<usize, ConnectError> {
        let change = self.lists.change(services);
        let left_out = change.left_out;
        self.pending.push(change);
        while let Some(change) = self.pending.first() {
            self.maps
                .apply(change)
                .map_err(|error| ConnectError::refused("take the Services of the node's sockets", &error))?;
            self.pending.remove(0);
        }
        if self.links.is_empty() {
            self.attach().map_err(|error| {
                ConnectError::refused("attach the programs of the node's sockets", &error)
            })?;
        }
        Ok(left_out)
    }

    /// Attaches the programs, in the place of those of an earlier start.
    fn attach(&mut self) -> libbpf_rs::Result<()> {
        let mut links = Vec::new();
        for program in self.object.progs_mut() {
            let pin = self.pins.as_ref().map(|pins| pin_of(pins, &program.name().to_string_lossy()));
            if let Some(mut link) = pin.as_ref().and_then(|pin| Link::open(pin).ok()) {
                if link.update_prog(&program).is_ok() {
                    links.push(link);
                    continue;
                }
                link.detach()?;
                pin.iter().for_each(|pin| _ = fs::remove_file(pin));
            }
            let mut link = program.attach_cgroup(std::os::fd::AsRawFd::as_raw_fd(&self.cgroup))?;
            if let Some(pin) = pin {
                link.pin(pin)?;
            }
            links.push(link);
        }
        self.links = links;
        Ok(())
    }
}

/// Detaches the programs of earlier starts from the sockets of this network namespace.
pub fn detach(pins: &Pins) {
    for pin in pins.named(PIN_PREFIX) {
        let is_link = pin != pins.file(ORIGINS);
        if is_link
            && let Ok(link) = Link::open(&pin)
            && let Err(error) = link.detach()
        {
            tracing::warn!("the program of {} stays: {error}", pin.display());
            continue;
        }
        let _ = fs::remove_file(&pin);
    }
}

fn pin_of(pins: &Pins, program: &str) -> PathBuf {
    pins.file(&format!("{PIN_PREFIX}{}", program.trim_start_matches("palisade_")))
}

/// Root of the cgroup2 hierarchy at a directory. Beside version 1 it is in `unified`.
pub fn cgroup_at(path: &Path) -> Result<PathBuf, ConnectError> {
    let is_cgroup2 =
        |path: &PathBuf| rustix::fs::statfs(path).is_ok_and(|system| system.f_type as u64 == CGROUP2_MAGIC);
    let found = [path.to_owned(), path.join("unified")].into_iter().find(is_cgroup2);
    found.ok_or_else(|| ConnectError::NoCgroup { path: path.to_owned() })
}

/// Prepares the programs for this network. `has_errors`: they choose the error of a refused call.
fn prepare(network: u64, has_errors: bool, pins: Option<&Pins>) -> libbpf_rs::Result<OpenObject> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    for mut map in open.maps_mut() {
        match &*map.name().to_string_lossy() {
            "services" => map.set_max_entries(SOCKET_SERVICES_MAX as u32)?,
            "backends" => map.set_max_entries(SOCKET_BACKENDS_MAX as u32)?,
            "origins" => {
                if let Some(pins) = pins {
                    map.set_pin_path(pins.file(ORIGINS))?;
                }
            }
            name if name.ends_with(".rodata.node") => {
                // `struct constants`.
                let constants = [network.to_ne_bytes(), u64::from(has_errors).to_le_bytes()].concat();
                map.set_initial_value(&constants)?;
            }
            _ => {}
        }
    }
    Ok(open)
}
