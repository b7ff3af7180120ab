// SPDX-License-Identifier: Apache-2.0
//
// The XDP program of a port that belongs to the switch alone: every frame goes to the AF_XDP socket of the queue that
// it came in by. Where there is no socket, because the switch is down or has not come up yet, the frame is dropped:
// traffic of a policed pod never reaches the node's own stack.
//
// The section's `.frags` tells the kernel that the program copes with frames of several buffers; it never looks at one.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]

static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

// By receive queue, its socket. The loader sets the number of entries to the port's number of queues.
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} sockets SEC(".maps");

// The kernel keeps 15 characters of a program's name; the loader knows an earlier instance of itself by the prefix.
SEC("xdp.frags")
int palisade_port(struct xdp_md *frame)
{
	// The low bits of the flags are the verdict for a queue without a socket.
	return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_DROP);
}

char program_license[] SEC("license") = "Apache-2.0";
