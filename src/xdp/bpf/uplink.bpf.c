// SPDX-License-Identifier: Apache-2.0
//
// The XDP program of a NIC that the switch shares with the kernel: IPv4 and IPv6 frames for this node's pods go to the
// AF_XDP socket of the queue that they came in by, and are dropped where there is none, because the switch is down.
// Everything else is the kernel's as if nothing stood here: ARP, neighbour discovery, the node's own traffic.
//
// A frame without a tag counts, and one with the port's own 802.1Q tag. Other tags are other networks, where the same
// addresses may be somebody else's. The destination stands in the fixed header, so neither fragments nor extension
// headers hide it.
//
// The section's `.frags` tells the kernel that the program copes with frames of several buffers: it reads what it needs
// from wherever it lies.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define inline inline __attribute__((always_inline))

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static long (*bpf_xdp_load_bytes)(struct xdp_md *frame, __u32 offset, void *to, __u32 bytes) =
	(void *)BPF_FUNC_xdp_load_bytes;

// linux/if_ether.h and IEEE 802.1Q; numbers of 16 bits as they lie in the frame.
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK(word) (__u16) __builtin_bswap16(word)
#else
#define NETWORK(word) (__u16)(word)
#endif
#define ETHERTYPE_IPV4 NETWORK(0x0800)
#define ETHERTYPE_IPV6 NETWORK(0x86dd)
#define ETHERTYPE_VLAN NETWORK(0x8100)
#define VLAN_IDENTIFIER NETWORK(0x0fff)
#define ETHERTYPE_OFFSET 12
#define TAG_BYTES 4
#define DESTINATION_OFFSET_IPV4 16
#define DESTINATION_OFFSET_IPV6 24

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

// The port's 802.1Q identifier, 0 without one, in a section of its own: the loader writes it before the program is loaded.
const volatile __u16 port_vlan SEC(".rodata.port") = 0;

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

// Whether an IP header of this kind, at `l3`, has a pod's address as its destination.
static inline int is_for_pod(struct xdp_md *frame, __u16 ethertype, __u32 l3)
{
	if (ethertype == ETHERTYPE_IPV4) {
		struct prefix_v4 key = { .bits = 32 };

		return !load(frame, l3 + DESTINATION_OFFSET_IPV4, key.address, sizeof(key.address)) &&
		       bpf_map_lookup_elem(&prefixes_v4, &key);
	}
	if (ethertype == ETHERTYPE_IPV6) {
		struct prefix_v6 key = { .bits = 128 };

		return !load(frame, l3 + DESTINATION_OFFSET_IPV6, key.address, sizeof(key.address)) &&
		       bpf_map_lookup_elem(&prefixes_v6, &key);
	}
	return 0;
}

// The kernel keeps 15 characters of a program's name; the loader knows an earlier instance of itself by the prefix.
SEC("xdp.frags")
int palisade_uplink(struct xdp_md *frame)
{
	__u32 l3 = ETHERTYPE_OFFSET + sizeof(__u16);
	__u16 ethertype;

	if (load(frame, ETHERTYPE_OFFSET, &ethertype, sizeof(ethertype)))
		return XDP_PASS;
	if (ethertype == ETHERTYPE_VLAN) {
		__u16 tag[2]; // Priority and identifier, then the type of what is behind.
		__u16 identifier;

		if (load(frame, l3, tag, sizeof(tag)))
			return XDP_PASS;
		identifier = NETWORK(tag[0] & VLAN_IDENTIFIER);
		// Identifier 0 is a priority and no network.
		if (identifier != 0 && identifier != port_vlan)
			return XDP_PASS;
		ethertype = tag[1];
		l3 += TAG_BYTES;
	}
	if (!is_for_pod(frame, ethertype, l3))
		return XDP_PASS;
	// The low bits of the flags are the verdict for a queue without a socket.
	return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_DROP);
}

char program_license[] SEC("license") = "Apache-2.0";
