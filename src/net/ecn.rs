//! Explicit congestion notification through tunnels (RFC 6040).

/// Bits of the field in the IPv4 TOS byte and the IPv6 traffic class (RFC 3168).
pub const MASK: u8 = 3;
/// Not ECN-capable transport.
pub const NOT_ECT: u8 = 0;
/// ECN-capable transport, second codepoint.
pub const ECT_1: u8 = 1;
/// ECN-capable transport, first codepoint.
pub const ECT_0: u8 = 2;
/// Congestion experienced.
pub const CE: u8 = 3;

/// Field of a packet that leaves a tunnel, from those of its inner and outer header. `None` for a packet to be dropped: a router
/// has marked it, and its sender cannot be told (section 4.2).
pub fn decapsulate(inner: u8, outer: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => None,
        (ECT_0 | ECT_1, CE) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outgoing_fields_are_those_of_figure_4() {
        let row = |inner| [NOT_ECT, ECT_0, ECT_1, CE].map(|outer| decapsulate(inner, outer));
        assert_eq!(row(NOT_ECT), [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]);
        assert_eq!(row(ECT_0), [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]);
        assert_eq!(row(ECT_1), [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]);
        assert_eq!(row(CE), [Some(CE); 4]);
    }
}
