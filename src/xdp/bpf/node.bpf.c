// SPDX-License-Identifier: Apache-2.0
//
// The tc program at the node's end of a host port, on egress: it marks what the node's own sockets send, so that the
// switch tells it from what the node's kernel forwards, whose source address may be the node's as well (masquerade).
//
// The mark is the group bit (IEEE 802.3: I/G) of the source address, which no station's address has. A frame has it from
// here only: a forwarded one with it is dropped. ARP, neighbour discovery and multicast stay as they are.
//
// A packet of a socket has `sk`, and no interface that it came in by. A forwarded one has no `sk`: ip_forward() and
// ip6_forward() drop those that have ("if (unlikely(skb->sk)) goto drop;"). A bridge and a flow table of nftables leave
// the `sk` of a sender in another namespace, and there is an interface then.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SEC(name) __attribute__((section(name), used))

static long (*bpf_skb_load_bytes)(const struct __sk_buff *frame, __u32 offset, void *to, __u32 bytes) =
	(void *)BPF_FUNC_skb_load_bytes;
static long (*bpf_skb_store_bytes)(struct __sk_buff *frame, __u32 offset, const void *from, __u32 bytes, __u64 flags) =
	(void *)BPF_FUNC_skb_store_bytes;

#define BE16(number) ((__u16)((number) << 8 | (number) >> 8))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK(word) BE16(word)
#else
#define NETWORK(word) (__u16)(word)
#endif
#define ETHERTYPE_IPV4 NETWORK(0x0800)
#define ETHERTYPE_IPV6 NETWORK(0x86dd)
#define ETHERTYPE_VLAN NETWORK(0x8100)
#define HEADER_BYTES 14
#define TAG_BYTES 4
#define SOURCE_OFFSET 6
#define TYPE_OFFSET 12
#define GROUP 1

#define NEXT_HEADER_OFFSET 6
#define IPV6_HEADER_BYTES 40
#define PROTOCOL_ICMPV6 58
// Router solicitation to redirect (RFC 4861 section 4).
#define DISCOVERY_FIRST 133
#define DISCOVERY_LAST 137

// Whether the IPv6 packet at `l3` is neighbour discovery.
static inline __attribute__((always_inline)) int finds_neighbours(struct __sk_buff *frame, __u32 l3)
{
	__u8 next, type;

	if (bpf_skb_load_bytes(frame, l3 + NEXT_HEADER_OFFSET, &next, 1) || next != PROTOCOL_ICMPV6)
		return 0;
	return !bpf_skb_load_bytes(frame, l3 + IPV6_HEADER_BYTES, &type, 1) && type >= DISCOVERY_FIRST &&
	       type <= DISCOVERY_LAST;
}

// The kernel keeps 15 characters of a program's name; the loader knows an earlier instance of itself by it.
SEC("tc")
int palisade_node(struct __sk_buff *frame)
{
	__u8 header[HEADER_BYTES];
	__u32 l3 = HEADER_BYTES;
	__u16 type;
	__u8 first;

	if (bpf_skb_load_bytes(frame, 0, header, sizeof(header)))
		return TC_ACT_SHOT;
	if (!frame->sk || frame->ingress_ifindex)
		return header[SOURCE_OFFSET] & GROUP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
	if (header[0] & GROUP)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(&type, header + TYPE_OFFSET, sizeof(type));
	if (type == ETHERTYPE_VLAN) {
		if (bpf_skb_load_bytes(frame, HEADER_BYTES + 2, &type, sizeof(type)))
			return TC_ACT_UNSPEC;
		l3 += TAG_BYTES;
	}
	if (type != ETHERTYPE_IPV4 && (type != ETHERTYPE_IPV6 || finds_neighbours(frame, l3)))
		return TC_ACT_UNSPEC;
	first = header[SOURCE_OFFSET] | GROUP;
	// Without room the frame goes on without the mark, and without its privilege.
	bpf_skb_store_bytes(frame, SOURCE_OFFSET, &first, sizeof(first), 0);
	return TC_ACT_UNSPEC;
}

char program_license[] SEC("license") = "Apache-2.0";
