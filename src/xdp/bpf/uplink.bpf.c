// SPDX-License-Identifier: Apache-2.0
//
// The XDP program of a NIC that the switch shares with the kernel: IPv4 and IPv6 frames for this node's pods go to the
// AF_XDP socket of the queue that they came in by, and are dropped where there is none, because the switch is down.
// So do packets for ports of Services, at external addresses and at those of the node, packets for external ports of
// masqueraded flows, ICMP errors about replies of these, and what comes by tunnels. Everything else is the kernel's as if
// nothing stood here: ARP, neighbour discovery, the node's own traffic.
//
// A packet of a flow that the switch has recorded goes to the kernel with a mark, which the tc program of the interface looks for
// (`palisade_wire` of `offload.bpf.c`).
//
// A frame without a tag counts, and one with the port's own 802.1Q tag. Other tags are other networks, where the same
// addresses may be somebody else's. Identifier 0 is a priority and no network: the kernel takes off any number of such
// tags, 802.1ad's too (__netif_receive_skb_core()), so the program reads behind them. The switch drops a frame with more
// than one tag, and with an 802.1ad one. The destination stands in the fixed header, so neither fragments nor extension
// headers hide it. Ports stand in the first fragment alone: later ones follow it, if it came before them.
//
// The section's `.frags` tells the kernel that the program copes with frames of several buffers: it reads what it needs
// from wherever it lies.

#include "offload.h"

#define inline inline __attribute__((always_inline))

static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static long (*bpf_xdp_load_bytes)(struct xdp_md *frame, __u32 offset, void *to, __u32 bytes) =
	(void *)BPF_FUNC_xdp_load_bytes;
static long (*bpf_xdp_adjust_meta)(struct xdp_md *frame, int bytes) = (void *)BPF_FUNC_xdp_adjust_meta;
static __u64 (*bpf_xdp_get_buff_len)(struct xdp_md *frame) = (void *)BPF_FUNC_xdp_get_buff_len;

// IEEE 802.1Q; numbers of 16 bits as they lie in the frame.
#define ETHERTYPE_VLAN NETWORK(0x8100)
#define ETHERTYPE_SERVICE_VLAN NETWORK(0x88a8)
#define VLAN_IDENTIFIER NETWORK(0x0fff)
#define ETHERTYPE_OFFSET 12
#define TAG_BYTES 4
// Most tags of a frame whose packet is looked at.
#define TAGS_MAX 4
#define DESTINATION_OFFSET_IPV4 16
#define DESTINATION_OFFSET_IPV6 24
#define SOURCE_OFFSET_IPV4 12
#define SOURCE_OFFSET_IPV6 8

// Protocols and extension headers (linux/in.h, linux/in6.h).
#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_ICMPV6 58
#define PROTOCOL_SCTP 132
#define EXTENSION_HOP 0
#define EXTENSION_ROUTING 43
#define EXTENSION_FRAGMENT 44
#define EXTENSION_AUTHENTICATION 51
#define EXTENSION_DESTINATION 60
// Most extension headers of a packet, as in the switch (`EXTENSIONS_MAX`).
#define EXTENSIONS_MAX 8
#define ICMP_HEADER_BYTES 8
#define ICMP_IDENTIFIER_OFFSET 4
#define FRAGMENTS_MAX 4096
#define IPV4_HEADER_BYTES 20
#define IPV6_HEADER_BYTES 40

// By receive queue, its socket. The loader sets the number of entries to the port's number of queues.
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} sockets SEC(".maps");

// Keys of a prefix map: how many bits count, and the address (`struct bpf_lpm_trie_key_u8` of linux/bpf.h).
struct prefix_v4 {
	__u32 bits;
	__u8 address[4];
};

struct prefix_v6 {
	__u32 bits;
	__u8 address[16];
};

// The pods' prefixes; the value says nothing. The loader sets the number of entries.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(key_size, sizeof(struct prefix_v4));
	__uint(value_size, sizeof(__u32));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} prefixes_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(key_size, sizeof(struct prefix_v6));
	__uint(value_size, sizeof(__u32));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} prefixes_v6 SEC(".maps");

// Destinations to which pods keep their addresses: what comes from them to an external port is the kernel's, which may
// masquerade flows of its own to them (kube-proxy, portmap). The loader sets the number of entries.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(key_size, sizeof(struct prefix_v4));
	__uint(value_size, sizeof(__u32));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} exceptions_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(key_size, sizeof(struct prefix_v6));
	__uint(value_size, sizeof(__u32));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} exceptions_v6 SEC(".maps");

// Parts of Services in an address: bits.
#define EXTERNAL_ADDRESS 1
#define NODE_ADDRESS 2

// Addresses of the node, and external addresses of Services: IPv4 as ::ffff:a.b.c.d. The loader sets the number of
// entries.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 16);
	__uint(value_size, sizeof(__u32));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} addresses SEC(".maps");

// Port of a Service at an address. The unspecified address of a family stands for all addresses of the node.
struct service_port {
	__u8 address[16];
	__u16 port; // As in the frame.
	__u8 protocol;
	__u8 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, sizeof(struct service_port));
	__uint(value_size, sizeof(__u32));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} service_ports SEC(".maps");

// Datagram whose first fragment was for a Service or a masqueraded flow: IPv4 addresses as ::ffff:a.b.c.d.
struct datagram {
	__u8 source[16];
	__u8 destination[16];
	__u32 identification; // As in the packet.
};

// The last of them; the value says nothing.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(key_size, sizeof(struct datagram));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, FRAGMENTS_MAX);
} datagrams SEC(".maps");

// Constants of the port, in a section of its own: the loader writes them before the program is loaded.
struct constants {
	// Addresses of the node that masqueraded flows have, IPv4 as ::ffff:a.b.c.d; zeros for a family without.
	__u8 external_v4[16];
	__u8 external_v6[16];
	// Addresses of the node at which tunnels end, in the same form.
	__u8 tunnel_v4[16];
	__u8 tunnel_v6[16];
	// External ports, and identifiers of ICMP queries; bounds are in the ranges.
	__u16 first_port, last_port;
	__u16 first_identifier, last_identifier;
	// 802.1Q identifier, 0 without one.
	__u16 vlan;
	// UDP port of tunnels, 0 without.
	__u16 tunnel_port;
};

const volatile struct constants port_constants SEC(".rodata.port") = {};

// Copies bytes of the frame; not 0 where it has fewer.
static inline long load(struct xdp_md *frame, __u32 offset, void *to, __u32 bytes)
{
	const __u8 *from = (void *)(long)frame->data + offset;
	const __u8 *end = (void *)(long)frame->data_end;

	if (from + bytes > end)
		return bpf_xdp_load_bytes(frame, offset, to, bytes);
	__builtin_memcpy(to, from, bytes);
	return 0;
}

// Upper-layer header of an IP packet.
struct upper {
	__u32 offset;
	__u32 identification; // Of a fragment.
	__u8 protocol;
	__u8 is_fragment;
};

#define FOUND 0
#define ABSENT 1
#define UNREADABLE 2

// Finds the upper-layer header of the IPv4 packet at `l3`. A later fragment has none.
static inline int find_upper_v4(struct xdp_md *frame, __u32 l3, struct upper *upper)
{
	__u8 header[12];

	if (bpf_xdp_load_bytes(frame, l3, header, sizeof(header)))
		return ABSENT;
	upper->identification = (__u32)header[4] << 8 | header[5];
	// More fragments, and the offset.
	upper->is_fragment = (header[6] & 0x3f) || header[7];
	if (header[6] & 0x1f || header[7])
		return ABSENT;
	upper->offset = l3 + (header[0] & 0xf) * 4;
	upper->protocol = header[9];
	return FOUND;
}

// The same for IPv6, behind the extension headers. These are unreadable if they are too many, or end beyond the packet.
static inline int find_upper_v6(struct xdp_md *frame, __u32 l3, struct upper *upper)
{
	if (bpf_xdp_load_bytes(frame, l3 + 6, &upper->protocol, sizeof(upper->protocol)))
		return UNREADABLE;
	upper->offset = l3 + IPV6_HEADER_BYTES;
	upper->is_fragment = 0;
	for (int i = 0; i <= EXTENSIONS_MAX; i++) {
		__u8 header[4];
		__u32 bytes;

		switch (upper->protocol) {
		case EXTENSION_HOP:
		case EXTENSION_ROUTING:
		case EXTENSION_DESTINATION:
		case EXTENSION_FRAGMENT:
		case EXTENSION_AUTHENTICATION:
			break;
		default:
			return FOUND;
		}
		if (bpf_xdp_load_bytes(frame, upper->offset, header, sizeof(header)))
			return UNREADABLE;
		bytes = header[1] * 8 + 8;
		if (upper->protocol == EXTENSION_AUTHENTICATION)
			bytes = header[1] * 4 + 8;
		if (upper->protocol == EXTENSION_FRAGMENT) {
			upper->is_fragment = 1;
			if (bpf_xdp_load_bytes(frame, upper->offset + 4, &upper->identification, 4))
				return UNREADABLE;
			if (header[2] || header[3] & 0xf8)
				return ABSENT;
			bytes = 8;
		}
		upper->protocol = header[0];
		upper->offset += bytes;
	}
	return UNREADABLE;
}

static inline int find_upper(struct xdp_md *frame, int is_v4, __u32 l3, struct upper *upper)
{
	return is_v4 ? find_upper_v4(frame, l3, upper) : find_upper_v6(frame, l3, upper);
}

// Whether an ICMP message is an error: destination unreachable, source quench, time exceeded and parameter problem; for
// IPv6 all types below 128 (RFC 4443 section 2.1).
static inline int is_error(int is_v4, __u8 type)
{
	return is_v4 ? type == 3 || type == 4 || type == 11 || type == 12 : type < 128;
}

// Loads an address at `offset` as the maps have it.
static inline long load_address(struct xdp_md *frame, int is_v4, __u32 offset, __u8 address[16])
{
	__builtin_memset(address, 0, 16);
	if (!is_v4)
		return bpf_xdp_load_bytes(frame, offset, address, 16);
	address[10] = address[11] = 0xff;
	return bpf_xdp_load_bytes(frame, offset, address + 12, 4);
}

static inline int is_same(const __u8 one[16], const __u8 other[16])
{
	__u64 a[2], b[2];

	__builtin_memcpy(a, one, sizeof(a));
	__builtin_memcpy(b, other, sizeof(b));
	return a[0] == b[0] && a[1] == b[1];
}

// Whether pods keep their addresses to the end of a flow, whose address stands at an offset.
static inline int is_exception(struct xdp_md *frame, int is_v4, __u32 offset)
{
	if (is_v4) {
		struct prefix_v4 key = { .bits = 32 };

		return !bpf_xdp_load_bytes(frame, offset, key.address, sizeof(key.address)) &&
		       bpf_map_lookup_elem(&exceptions_v4, &key);
	} else {
		struct prefix_v6 key = { .bits = 128 };

		return !bpf_xdp_load_bytes(frame, offset, key.address, sizeof(key.address)) &&
		       bpf_map_lookup_elem(&exceptions_v6, &key);
	}
}

static inline int is_external_port(__u16 port)
{
	return NETWORK(port) >= port_constants.first_port && NETWORK(port) <= port_constants.last_port;
}

// Whether the identifier of the ICMP query or reply at an offset is that of a masqueraded flow.
static inline int is_external_query(struct xdp_md *frame, __u32 offset)
{
	__u16 identifier;

	return !bpf_xdp_load_bytes(frame, offset + ICMP_IDENTIFIER_OFFSET, &identifier, sizeof(identifier)) &&
	       NETWORK(identifier) >= port_constants.first_identifier &&
	       NETWORK(identifier) <= port_constants.last_identifier;
}

static inline int is_icmp(int is_v4, __u8 protocol)
{
	return protocol == (is_v4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6);
}

// Whether an ICMP message is a reply: echo, and for IPv4 timestamp, information and address mask; for IPv6 node
// information.
static inline int is_reply(int is_v4, __u8 type)
{
	return is_v4 ? type == 0 || type == 14 || type == 16 || type == 18 : type == 129 || type == 140;
}

// Whether the packet at `l3`, whose upper-layer header was found, is for a port of a Service or of a masqueraded flow, or
// an ICMP error about a packet from one. `part` is that of the destination in Services, if it has one.
static inline int is_for_port(struct xdp_md *frame, int is_v4, __u32 l3, const __u8 destination[16], struct upper *upper,
			      __u32 *part, int is_external)
{
	struct service_port key = {};
	__u8 source[16];
	// Address of the end of the flow that is not the node's.
	__u32 remote = l3 + (is_v4 ? SOURCE_OFFSET_IPV4 : SOURCE_OFFSET_IPV6);
	__u32 port_offset = 2;
	__u8 type;

	if (is_icmp(is_v4, upper->protocol)) {
		__u32 quoted = upper->offset + ICMP_HEADER_BYTES;

		if (bpf_xdp_load_bytes(frame, upper->offset, &type, sizeof(type)))
			return 0;
		if (is_external && is_reply(is_v4, type))
			return is_external_query(frame, upper->offset) && !is_exception(frame, is_v4, remote);
		if (!is_error(is_v4, type) ||
		    load_address(frame, is_v4, quoted + (is_v4 ? SOURCE_OFFSET_IPV4 : SOURCE_OFFSET_IPV6), source) ||
		    !is_same(source, destination) || find_upper(frame, is_v4, quoted, upper))
			return 0;
		remote = quoted + (is_v4 ? DESTINATION_OFFSET_IPV4 : DESTINATION_OFFSET_IPV6);
		if (is_icmp(is_v4, upper->protocol))
			return is_external && is_external_query(frame, upper->offset) &&
			       !is_exception(frame, is_v4, remote);
		port_offset = 0;
	}
	if (upper->protocol != PROTOCOL_TCP && upper->protocol != PROTOCOL_UDP && upper->protocol != PROTOCOL_SCTP)
		return 0;
	if (bpf_xdp_load_bytes(frame, upper->offset + port_offset, &key.port, sizeof(key.port)))
		return port_offset != 0;
	if (is_external && is_external_port(key.port) && !is_exception(frame, is_v4, remote))
		return 1;
	if (!part)
		return 0;
	key.protocol = upper->protocol;
	__builtin_memcpy(key.address, destination, sizeof(key.address));
	if (*part & EXTERNAL_ADDRESS && bpf_map_lookup_elem(&service_ports, &key))
		return 1;
	if (!(*part & NODE_ADDRESS))
		return 0;
	__builtin_memset(key.address, 0, sizeof(key.address));
	if (is_v4)
		key.address[10] = key.address[11] = 0xff;
	return bpf_map_lookup_elem(&service_ports, &key) != 0;
}

// Whether the packet at `l3` comes by a tunnel. It has no options, extension headers or fragments.
static inline int is_by_tunnel(struct xdp_md *frame, int is_v4, __u32 l3, const __u8 destination[16])
{
	__u8 end[16], protocol;
	__u16 port;

	if (!port_constants.tunnel_port)
		return 0;
	for (int i = 0; i < 16; i++)
		end[i] = is_v4 ? port_constants.tunnel_v4[i] : port_constants.tunnel_v6[i];
	return is_same(destination, end) &&
	       !bpf_xdp_load_bytes(frame, l3 + (is_v4 ? 9 : 6), &protocol, sizeof(protocol)) &&
	       protocol == PROTOCOL_UDP &&
	       !bpf_xdp_load_bytes(frame, l3 + (is_v4 ? IPV4_HEADER_BYTES : IPV6_HEADER_BYTES) + 2, &port, sizeof(port)) &&
	       NETWORK(port) == port_constants.tunnel_port;
}

// Whether the packet at `l3` is for a Service or a masqueraded flow, or comes by a tunnel.
static inline int is_translated(struct xdp_md *frame, int is_v4, __u32 l3)
{
	struct datagram datagram = {};
	struct upper upper = {};
	__u8 external[16];
	__u32 *part, here = 1;
	int found, is_external, is_fragment, is_ours;

	if (load_address(frame, is_v4, l3 + (is_v4 ? DESTINATION_OFFSET_IPV4 : DESTINATION_OFFSET_IPV6),
			 datagram.destination))
		return 0;
	if (is_by_tunnel(frame, is_v4, l3, datagram.destination))
		return 1;
	for (int i = 0; i < 16; i++)
		external[i] = is_v4 ? port_constants.external_v4[i] : port_constants.external_v6[i];
	is_external = is_same(datagram.destination, external);
	part = bpf_map_lookup_elem(&addresses, datagram.destination);
	if (!part && !is_external)
		return 0;
	found = find_upper(frame, is_v4, l3, &upper);
	// The kernel might read the headers, or get the rest of them in a later fragment, and another proxy might serve the
	// packet. The switch drops it.
	if (found == UNREADABLE)
		return part != 0;
	datagram.identification = upper.identification;
	if (upper.is_fragment &&
	    load_address(frame, is_v4, l3 + (is_v4 ? SOURCE_OFFSET_IPV4 : SOURCE_OFFSET_IPV6), datagram.source))
		return 0;
	if (found == ABSENT)
		return upper.is_fragment && bpf_map_lookup_elem(&datagrams, &datagram) != 0;
	is_fragment = upper.is_fragment;
	is_ours = is_for_port(frame, is_v4, l3, datagram.destination, &upper, part, is_external);
	if (is_ours && is_fragment)
		bpf_map_update_elem(&datagrams, &datagram, &here, BPF_ANY);
	return is_ours;
}

// Whether an IP packet of this kind, at `l3`, is for a pod or a Service.
static inline int is_for_switch(struct xdp_md *frame, __u16 ethertype, __u32 l3)
{
	if (ethertype == ETHERTYPE_IPV4) {
		struct prefix_v4 key = { .bits = 32 };

		return !load(frame, l3 + DESTINATION_OFFSET_IPV4, key.address, sizeof(key.address)) &&
		       (bpf_map_lookup_elem(&prefixes_v4, &key) || is_translated(frame, 1, l3));
	}
	if (ethertype == ETHERTYPE_IPV6) {
		struct prefix_v6 key = { .bits = 128 };

		return !load(frame, l3 + DESTINATION_OFFSET_IPV6, key.address, sizeof(key.address)) &&
		       (bpf_map_lookup_elem(&prefixes_v6, &key) || is_translated(frame, 0, l3));
	}
	return 0;
}

// Whether a tag of IEEE 802.1Q or 802.1ad follows.
static inline int is_tag(__u16 ethertype)
{
	return ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_SERVICE_VLAN;
}

// Marks the packet of a flow that the kernel forwards. Returns false, and does nothing, for any other packet, and where the driver
// keeps no metadata.
static inline int mark_recorded(struct xdp_md *frame)
{
	void *data = (void *)(long)frame->data, *end = (void *)(long)frame->data_end;
	struct ethernet *ethernet = data;
	struct packet packet = {};
	struct record *record;
	struct mark *mark;
	struct port *from;
	__u32 key = constants.port, found, direction;

	from = bpf_map_lookup_elem(&ports, &key);
	if (!from || !has_lease() || (void *)(ethernet + 1) > end || !same_mac(ethernet->destination, from->own_mac))
		return 0;
	if (!read_packet(data, end, bpf_xdp_get_buff_len(frame), WIRE_BYTES_MIN, 0, &packet))
		return 0;
	found = find_record(&packet, from, packet.ip_bytes);
	if (!found || bpf_xdp_adjust_meta(frame, -(int)sizeof(*mark)))
		return 0;
	mark = (void *)(long)frame->data_meta;
	// The verifier does not know that there is room now.
	if ((void *)(mark + 1) > (void *)(long)frame->data)
		return 0;
	mark->secret = constants.seed[0];
	mark->record = found - 1;
	// A reset comes up before the tc program has what the kernel puts together, so the numbers are noted here.
	key = (found - 1) & ~(1u << DIRECTION_SHIFT);
	direction = (found - 1) >> DIRECTION_SHIFT;
	record = packet.protocol == TCP ? bpf_map_lookup_elem(&records, &key) : 0;
	if (record)
		note_numbers(record, &packet, direction);
	return 1;
}

// The kernel keeps 15 characters of a program's name; the loader knows an earlier instance of itself by the prefix.
SEC("xdp.frags")
int palisade_uplink(struct xdp_md *frame)
{
	__u32 l3 = ETHERTYPE_OFFSET + sizeof(__u16);
	__u16 ethertype;

	if (constants.index && mark_recorded(frame))
		return XDP_PASS;
	if (load(frame, ETHERTYPE_OFFSET, &ethertype, sizeof(ethertype)))
		return XDP_PASS;
	for (int i = 0; i < TAGS_MAX; i++) {
		__u16 tag[2]; // Priority and identifier, then the type of what is behind.
		__u16 identifier;

		if (!is_tag(ethertype))
			break;
		if (load(frame, l3, tag, sizeof(tag)))
			return XDP_PASS;
		identifier = NETWORK(tag[0] & VLAN_IDENTIFIER);
		if (identifier != 0 && (identifier != port_constants.vlan || ethertype != ETHERTYPE_VLAN))
			return XDP_PASS;
		ethertype = tag[1];
		l3 += TAG_BYTES;
	}
	// Behind a chain that is longer, a packet for a pod cannot be excluded.
	if (!is_tag(ethertype) && !is_for_switch(frame, ethertype, l3))
		return XDP_PASS;
	// The low bits of the flags are the verdict for a queue without a socket.
	return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_DROP);
}

char program_license[] SEC("license") = "Apache-2.0";
