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
/// Least rate of a pod, bits per second: that of the annotations of Kubernetes (`pkg/util/bandwidth/utils.go`).
pub const BITS_PER_SECOND_MIN: u64 = 1_000;
/// Largest rate of a pod, bits per second: that of the annotations too.
pub const BITS_PER_SECOND_MAX: u64 = 1_000_000_000_000_000;
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
/// Most ports of one Service.
pub const PORTS_OF_SERVICE_MAX: usize = 1000;
/// Most endpoints of one `EndpointSlice`, as the API server has it (`maxEndpoints`).
pub const SLICE_ENDPOINTS_MAX: usize = 1000;
/// Most ports of one `EndpointSlice`: those of a Service, of which the API server permits more (`maxPorts`).
pub const SLICE_PORTS_MAX: usize = 1000;
/// Most addresses of one pod.
pub const POD_ADDRESSES_MAX: usize = 8;
/// Most ports of the node that lead to one pod.
pub const PORT_MAPPINGS_MAX: usize = 256;
/// Most prefixes of one address family that an uplink takes from the kernel: those of all pods, the
/// configured ones, and those of pods of an earlier run that have not come back. The latter take at most half
/// of them.
pub const UPLINK_PREFIXES_MAX: usize = 1 << 15;
/// Most destinations to which pods keep their addresses: configured ones, and prefixes and addresses of other nodes.
pub const EXCEPTIONS_MAX: usize = 1 << 16;
/// Most configured ones of them.
pub const EXCEPT_MAX: usize = 1024;
/// Most ports of Services that an uplink takes from the kernel.
pub const UPLINK_SERVICE_PORTS_MAX: usize = 1 << 16;
/// Most configured prefixes of the node's pods.
pub const POD_PREFIXES_MAX: usize = 64;
/// Neighbours on uplinks whose Ethernet addresses workers can look up: more than the Linux default
/// (`net.ipv4.neigh.default.gc_thresh3`, 1,024 for each family).
pub const NEIGHBORS_MAX: usize = 1 << 13;
/// Neighbours on uplinks that the kernel is asked to resolve at a time: a quarter of the Linux default of `gc_thresh3`.
pub const SOLICITS_WAITING_MAX: usize = 256;
/// Those of them that packets from one port have missed.
pub const PORT_UNRESOLVED_MAX: usize = 32;
/// Neighbours on uplinks that packets from one port ask for in a second, at each worker.
pub const PORT_SOLICITS_PER_SECOND: u32 = 256;
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
/// SYNs of one worker that wait for the end of the connection that has their ports. One port takes at most half of them; SYNs
/// beyond do not wait.
pub const EARLY_SYNS_MAX: usize = 32;
/// Longest time that such a SYN waits: less than the timeout of its sender (1 s, RFC 6298 section 2), and longer than a worker on
/// a busy core is off that core.
pub const EARLY_SYN_TIMEOUT_MS: u32 = 200;
/// Time in which all fragments of a datagram must arrive, as in Linux (`net.ipv4.ipfrag_time`, 30 s).
pub const FRAGMENT_TIMEOUT_MS: u32 = 30_000;
/// Verdicts on first fragments that one worker shares with the others at a time.
pub const FIRST_VERDICTS_SHARED_MAX: usize = 1024;
/// Most routes, those of the configuration included, before the control socket takes no further one.
pub const ROUTES_MAX: usize = 16_384;
/// Commands of the control side that wait for one worker.
pub const COMMANDS_MAX: usize = 64;
/// Most connections to the control socket, and at most a quarter of the process's file descriptors. At the
/// limit a new connection evicts the one that has been idle for the longest time.
pub const CONTROL_CONNECTIONS_MAX: usize = 256;
/// Most connections to the HTTP listener, bounded and evicted alike.
pub const HTTP_CONNECTIONS_MAX: usize = 64;
/// Bytes of large responses that wait for the readers of the read-only socket, and of the HTTP listener. Further large
/// requests are refused meanwhile.
pub const UNREAD_BYTES_MAX: usize = 128 << 20;
/// Least and most bytes of the token that clients of the HTTP listener present. 16 random bytes cannot be guessed.
pub const HTTP_TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=512;
/// Policies with counters of their own among the metrics: those that have decided on the most packets.
pub const METRICS_POLICIES_MAX: usize = 1000;
/// Ports of Services with counters of their own among the metrics: those that have opened the most flows.
pub const METRICS_SERVICES_MAX: usize = 1000;
/// Most characters of a label of a metric.
pub const METRICS_LABEL_CHARS_MAX: usize = 256;
/// Entries of the tables whose reachability the dashboard shows: pods, prefixes, rows, and rows that ACL tables give to
/// classes. Larger tables would take a core for seconds.
pub const DASHBOARD_ENTRIES_MAX: usize = 1 << 20;
/// Most bytes of a request's body on the control socket. Tables of a hundred thousand rules take some tens of
/// megabytes.
pub const CONTROL_BODY_BYTES_MAX: usize = 256 << 20;
/// Most bytes of one file, or of standard input, with policy objects: 10,000 pods as `kubectl get -o yaml` prints them.
pub const SOURCE_BYTES_MAX: usize = 128 << 20;
/// Most bytes of all files of a directory, or of one command.
pub const SOURCES_BYTES_MAX: usize = 256 << 20;
/// Most values in one such file, each of which takes some 90 bytes of memory: 10,000 pods of a cluster have 3 million.
pub const SOURCE_VALUES_MAX: usize = 4 << 20;
/// Most bytes of one object. The API server stores at most 1.5 MiB of one.
pub const OBJECT_BYTES_MAX: usize = 3 << 20;
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

/// Most ports of Services.
pub const SERVICE_PORTS_MAX: usize = 1 << 17;
/// Most virtual addresses of one port of a Service, of each kind.
pub const SERVICE_ADDRESSES_MAX: usize = 256;
/// Most backends of one port of a Service, in each of its lists.
pub const SERVICE_PORT_BACKENDS_MAX: usize = 10_000;
/// Most backends of all ports of Services, those of both lists.
pub const SERVICE_BACKENDS_MAX: usize = 1 << 21;
/// Most prefixes of the sources of one load balancer.
pub const SOURCE_RANGES_MAX: usize = 1000;
/// Most addresses of the node at which node ports are served.
pub const NODE_ADDRESSES_MAX: usize = 64;

/// Most addresses and ports of Services that the node's own sockets find.
pub const SOCKET_SERVICES_MAX: usize = 1 << 17;
/// Most backends of these, those of lists that a change has replaced included.
pub const SOCKET_BACKENDS_MAX: usize = 1 << 18;

/// Most entries of one report on what is in force: lines of a table, classes, policies. It counts the others.
pub const REPORT_ENTRIES_MAX: usize = 10_000;
/// Most pods, and most prefixes, that one entry of such a report names. It counts the others.
pub const REPORT_PEERS_MAX: usize = 100;
/// Most policies that a report names for one class. It counts the others.
pub const CLASS_POLICIES_MAX: usize = 16;
/// Most pairs of ends on which candidate tables and the tables in force differ.
pub const SHADOW_DISAGREEMENTS_MAX: usize = 1000;
/// Most policies in audit mode.
pub const AUDIT_POLICIES_MAX: usize = 10_000;
/// Most connections, by decision and ends, that audited policies would deny and a report lists.
pub const AUDIT_DENIALS_MAX: usize = 1000;
/// Most flows that audited policies would deny and that are counted at one time.
pub const AUDIT_FLOWS_MAX: usize = 1 << 20;

/// Captures that run at the same time.
pub const CAPTURES_MAX: usize = 8;
/// Most packets of one capture that wait for the control side.
pub const CAPTURE_BUFFERS_MAX: usize = 4096;
/// Bytes of all packets of one capture that wait, but for a batch of the longest.
pub const CAPTURE_MEMORY: usize = 16 << 20;
/// Bytes of each captured packet, if the request gives no number.
pub const CAPTURE_BYTES: usize = 256;

/// Dropped frames of each reason that the control side keeps.
pub const DROPS_KEPT_MAX: usize = 256;

/// Events of flows of one worker that wait for the control side, while somebody follows.
pub const FLOW_EVENTS_WAITING_MAX: usize = 4096;
/// Ended flows of one worker that wait for the exporter of flows.
pub const ENDED_FLOWS_WAITING_MAX: usize = 8192;
/// Flows whose counters the exporter remembers between two records about each. Further flows get one record, at their end.
pub const EXPORTED_FLOWS_MAX: usize = 200_000;
/// Denied packets that wait for the exporter.
pub const EXPORTED_DENIALS_WAITING_MAX: usize = 1024;
/// Bytes of one message to a collector of flows, where the path to it takes them.
pub const IPFIX_MESSAGE_BYTES_MAX: usize = 1400;
/// Bytes of one message to a collector of flows that every path takes: Linux knows no IPv4 path MTU below 552.
pub const IPFIX_MESSAGE_BYTES_MIN: usize = 512;
/// Readers that follow flows at the same time.
pub const FOLLOWERS_MAX: usize = 128;
/// Most events that one reader gets in a fifth of a second. It learns the number of the others.
pub const FOLLOWER_EVENTS_MAX: usize = 1000;
/// Bytes that wait for a reader of events before it is cut off.
pub const FOLLOWER_BYTES_MAX: usize = 2 << 20;
/// Flows of a list, if the request gives no number.
pub const FLOWS_LISTED: usize = 100;
/// Most flows of a list.
pub const FLOWS_LISTED_MAX: usize = 100_000;

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
const _: () = assert!(EXCEPT_MAX + POD_PREFIXES_MAX + 2 * ROUTES_MAX <= EXCEPTIONS_MAX);
const _: () = assert!(NEIGHBORS_MAX.is_power_of_two());
const _: () = assert!(PORTS_MAX <= u16::MAX as usize);
const _: () = assert!(WORKERS_MAX <= u16::MAX as usize);
const _: () = assert!(RULES_MAX <= 1 << 31, "a decision keeps its verdict in the top bit of a rule id");
