//! IP addresses of either family in one 128-bit number, as the packet path compares and stores them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of either family in 128 bits: IPv4 as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
pub(crate) type Address = u128;

const V4_PREFIX: u128 = 0xffff << 32;

/// Returns an IPv4 address, host order, in 128 bits.
#[inline]
pub(crate) const fn from_v4(address: u32) -> Address {
    V4_PREFIX | address as u128
}

/// Whether the address is IPv4.
#[inline]
pub(crate) fn is_v4(address: Address) -> bool {
    address >> 32 == V4_PREFIX >> 32
}

/// Packs an address.
pub(crate) fn pack(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => from_v4(address.into()),
        IpAddr::V6(address) => address.into(),
    }
}

/// Unpacks an address.
#[inline]
pub(crate) fn unpack(address: Address) -> IpAddr {
    if is_v4(address) {
        IpAddr::V4(Ipv4Addr::from(address as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from(address))
    }
}

/// Whether no single station has the address: multicast, broadcast, unspecified, loopback.
#[inline]
pub(crate) fn is_group(address: Address) -> bool {
    if is_v4(address) {
        let address = address as u32;
        // 224.0.0.0/3 (multicast, reserved, broadcast), 127.0.0.0/8, 0.0.0.0/8
        address >> 29 == 0b111 || matches!(address >> 24, 0 | 127)
    } else {
        address >> 120 == 0xff || address <= 1
    }
}

/// Whether an IPv6 address is link-local, `fe80::/10`.
#[inline]
pub(crate) fn is_link_local(address: Address) -> bool {
    address >> 118 == 0xfe80 >> 6
}
