// SPDX-License-Identifier: Apache-2.0
//
// The tc programs of ports whose flows are offloaded. `palisade_pod` is at the node's end of a pod's veth pair, on ingress: it
// forwards a packet of a flow that the switch has recorded, and redirects every other one to the port's upcall device, a
// tap that a worker reads. `palisade_up` is at that device, on ingress: what the worker writes goes into the pod.
// `palisade_upcall` is there on egress: a worker takes what it reads for the pod's, so that nothing passes that the node's own
// stack or a program of the node sends by the device.
//
// `palisade_wire` is at an uplink, on ingress: it forwards what the XDP program there (`uplink.bpf.c`) has marked, and the kernel
// has put together since (GRO). By an uplink the kernel finds the Ethernet address of the next hop.

#include <linux/pkt_cls.h>

#include "offload.h"

static long (*bpf_redirect)(__u32 index, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*bpf_redirect_peer)(__u32 index, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_redirect_neigh)(__u32 index, struct bpf_redir_neigh *next_hop, int bytes, __u64 flags) =
	(void *)BPF_FUNC_redirect_neigh;
static long (*bpf_skb_change_type)(struct __sk_buff *frame, __u32 type) = (void *)BPF_FUNC_skb_change_type;
static long (*bpf_skb_pull_data)(struct __sk_buff *frame, __u32 bytes) = (void *)BPF_FUNC_skb_pull_data;
static long (*bpf_skb_load_bytes)(const struct __sk_buff *frame, __u32 offset, void *to, __u32 bytes) =
	(void *)BPF_FUNC_skb_load_bytes;
static long (*bpf_skb_store_bytes)(struct __sk_buff *frame, __u32 offset, const void *from, __u32 bytes, __u64 flags) =
	(void *)BPF_FUNC_skb_store_bytes;
static long (*bpf_l4_csum_replace)(struct __sk_buff *frame, __u32 offset, __u64 from, __u64 to, __u64 flags) =
	(void *)BPF_FUNC_l4_csum_replace;

// Offsets of the checksums in the headers of TCP and UDP.
#define TCP_CHECKSUM 16
#define UDP_CHECKSUM 6
// `PACKET_HOST` of linux/if_packet.h.
#define TO_HOST 0
// Address families of sys/socket.h.
#define AF_INET 2
#define AF_INET6 10

INLINE void copy_mac(__u8 *to, const __u8 *from)
{
	__u16 *a = (void *)to;
	const __u16 *b = (const void *)from;

	a[0] = b[0];
	a[1] = b[1];
	a[2] = b[2];
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

// Whether the packet goes to the front end of its flow, and not from the end behind it.
INLINE int goes_to_front(const struct record *record, __u32 direction)
{
	return client_of(record) == direction + 1;
}

// Writes the headers of a packet anew: for its next hop and, at the front end of a flow, with the other end of it. What it writes
// to is the packet, or a copy.
INLINE void rewrite(struct ethernet *ethernet, __u16 *transport_ports, const struct record *record, const struct packet *packet,
		    const struct port *to, __u32 direction)
{
	int to_front = goes_to_front(record, direction);
	const __u64 *address = to_front ? record->addresses[!direction] : record->front;
	__u32 difference = to_front ? record->difference : 0xffff - record->difference;

	copy_mac(ethernet->destination, to->mac);
	copy_mac(ethernet->source, to->own_mac);
	if (packet->family == IPV4) {
		struct ipv4 *ip = (void *)(ethernet + 1);
		// As ip_decrease_ttl() of net/ip.h: the TTL is the upper byte of its word (RFC 1624).
		__u32 checksum = ip->checksum + NETWORK(0x0100);

		ip->checksum = checksum + (checksum >= 0xffff);
		ip->ttl--;
		if (!client_of(record))
			return;
		if (to_front)
			ip->destination = SECOND_OF(address[1]);
		else
			ip->source = SECOND_OF(address[1]);
		ip->checksum = ~fold((__u16)~ip->checksum + difference);
	} else {
		struct ipv6 *ip = (void *)(ethernet + 1);

		ip->hop_limit--;
		if (!client_of(record))
			return;
		if (to_front)
			write_v6(ip->addresses[1], address);
		else
			write_v6(ip->addresses[0], address);
	}
	if (to_front)
		transport_ports[1] = record->transport_ports[!direction];
	else
		transport_ports[0] = record->front_port;
}

// Changes the transport checksum of a packet that rewrite() has translated. The kernel may have left it to the receiver.
// Afterwards no header can be read.
INLINE int change_checksum(struct __sk_buff *frame, const struct record *record, const struct packet *packet, __u32 direction)
{
	int to_front = goes_to_front(record, direction);
	__u16 port = to_front ? record->transport_ports[!direction] : record->front_port;
	__u16 before = to_front ? packet->transport_ports[1] : packet->transport_ports[0];
	__u32 difference = to_front ? record->difference : 0xffff - record->difference;
	__u32 field = ETHERNET_BYTES + (packet->family == IPV4 ? IPV4_BYTES : IPV6_BYTES);
	__u64 flags = 0;

	if (packet->protocol == UDP) {
		field += UDP_CHECKSUM;
		flags = BPF_F_MARK_MANGLED_0;
	} else {
		field += TCP_CHECKSUM;
	}
	return bpf_l4_csum_replace(frame, field, 0, difference, flags | BPF_F_PSEUDO_HDR) ||
	       bpf_l4_csum_replace(frame, field, before, port, flags | sizeof(port));
}

// Sends a packet by an uplink, to the gateway of its flow or to its destination.
INLINE int send_by_uplink(const struct record *record, const struct port *to, __u32 direction)
{
	const __u64 *address = record->addresses[!direction];
	struct bpf_redir_neigh next_hop = {};

	if (record->gateway) {
		__u32 key = record->gateway - 1;
		struct gateway *gateway = bpf_map_lookup_elem(&gateways, &key);

		if (!gateway)
			return TC_ACT_SHOT;
		// The verifier takes no arithmetic before the comparison, where the compiler would put it.
		asm volatile("" : "+r"(gateway));
		address = gateway->address;
	}
	if (!address[0] && FIRST_OF(address[1]) == MAPPED) {
		next_hop.nh_family = AF_INET;
		next_hop.ipv4_nh = SECOND_OF(address[1]);
	} else {
		next_hop.nh_family = AF_INET6;
		write_v6(next_hop.ipv6_nh, address);
	}
	return bpf_redirect_neigh(to->index, &next_hop, sizeof(next_hop), 0);
}

// The port to which a packet of a record goes.
INLINE struct port *next_port(const struct record *record, __u32 direction)
{
	__u32 key = record->ports[!direction];

	return bpf_map_lookup_elem(&ports, &key);
}

// Forwards a packet whose headers are rewritten, and counts it.
INLINE int forward(struct __sk_buff *frame, struct record *record, const struct packet *packet, const struct port *to,
		   __u32 direction)
{
	__sync_fetch_and_add(&record->packets[direction], 1);
	__sync_fetch_and_add(&record->bytes[direction], packet->ip_bytes);
	if (frame->gso_segs > 1)
		__sync_fetch_and_add(&record->segments[direction], frame->gso_segs - 1);
	if (client_of(record) && change_checksum(frame, record, packet, direction))
		return TC_ACT_SHOT;
	if (to->is_uplink)
		return send_by_uplink(record, to, direction);
	if (frame->pkt_type != TO_HOST)
		bpf_skb_change_type(frame, TO_HOST);
	return bpf_redirect_peer(to->index, 0);
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
	struct record *record;
	struct port *from, *to;
	__u32 key = constants.port, found, direction, gso_size = frame->gso_size;

	from = bpf_map_lookup_elem(&ports, &key);
	if (!from)
		return TC_ACT_SHOT;
	if (data + HEADERS_BYTES > end) {
		if (bpf_skb_pull_data(frame, frame->len < HEADERS_BYTES ? frame->len : HEADERS_BYTES))
			return upcall();
		data = (void *)(long)frame->data;
		end = (void *)(long)frame->data_end;
	}
	ethernet = data;
	if (!has_lease() || (void *)(ethernet + 1) > end || frame->vlan_present)
		return upcall();
	if (!same_mac(ethernet->destination, from->own_mac) || !same_mac(ethernet->source, from->mac))
		return upcall();
	l4 = read_packet(data, end, frame->len, 0, gso_size, &packet);
	if (!l4)
		return upcall();
	found = find_record(&packet, from, gso_size ? packet.headers_bytes + gso_size : packet.ip_bytes);
	if (!found)
		return upcall();
	key = (found - 1) & ~(1u << DIRECTION_SHIFT);
	direction = (found - 1) >> DIRECTION_SHIFT;
	record = bpf_map_lookup_elem(&records, &key);
	if (!record)
		return upcall();
	to = next_port(record, direction);
	if (!to || !to->index)
		return upcall();
	if (packet.protocol == TCP)
		note_numbers(record, &packet, direction);
	rewrite(ethernet, l4->ports, record, &packet, to, direction);
	return forward(frame, record, &packet, to, direction);
}

SEC("tc")
int palisade_up(struct __sk_buff *frame)
{
	if (frame->pkt_type != TO_HOST)
		bpf_skb_change_type(frame, TO_HOST);
	return bpf_redirect_peer(constants.index, 0);
}

SEC("tc")
int palisade_upcall(struct __sk_buff *frame)
{
	return frame->ingress_ifindex == constants.index ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

// Drops a packet whose record another flow has taken since it was marked. The kernel must not have it: it is a pod's.
INLINE int lose(void)
{
	__u32 key = 0;
	struct lease *lease = bpf_map_lookup_elem(&leases, &key);

	if (lease)
		__sync_fetch_and_add(&lease->lost, 1);
	return TC_ACT_SHOT;
}

// Headers on the stack, with the IP header aligned.
struct headers {
	__u16 unused;
	struct ethernet ethernet;
	union {
		struct {
			struct ipv4 ip;
			__u16 ports[2];
		} v4;
		struct {
			struct ipv6 ip;
			__u16 ports[2];
		} v6;
	};
};

// Rewrites the headers of a packet as rewrite() does, in a copy.
INLINE int rewrite_copy(struct __sk_buff *frame, __u32 bytes, struct headers *headers, __u16 *transport_ports,
			const struct record *record, const struct packet *packet, const struct port *to, __u32 direction)
{
	if (bpf_skb_load_bytes(frame, 0, &headers->ethernet, bytes))
		return -1;
	rewrite(&headers->ethernet, transport_ports, record, packet, to, direction);
	return bpf_skb_store_bytes(frame, 0, &headers->ethernet, bytes, 0);
}

// A program that writes to packets directly finds no metadata where a packet socket listens (tcpdump): the kernel copies the frame
// before, and clears it.
SEC("tc")
int palisade_wire(struct __sk_buff *frame)
{
	void *data = (void *)(long)frame->data, *end = (void *)(long)frame->data_end;
	struct mark *mark = (void *)(long)frame->data_meta;
	struct headers headers = {};
	struct packet packet = {};
	struct record *record;
	struct port *to;
	__u32 key, direction, bytes;

	if ((void *)(mark + 1) > data)
		return TC_ACT_UNSPEC;
	// Only the XDP program of the switch gives packets metadata here: this mark is that of a process before, with other maps.
	if (mark->secret != (__u32)constants.seed[0] || frame->vlan_present)
		return lose();
	key = mark->record & ~(1u << DIRECTION_SHIFT);
	direction = mark->record >> DIRECTION_SHIFT;
	if (data + HEADERS_BYTES > end) {
		if (bpf_skb_pull_data(frame, frame->len < HEADERS_BYTES ? frame->len : HEADERS_BYTES))
			return lose();
		data = (void *)(long)frame->data;
		end = (void *)(long)frame->data_end;
	}
	record = bpf_map_lookup_elem(&records, &key);
	if (!record || !read_packet(data, end, frame->len, WIRE_BYTES_MIN, frame->gso_size, &packet))
		return lose();
	to = next_port(record, direction);
	if (!to || !to->index || direction_in(record, &packet) != direction)
		return lose();
	// The verifier of Linux 6.12 has lost its range by the comparison, and the compiler would not repeat it.
	asm volatile("" : "+r"(direction));
	direction &= 1;
	bytes = ETHERNET_BYTES + sizeof(headers.v4.ports);
	if (packet.family == IPV4) {
		if (rewrite_copy(frame, bytes + IPV4_BYTES, &headers, headers.v4.ports, record, &packet, to, direction))
			return lose();
	} else if (rewrite_copy(frame, bytes + IPV6_BYTES, &headers, headers.v6.ports, record, &packet, to, direction)) {
		return lose();
	}
	return forward(frame, record, &packet, to, direction);
}

char program_license[] SEC("license") = "Apache-2.0";
