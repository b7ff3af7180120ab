// SPDX-License-Identifier: Apache-2.0
//
// Records of flows: the maps that the programs of flow offload share (`offload.bpf.c`, `uplink.bpf.c`), and what these read of a
// packet.
//
// A record forwards a packet while no epoch of it is before that of the policy of either port, or of its Service, while the lease
// of the switch lasts, and where the packet needs nothing but its next hop and the translation of its flow: no fragment, no
// option, no SYN, FIN or RST, a TTL to spare, room in the next MTU, and the Ethernet addresses of sender and switch. Everything
// else is an upcall.
//
// The switch writes all maps, through a mapping. Of a record that a bucket names it changes epochs and numbers alone; the programs
// count there, and note numbers. `src/xdp/offload` has the same layout.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define INLINE static inline __attribute__((always_inline))

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;

#define BE16(number) ((__u16)((number) << 8 | (number) >> 8))

// Numbers of 16 bits as they lie in the frame.
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK(word) BE16(word)
#define HOST32(word) __builtin_bswap32(word)
#define MAPPED 0xffff0000
#define FIRST(word) (word)
#define SECOND(word) ((__u64)(word) << 32)
#define FIRST_OF(words) (__u32)(words)
#define SECOND_OF(words) (__u32)((words) >> 32)
#else
#define NETWORK(word) (__u16)(word)
#define HOST32(word) (word)
#define MAPPED 0xffff
#define FIRST(word) ((__u64)(word) << 32)
#define SECOND(word) (word)
#define FIRST_OF(words) (__u32)((words) >> 32)
#define SECOND_OF(words) (__u32)(words)
#endif
#define ETHERTYPE_IPV4 NETWORK(0x0800)
#define ETHERTYPE_IPV6 NETWORK(0x86dd)
#define TCP 6
#define UDP 17
#define IPV4 4
#define IPV6 6
#define KIND_TCP 8
#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define TCP_BYTES 20
#define UDP_BYTES 8
// Bytes of a frame of the wire without its check sequence, at least: shorter ones are padded.
#define WIRE_BYTES_MIN 60
// All headers that the programs read.
#define HEADERS_BYTES (ETHERNET_BYTES + IPV6_BYTES + TCP_BYTES)
// "More fragments", and the fragment offset.
#define FRAGMENT NETWORK(0x3fff)
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define URG 0x20

// Least distance, bytes, by which an acknowledgement may be behind the newest byte, as in the switch.
#define ACKNOWLEDGED_LATE 66000

#define WAYS 8
#define PORTS_MAX 1024
// Those of the pages of Services, and one that does not change.
#define SERVICE_EPOCHS 1025
#define GATEWAYS 8192

// One flow. Ends are in no order; the packets of a direction come from the end of its number. The client of a Service sends to
// the front end in place of the other end, and hears from it. So does the outside of a masqueraded flow: its front end is that of
// the node.
struct record {
	__u64 addresses[2][2];
	__u16 transport_ports[2];
	// Version of IP, and whether it is TCP; in the upper half the end that is the client, and one; zero: none.
	__u8 kind;
	// TCP: shift counts of the windows of both ends (RFC 7323), that of the second in the upper half.
	__u8 shifts;
	// Gateway behind the uplink, and one; zero: the packet's destination is on the link, or both ends are pods.
	__u16 gateway;
	// By direction, the generation that has evaluated it; zero: it is not offloaded.
	__u32 epochs[2];
	// Port of the switch that each end is behind.
	__u16 ports[2];
	// Generation that has compared the flow with the Services, and the number of the Service's epoch.
	__u32 service_epoch;
	__u16 service;
	__u16 front_port;
	// Sum of the backend's address without that of the front end.
	__u16 difference;
	// TCP: the largest window that each end has offered, bytes, is no more than two to the power of this.
	__u8 windows[2];
	__u32 packets[2];
	// Segments of packets beyond the first of each.
	__u32 segments[2];
	__u64 bytes[2];
	// TCP: one more than the highest sequence number of each direction, and the highest number that its sender has
	// acknowledged.
	__u32 sequence_ends[2];
	__u32 acknowledged[2];
	__u64 front[2];
};

struct bucket {
	// In the upper half the upper half of a flow's hash, in the lower one the number of its record and one; zero: free.
	__u64 ways[WAYS];
};

struct port {
	// The last generation that changed the policy of the pod; the largest number: no pod.
	__u32 epoch;
	__u32 index;
	__u8 mac[6];
	__u16 mtu;
	__u8 own_mac[6];
	// Whether it is an uplink: the kernel resolves its neighbours.
	__u16 is_uplink;
};

struct gateway {
	__u32 state;
	__u32 unused;
	__u64 address[2];
};

struct service {
	// The last generation that changed what becomes of packets to its destinations.
	__u32 epoch;
	__u32 unused;
};

struct lease {
	// By CLOCK_MONOTONIC_COARSE, nanoseconds.
	__u64 until;
	// Secret of the hash and version of this layout, for the next process of the switch.
	__u64 seed[2];
	__u64 layout;
	// Packets of the wire whose record was gone behind the XDP program.
	__u64 lost;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SERVICE_EPOCHS);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GATEWAYS);
	__type(key, __u32);
	__type(value, struct gateway);
} gateways SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

struct offload_constants {
	// Secret of the hash.
	__u64 seed[2];
	__u32 bucket_mask;
	// This port.
	__u32 port;
	// Its interface: the node's end of a pod's veth pair, or an uplink. Zero: there are no records.
	__u32 index;
	// Its upcall device, if it is a pod's.
	__u32 upcall_index;
};

const volatile struct offload_constants constants SEC(".rodata.offload") = {};

struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__u16 type;
};

struct ipv4 {
	__u8 version_and_length;
	__u8 service;
	__u16 bytes;
	__u16 identifier;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u32 source;
	__u32 destination;
};

struct ipv6 {
	__u8 version_and_class;
	__u8 flow_label[3];
	__u16 payload_bytes;
	__u8 next_header;
	__u8 hop_limit;
	// Source and destination, each of two words. They are not aligned for words of 64 bits.
	__u32 addresses[2][4];
};

struct transport {
	__u16 ports[2];
	union {
		__u32 sequence;
		struct {
			__u16 udp_bytes;
			__u16 udp_checksum;
		};
	};
	__u32 acknowledgement;
	__u8 tcp_length;
	__u8 tcp_flags;
	__u16 window;
	__u8 rest[4];
};

// Packet that may have a record.
struct packet {
	__u64 addresses[2][2];
	__u16 transport_ports[2];
	__u8 protocol;
	__u8 family;
	// TCP: sequence number behind the segment, acknowledgement number, and window before scaling.
	__u32 sequence_end;
	__u32 acknowledgement;
	__u32 window;
	// Of IP and transport.
	__u32 headers_bytes;
	// From the IP header on.
	__u32 ip_bytes;
};

// What the XDP program of an uplink tells the tc program there about a packet of a recorded flow, as metadata.
struct mark {
	__u32 secret;
	// Number of the record, and in the highest bit the direction.
	__u32 record;
};

#define DIRECTION_SHIFT 31

INLINE __u64 mix(__u64 word)
{
	word ^= word >> 32;
	word *= 0xd6e8feb86659fd93;
	word ^= word >> 32;
	word *= 0xd6e8feb86659fd93;
	return word ^ word >> 32;
}

INLINE __u64 hash_of_end(const __u64 *address, __u16 transport_port)
{
	__u64 first = mix(address[0] ^ constants.seed[0]);

	return mix((first + address[1]) ^ constants.seed[1] ^ (__u64)transport_port << 40);
}

// The same for both directions.
INLINE __u64 hash_of(const struct packet *packet)
{
	return mix(hash_of_end(packet->addresses[0], packet->transport_ports[0]) +
		   hash_of_end(packet->addresses[1], packet->transport_ports[1]) + packet->protocol);
}

INLINE int same(const __u64 *one, const __u64 *other)
{
	return !((one[0] ^ other[0]) | (one[1] ^ other[1]));
}

// The end that is the client, and one; zero: none.
INLINE __u32 client_of(const struct record *record)
{
	return record->kind >> 4;
}

// Whether the packet goes in this direction of a record's flow.
INLINE int goes(const struct record *record, const struct packet *packet, __u32 direction)
{
	int by_client = client_of(record) == direction + 1;
	__u16 port = by_client ? record->front_port : record->transport_ports[!direction];

	return record->transport_ports[direction] == packet->transport_ports[0] && port == packet->transport_ports[1] &&
	       same(record->addresses[direction], packet->addresses[0]) &&
	       same(by_client ? record->front : record->addresses[!direction], packet->addresses[1]);
}

// Direction of the packet in the flow of a record: 0 or 1; other numbers: it is of another flow.
INLINE __u32 direction_in(const struct record *record, const struct packet *packet)
{
	if ((record->kind & 0xf) != (packet->family | (packet->protocol == TCP ? KIND_TCP : 0)))
		return 2;
	return goes(record, packet, 0) ? 0 : goes(record, packet, 1) ? 1 : 2;
}

INLINE int same_mac(const __u8 *one, const __u8 *other)
{
	const __u16 *a = (const void *)one, *b = (const void *)other;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]));
}

// Reads the headers of a TCP or UDP packet that needs no more than its next hop. `l4` is their second part.
INLINE int read_transport(struct packet *packet, struct transport *l4, void *end, __u32 gso_size)
{
	__u32 header_bytes = UDP_BYTES, payload_bytes = packet->ip_bytes - packet->headers_bytes;

	if (packet->protocol == UDP) {
		if ((void *)l4 + UDP_BYTES > end)
			return 0;
		// Segments of the kernel have the length of all of them.
		if (!gso_size && NETWORK(l4->udp_bytes) != payload_bytes)
			return 0;
	} else if (packet->protocol == TCP) {
		if ((void *)l4 + TCP_BYTES > end)
			return 0;
		header_bytes = (l4->tcp_length >> 4) * 4;
		if (header_bytes < TCP_BYTES || header_bytes > payload_bytes)
			return 0;
		if ((l4->tcp_flags & (SYN | FIN | RST | URG | ACK)) != ACK)
			return 0;
		packet->sequence_end = HOST32(l4->sequence) + payload_bytes - header_bytes;
		packet->acknowledgement = HOST32(l4->acknowledgement);
		packet->window = NETWORK(l4->window);
	} else {
		return 0;
	}
	packet->transport_ports[0] = l4->ports[0];
	packet->transport_ports[1] = l4->ports[1];
	packet->headers_bytes += header_bytes;
	return 1;
}

// Reads a frame whose packet may have a record, and returns its transport header; null: it has none. A frame with bytes behind the
// packet is trimmed by the switch, unless it is of `padded_bytes` at most.
INLINE struct transport *read_packet(void *data, void *end, __u32 frame_bytes, __u32 padded_bytes, __u32 gso_size,
				     struct packet *packet)
{
	struct ethernet *ethernet = data;
	struct transport *l4;

	if ((void *)(ethernet + 1) + IPV4_BYTES + UDP_BYTES > end)
		return 0;
	if (ethernet->type == ETHERTYPE_IPV4) {
		struct ipv4 *ip = (void *)(ethernet + 1);

		packet->ip_bytes = NETWORK(ip->bytes);
		// The field has no room for what the kernel has put together (BIG TCP, `gro_ipv4_max_size`).
		if (!packet->ip_bytes && gso_size)
			packet->ip_bytes = frame_bytes - ETHERNET_BYTES;
		if (ip->version_and_length != 0x45 || ip->fragment & FRAGMENT || ip->ttl <= 1 || packet->ip_bytes < IPV4_BYTES)
			return 0;
		packet->family = IPV4;
		packet->protocol = ip->protocol;
		packet->headers_bytes = IPV4_BYTES;
		packet->addresses[0][1] = FIRST(MAPPED) | SECOND(ip->source);
		packet->addresses[1][1] = FIRST(MAPPED) | SECOND(ip->destination);
		l4 = (void *)(ip + 1);
	} else if (ethernet->type == ETHERTYPE_IPV6) {
		struct ipv6 *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end)
			return 0;
		packet->ip_bytes = NETWORK(ip->payload_bytes) + IPV6_BYTES;
		if (ip->version_and_class >> 4 != 6 || ip->hop_limit <= 1)
			return 0;
		packet->family = IPV6;
		packet->protocol = ip->next_header;
		packet->headers_bytes = IPV6_BYTES;
		packet->addresses[0][0] = FIRST(ip->addresses[0][0]) | SECOND(ip->addresses[0][1]);
		packet->addresses[0][1] = FIRST(ip->addresses[0][2]) | SECOND(ip->addresses[0][3]);
		packet->addresses[1][0] = FIRST(ip->addresses[1][0]) | SECOND(ip->addresses[1][1]);
		packet->addresses[1][1] = FIRST(ip->addresses[1][2]) | SECOND(ip->addresses[1][3]);
		l4 = (void *)(ip + 1);
	} else {
		return 0;
	}
	if (packet->ip_bytes + ETHERNET_BYTES != frame_bytes &&
	    (frame_bytes > padded_bytes || packet->ip_bytes + ETHERNET_BYTES > frame_bytes))
		return 0;
	return read_transport(packet, l4, end, gso_size) ? l4 : 0;
}

INLINE int has_lease(void)
{
	__u32 key = 0;
	struct lease *lease = bpf_map_lookup_elem(&leases, &key);

	return lease && bpf_ktime_get_coarse_ns() <= lease->until;
}

// Finds the record that forwards a packet of this port. Returns its number and the direction as in a mark, and one; zero: an upcall.
INLINE __u32 find_record(const struct packet *packet, const struct port *from, __u32 on_wire)
{
	struct record *record = 0;
	struct bucket *bucket;
	struct service *service;
	struct port *to;
	__u64 hash = hash_of(packet);
	__u32 key = hash & constants.bucket_mask, direction = 2, number = 0;

	bucket = bpf_map_lookup_elem(&buckets, &key);
	if (!bucket)
		return 0;
	for (int way = 0; way < WAYS; way++) {
		__u64 word = bucket->ways[way];

		if (!(__u32)word || (word ^ hash) >> 32)
			continue;
		number = (__u32)word - 1;
		record = bpf_map_lookup_elem(&records, &number);
		if (!record)
			return 0;
		direction = direction_in(record, packet);
		if (direction < 2)
			break;
	}
	if (!record || direction > 1)
		return 0;
	if (record->ports[direction] != constants.port)
		return 0;
	key = record->ports[!direction];
	to = bpf_map_lookup_elem(&ports, &key);
	if (!to || !to->index || on_wire > to->mtu)
		return 0;
	if (!record->epochs[direction] || record->epochs[direction] < from->epoch || record->epochs[direction] < to->epoch)
		return 0;
	if (client_of(record)) {
		key = record->service;
		service = bpf_map_lookup_elem(&services, &key);
		if (!service || record->service_epoch < service->epoch)
			return 0;
	}
	return (number | direction << DIRECTION_SHIFT) + 1;
}

// Notes the numbers of a segment, by which the switch later judges a FIN or a reset. A segment whose numbers are in no window of its
// connection may be anybody's (`TcpSide::is_in_window` of the switch). Where two processors note packets of one direction at once,
// the earlier one may stand until the next: so a number may be acknowledged that is not noted.
INLINE void note_numbers(struct record *record, const struct packet *packet, __u32 direction)
{
	__u32 ours = record->sequence_ends[direction], theirs = record->sequence_ends[!direction];
	__u32 acknowledged = record->acknowledged[direction], by_peer = record->acknowledged[!direction];
	__u32 log = record->windows[direction];
	__u32 window = 1u << (log & 31), peer_window = 1u << (record->windows[!direction] & 31);
	__u32 late = window > ACKNOWLEDGED_LATE ? window : ACKNOWLEDGED_LATE;
	__u32 end_min = ours - peer_window, end_max = by_peer + peer_window + ACKNOWLEDGED_LATE;

	if ((__s32)(packet->sequence_end - end_min) < 0 || (__s32)(packet->sequence_end - end_max) > 0)
		return;
	if (packet->acknowledgement - (theirs - late) > late + ACKNOWLEDGED_LATE)
		return;
	if ((__s32)(packet->sequence_end - ours) > 0)
		record->sequence_ends[direction] = packet->sequence_end;
	if ((__s32)(packet->acknowledgement - acknowledged) > 0)
		record->acknowledged[direction] = packet->acknowledgement;
	if (packet->window << (record->shifts >> 4 * direction & 0xf) > window)
		record->windows[direction] = log + 1;
}
