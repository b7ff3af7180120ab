//! Every bound of the switch, in one place, and what holds between them.
//!
//! At a bound the behaviour is defined, counted and visible: see the item that a bound belongs to.

/// Most frames that a worker takes through the stages at once.
pub const BATCH_FRAMES_MAX: usize = 256;
/// Most frames taken from one port in one batch, so that a busy port leaves room for the others.
pub const PORT_BURST_FRAMES_MAX: usize = 64;
/// Most ports of a switch.
pub const PORTS_MAX: usize = 1024;
/// Most workers of a switch.
pub const WORKERS_MAX: usize = 64;
/// Bytes of one UMEM frame (one chunk, in the words of `linux/if_xdp.h`).
pub const FRAME_BYTES: usize = 4096;
/// Bytes that the kernel keeps free before the packet: `XDP_PACKET_HEADROOM` of `linux/bpf.h`.
pub const XDP_HEADROOM_BYTES: usize = 256;
/// Largest Ethernet frame: positions in a packet are 16 bits.
pub const PACKET_BYTES_MAX: usize = u16::MAX as usize;
/// Most UMEM frames of one packet: a socket buffer's head and its fragments (`MAX_SKB_FRAGS` of `linux/skbuff.h`, 17
/// unless the kernel was configured otherwise).
pub const MULTI_BUFFER_FRAMES_MAX: usize = 18;
/// Largest MTU of a port: the largest frame less an Ethernet header with one 802.1Q tag.
pub const MTU_MAX: usize = PACKET_BYTES_MAX - 18;
/// Largest Ethernet frame in one UMEM frame: what is left of that, less what the kernel's driver of veth needs behind the
/// packet (`struct skb_shared_info`, 320 bytes).
pub const ONE_FRAME_BYTES_MAX: usize = FRAME_BYTES - XDP_HEADROOM_BYTES - 320;
/// Largest MTU of a port where each packet must lie in one UMEM frame: less the same headers.
pub const MTU_OF_ONE_FRAME_MAX: usize = ONE_FRAME_BYTES_MAX - 18;
/// Slots of each ring (rx, tx, fill, completion) of a port's queue.
pub const RING_SLOTS: usize = 2048;
/// Frames that wait to be handed over to one port with fewer queues than workers: shared out among the workers that have none,
/// and at least so many for each. What finds no place is dropped (`tx-full`).
pub const HANDOFF_BUFFERS_MAX: usize = 512;
/// See [`HANDOFF_BUFFERS_MAX`].
pub const HANDOFF_BUFFERS_MIN: usize = 64;
/// Addresses of one pod.
pub const POD_ADDRESSES_MAX: usize = 8;
/// Prefixes of one address family that an uplink takes from the kernel: those of all pods, the configured ones, and
/// addresses of an earlier run whose pods have not come back, which take half of the places at most.
pub const UPLINK_PREFIXES_MAX: usize = 1 << 15;
/// Prefixes that are configured as the node's pods' own.
pub const POD_PREFIXES_MAX: usize = 64;
/// Neighbours on uplinks whose Ethernet addresses workers can look up: more than Linux keeps by default
/// (`net.ipv4.neigh.default.gc_thresh3`, 1,024 for each family).
pub const NEIGHBORS_MAX: usize = 1 << 13;
/// Neighbours that workers want resolved, waiting for the kernel to be asked.
pub const NEIGHBOR_QUESTIONS_MAX: usize = 256;
/// Rules (origins of decisions) in one set of tables.
pub const RULES_MAX: usize = 1 << 24;
/// Ended flows that one worker keeps until no other worker can hold their slots. When there are more, the flows that
/// should end stay in the table for the next sweep.
pub const RETIRED_FLOWS_MAX: usize = 8192;
/// Time in which pods of the process before may be attached again, from the start on, before their flows end. Nothing passes for them
/// meanwhile.
pub const AWAITED_PODS_MS: u32 = 120_000;
/// Bytes of the file that says which pods there were, at most: [`PORTS_MAX`] pods take a tenth.
pub const ENDPOINTS_BYTES_MAX: u64 = 16 << 20;
/// ICMP errors that one worker sends to each port in a second, whatever the others provoke (RFC 1812 section 4.3.2.8).
pub const PORT_ANSWERS_PER_SECOND: u32 = 100;
/// ICMP errors beyond these that one worker sends in a second to all ports together.
pub const ANSWERS_PER_SECOND_MAX: u32 = 1000;
/// Fragmented datagrams that one worker knows at once, in sets of [`FRAGMENT_WAYS`]. The oldest of a set makes place.
pub const DATAGRAMS_MAX: usize = 512;
/// Datagrams in one set; one port's datagrams take half of them at most.
pub const FRAGMENT_WAYS: usize = 8;
/// Fragments of one worker that wait for the first of their datagram, and at most a sixteenth of its frames; one port's take
/// half of the places at most. What finds none is dropped.
pub const FRAGMENTS_WAITING_MAX: usize = 128;
/// Time in which a datagram's fragments must have come, as in Linux (`net.ipv4.ipfrag_time`).
pub const FRAGMENT_TIMEOUT_MS: u32 = 30_000;
/// First fragments whose verdict one worker can tell the others at a time.
pub const FIRSTS_SHARED_MAX: usize = 1024;
/// Requests of the control side that wait for one worker.
pub const COMMANDS_MAX: usize = 64;
/// Connections to the control socket, and at most a quarter of the descriptors that the process may have. Where there are so many,
/// a new one closes the one that has been idle for the longest time.
pub const CONTROL_CONNECTIONS_MAX: usize = 256;
/// Bytes of one request's body on the control socket: tables of a hundred thousand rules are some tens of megabytes.
pub const CONTROL_BODY_BYTES_MAX: usize = 256 << 20;
/// Bytes of one file, or of standard input, that policy objects are read from.
pub const SOURCE_BYTES_MAX: usize = 512 << 20;
/// Files and directories that one directory of manifests may hold, counted once for each way that links lead to them.
pub const SOURCE_FILES_MAX: usize = 1 << 17;
/// Errors of a rejected reload that the status names; the rest is counted.
pub const REJECTED_ERRORS_MAX: usize = 20;
/// Bytes of each of them.
pub const REJECTED_ERROR_BYTES_MAX: usize = 1000;
/// Levels that a YAML or JSON document may nest.
pub const DOCUMENT_DEPTH_MAX: usize = 100;
/// Values that the YAML anchors and aliases of one file may stand for, so that a short file cannot mean a huge one.
pub const ALIAS_NODES_MAX: usize = 500_000;
/// Errors and warnings that are kept of one source; the rest is counted.
pub const DIAGNOSTICS_MAX: usize = 1000;
/// Characters of a message, of a field path and of a name in messages.
pub const MESSAGE_CHARS_MAX: usize = 600;
/// Prefixes in one set of tables.
pub const PREFIXES_MAX: usize = 1 << 20;
/// Classes of addresses in one set of tables.
pub const CLASSES_MAX: usize = 1 << 20;
/// Rows in one set of tables.
pub const ROWS_MAX: usize = 1 << 22;
/// Rows that ACL tables give to classes, of all tables in one set. At worst, each takes 51 bytes of the GiB that they may have.
pub const ACL_ENTRIES_MAX: usize = 1 << 23;
/// ACL tables in one set of tables.
pub const ACLS_MAX: usize = 1 << 16;

const _: () = assert!(PACKET_BYTES_MAX <= MULTI_BUFFER_FRAMES_MAX * (FRAME_BYTES - XDP_HEADROOM_BYTES));
const _: () = assert!(MULTI_BUFFER_FRAMES_MAX <= BATCH_FRAMES_MAX, "a packet goes to a ring at once");
const _: () = assert!(PORT_BURST_FRAMES_MAX <= BATCH_FRAMES_MAX);
const _: () = assert!(MULTI_BUFFER_FRAMES_MAX <= PORT_BURST_FRAMES_MAX, "a packet is taken over at once");
const _: () = assert!(RING_SLOTS.is_power_of_two() && RING_SLOTS >= 2 * BATCH_FRAMES_MAX);
const _: () =
    assert!(HANDOFF_BUFFERS_MIN >= PORT_BURST_FRAMES_MAX && HANDOFF_BUFFERS_MAX >= HANDOFF_BUFFERS_MIN);
const _: () = assert!(FRAGMENTS_WAITING_MAX <= BATCH_FRAMES_MAX, "a batch takes all that waits");
const _: () =
    assert!((DATAGRAMS_MAX / FRAGMENT_WAYS).is_power_of_two() && FIRSTS_SHARED_MAX.is_power_of_two());
const _: () = assert!(PORTS_MAX * POD_ADDRESSES_MAX + POD_PREFIXES_MAX <= UPLINK_PREFIXES_MAX / 2);
const _: () = assert!(NEIGHBORS_MAX.is_power_of_two());
const _: () = assert!(PORTS_MAX <= u16::MAX as usize);
const _: () = assert!(WORKERS_MAX <= u16::MAX as usize);
const _: () = assert!(RULES_MAX <= 1 << 31, "a decision keeps its verdict in the top bit of a rule id");
