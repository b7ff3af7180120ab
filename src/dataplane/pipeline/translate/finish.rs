//! Translations written into the frames that leave.

use super::icmp_quote::translate_quote;
use super::tuple::{End, Ends, replace_end, replace_ends};
use crate::dataplane::DropReason;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::parse::parse_quoted;
use crate::dataplane::pipeline::verify_checksum::{Checksum, verify};
use crate::dataplane::service::{Translation, TranslationKind};
use crate::net::address::Address;
use crate::net::flow::Protocol;
use crate::net::{icmp, sctp};
use crate::xdp::{Frame, Umem};

/// Writes the translations of the batch into the frames of packets that leave.
#[inline]
pub(in crate::dataplane::pipeline) fn finish_translations(batch: &mut Batch, context: &Context<'_>) {
    if !batch.translated.is_empty() {
        finish_batch(batch, context);
    }
}

#[inline(never)]
fn finish_batch(batch: &mut Batch, context: &Context<'_>) {
    for n in 0..batch.translated.len() {
        let i = usize::from(batch.translated[n]);
        if let Some(next) = batch.translated.get(n + 2) {
            context.umem.prefetch(&batch.frames[usize::from(*next)]);
        }
        if batch.leaves(i) && !finish_fast(batch, i, context) {
            finish_packet(batch, i, context, batch.translations[i]);
        }
    }
}

/// Writes the translation of a packet of a TCP or UDP flow. Returns false, and does nothing, for any other packet.
#[inline(always)]
fn finish_fast(batch: &mut Batch, i: usize, context: &Context<'_>) -> bool {
    let (packet, translation) = (&batch.packets[i], &batch.translations[i]);
    let external_port = batch.external_ports[i];
    if batch.client_ports[i] != 0 {
        return false;
    }
    let (end, to) = match translation.kind {
        TranslationKind::Forward if external_port == 0 => (End::Destination, (packet.dst, packet.dst_port)),
        TranslationKind::Reply if external_port == 0 => {
            (End::Source, (translation.address, translation.port))
        }
        TranslationKind::Masquerade => match external_address(batch, i, context) {
            Some(address) => (End::Source, (address, external_port)),
            None => return false,
        },
        TranslationKind::MasqueradeReply => (End::Destination, (packet.dst, packet.dst_port)),
        _ => return false,
    };
    packet.kind == Kind::Flow && replace_end(context.umem.data_mut(&mut batch.frames[i]), packet, end, to)
}

/// Address of the node that packet `i` of a masqueraded flow leaves with.
#[inline]
fn external_address(batch: &Batch, i: usize, context: &Context<'_>) -> Option<Address> {
    context.snapshot.masquerade()?.address(batch.packets[i].is_v4)
}

/// Gives packets that do not leave their virtual destinations and own source ports back, for the answers to their senders. Ends the translations of
/// the batch.
#[inline]
pub(in crate::dataplane::pipeline) fn restore_destinations(batch: &mut Batch, context: &Context<'_>) {
    while let Some(i) = batch.translated.pop() {
        let i = usize::from(i);
        let external = external_address(batch, i, context).filter(|_| batch.external_ports[i] != 0);
        let (packet, translation) = (&mut batch.packets[i], batch.translations[i]);
        let is_dropped = matches!(batch.dispositions[i], Disposition::Dropped(_));
        let is_reply = matches!(translation.kind, TranslationKind::Reply | TranslationKind::MasqueradeReply);
        if is_dropped
            && is_reply
            && let Some(external) = external
        {
            (packet.dst, packet.dst_port) = (external, batch.external_ports[i]);
        }
        if is_dropped && translation.kind == TranslationKind::Forward {
            (packet.dst, packet.dst_port) = (translation.address, translation.port);
            if batch.client_ports[i] != 0 {
                packet.src_port = batch.client_ports[i];
            }
        }
    }
}

#[inline(never)]
fn finish_packet(batch: &mut Batch, i: usize, context: &Context<'_>, translation: Translation) {
    let packet = &batch.packets[i];
    let has_ports = packet.kind == Kind::Flow;
    let port = |port: u16| has_ports.then_some(port);
    let virtual_end = Some((translation.address, port(translation.port)));
    let destination = Some((packet.dst, port(packet.dst_port)));
    let (client_port, external_port) = (batch.client_ports[i], batch.external_ports[i]);
    // Of packets that leave for the outside.
    let external = (external_port != 0).then(|| external_address(batch, i, context)).flatten();
    let external = external.map(|address| (address, port(external_port)));
    let ends = match translation.kind {
        TranslationKind::Forward => {
            let own = (client_port != 0).then(|| (packet.src, port(packet.src_port)));
            Ends { src: external.or(own), dst: destination }
        }
        TranslationKind::Reply => {
            let port_of = |own: u16| port(if client_port == 0 { own } else { client_port });
            let changes = client_port != 0 || external_port != 0;
            Ends { src: virtual_end, dst: changes.then(|| (packet.dst, port_of(packet.dst_port))) }
        }
        TranslationKind::Masquerade => Ends { src: external, dst: None },
        TranslationKind::MasqueradeReply => Ends { src: None, dst: destination },
        TranslationKind::Hairpin => Ends { src: virtual_end, dst: destination },
        TranslationKind::ErrorToClient
        | TranslationKind::ErrorToBackend
        | TranslationKind::ErrorToOutside
        | TranslationKind::ErrorToItself => {
            return finish_error(batch, i, context, translation);
        }
    };
    if external_port != 0 && external.is_none() {
        return batch.drop(i, DropReason::Masquerade);
    }
    let (packet, frame) = (&batch.packets[i], &mut batch.frames[i]);
    if packet.protocol == Protocol::SCTP && has_ports {
        if !replace_sctp(context.umem, frame, packet, ends) {
            batch.drop(i, DropReason::BadChecksum);
        }
        return;
    }
    replace_ends(context.umem.data_mut(frame), packet, ends);
}

/// Replaces ends of an SCTP packet, whose checksum covers the ports. Returns false for one whose checksum is wrong, or covers
/// other fragments too.
#[cold]
fn replace_sctp(umem: &Umem, frame: &mut Frame, packet: &Packet, ends: Ends) -> bool {
    let l4 = usize::from(packet.l4);
    let before: Option<[u8; 4]> = umem.data(frame).get(l4..).and_then(|rest| rest.first_chunk().copied());
    // A checksum that is wrong must stay wrong.
    let checksum = verify(umem, frame, packet);
    replace_ends(umem.data_mut(frame), packet, ends);
    let after = umem.data(frame).get(l4..).and_then(|rest| rest.first_chunk().copied());
    if before == after || packet.unfinished {
        return true;
    }
    if checksum != Checksum::Right {
        return false;
    }
    let field = l4 + sctp::CHECKSUM_OFFSET..l4 + sctp::CHECKSUM_OFFSET + 4;
    let end = usize::from(packet.end);
    umem.data_mut(frame)[field.clone()].fill(0);
    let head = umem.data(frame);
    let head_end = end.min(head.len());
    let mut left = end - head_end;
    let rest = umem.rest(frame).map_while(|part| {
        let part = &part[..part.len().min(left)];
        left -= part.len();
        (!part.is_empty()).then_some(part)
    });
    let checksum = sctp::checksum(std::iter::once(&head[l4..head_end]).chain(rest));
    umem.data_mut(frame)[field].copy_from_slice(&checksum);
    true
}

/// Writes an ICMP error as its receiver expects it: about the packet that it has sent.
#[cold]
#[inline(never)]
fn finish_error(batch: &mut Batch, i: usize, context: &Context<'_>, translation: Translation) {
    let packet = &batch.packets[i];
    let client_port = Some(batch.client_ports[i]).filter(|port| *port != 0);
    let external_port = Some(batch.external_ports[i]).filter(|port| *port != 0);
    let virtual_end = Some((translation.address, Some(translation.port)));
    let (quoted, outer) = match translation.kind {
        TranslationKind::ErrorToClient => {
            // The receiver of the error is the client, which has sent the quoted packet.
            let own_port = external_port.map(|_| packet.dst_port);
            let client = client_port.or(own_port).map(|port| (packet.dst, Some(port)));
            // The backend itself may report; a router has an address of its own.
            let outer = if translation.is_bound { Some((translation.address, None)) } else { None };
            let to = external_port.map(|_| (packet.dst, None));
            (Ends { src: client, dst: virtual_end }, Ends { src: outer, dst: to })
        }
        TranslationKind::ErrorToItself => {
            let [own, service] = [packet.dst, translation.address].map(|address| Some((address, None)));
            let sender = Some((packet.dst, Some(packet.src_port)));
            (Ends { src: sender, dst: virtual_end }, Ends { src: service, dst: own })
        }
        _ => {
            let (external, Some(port)) = (external_address(batch, i, context), external_port) else {
                return finish_error_to_backend(batch, i, context.umem, client_port);
            };
            let Some(external) = external else { return batch.drop(i, DropReason::Masquerade) };
            let is_to_backend = translation.kind == TranslationKind::ErrorToBackend;
            let backend = is_to_backend.then_some((packet.dst, Some(packet.dst_port)));
            let to = is_to_backend.then_some((packet.dst, None));
            let outer = Ends { src: Some((external, None)), dst: to };
            (Ends { src: backend, dst: Some((external, Some(port))) }, outer)
        }
    };
    translate_quote(context.umem.data_mut(&mut batch.frames[i]), packet, quoted, outer);
}

/// Writes an ICMP error about a reply as the backend expects it.
fn finish_error_to_backend(batch: &mut Batch, i: usize, umem: &Umem, client_port: Option<u16>) {
    let packet = &batch.packets[i];
    let backend = (packet.dst, Some(packet.dst_port));
    let client = client_port.and_then(|_| {
        let mut quoted = Packet::default();
        let message = packet.transport(umem.data(&batch.frames[i]));
        let is_quote = parse_quoted(message.get(icmp::HEADER_BYTES..)?, &mut quoted);
        is_quote.then_some((quoted.dst, Some(packet.src_port)))
    });
    let (quoted, outer) =
        (Ends { src: Some(backend), dst: client }, Ends { src: None, dst: Some((packet.dst, None)) });
    translate_quote(umem.data_mut(&mut batch.frames[i]), packet, quoted, outer);
}
