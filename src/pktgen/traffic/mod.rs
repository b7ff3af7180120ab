//! Description of generated traffic: protocol, addresses, sizes, flows.

pub mod stamp;

pub(crate) mod flows;
pub(crate) mod frame_size;
mod random;

use std::fmt;
use std::str::FromStr;

use crate::limits::ONE_FRAME_BYTES_MAX;
use crate::net::mac::Mac;
use crate::net::{ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};
use crate::pktgen::PktgenError;
use crate::pktgen::traffic::flows::{Distribution, FlowSpace, Tuples};
use crate::pktgen::traffic::frame_size::{FCS_BYTES, FrameSize};
use crate::pktgen::traffic::stamp::STAMP_BYTES;

/// Most flows at a time: generator and receiver keep one or two words for each.
pub const FLOWS_MAX: u32 = 1 << 24;

/// Protocol of the frames above IP. Frames belong to no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// UDP datagrams.
    Udp,
    /// TCP segments with these control bits ([`crate::net::tcp::Flags`]).
    Tcp(u8),
    /// Echo requests: ICMP, or `ICMPv6` for IPv6 addresses.
    IcmpEcho,
    /// SCTP packets with a DATA chunk.
    SctpData,
    /// SCTP packets with an INIT chunk.
    SctpInit,
}

/// Description of generated frames.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// Protocol.
    pub kind: Kind,
    /// Ethernet source.
    pub src_mac: Mac,
    /// Ethernet destination.
    pub dst_mac: Mac,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// Five-tuples of the flows.
    pub space: FlowSpace,
    /// Flows at a time.
    pub flows: u32,
    /// Distribution of frames over the flows.
    pub distribution: Distribution,
    /// New flows per second, each in place of the oldest one; at most one per frame.
    pub new_flows_per_s: f64,
    /// Frame sizes.
    pub size: FrameSize,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Bytes of an SCTP DATA chunk before its data, and of an INIT chunk (RFC 9260 sections 3.3.1 and 3.3.2).
pub(crate) const SCTP_DATA_BYTES: usize = 16;
pub(crate) const SCTP_INIT_BYTES: usize = 20;

impl Kind {
    /// Bytes of the headers above IP.
    pub(crate) fn header_bytes(self) -> usize {
        match self {
            Kind::Udp => udp::HEADER_BYTES,
            Kind::Tcp(_) => tcp::HEADER_BYTES,
            Kind::IcmpEcho => icmp::HEADER_BYTES,
            Kind::SctpData => sctp::HEADER_BYTES + SCTP_DATA_BYTES,
            // The stamp is inside a parameter of a type that receivers skip (RFC 9260 section 3.2.1).
            Kind::SctpInit => sctp::HEADER_BYTES + SCTP_INIT_BYTES + 4,
        }
    }
}

impl Traffic {
    /// Describes untagged frames of 64 bytes in one flow, from one Ethernet address to another.
    pub fn new(kind: Kind, src_mac: Mac, dst_mac: Mac, space: FlowSpace) -> Traffic {
        Traffic {
            kind,
            src_mac,
            dst_mac,
            vlan: None,
            space,
            flows: 1,
            distribution: Distribution::Sequence,
            new_flows_per_s: 0.0,
            size: FrameSize::Fixed(64),
            seed: 1,
        }
    }

    /// Bytes of all headers: the offset of the stamp.
    pub(crate) fn header_bytes(&self) -> usize {
        let ip = if self.is_ipv6() { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        ethernet::bytes_with(self.vlan.unwrap_or(0)) + ip + self.kind.header_bytes()
    }

    pub(crate) fn is_ipv6(&self) -> bool {
        self.space.src.addr().is_ipv6()
    }

    /// Returns the least frame size for these headers, bytes with the frame check sequence; with `stamped`,
    /// for the stamp as well.
    pub fn size_min(&self, stamped: bool) -> usize {
        let stamp = if stamped { STAMP_BYTES } else { 0 };
        (self.header_bytes() + stamp + FCS_BYTES).max(64)
    }

    /// Fails for frames that cannot be; with `stamped`, also for frames that cannot be measured.
    pub fn check(&self, stamped: bool) -> Result<(), PktgenError> {
        let wrong = |sentence: String| Err(PktgenError::Traffic(sentence));
        if self.space.src.addr().is_ipv6() != self.space.dst.addr().is_ipv6() {
            let (src, dst) = (self.space.src, self.space.dst);
            return wrong(format!("source {src} and destination {dst} are not of one IP version"));
        }
        let (flows, there) = (u64::from(self.flows), self.space.len());
        if self.flows == 0 || self.flows > FLOWS_MAX {
            return wrong(format!("{flows} flows are not possible: from 1 to {FLOWS_MAX} are"));
        }
        if flows > there {
            return wrong(format!(
                "{flows} flows are wanted, and addresses and ports make {there} different ones: \
                 widen --src-ports, --dst-ports, --src or --dst"
            ));
        }
        if self.vlan.is_some_and(|vlan| vlan == 0 || vlan > 4094) {
            return wrong("a VLAN is a number from 1 to 4094".to_owned());
        }
        if let Distribution::Zipf(exponent) = self.distribution
            && !(exponent > 0.0 && exponent.is_finite())
        {
            return wrong(format!(
                "the exponent of the Zipf distribution is a number above 0, not {exponent}"
            ));
        }
        self.check_size(stamped)
    }

    fn check_size(&self, stamped: bool) -> Result<(), PktgenError> {
        let FrameSize::Fixed(size) = self.size else { return Ok(()) };
        let (min, max) = (self.size_min(stamped), ONE_FRAME_BYTES_MAX + FCS_BYTES);
        if size < min && size >= self.size_min(false) {
            return Err(PktgenError::Traffic(format!(
                "frames of {size} bytes have no room for what a measuring receiver reads: --size {min} is the least for \
                 this protocol and IP version; or only count, with --receive count"
            )));
        }
        if size < min || size > max {
            return Err(PktgenError::Traffic(format!(
                "frames of {size} bytes are not possible: with this protocol and IP version --size is from {min} to {max}"
            )));
        }
        Ok(())
    }

    /// Returns the sizes, each raised to the least one.
    pub(crate) fn sizes(&self, stamped: bool) -> Vec<usize> {
        let least = self.size_min(stamped);
        self.size.sizes().into_iter().map(|size| size.max(least)).collect()
    }

    pub(crate) fn tuples(&self) -> Tuples {
        Tuples::new(&self.space)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Udp => "udp",
            Kind::Tcp(_) => "tcp",
            Kind::IcmpEcho => "icmp",
            Kind::SctpData => "sctp",
            Kind::SctpInit => "sctp-init",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "udp" => Kind::Udp,
            "tcp" => Kind::Tcp(tcp::Flags::ACK),
            "icmp" => Kind::IcmpEcho,
            "sctp" => Kind::SctpData,
            "sctp-init" => Kind::SctpInit,
            _ => return Err(format!("{text:?} is not one of udp, tcp, icmp, sctp, sctp-init")),
        })
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        match text.split_once(':').unwrap_or((text, "1")) {
            ("sequence", _) => Ok(Distribution::Sequence),
            ("uniform", _) => Ok(Distribution::Uniform),
            ("zipf", exponent) => match exponent.parse() {
                Ok(exponent) => Ok(Distribution::Zipf(exponent)),
                Err(_) => Err(format!("{exponent:?} is not the exponent of a Zipf distribution")),
            },
            _ => Err(format!("{text:?} is not one of sequence, uniform, zipf, zipf:EXPONENT")),
        }
    }
}
