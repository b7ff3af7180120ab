// SPDX-License-Identifier: Apache-2.0
//
// Policy in the design of Cilium, for the comparison: an address maps to an identity, and identity, protocol and port map
// to a verdict. The program runs at tc ingress of the host ends, has connection tracking of its own, and redirects
// packets to the other pod's interface.
//
// Connections have no time-outs: the map evicts the least recently used ones.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#define inline inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define htons(x) __builtin_bswap16(x)
#else
#define htons(x) (x)
#endif

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)BPF_FUNC_skb_pull_data;

// A pod of this node.
struct endpoint {
	__u32 ifindex; // The host end of its link.
	__u32 policy;  // Zero: not isolated.
	__u8 mac[ETH_ALEN];
	__u8 pad[2];
};

struct address_prefix {
	__u32 length;
	__be32 address;
};

// Only the port may be a prefix: a range of ports is entered as prefixes.
struct policy_key {
	__u32 length;
	__u32 policy;
	__u32 identity;
	__u8 protocol;
	__u8 pad;
	__be16 port;
};

struct tuple {
	__be32 from;
	__be32 to;
	__be16 from_port;
	__be16 to_port;
	__u8 protocol;
	__u8 pad[3];
};

struct connection {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __be32);
	__type(value, struct endpoint);
	__uint(max_entries, 4096);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct address_prefix);
	__type(value, __u32);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} identities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct policy_key);
	__type(value, __u8);
	__uint(max_entries, 1 << 22);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} policies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct tuple);
	__type(value, struct connection);
	__uint(max_entries, 1250000);
} connections SEC(".maps");

static inline int is_known(struct tuple *tuple, __u32 bytes)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, tuple);

	if (!connection)
		return 0;
	connection->packets++;
	connection->bytes += bytes;
	return 1;
}

static inline int is_allowed(const struct tuple *tuple, __u32 policy)
{
	struct address_prefix source = { .length = 32, .address = tuple->from };
	struct policy_key key = {
		.length = 96,
		.policy = policy,
		.protocol = tuple->protocol,
		.port = tuple->to_port,
	};
	__u32 *identity = bpf_map_lookup_elem(&identities, &source);

	if (identity)
		key.identity = *identity;
	return bpf_map_lookup_elem(&policies, &key) != 0;
}

SEC("tc")
int identity(struct __sk_buff *skb)
{
	if (skb->protocol != htons(ETH_P_IP))
		return TC_ACT_OK;

	__u32 need = ETH_HLEN + sizeof(struct iphdr) + 4;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + need > end) {
		if (bpf_skb_pull_data(skb, need))
			return TC_ACT_SHOT;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + need > end)
			return TC_ACT_SHOT;
	}
	struct ethhdr *eth = data;
	struct iphdr *ip = data + ETH_HLEN;
	__be16 *ports = (void *)(ip + 1);
	// The comparison sends no options and no fragments.
	if (ip->ihl != 5 || (ip->frag_off & htons(0x3fff)) || ip->ttl <= 1)
		return TC_ACT_SHOT;

	struct endpoint *from = bpf_map_lookup_elem(&endpoints, &ip->saddr);
	struct endpoint *to = bpf_map_lookup_elem(&endpoints, &ip->daddr);
	if (!from || !to || from->ifindex != skb->ifindex)
		return TC_ACT_SHOT;

	struct tuple tuple = { .from = ip->saddr, .to = ip->daddr, .protocol = ip->protocol };
	if (ip->protocol == IPPROTO_TCP || ip->protocol == IPPROTO_UDP) {
		tuple.from_port = ports[0];
		tuple.to_port = ports[1];
	}
	if (!is_known(&tuple, skb->len)) {
		struct tuple reply = {
			.from = tuple.to,
			.to = tuple.from,
			.from_port = tuple.to_port,
			.to_port = tuple.from_port,
			.protocol = tuple.protocol,
		};
		if (!is_known(&reply, skb->len)) {
			struct connection connection = { .packets = 1, .bytes = skb->len };
			if (to->policy && !is_allowed(&tuple, to->policy))
				return TC_ACT_SHOT;
			if (bpf_map_update_elem(&connections, &tuple, &connection, BPF_ANY))
				return TC_ACT_SHOT;
		}
	}

	// Decrement the TTL and update the checksum (RFC 1624).
	__u32 check = ip->check + (__u32)htons(0x0100);
	ip->check = (__u16)(check + (check >= 0xffff));
	ip->ttl--;
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, to->mac, ETH_ALEN);
	return bpf_redirect_peer(to->ifindex, 0);
}

char program_license[] SEC("license") = "GPL";
