//! Packets in the format pcapng (draft-ietf-opsawg-pcapng), with the verdict of each as its comment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgWriteError, PcapNgWriter};

use super::text::comment;
use crate::control::protocol::PacketRecord;
use crate::limits::PACKET_BYTES_MAX;
use crate::printable::cut;

/// Most characters of a comment. The length of an option has 16 bits, and a character up to four bytes.
const COMMENT_CHARS_MAX: usize = 16_000;

/// Output whose buffer can be flushed while the writer of blocks has it.
struct Output(RefCell<BufWriter<Box<dyn Write>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

/// File of packets, with one interface for each port of the switch.
pub(super) struct PacketFile {
    writer: PcapNgWriter<Output>,
    /// Numbers of the interfaces, by port.
    interfaces: BTreeMap<String, u32>,
}

impl PacketFile {
    /// Begins a file.
    pub(super) fn new(writer: Box<dyn Write>) -> io::Result<PacketFile> {
        let application =
            SectionHeaderOption::UserApplication(concat!("palisade ", env!("CARGO_PKG_VERSION")).into());
        let section = SectionHeaderBlock { options: vec![application], ..SectionHeaderBlock::default() };
        let output = Output(RefCell::new(BufWriter::new(writer)));
        let writer = PcapNgWriter::with_section_header(output, section).map_err(io_error)?;
        Ok(PacketFile { writer, interfaces: BTreeMap::new() })
    }

    /// Adds a packet.
    pub(super) fn write(&mut self, packet: &PacketRecord) -> io::Result<()> {
        let interface_id = self.interface(&packet.port)?;
        let comment = comment(packet);
        let comment = EnhancedPacketOption::Common(CommonOption::Comment(cut(&comment, COMMENT_CHARS_MAX)));
        self.block(&Block::EnhancedPacket(EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(packet.at_unix_ns),
            original_len: packet.frame_bytes.into(),
            data: packet.bytes.as_slice().into(),
            options: vec![comment],
        }))
    }

    /// Writes everything to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.get_ref().0.borrow_mut().flush()
    }

    /// Number of the interface of a port.
    fn interface(&mut self, port: &str) -> io::Result<u32> {
        if let Some(number) = self.interfaces.get(port) {
            return Ok(*number);
        }
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, PACKET_BYTES_MAX as u32);
        interface.options = vec![
            InterfaceDescriptionOption::IfName(port.into()),
            InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
        ];
        self.block(&Block::InterfaceDescription(interface))?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(port.to_owned(), number);
        Ok(number)
    }

    fn block(&mut self, block: &Block<'_>) -> io::Result<()> {
        self.writer.write_block(block).map(drop).map_err(io_error)
    }
}

fn io_error(error: PcapNgWriteError) -> io::Error {
    match error {
        PcapNgWriteError::Io(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use pcap_file::pcapng::PcapNgReader;

    use super::*;
    use crate::control::protocol::PacketVerdictName;
    use crate::dataplane::DropReason;
    use crate::tables::{Direction, PolicyKind, PolicyRef, RuleOrigin};

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_packet_that_many_policies_deny_leaves_the_file_readable() {
        let policy = |number: usize| PolicyRef {
            kind: PolicyKind::NetworkPolicy,
            namespace: "default".to_owned(),
            name: format!("{number:0>200}"),
        };
        let policies = (0..1000).map(policy).collect();
        let packet = PacketRecord {
            at_unix_ns: 1,
            port: "veth-a".to_owned(),
            verdict: PacketVerdictName::Dropped,
            egress_port: None,
            reason: Some(DropReason::PolicyIngress),
            stage: "classify".to_owned(),
            is_new_flow: true,
            frame_bytes: 60,
            flow: None,
            source_pod: None,
            destination_pod: None,
            decided_by: vec![RuleOrigin::DefaultDeny { direction: Direction::Ingress, policies }],
            bytes: vec![7; 60],
        };
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let mut file = PacketFile::new(Box::new(Shared(bytes.clone()))).unwrap();
        (0..3).for_each(|_| file.write(&packet).unwrap());
        file.flush().unwrap();
        let bytes = bytes.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(bytes.as_slice()).unwrap();
        let mut packets = 0;
        while let Some(block) = reader.next_block() {
            let (block, _) = block.unwrap();
            if let Block::EnhancedPacket(block) = block {
                assert_eq!(block.data.len(), 60);
                packets += 1;
            }
        }
        assert_eq!(packets, 3);
    }
}
