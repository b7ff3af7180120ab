//! Source ports of a flow whose client's own port has another flow to the same backend.
//!
//! A client may use one port towards several front ends of one backend. The backend would see one flow, so that all but the
//! first get another source port, as in Linux' NAT (`nf_nat_l4proto_unique_tuple`): one of a fixed sequence that the client's
//! port begins. A binding stores its place in the sequence, in three bits.

/// Number of ports of a sequence, the client's own included.
const CHOICES: u8 = 8;

/// Place of a source port in the sequence that a client's port begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SourceChoice(u8);

impl SourceChoice {
    /// The client's own port.
    pub(crate) const OWN: SourceChoice = SourceChoice(0);

    /// The choice with this number, of which three bits count.
    pub(super) const fn from_bits(bits: u64) -> SourceChoice {
        SourceChoice((bits % CHOICES as u64) as u8)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// All choices but the client's own port.
    pub(crate) fn others() -> impl Iterator<Item = SourceChoice> {
        (1..CHOICES).map(SourceChoice)
    }

    /// The choice that gives a client's port this source port.
    pub(crate) fn of(client_port: u16, source_port: u16) -> Option<SourceChoice> {
        (0..CHOICES).map(SourceChoice).find(|choice| choice.port_of(client_port) == source_port)
    }

    /// Source port in the place of a client's. It stays in the range of the client's port: a server may trust ports below
    /// 512 or 1024. Port 0 has no other one.
    pub(crate) fn port_of(self, client_port: u16) -> u16 {
        let (first, last) = match client_port {
            0 => return 0,
            1..512 => (1, 511),
            512..1024 => (512, 1023),
            _ => (1024, u16::MAX),
        };
        let ports = u32::from(last - first) + 1;
        let step = ports / u32::from(CHOICES);
        first + ((u32::from(client_port - first) + u32::from(self.0) * step) % ports) as u16
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_port_has_eight_source_ports_of_its_own_range() {
        let range = |port: u16| [512, 1024].into_iter().filter(|first| port >= *first).count();
        for client_port in 1..=u16::MAX {
            let ports = (0..CHOICES).map(|n| SourceChoice(n).port_of(client_port));
            let ports: BTreeSet<u16> = ports.filter(|port| range(*port) == range(client_port)).collect();
            assert_eq!((ports.len(), ports.contains(&client_port), ports.contains(&0)), (8, true, false));
        }
        assert_eq!(SourceChoice(3).port_of(0), 0);
    }

    #[test]
    fn a_source_port_names_its_choice() {
        for choice in SourceChoice::others() {
            assert_eq!(SourceChoice::of(40_000, choice.port_of(40_000)), Some(choice));
            assert_eq!(SourceChoice::from_bits(choice.bits()), choice);
        }
        assert_eq!(SourceChoice::of(40_000, 40_001), None);
    }
}
