//! A tap device inside a pod's network namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::queue::TapQueue;
use super::{TapError, ioctl};
use crate::limits::PORT_SEGMENTS_MAX;
use crate::net::mac::Mac;
use crate::netlink::{Interface, NetlinkError, NetworkNamespace, RouteSocket};

/// File that descriptors of tap devices are opened from.
const DRIVER: &str = "/dev/net/tun";
/// Kind of tap devices (`IFLA_INFO_KIND`).
const KIND: &str = "tun";
/// MTU of a device that is made without one.
const MTU_DEFAULT: u32 = 1500;

/// Segments of one packet at most, of a device that is made: those that the switch takes.
const SEGMENTS_MAX: u32 = PORT_SEGMENTS_MAX as u32;

/// A tap device to make, or to open if an earlier run has made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSpec {
    /// Network namespace: a name of `ip netns`, or an absolute path; empty: that of the calling thread.
    pub namespace: String,
    /// Cookie that the namespace must have ([`super::namespace_cookie`]).
    pub namespace_cookie: Option<u64>,
    /// Name of the interface there.
    pub interface: String,
    /// MTU, bytes. Without one a new device gets 1500, and another keeps its own.
    pub mtu: Option<u32>,
    /// Ethernet address of a new device; the kernel chooses one where absent.
    pub mac: Option<Mac>,
    /// Queues: one for each worker.
    pub queues: u16,
    /// Whether the network stack of the namespace is to send nothing by it: another program of the kernel alone does.
    pub is_silent: bool,
}

/// An open tap device. Its queues keep the interface's carrier: it goes with the last of them, and the interface
/// stays.
pub struct TapDevice {
    interface: Interface,
    /// Inode of the namespace.
    namespace: u64,
    /// Socket in the namespace of the device.
    kernel: RouteSocket,
    unread: Option<UnreadPackets>,
    /// Whether the device was there before it was opened.
    was_there: bool,
    queues: usize,
    takes_udp_segments: bool,
}

/// Counter of the packets that a pod has sent and the switch has not read in time.
#[derive(Debug)]
pub struct UnreadPackets {
    kernel: RouteSocket,
    index: u32,
    before: u64,
    last: u64,
}

impl UnreadPackets {
    fn of(kernel: RouteSocket, index: u32) -> UnreadPackets {
        let before = Interface::unsent_by(&kernel, index).unwrap_or_default();
        UnreadPackets { kernel, index, before, last: 0 }
    }

    /// Reads the counter, which keeps the value of a device that has been removed.
    pub fn read(&mut self) -> u64 {
        if let Ok(unsent) = Interface::unsent_by(&self.kernel, self.index) {
            self.last = self.last.max(unsent.saturating_sub(self.before));
        }
        self.last
    }
}

impl TapDevice {
    /// Makes the device, or opens the one that an earlier run has left, and sets it up. Returns it with its
    /// queues, which do not block.
    ///
    /// # Errors
    /// Every [`TapError`]. A device that this call has made is removed.
    pub fn open(spec: &TapSpec) -> Result<(TapDevice, Vec<TapQueue>), TapError> {
        let own = spec.namespace.is_empty().then(NetworkNamespace::own);
        let namespace = own
            .unwrap_or_else(|| NetworkNamespace::open(&spec.namespace))
            .map_err(|_| TapError::NoNamespace { namespace: spec.namespace.clone() })?;
        let refused = |source| TapError::Refused {
            action: format!("enter network namespace {}", spec.namespace),
            source,
        };
        let inode = namespace.inode().map_err(refused)?;
        namespace.run(|| open_here(spec, inode)).map_err(|error| match error.raw_os_error() {
            // The file is no namespace: setns(2).
            Some(errno) if errno == Errno::INVAL.raw_os_error() => {
                TapError::NoNamespace { namespace: spec.namespace.clone() }
            }
            _ => refused(error),
        })?
    }

    /// Properties of the interface when it was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Inode of the network namespace.
    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    /// Keeps the device when its port is undone.
    pub fn keep(&mut self) {
        self.was_there = true;
    }

    /// Whether the device outlives an opening that is undone: an earlier run had made it, or it is kept.
    pub fn was_there(&self) -> bool {
        self.was_there
    }

    /// Takes the counter of the packets that are lost between pod and switch.
    pub fn take_unread(&mut self) -> Option<UnreadPackets> {
        self.unread.take()
    }

    /// Whether the network stack of the device hands over segments of UDP whole.
    pub fn takes_udp_segments(&self) -> bool {
        self.takes_udp_segments
    }

    /// Current properties of the interface; `None` where it has been removed.
    pub fn current(&self) -> Result<Option<Interface>, NetlinkError> {
        match Interface::with_index_by(&self.kernel, self.interface.index) {
            Ok(interface) => Ok(Some(interface)),
            Err(NetlinkError::NoInterface { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether another process has attached a descriptor to the device.
    pub fn has_other_queues(&self) -> Result<bool, NetlinkError> {
        let count = Interface::tap_queues_by(&self.kernel, self.interface.index)?;
        Ok(count.is_some_and(|count| count as usize > self.queues))
    }

    /// Removes the interface. A removed one has no effect.
    pub fn remove(self) -> Result<(), NetlinkError> {
        match self.kernel.remove_link_with_index(self.interface.index) {
            Ok(()) | Err(NetlinkError::NoInterface { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Makes or opens the device in the network namespace of the calling thread.
fn open_here(spec: &TapSpec, namespace: u64) -> Result<(TapDevice, Vec<TapQueue>), TapError> {
    if let Some(wanted) = spec.namespace_cookie
        && ioctl::namespace_cookie().map_err(|errno| TapError::Refused {
            action: format!("find the identity of network namespace {}", spec.namespace),
            source: errno.into(),
        })? != wanted
    {
        return Err(TapError::Replaced { namespace: spec.namespace.clone() });
    }
    let kernel = RouteSocket::open()?;
    let TapSpec { interface: name, .. } = spec;
    let before = match Interface::find_by(&kernel, name) {
        Ok(interface) => Some(check_free(spec, &kernel, interface)?),
        Err(NetlinkError::NoInterface { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let refused = |action: &str, errno: Errno| TapError::Refused {
        action: format!("{action} {name} in network namespace {}", spec.namespace),
        source: errno.into(),
    };
    let mut queues = Vec::new();
    let mut takes_udp_segments = false;
    for _ in 0..spec.queues.max(1) {
        let queue = open_driver()?;
        ioctl::attach(queue.as_fd(), name).map_err(|errno| match errno {
            // The device is of another mode.
            Errno::BUSY | Errno::INVAL => {
                TapError::Other { namespace: spec.namespace.clone(), interface: name.clone() }
            }
            other => refused("make tap device", other),
        })?;
        ioctl::set_up(queue.as_fd()).map_err(|errno| refused("set up tap device", errno))?;
        takes_udp_segments = ioctl::offer_segments(queue.as_fd())
            .map_err(|errno| refused("take segments of tap device", errno))?;
        queues.push(TapQueue::new(queue));
    }
    // Until here a failure removes a device that this call has made: the device ends with its descriptors.
    let mtu = spec.mtu.or(before.is_none().then_some(MTU_DEFAULT));
    if let Some(mtu) = mtu.filter(|mtu| before.as_ref().is_none_or(|before| before.mtu != *mtu)) {
        kernel.set_mtu(name, mtu)?;
    }
    if before.is_none() {
        kernel.set_segments_max(name, SEGMENTS_MAX)?;
    }
    if let Some(mac) = spec.mac.filter(|_| before.is_none()) {
        kernel.set_mac(name, mac)?;
    }
    if spec.is_silent {
        kernel.set_no_ipv6_address(name)?;
    }
    kernel.set_up(name)?;
    let interface = Interface::find_by(&kernel, name)?;
    if Interface::tap_queues_by(&kernel, interface.index)?.is_some_and(|count| count as usize != queues.len())
    {
        return Err(TapError::InUse { namespace: spec.namespace.clone(), interface: name.clone() });
    }
    let was_there = before.is_some();
    let unread = Some(UnreadPackets::of(RouteSocket::open()?, interface.index));
    // The last step: after it the device outlives its descriptors.
    if let Some(queue) = queues.first() {
        ioctl::set_persistent(queue.fd(), true).map_err(|errno| refused("keep tap device", errno))?;
    }
    Ok((
        TapDevice {
            interface,
            namespace,
            kernel,
            unread,
            was_there,
            queues: queues.len(),
            takes_udp_segments,
        },
        queues,
    ))
}

/// Returns the interface if it is a tap device that no process has open.
fn check_free(spec: &TapSpec, kernel: &RouteSocket, interface: Interface) -> Result<Interface, TapError> {
    let (namespace, name) = (spec.namespace.clone(), spec.interface.clone());
    if interface.kind.as_deref() != Some(KIND) {
        return Err(TapError::Other { namespace, interface: name });
    }
    // A tap device has a carrier as long as a descriptor is attached, which shows while it is up.
    let has_queues = Interface::tap_queues_by(kernel, interface.index)?.is_some_and(|queues| queues > 0);
    if has_queues || (interface.is_up && interface.has_carrier) {
        return Err(TapError::InUse { namespace, interface: name });
    }
    Ok(interface)
}

fn open_driver() -> Result<OwnedFd, TapError> {
    open(DRIVER, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| TapError::NoDriver { source: io::Error::from(errno) })
}
