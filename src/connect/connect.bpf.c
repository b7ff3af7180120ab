// SPDX-License-Identifier: Apache-2.0
//
// The cgroup programs that give sockets of the node's own network a backend in the place of a Service: when they connect,
// and where they have no connection, with each datagram that they send. So no packet has a Service's address, and nothing
// is translated. The sources of datagrams that come from a backend, and the peers of connected sockets, become the
// Service's again.
//
// The programs see the sockets of all processes. Those of other networks, pods' among them, stay as they are: the cookie
// of the network tells them apart. Packets of pods are translated in the switch, under policy.
//
// A change of a Service makes a new list of backends, with a version of its own, and then leads to it. A socket that has
// read the old version finds its backends, which are removed later.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define inline inline __attribute__((always_inline))

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static __u64 (*bpf_get_socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*bpf_get_netns_cookie)(void *context) = (void *)BPF_FUNC_get_netns_cookie;
static int (*bpf_set_retval)(int error) = (void *)BPF_FUNC_set_retval;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MAPPED 0xffff0000u
#else
#define MAPPED 0x0000ffffu
#endif

#define PROTOCOL_UDP 17
#define ECONNREFUSED 111
// Verdicts of a program.
#define DENY 0
#define ALLOW 1
// Most sockets whose Services are remembered.
#define ORIGINS_MAX 65536

// Address and port of a Service or backend as in packets: IPv4 as ::ffff:a.b.c.d.
struct end {
	__u32 address[4];
	__u16 port;
	__u8 protocol;
	__u8 zero;
};

// Backends of a Service at one address and port.
struct service {
	__u32 version;
	__u32 count;
	// Whether all flows go to the first backend.
	__u32 is_sticky;
};

struct place {
	__u32 version;
	__u32 index;
};

// The loader sets the numbers of entries.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, sizeof(struct end));
	__uint(value_size, sizeof(struct service));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, sizeof(struct place));
	__uint(value_size, sizeof(struct end));
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
} backends SEC(".maps");

// A socket, by its cookie, and the backend that it has.
struct use {
	__u64 socket;
	struct end backend;
};

// Services that sockets have sent to.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(key_size, sizeof(struct use));
	__uint(value_size, sizeof(struct end));
	__uint(max_entries, ORIGINS_MAX);
} origins SEC(".maps");

// Set by the loader.
struct constants {
	// Cookie of the node's network.
	__u64 network;
	// Whether the kernel lets a program choose the error (Linux 6.1).
	__u8 has_errors;
};

const volatile struct constants node_constants SEC(".rodata.node") = {};

// The end that a socket call names.
static inline void read_v4(struct bpf_sock_addr *call, struct end *end)
{
	end->address[0] = end->address[1] = 0;
	end->address[2] = MAPPED;
	end->address[3] = call->user_ip4;
	end->port = call->user_port;
	end->protocol = call->protocol;
	end->zero = 0;
}

static inline void read_v6(struct bpf_sock_addr *call, struct end *end)
{
	end->address[0] = call->user_ip6[0];
	end->address[1] = call->user_ip6[1];
	end->address[2] = call->user_ip6[2];
	end->address[3] = call->user_ip6[3];
	end->port = call->user_port;
	end->protocol = call->protocol;
	end->zero = 0;
}

static inline void write_v4(struct bpf_sock_addr *call, const struct end *end)
{
	call->user_ip4 = end->address[3];
	call->user_port = end->port;
}

static inline void write_v6(struct bpf_sock_addr *call, const struct end *end)
{
	call->user_ip6[0] = end->address[0];
	call->user_ip6[1] = end->address[1];
	call->user_ip6[2] = end->address[2];
	call->user_ip6[3] = end->address[3];
	call->user_port = end->port;
}

static inline int is_elsewhere(struct bpf_sock_addr *call)
{
	return bpf_get_netns_cookie(call) != node_constants.network;
}

// Number of the backend that a socket gets: any for a connection, the same for all datagrams of a socket.
static inline __u32 choose(struct bpf_sock_addr *call, const struct service *service, int is_datagram)
{
	if (service->is_sticky)
		return 0;
	if (!is_datagram)
		return bpf_get_prandom_u32() % service->count;
	return (__u32)(bpf_get_socket_cookie(call) * 0x9e3779b97f4a7c15ull >> 32) % service->count;
}

#define KEEP 0
#define REPLACE 1
#define REFUSE 2

// Replaces the end of a Service by a backend.
static inline int replace(struct bpf_sock_addr *call, struct end *end, int is_datagram)
{
	struct use use = {};
	struct service *service;
	struct place place;
	struct end *backend;

	if (is_elsewhere(call))
		return KEEP;
	service = bpf_map_lookup_elem(&services, end);
	if (!service)
		return KEEP;
	if (!service->count)
		return REFUSE;
	place.version = service->version;
	place.index = choose(call, service, is_datagram);
	backend = bpf_map_lookup_elem(&backends, &place);
	if (!backend)
		return REFUSE;
	use.socket = bpf_get_socket_cookie(call);
	use.backend = *backend;
	bpf_map_update_elem(&origins, &use, end, BPF_ANY);
	*end = *backend;
	return REPLACE;
}

static inline int refuse(void)
{
	if (node_constants.has_errors)
		bpf_set_retval(-ECONNREFUSED);
	return DENY;
}

static inline int send_v4(struct bpf_sock_addr *call, int is_datagram)
{
	struct end end;

	read_v4(call, &end);
	switch (replace(call, &end, is_datagram)) {
	case REPLACE:
		write_v4(call, &end);
		return ALLOW;
	case REFUSE:
		return refuse();
	}
	return ALLOW;
}

static inline int send_v6(struct bpf_sock_addr *call, int is_datagram)
{
	struct end end;

	read_v6(call, &end);
	switch (replace(call, &end, is_datagram)) {
	case REPLACE:
		write_v6(call, &end);
		return ALLOW;
	case REFUSE:
		return refuse();
	}
	return ALLOW;
}

// The Service by which the socket has got a backend.
static inline const struct end *origin(struct bpf_sock_addr *call, const struct end *backend)
{
	struct use use = {};

	if (is_elsewhere(call))
		return 0;
	use.socket = bpf_get_socket_cookie(call);
	use.backend = *backend;
	return bpf_map_lookup_elem(&origins, &use);
}

static inline int receive_v4(struct bpf_sock_addr *call)
{
	const struct end *service;
	struct end end;

	read_v4(call, &end);
	service = origin(call, &end);
	if (service)
		write_v4(call, service);
	return ALLOW;
}

static inline int receive_v6(struct bpf_sock_addr *call)
{
	const struct end *service;
	struct end end;

	read_v6(call, &end);
	service = origin(call, &end);
	if (service)
		write_v6(call, service);
	return ALLOW;
}

SEC("cgroup/connect4")
int palisade_conn4(struct bpf_sock_addr *call)
{
	return send_v4(call, 0);
}

SEC("cgroup/connect6")
int palisade_conn6(struct bpf_sock_addr *call)
{
	return send_v6(call, 0);
}

SEC("cgroup/sendmsg4")
int palisade_send4(struct bpf_sock_addr *call)
{
	return send_v4(call, 1);
}

SEC("cgroup/sendmsg6")
int palisade_send6(struct bpf_sock_addr *call)
{
	return send_v6(call, 1);
}

SEC("cgroup/recvmsg4")
int palisade_recv4(struct bpf_sock_addr *call)
{
	return receive_v4(call);
}

SEC("cgroup/recvmsg6")
int palisade_recv6(struct bpf_sock_addr *call)
{
	return receive_v6(call);
}

SEC("cgroup/getpeername4")
int palisade_peer4(struct bpf_sock_addr *call)
{
	return receive_v4(call);
}

SEC("cgroup/getpeername6")
int palisade_peer6(struct bpf_sock_addr *call)
{
	return receive_v6(call);
}

char program_license[] SEC("license") = "Apache-2.0";
