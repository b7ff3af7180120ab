//! Bounds of the switch in one place, with assertions on their relations.
//!
//! The behaviour at each bound is defined, counted and visible. The item that a bound belongs to describes
//! it.

/// Most frames of one batch of a worker.
pub const BATCH_FRAMES_MAX: usize = 256;
/// Most frames of one port in one batch, so that a busy port leaves capacity to the others.
pub const PORT_BURST_FRAMES_MAX: usize = 64;
/// Most ports of a switch.
pub const PORTS_MAX: usize = 1024;
/// Most workers of a switch.
pub const WORKERS_MAX: usize = 64;
/// Bytes of one UMEM frame (one chunk, in the words of `linux/if_xdp.h`).
pub const FRAME_BYTES: usize = 4096;
/// Bytes of headroom before each packet: `XDP_PACKET_HEADROOM` (256) of `linux/bpf.h`.
pub const XDP_HEADROOM_BYTES: usize = 256;
/// Largest Ethernet frame, because packet offsets have 16 bits.
pub const PACKET_BYTES_MAX: usize = u16::MAX as usize;
/// Most UMEM frames of one packet: the head and fragments of a socket buffer (`MAX_SKB_FRAGS` of
/// `linux/skbuff.h`, 17 unless the kernel is configured otherwise).
pub const MULTI_BUFFER_FRAMES_MAX: usize = 18;
/// Most segments of one packet from a tap device: 64 KB in the segments that RFC 9293 section 3.7.1 makes the least
/// default (536 bytes) are 123. The switch tells the network stack of a device that it makes.
pub const PORT_SEGMENTS_MAX: usize = 128;
/// Largest offset of the transport header of a packet with segments, or with a checksum that is left to its
/// receiver.
pub const TRANSPORT_OFFSET_MAX: usize = 250;
/// Largest MTU of a port: the largest frame less an Ethernet header with one 802.1Q tag.
pub const MTU_MAX: usize = PACKET_BYTES_MAX - 18;
/// Largest Ethernet frame in one UMEM frame: the frame less the headroom, and less the tailroom of the
/// kernel's veth driver (`struct skb_shared_info`, 320 bytes).
pub const ONE_FRAME_BYTES_MAX: usize = FRAME_BYTES - XDP_HEADROOM_BYTES - 320;
/// Largest MTU of a port whose packets lie in one UMEM frame each: less the same headers.
pub const MTU_OF_ONE_FRAME_MAX: usize = ONE_FRAME_BYTES_MAX - 18;
/// Slots of each ring (rx, tx, fill, completion) of a port's queue.
pub const RING_SLOTS: usize = 2048;
/// Frames that wait for hand-off to one port with fewer queues than workers. The workers without a queue
/// share them, each with at least the minimum below. Frames beyond are dropped (`tx-full`).
pub const HANDOFF_BUFFERS_MAX: usize = 512;
/// See [`HANDOFF_BUFFERS_MAX`].
pub const HANDOFF_BUFFERS_MIN: usize = 128;
/// Most addresses of one pod.
pub const POD_ADDRESSES_MAX: usize = 8;
/// Most prefixes of one address family that an uplink takes from the kernel: those of all pods, the
/// configured ones, and those of pods of an earlier run that have not come back. The latter take at most half
/// of them.
pub const UPLINK_PREFIXES_MAX: usize = 1 << 15;
/// Most configured prefixes of the node's pods.
pub const POD_PREFIXES_MAX: usize = 64;
/// Neighbours on uplinks whose Ethernet addresses workers can look up: more than the Linux default
/// (`net.ipv4.neigh.default.gc_thresh3`, 1,024 for each family).
pub const NEIGHBORS_MAX: usize = 1 << 13;
/// Neighbours that wait for a request to the kernel to resolve them.
pub const SOLICITS_WAITING_MAX: usize = 256;
/// Most rules (origins of decisions) in one set of tables.
pub const RULES_MAX: usize = 1 << 24;
/// Ended flows that one worker keeps until no other worker can refer to their slots. Further expired flows
/// stay in the table until the next sweep.
pub const RETIRED_FLOWS_MAX: usize = 8192;
/// Time after the start in which pods of the process before may be attached again, before their flows end. No
/// traffic passes for them meanwhile.
pub const AWAITED_PODS_MS: u32 = 120_000;
/// Most bytes of the file that records attached pods. [`PORTS_MAX`] pods take a tenth.
pub const ENDPOINTS_BYTES_MAX: u64 = 16 << 20;
/// ICMP errors that one worker sends to each port in a second (RFC 1812 section 4.3.2.8: "A router SHOULD
/// also be able to limit the rate at which it sends other sorts of ICMP error messages").
pub const PORT_ICMP_ERRORS_PER_SECOND: u32 = 100;
/// ICMP errors beyond these that one worker sends in a second to all ports together.
pub const ICMP_ERRORS_PER_SECOND_MAX: u32 = 1000;
/// Fragmented datagrams that one worker tracks, in sets of [`FRAGMENT_WAYS`]. The oldest of a set is evicted.
pub const DATAGRAMS_MAX: usize = 512;
/// Datagrams in one set. One port takes at most half of them.
pub const FRAGMENT_WAYS: usize = 8;
/// Fragments of one worker that wait for the first fragment of their datagram, and at most a sixteenth of its
/// frames. One port takes at most half of them. Fragments beyond are dropped.
pub const FRAGMENTS_WAITING_MAX: usize = 128;
/// Time in which all fragments of a datagram must arrive, as in Linux (`net.ipv4.ipfrag_time`, 30 s).
pub const FRAGMENT_TIMEOUT_MS: u32 = 30_000;
/// Verdicts on first fragments that one worker shares with the others at a time.
pub const FIRST_VERDICTS_SHARED_MAX: usize = 1024;
/// Commands of the control side that wait for one worker.
pub const COMMANDS_MAX: usize = 64;
/// Most connections to the control socket, and at most a quarter of the process's file descriptors. At the
/// limit a new connection evicts the one that has been idle for the longest time.
pub const CONTROL_CONNECTIONS_MAX: usize = 256;
/// Most bytes of a request's body on the control socket. Tables of a hundred thousand rules take some tens of
/// megabytes.
pub const CONTROL_BODY_BYTES_MAX: usize = 256 << 20;
/// Most bytes of one file, or of standard input, with policy objects.
pub const SOURCE_BYTES_MAX: usize = 512 << 20;
/// Most files and directories in one directory of manifests, counted once for each path by which links reach
/// them.
pub const SOURCE_FILES_MAX: usize = 1 << 17;
/// Errors of a rejected reload that the status lists. It counts the others.
pub const REJECTED_ERRORS_MAX: usize = 20;
/// Most bytes of each of these errors.
pub const REJECTED_ERROR_BYTES_MAX: usize = 1000;
/// Nesting depth of a YAML or JSON document.
pub const DOCUMENT_DEPTH_MAX: usize = 100;
/// Nodes that the YAML anchors and aliases of one file may expand to, so that a short file cannot expand to a
/// huge one.
pub const ALIAS_NODES_MAX: usize = 500_000;
/// Errors and warnings kept for one source. The others are counted.
pub const DIAGNOSTICS_MAX: usize = 1000;
/// Most characters of a message, and of a field path or a name in messages.
pub const MESSAGE_CHARS_MAX: usize = 600;
/// Most prefixes in one set of tables.
pub const PREFIXES_MAX: usize = 1 << 20;
/// Most classes of addresses in one set of tables.
pub const CLASSES_MAX: usize = 1 << 20;
/// Most rows in one set of tables.
pub const ROWS_MAX: usize = 1 << 22;
/// Most rows that the ACL tables of one set give to classes. At worst each takes 51 bytes of the GiB that
/// they may have.
pub const ACL_ENTRIES_MAX: usize = 1 << 23;
/// Most ACL tables in one set of tables.
pub const ACLS_MAX: usize = 1 << 16;

const _: () = assert!(PACKET_BYTES_MAX <= MULTI_BUFFER_FRAMES_MAX * (FRAME_BYTES - XDP_HEADROOM_BYTES));
const _: () = assert!(MULTI_BUFFER_FRAMES_MAX <= BATCH_FRAMES_MAX, "a packet goes to a ring at once");
const _: () = assert!(PORT_BURST_FRAMES_MAX <= BATCH_FRAMES_MAX);
const _: () = assert!(MULTI_BUFFER_FRAMES_MAX <= PORT_BURST_FRAMES_MAX, "a packet is taken over at once");
const _: () = assert!(RING_SLOTS.is_power_of_two() && RING_SLOTS >= 2 * BATCH_FRAMES_MAX);
const _: () =
    assert!(HANDOFF_BUFFERS_MIN >= PORT_BURST_FRAMES_MAX && HANDOFF_BUFFERS_MAX >= HANDOFF_BUFFERS_MIN);
const _: () = assert!(HANDOFF_BUFFERS_MIN >= PORT_SEGMENTS_MAX, "all segments of a packet are handed off");
const _: () = assert!(FRAGMENTS_WAITING_MAX <= BATCH_FRAMES_MAX, "a batch takes all that waits");
const _: () =
    assert!((DATAGRAMS_MAX / FRAGMENT_WAYS).is_power_of_two() && FIRST_VERDICTS_SHARED_MAX.is_power_of_two());
const _: () = assert!(PORTS_MAX * POD_ADDRESSES_MAX + POD_PREFIXES_MAX <= UPLINK_PREFIXES_MAX / 2);
const _: () = assert!(NEIGHBORS_MAX.is_power_of_two());
const _: () = assert!(PORTS_MAX <= u16::MAX as usize);
const _: () = assert!(WORKERS_MAX <= u16::MAX as usize);
const _: () = assert!(RULES_MAX <= 1 << 31, "a decision keeps its verdict in the top bit of a rule id");
