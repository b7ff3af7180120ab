// SPDX-License-Identifier: Apache-2.0
//
// The XDP program of a receiver that costs next to nothing: frames are dropped and counted. What keeps neighbours
// able to find the interface (ARP, neighbour discovery, multicast listener reports) goes to the kernel's stack.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*bpf_xdp_get_buff_len)(struct xdp_md *frame) = (void *)BPF_FUNC_xdp_get_buff_len;

struct count {
	__u64 packets;
	__u64 bytes;
};

// By verdict (XDP_DROP, XDP_PASS), what came, on each CPU. The size of a value is that of struct count.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 16);
	__uint(max_entries, XDP_PASS + 1);
} verdicts SEC(".maps");

#define BE16(number) ((__u16)((number) << 8 | (number) >> 8))

// Whether the frame is one that interfaces exchange to find each other.
static int finds_neighbours(const __u8 *frame, const __u8 *end)
{
	__u16 type;

	if (frame + 14 > end)
		return 0;
	type = *(const __u16 *)(frame + 12);
	if (type == BE16(0x8100)) {
		frame += 4;
		if (frame + 14 > end)
			return 0;
		type = *(const __u16 *)(frame + 12);
	}
	if (type == BE16(0x0806))
		return 1;
	if (type != BE16(0x86dd) || frame + 55 > end)
		return 0;
	// Listener reports stand behind a hop-by-hop header; of ICMPv6 only echoes (128, 129) are traffic.
	return frame[20] == 0 || (frame[20] == 58 && frame[54] != 128 && frame[54] != 129);
}

SEC("xdp.frags")
int palisade_count(struct xdp_md *frame)
{
	const __u8 *start = (const __u8 *)(long)frame->data;
	const __u8 *end = (const __u8 *)(long)frame->data_end;
	__u32 verdict = finds_neighbours(start, end) ? XDP_PASS : XDP_DROP;
	struct count *count = bpf_map_lookup_elem(&verdicts, &verdict);

	if (count) {
		count->packets += 1;
		// Of all its buffers, where it has several.
		count->bytes += bpf_xdp_get_buff_len(frame);
	}
	return verdict;
}

char program_license[] SEC("license") = "Apache-2.0";
