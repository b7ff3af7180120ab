// SPDX-License-Identifier: Apache-2.0
//
// The tc programs of a pod whose flows are offloaded. `palisade_pod` is at the node's end of the pod's veth pair, on ingress: it
// forwards a packet of a flow that the switch has recorded, and redirects every other one to the port's upcall device, a
// tap that a worker reads. `palisade_up` is at that device, on ingress: what the worker writes goes into the pod.
// `palisade_upcall` is there on egress: a worker takes what it reads for the pod's, so that nothing passes that the node's own
// stack or a program of the node sends by the device.
//
// A record forwards a packet while no epoch of it is before that of the policy of either port, or of its Service, while the lease
// of the switch lasts, and where the packet needs nothing but its next hop and the translation of its Service: no fragment, no
// option, no SYN, FIN or RST, a TTL to spare, room in the next MTU, and the Ethernet addresses of pod and switch. Everything else
// is an upcall.
//
// The switch writes all maps, through a mapping, and never a record that a bucket names: see `src/xdp/offload`, which has
// the same layout.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define INLINE static inline __attribute__((always_inline))

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_redirect)(__u32 index, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*bpf_redirect_peer)(__u32 index, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_skb_change_type)(struct __sk_buff *frame, __u32 type) = (void *)BPF_FUNC_skb_change_type;
static long (*bpf_skb_pull_data)(struct __sk_buff *frame, __u32 bytes) = (void *)BPF_FUNC_skb_pull_data;
static long (*bpf_l4_csum_replace)(struct __sk_buff *frame, __u32 offset, __u64 from, __u64 to, __u64 flags) =
	(void *)BPF_FUNC_l4_csum_replace;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;

#define BE16(number) ((__u16)((number) << 8 | (number) >> 8))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK(word) BE16(word)
#define MAPPED 0xffff0000
#define FIRST(word) (word)
#define SECOND(word) ((__u64)(word) << 32)
#define FIRST_OF(words) (__u32)(words)
#define SECOND_OF(words) (__u32)((words) >> 32)
#else
#define NETWORK(word) (__u16)(word)
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
#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define TCP_BYTES 20
#define UDP_BYTES 8
// Offsets of the checksums in these headers.
#define TCP_CHECKSUM 16
#define UDP_CHECKSUM 6
// All headers that the program reads.
#define HEADERS_BYTES (ETHERNET_BYTES + IPV6_BYTES + TCP_BYTES)
// "More fragments", and the fragment offset.
#define FRAGMENT NETWORK(0x3fff)
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define URG 0x20
// `PACKET_HOST` of linux/if_packet.h.
#define TO_HOST 0

#define WAYS 8
#define PORTS_MAX 1024
#define SERVICE_EPOCHS 1024

// One flow. Ends are in no order; the packets of a direction come from the end of its number. The client of a Service sends to
// the front end in place of the other end, and hears from it.
struct record {
	__u64 addresses[2][2];
	__u16 transport_ports[2];
	__u8 protocol;
	__u8 family;
	// The end that is the client of a Service, and one; zero: none.
	__u8 client;
	__u8 unused;
	// By direction, the generation that has evaluated it; zero: it is not offloaded.
	__u32 epochs[2];
	// Port of the switch that each end is behind.
	__u16 ports[2];
	// Generation that has compared the flow with the Services, and the number of the Service's epoch.
	__u32 service_epoch;
	__u16 service;
	__u16 front_port;
	// Sum of the backend's address without that of the front end.
	__u32 difference;
	__u64 packets[2];
	__u64 bytes[2];
	// Segments of packets beyond the first of each.
	__u64 segments[2];
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
	__u16 unused;
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
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

struct constants {
	// Secret of the hash.
	__u64 seed[2];
	__u32 bucket_mask;
	// This port.
	__u32 port;
	// Its upcall device, and the node's end of its veth pair.
	__u32 upcall_index;
	__u32 pod_index;
};

const volatile struct constants constants SEC(".rodata.offload") = {};

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
	// TCP: sequence number. UDP: length and checksum.
	__u16 udp_bytes;
	__u16 udp_checksum;
	__u32 acknowledgement;
	__u8 tcp_length;
	__u8 tcp_flags;
	__u8 rest[6];
};

// Packet that may have a record.
struct packet {
	__u64 addresses[2][2];
	__u16 transport_ports[2];
	__u8 protocol;
	__u8 family;
	__u32 headers_bytes;
};

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

// Whether the packet goes in this direction of a record's flow.
INLINE int goes(const struct record *record, const struct packet *packet, __u32 direction)
{
	int by_client = record->client == direction + 1;
	__u16 port = by_client ? record->front_port : record->transport_ports[!direction];

	return record->transport_ports[direction] == packet->transport_ports[0] && port == packet->transport_ports[1] &&
	       same(record->addresses[direction], packet->addresses[0]) &&
	       same(by_client ? record->front : record->addresses[!direction], packet->addresses[1]);
}

// Direction of the packet in the flow of a record: 0 or 1; other numbers: it is of another flow.
INLINE __u32 direction_in(const struct record *record, const struct packet *packet)
{
	if (record->protocol != packet->protocol || record->family != packet->family)
		return 2;
	return goes(record, packet, 0) ? 0 : goes(record, packet, 1) ? 1 : 2;
}

INLINE int same_mac(const __u8 *one, const __u8 *other)
{
	const __u16 *a = (const void *)one, *b = (const void *)other;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]));
}

INLINE void copy_mac(__u8 *to, const __u8 *from)
{
	__u16 *a = (void *)to;
	const __u16 *b = (const void *)from;

	a[0] = b[0];
	a[1] = b[1];
	a[2] = b[2];
}

// Reads the headers of a TCP or UDP packet that needs no more than its next hop. `l4` is their second part.
INLINE int read_transport(struct __sk_buff *frame, struct packet *packet, struct transport *l4, void *end, __u32 payload_bytes)
{
	__u32 header_bytes = UDP_BYTES;

	if (packet->protocol == UDP) {
		if ((void *)l4 + UDP_BYTES > end)
			return 0;
		// Segments of the kernel have the length of all of them.
		if (!frame->gso_size && NETWORK(l4->udp_bytes) != payload_bytes)
			return 0;
	} else if (packet->protocol == TCP) {
		if ((void *)l4 + TCP_BYTES > end)
			return 0;
		header_bytes = (l4->tcp_length >> 4) * 4;
		if (header_bytes < TCP_BYTES || header_bytes > payload_bytes)
			return 0;
		if ((l4->tcp_flags & (SYN | FIN | RST | URG | ACK)) != ACK)
			return 0;
	} else {
		return 0;
	}
	packet->transport_ports[0] = l4->ports[0];
	packet->transport_ports[1] = l4->ports[1];
	packet->headers_bytes += header_bytes;
	return 1;
}

INLINE __u32 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// Writes an address of a record into a packet.
INLINE void write_v6(__u32 *to, const __u64 *address)
{
	to[0] = FIRST_OF(address[0]);
	to[1] = SECOND_OF(address[0]);
	to[2] = FIRST_OF(address[1]);
	to[3] = SECOND_OF(address[1]);
}

// Translates the packet of a client to its backend, or that of the backend to its client. The checksums that the kernel may have
// left to the receiver are changed last: afterwards no header can be read.
INLINE int translate(struct __sk_buff *frame, struct ethernet *ethernet, const struct record *record, const struct packet *packet,
		     struct transport *l4, __u32 direction)
{
	int by_client = record->client == direction + 1;
	const __u64 *address = by_client ? record->addresses[!direction] : record->front;
	__u16 port = by_client ? record->transport_ports[!direction] : record->front_port;
	__u16 before = by_client ? packet->transport_ports[1] : packet->transport_ports[0];
	__u32 difference = by_client ? record->difference : 0xffff - record->difference;
	__u32 field = ETHERNET_BYTES;
	__u64 flags = 0;

	if (packet->family == IPV4) {
		struct ipv4 *ip = (void *)(ethernet + 1);

		if (by_client)
			ip->destination = SECOND_OF(address[1]);
		else
			ip->source = SECOND_OF(address[1]);
		ip->checksum = ~fold((__u16)~ip->checksum + difference);
		field += IPV4_BYTES;
	} else {
		struct ipv6 *ip = (void *)(ethernet + 1);

		if (by_client)
			write_v6(ip->addresses[1], address);
		else
			write_v6(ip->addresses[0], address);
		field += IPV6_BYTES;
	}
	if (by_client)
		l4->ports[1] = port;
	else
		l4->ports[0] = port;
	if (packet->protocol == UDP) {
		field += UDP_CHECKSUM;
		flags = BPF_F_MARK_MANGLED_0;
	} else {
		field += TCP_CHECKSUM;
	}
	return bpf_l4_csum_replace(frame, field, 0, difference, flags | BPF_F_PSEUDO_HDR) ||
	       bpf_l4_csum_replace(frame, field, before, port, flags | sizeof(port));
}

INLINE int upcall(void)
{
	return bpf_redirect(constants.upcall_index, 0);
}

// The kernel keeps 15 characters of a program's name; the loader knows an earlier instance of itself by it.
SEC("tc")
int palisade_pod(struct __sk_buff *frame)
{
	void *data = (void *)(long)frame->data, *end = (void *)(long)frame->data_end;
	struct packet packet = {};
	struct ethernet *ethernet;
	struct transport *l4;
	struct record *record = 0;
	struct bucket *bucket;
	struct lease *lease;
	struct service *service;
	struct port *from, *to;
	__u32 key = constants.port, direction = 2, ip_bytes, on_wire;
	__u64 hash;

	from = bpf_map_lookup_elem(&ports, &key);
	if (!from)
		return TC_ACT_SHOT;
	if (data + HEADERS_BYTES > end) {
		if (bpf_skb_pull_data(frame, frame->len < HEADERS_BYTES ? frame->len : HEADERS_BYTES))
			return upcall();
		data = (void *)(long)frame->data;
		end = (void *)(long)frame->data_end;
	}
	key = 0;
	lease = bpf_map_lookup_elem(&leases, &key);
	if (!lease || bpf_ktime_get_coarse_ns() > lease->until)
		return upcall();
	ethernet = data;
	if ((void *)(ethernet + 1) + IPV4_BYTES + UDP_BYTES > end || frame->vlan_present)
		return upcall();
	if (!same_mac(ethernet->destination, from->own_mac) || !same_mac(ethernet->source, from->mac))
		return upcall();
	if (ethernet->type == ETHERTYPE_IPV4) {
		struct ipv4 *ip = (void *)(ethernet + 1);

		ip_bytes = NETWORK(ip->bytes);
		if (ip->version_and_length != 0x45 || ip->fragment & FRAGMENT || ip->ttl <= 1 || ip_bytes < IPV4_BYTES)
			return upcall();
		packet.family = IPV4;
		packet.protocol = ip->protocol;
		packet.headers_bytes = IPV4_BYTES;
		packet.addresses[0][1] = FIRST(MAPPED) | SECOND(ip->source);
		packet.addresses[1][1] = FIRST(MAPPED) | SECOND(ip->destination);
		l4 = (void *)(ip + 1);
	} else if (ethernet->type == ETHERTYPE_IPV6) {
		struct ipv6 *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end)
			return upcall();
		ip_bytes = NETWORK(ip->payload_bytes) + IPV6_BYTES;
		if (ip->version_and_class >> 4 != 6 || ip->hop_limit <= 1)
			return upcall();
		packet.family = IPV6;
		packet.protocol = ip->next_header;
		packet.headers_bytes = IPV6_BYTES;
		packet.addresses[0][0] = FIRST(ip->addresses[0][0]) | SECOND(ip->addresses[0][1]);
		packet.addresses[0][1] = FIRST(ip->addresses[0][2]) | SECOND(ip->addresses[0][3]);
		packet.addresses[1][0] = FIRST(ip->addresses[1][0]) | SECOND(ip->addresses[1][1]);
		packet.addresses[1][1] = FIRST(ip->addresses[1][2]) | SECOND(ip->addresses[1][3]);
		l4 = (void *)(ip + 1);
	} else {
		return upcall();
	}
	// A frame with bytes behind the packet is trimmed by the switch.
	if (ip_bytes + ETHERNET_BYTES != frame->len)
		return upcall();
	if (!read_transport(frame, &packet, l4, end, ip_bytes - packet.headers_bytes))
		return upcall();

	hash = hash_of(&packet);
	key = hash & constants.bucket_mask;
	bucket = bpf_map_lookup_elem(&buckets, &key);
	if (!bucket)
		return upcall();
	for (int way = 0; way < WAYS; way++) {
		__u64 word = bucket->ways[way];

		if (!(__u32)word || (word ^ hash) >> 32)
			continue;
		key = (__u32)word - 1;
		record = bpf_map_lookup_elem(&records, &key);
		if (!record)
			return upcall();
		direction = direction_in(record, &packet);
		if (direction < 2)
			break;
	}
	if (!record || direction > 1)
		return upcall();
	if (record->ports[direction] != constants.port)
		return upcall();
	key = record->ports[!direction];
	to = bpf_map_lookup_elem(&ports, &key);
	if (!to || !to->index)
		return upcall();
	if (!record->epochs[direction] || record->epochs[direction] < from->epoch || record->epochs[direction] < to->epoch)
		return upcall();
	if (record->client) {
		key = record->service;
		service = bpf_map_lookup_elem(&services, &key);
		if (!service || record->service_epoch < service->epoch)
			return upcall();
	}
	on_wire = frame->gso_size ? packet.headers_bytes + frame->gso_size : ip_bytes;
	if (on_wire > to->mtu)
		return upcall();

	__sync_fetch_and_add(&record->packets[direction], 1);
	__sync_fetch_and_add(&record->bytes[direction], ip_bytes);
	if (frame->gso_segs > 1)
		__sync_fetch_and_add(&record->segments[direction], frame->gso_segs - 1);
	if (packet.family == IPV4) {
		struct ipv4 *ip = (void *)(ethernet + 1);
		// As ip_decrease_ttl() of net/ip.h: the TTL is the upper byte of its word (RFC 1624).
		__u32 checksum = ip->checksum + NETWORK(0x0100);

		ip->checksum = checksum + (checksum >= 0xffff);
		ip->ttl--;
	} else {
		struct ipv6 *ip = (void *)(ethernet + 1);

		ip->hop_limit--;
	}
	copy_mac(ethernet->destination, to->mac);
	copy_mac(ethernet->source, to->own_mac);
	if (record->client && translate(frame, ethernet, record, &packet, l4, direction))
		return TC_ACT_SHOT;
	if (frame->pkt_type != TO_HOST)
		bpf_skb_change_type(frame, TO_HOST);
	return bpf_redirect_peer(to->index, 0);
}

SEC("tc")
int palisade_up(struct __sk_buff *frame)
{
	if (frame->pkt_type != TO_HOST)
		bpf_skb_change_type(frame, TO_HOST);
	return bpf_redirect_peer(constants.pod_index, 0);
}

SEC("tc")
int palisade_upcall(struct __sk_buff *frame)
{
	return frame->ingress_ifindex == constants.pod_index ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char program_license[] SEC("license") = "Apache-2.0";
