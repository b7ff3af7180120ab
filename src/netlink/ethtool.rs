//! Queue counts of an interface over generic netlink: family `ethtool`
//! (Documentation/networking/ethtool-netlink.rst).

use std::fmt::Debug;
use std::io;
use std::sync::OnceLock;

use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use rtnetlink::packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NlasIterator, ParseableParametrized,
};
use rtnetlink::sys::protocols::NETLINK_GENERIC;
use rustix::io::Errno;

use super::socket::RequestSocket;

/// `ETHTOOL_GENL_NAME` and `ETHTOOL_GENL_VERSION` of `linux/ethtool_netlink.h`.
const FAMILY: &str = "ethtool";
const VERSION: u8 = 1;
/// `ETHTOOL_MSG_CHANNELS_GET`.
const CHANNELS_GET: u8 = 17;
/// `ETHTOOL_A_HEADER_DEV_INDEX`.
const HEADER_DEV_INDEX: u16 = 1;
/// `ETHTOOL_A_CHANNELS_HEADER`, `_RX_COUNT`, `_TX_COUNT` and `_COMBINED_COUNT`.
const CHANNELS_HEADER: u16 = 1;
const CHANNELS_RX_COUNT: u16 = 6;
const CHANNELS_TX_COUNT: u16 = 7;
const CHANNELS_COMBINED_COUNT: u16 = 9;

/// Queues of an interface, by their use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Channels {
    rx: u32,
    tx: u32,
    combined: u32,
}

/// A message about channels: a request with an interface index, or the reply.
#[derive(Debug)]
enum ChannelsMessage {
    Get { index: u32 },
    Reply(Channels),
}

/// Counts the receive and transmit queues in use on the interface with this index; `None` where its driver
/// does not count.
///
/// # Errors
/// `ENOENT` on a kernel without `CONFIG_ETHTOOL_NETLINK`; any other error number of the kernel.
pub(super) fn queue_counts(index: u32) -> io::Result<Option<(u16, u16)>> {
    let socket = RequestSocket::open(NETLINK_GENERIC)?;
    let mut request = GenlMessage::from_payload(ChannelsMessage::Get { index });
    request.set_resolved_family_id(family_id(&socket)?);
    let replies = match socket.request(request, 0) {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => return Ok(None),
        replies => replies?,
    };
    Ok(replies.into_iter().find_map(|reply| match reply.payload {
        ChannelsMessage::Reply(channels) => channels.counts(),
        ChannelsMessage::Get { .. } => None,
    }))
}

/// Returns the number that the kernel has given the family since it was booted.
fn family_id(socket: &RequestSocket) -> io::Result<u16> {
    static ID: OnceLock<u16> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(*id);
    }
    let nlas = vec![GenlCtrlAttrs::FamilyName(FAMILY.to_owned())];
    let request = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
    let replies: Vec<GenlMessage<GenlCtrl>> = socket.request(request, 0)?;
    let id = replies.iter().flat_map(|reply| &reply.payload.nlas).find_map(|attribute| match attribute {
        GenlCtrlAttrs::FamilyId(id) => Some(*id),
        _ => None,
    });
    id.map(|id| *ID.get_or_init(|| id)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Channels {
    /// Receive and transmit queues; `None` where a driver reports neither.
    fn counts(self) -> Option<(u16, u16)> {
        let queues = |alone: u32| u16::try_from(alone.saturating_add(self.combined)).unwrap_or(u16::MAX);
        Some((queues(self.rx), queues(self.tx))).filter(|counts| *counts != (0, 0))
    }
}

impl GenlFamily for ChannelsMessage {
    fn family_name() -> &'static str {
        FAMILY
    }

    fn command(&self) -> u8 {
        CHANNELS_GET
    }

    fn version(&self) -> u8 {
        VERSION
    }
}

impl ChannelsMessage {
    fn attributes(&self) -> Vec<DefaultNla> {
        let ChannelsMessage::Get { index } = self else { return Vec::new() };
        let index = DefaultNla::new(HEADER_DEV_INDEX, index.to_ne_bytes().to_vec());
        let mut header = vec![0; index.buffer_len()];
        index.emit(&mut header);
        vec![DefaultNla::new(CHANNELS_HEADER | NLA_F_NESTED, header)]
    }
}

impl Emitable for ChannelsMessage {
    fn buffer_len(&self) -> usize {
        self.attributes().as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes().as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for ChannelsMessage {
    fn parse_with_param(attributes: &[u8], _: GenlHeader) -> Result<ChannelsMessage, DecodeError> {
        let mut channels = Channels::default();
        for attribute in NlasIterator::new(attributes) {
            let attribute = attribute?;
            let count = match attribute.kind() {
                CHANNELS_RX_COUNT => &mut channels.rx,
                CHANNELS_TX_COUNT => &mut channels.tx,
                CHANNELS_COMBINED_COUNT => &mut channels.combined,
                _ => continue,
            };
            let bytes = attribute.value().try_into().map_err(|_| DecodeError::from("a count is no u32"))?;
            *count = u32::from_ne_bytes(bytes);
        }
        Ok(ChannelsMessage::Reply(channels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_interface_by_its_index() {
        let request = ChannelsMessage::Get { index: 7 };
        let mut bytes = vec![0; request.buffer_len()];
        request.emit(&mut bytes);
        let [nested, index] = [12u16, 8].map(u16::to_ne_bytes);
        let expected =
            [&nested[..], &0x8001u16.to_ne_bytes(), &index, &1u16.to_ne_bytes(), &7u32.to_ne_bytes()];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn a_reply_counts_combined_queues_in_both_directions() {
        let attributes = [(CHANNELS_RX_COUNT, 1u32), (5, 9), (CHANNELS_COMBINED_COUNT, 3)]
            .map(|(kind, count)| DefaultNla::new(kind, count.to_ne_bytes().to_vec()));
        let mut bytes = vec![0; attributes.as_slice().buffer_len()];
        attributes.as_slice().emit(&mut bytes);
        let header = GenlHeader { cmd: CHANNELS_GET, version: VERSION };
        let ChannelsMessage::Reply(channels) = ChannelsMessage::parse_with_param(&bytes, header).unwrap()
        else {
            panic!("the message is a reply");
        };
        assert_eq!(channels.counts(), Some((4, 3)));
        assert_eq!(Channels::default().counts(), None);
    }

    #[test]
    fn loopback_counts_no_queues_and_a_missing_interface_is_an_error() {
        assert_eq!(queue_counts(1).unwrap(), None);
        let error = queue_counts(u32::MAX >> 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NODEV.raw_os_error()));
    }
}
