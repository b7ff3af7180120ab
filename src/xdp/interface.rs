//! What the kernel knows of a network interface, as far as a port depends on it.
//!
//! Asked by ioctl rather than read from /sys: /sys shows the network namespace of whoever mounted it.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::error::XdpError;

/// `ETHTOOL_GDRVINFO` and `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// Times that an interface is looked for again because it was renamed meanwhile.
const RENAMED_MAX: usize = 100;

/// An interface of the calling thread's network namespace, at the moment of asking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// Largest packet without the Ethernet header, bytes.
    pub mtu: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Receive queues in use.
    pub rx_queues: u16,
    /// Transmit queues in use.
    pub tx_queues: u16,
    /// Its driver, where that has a name.
    pub driver: Option<String>,
    /// Whether it is set up, and whether it has a carrier (`IFF_UP`, `IFF_RUNNING` of `linux/if.h`).
    pub is_up: bool,
    /// See above.
    pub has_carrier: bool,
}

impl Interface {
    /// Asks for the interface `name`.
    pub fn find(name: &str) -> Result<Interface, XdpError> {
        let missing = || XdpError::NoInterface { interface: name.to_owned() };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '\0']) {
            return Err(missing());
        }
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| XdpError::from_io("ask for interfaces", &error.into()))?;
        let ask = |request, what: &str| {
            control(&socket, name, request).map_err(|error| match error.raw_os_error() {
                Some(libc::ENODEV) => missing(),
                _ => XdpError::from_io(format!("tell the {what} of interface {name}"), &error),
            })
        };
        let index = ask(libc::SIOCGIFINDEX, "number")?;
        let mtu = ask(libc::SIOCGIFMTU, "MTU")?;
        let mac = ask(libc::SIOCGIFHWADDR, "Ethernet address")?;
        let flags = ask(libc::SIOCGIFFLAGS, "flags")?;
        let (rx_queues, tx_queues) = channels(&socket, name).unwrap_or((1, 1));
        // SAFETY: the kernel has filled the member of the union that each request is for; all are plain numbers.
        let (index, mtu, mac, flags) = unsafe {
            let (index, mtu) = (index.ifr_ifru.ifru_ifindex, mtu.ifr_ifru.ifru_mtu);
            (index, mtu, mac.ifr_ifru.ifru_hwaddr.sa_data, i32::from(flags.ifr_ifru.ifru_flags))
        };
        let driver = driver(&socket, name);
        // All of these were asked by name: they are of one interface where it is the same one in the end.
        let last = ask(libc::SIOCGIFINDEX, "number")?;
        // SAFETY: as above.
        if unsafe { last.ifr_ifru.ifru_ifindex } != index {
            return Err(XdpError::Changed { interface: name.to_owned() });
        }
        Ok(Interface {
            name: name.to_owned(),
            index: index.cast_unsigned(),
            mtu: mtu.cast_unsigned(),
            mac: std::array::from_fn(|byte| mac[byte].cast_unsigned()),
            rx_queues,
            tx_queues,
            driver,
            is_up: flags & libc::IFF_UP != 0,
            has_carrier: flags & libc::IFF_RUNNING != 0,
        })
    }

    /// The interface that the kernel has this number for, whatever it is called by now.
    pub fn with_index(index: u32) -> Result<Interface, XdpError> {
        let missing = || XdpError::NoInterface { interface: format!("number {index}") };
        for _ in 0..RENAMED_MAX {
            let mut name = [0u8; libc::IFNAMSIZ];
            // SAFETY: the kernel writes a name that ends in zero into so many bytes.
            let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
            if found.is_null() {
                return Err(missing());
            }
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            match Interface::find(&String::from_utf8_lossy(name)) {
                Ok(found) if found.index == index => return Ok(found),
                // Between the calls the name has become another one's, or nobody's.
                Ok(_) | Err(XdpError::NoInterface { .. } | XdpError::Changed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(XdpError::Changed { interface: format!("number {index}") })
    }

    /// Whether the interface with this number is there still, by whatever name.
    pub(super) fn is_there(&self) -> bool {
        !matches!(Interface::with_index(self.index), Err(XdpError::NoInterface { .. }))
    }

    /// Queues that work in both directions.
    pub fn queues(&self) -> u16 {
        self.rx_queues.min(self.tx_queues)
    }

    /// Fails when the MTU is above `max`, which is [`Binder::mtu_max`](super::Binder::mtu_max) for ports of a UMEM.
    pub fn check_mtu(&self, max: usize) -> Result<(), XdpError> {
        if self.mtu as usize > max {
            return Err(XdpError::Mtu { interface: self.name.clone(), mtu: self.mtu, max });
        }
        Ok(())
    }
}

/// Addresses that the node itself has on the interface `name`; none where the kernel does not tell.
pub fn node_addresses(name: &str) -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the pointer is where the call leaves the head of a list that it allocates.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the list is null-terminated and nobody changes it until it is freed; its pointers are null or valid.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the name is a string that ends in zero and belongs to the list.
        let entry_name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        if entry_name.to_bytes() == name.as_bytes() {
            // SAFETY: null, or a socket address of the family that it names.
            addresses.extend(unsafe { address_of(entry.ifa_addr) });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs and is not used any more.
    unsafe { libc::freeifaddrs(first) };
    addresses
}

/// The IP address in a socket address.
///
/// # Safety
/// The pointer is null, or a socket address as long as its family says.
unsafe fn address_of(socket_address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null or valid, as the caller promises.
    match i32::from(unsafe { socket_address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, so of this size; read without claiming its alignment.
            let v4 = unsafe { socket_address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so of this size; read without claiming its alignment.
            let v6 = unsafe { socket_address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// Receive and transmit queues by `ETHTOOL_GCHANNELS`; none where the driver does not tell.
fn channels(socket: &OwnedFd, name: &str) -> Option<(u16, u16)> {
    // struct ethtool_channels: cmd, max_{rx,tx,other,combined}, {rx,tx,other,combined}_count.
    let mut words = [0u32; 9];
    words[0] = ETHTOOL_GCHANNELS;
    // SAFETY: the array is the structure that the command fills: nine numbers of 32 bits.
    unsafe { ethtool(socket, name, words.as_mut_ptr().cast())? };
    let [.., rx, tx, _other, combined] = words;
    let queues = |alone: u32| u16::try_from(alone.saturating_add(combined)).unwrap_or(u16::MAX);
    // A driver that counts none of either does not count.
    Some((queues(rx), queues(tx))).filter(|counts| *counts != (0, 0))
}

/// The driver's name by `ETHTOOL_GDRVINFO`.
fn driver(socket: &OwnedFd, name: &str) -> Option<String> {
    // struct ethtool_drvinfo: cmd, driver[32], then 160 bytes that are not needed.
    let mut info = [0u8; 196];
    info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    // SAFETY: the array is as large as the structure that the command fills.
    unsafe { ethtool(socket, name, info.as_mut_ptr().cast())? };
    let driver = info[4..36].split(|byte| *byte == 0).next()?;
    (!driver.is_empty()).then(|| String::from_utf8_lossy(driver).into_owned())
}

/// One ethtool command; none where it is not supported.
///
/// # Safety
/// `data` points at the command's structure, whole and writable.
pub(super) unsafe fn ethtool(socket: &OwnedFd, name: &str, data: *mut libc::c_char) -> Option<()> {
    let mut request = named(name);
    request.ifr_ifru.ifru_data = data;
    // SAFETY: the request and, as the caller promises, the command's structure outlive the call.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    (answer == 0).then_some(())
}

/// One request that the kernel answers within the structure itself.
fn control(socket: &OwnedFd, name: &str, code: libc::c_ulong) -> std::io::Result<libc::ifreq> {
    let mut request = named(name);
    // SAFETY: the structure is the one that these requests read and fill, and it outlives the call.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, &raw mut request) };
    if answer == 0 { Ok(request) } else { Err(std::io::Error::last_os_error()) }
}

/// A request about an interface whose name `find` has checked.
fn named(name: &str) -> libc::ifreq {
    // SAFETY: all zeroes is a valid value of this structure of numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MTU_MAX, MTU_OF_ONE_FRAME_MAX};

    #[test]
    fn the_loopback_interface_is_found() {
        let loopback = Interface::find("lo").unwrap();
        assert_eq!((loopback.name.as_str(), loopback.index, loopback.mac), ("lo", 1, [0; 6]));
        assert_eq!(loopback.queues(), 1);
        assert!(loopback.mtu > 0);
    }

    #[test]
    fn the_nodes_addresses_on_an_interface_are_those_of_this_interface() {
        // Where loopback is up it has this address; nothing else has it.
        let addresses = node_addresses("lo");
        assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
        assert_eq!(node_addresses("nowhere0"), Vec::<IpAddr>::new());
    }

    #[test]
    fn an_interface_that_does_not_exist_is_named() {
        for name in ["nowhere0", "", "a-name-that-is-too-long", "a/b"] {
            let error = Interface::find(name).unwrap_err();
            assert!(matches!(&error, XdpError::NoInterface { interface } if interface == name), "{error}");
        }
    }

    #[test]
    fn an_mtu_that_no_frame_holds_is_refused_with_the_largest_that_works() {
        let mut interface = Interface::find("lo").unwrap();
        for max in [MTU_MAX, MTU_OF_ONE_FRAME_MAX] {
            interface.mtu = max as u32;
            interface.check_mtu(max).unwrap();
            interface.mtu += 1;
            let sentence = interface.check_mtu(max).unwrap_err().to_string();
            assert!(sentence.contains(&format!("ip link set lo mtu {max}")), "{sentence}");
        }
    }
}
