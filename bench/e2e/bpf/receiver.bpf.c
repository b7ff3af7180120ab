// SPDX-License-Identifier: Apache-2.0
//
// Receiver of generated traffic: it counts the packets for a pod, reads the clock in the program `measure`, and drops. It
// runs at tc ingress of the pod's interface, where the packets of every system pass. An XDP program there would not see
// packets of `bpf_redirect_peer`, and the kernel would copy the packets that it forwards itself.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <linux/udp.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#define inline inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ntohs(x) __builtin_bswap16(x)
#define ntohl(x) __builtin_bswap32(x)
#else
#define ntohs(x) (x)
#define ntohl(x) (x)
#endif

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;

// The stamp of the packet generator (src/pktgen/traffic/stamp.rs). Its clock, CLOCK_MONOTONIC, is `bpf_ktime_get_ns`.
#define MAGIC 0x50a1
struct stamp {
	__be16 magic;
	__be32 flow;
	__be32 sequence;
	__be32 sent_high;
	__be32 sent_low;
} __attribute__((packed));

// Port of the probes (CHANGED_PORT of common/policy.rs). Their payload is their number.
#define PROBE_PORT 6500
#define PROBES (1 << 20)

// Latencies: 32 classes for each power of two.
#define CLASS_BITS 5
#define CLASSES 1024

struct counts {
	__u64 packets;
	__u64 bytes;
	__u64 latencies[CLASSES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct counts);
	__uint(max_entries, 1);
} counted SEC(".maps");

// Arrival of each probe in nanoseconds; 0 if it has not arrived.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, PROBES);
	__uint(map_flags, BPF_F_MMAPABLE);
} arrivals SEC(".maps");

static inline __u32 log2_of(__u64 value)
{
	__u32 log2 = 0;

	if (value >> 32) { log2 += 32; value >>= 32; }
	if (value >> 16) { log2 += 16; value >>= 16; }
	if (value >> 8) { log2 += 8; value >>= 8; }
	if (value >> 4) { log2 += 4; value >>= 4; }
	if (value >> 2) { log2 += 2; value >>= 2; }
	return log2 + (value >> 1);
}

static inline __u32 class_of(__u64 ns)
{
	__u32 log2 = log2_of(ns);
	__u32 shift = log2 > CLASS_BITS ? log2 - CLASS_BITS : 0;
	__u32 class = (shift << CLASS_BITS) + (__u32)(ns >> shift);

	return class < CLASSES ? class : CLASSES - 1;
}

static inline int receive(struct __sk_buff *skb, int measures)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + ETH_HLEN;
	struct udphdr *udp = (void *)(ip + 1);
	struct stamp *stamp = (void *)(udp + 1);
	__u32 zero = 0;

	// ARP and IPv6 go to the stack.
	if (skb->protocol != ntohs(ETH_P_IP))
		return TC_ACT_OK;
	struct counts *counts = bpf_map_lookup_elem(&counted, &zero);
	if (!counts)
		return TC_ACT_SHOT;
	if (measures && (void *)(stamp + 1) <= end && ip->protocol == IPPROTO_UDP) {
		__u64 now = bpf_ktime_get_ns();

		if (udp->dest == ntohs(PROBE_PORT)) {
			__u32 number = ntohl(*(__be32 *)(udp + 1));
			__u64 *arrival = bpf_map_lookup_elem(&arrivals, &number);

			if (arrival)
				*arrival = now;
			return TC_ACT_SHOT;
		}
		if (stamp->magic == ntohs(MAGIC)) {
			__u64 sent = (__u64)ntohl(stamp->sent_high) << 32 | ntohl(stamp->sent_low);
			__u32 class = class_of(now > sent ? now - sent : 0);

			// The verifier does not track the bound of class_of, so the compiler must keep the mask below.
			asm volatile("" : "+r"(class));
			counts->latencies[class & (CLASSES - 1)] += 1;
		}
	}
	counts->packets += 1;
	counts->bytes += skb->len;
	return TC_ACT_SHOT;
}

SEC("tc")
int count(struct __sk_buff *skb)
{
	return receive(skb, 0);
}

SEC("tc")
int measure(struct __sk_buff *skb)
{
	return receive(skb, 1);
}

char program_license[] SEC("license") = "GPL";
