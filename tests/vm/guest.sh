#!/bin/busybox sh
# First process of a virtual machine of tests/vm/run.py: a switch between a pod on veth and cards of several drivers, each with
# a card in another namespace as its network. Prints `ok - CLAIM` or `not ok - CLAIM`.
/bin/busybox --install -s /bin
export PATH=/sbin:/bin
# The shell prefers its own applets.
ip() { /sbin/ip "$@"; }
ethtool() { /sbin/ethtool "$@"; }
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /run/netns /sys/fs/bpf
mount -t tmpfs tmp /dev/shm
mount -t tmpfs run /run
mount -t bpf bpf /sys/fs/bpf
for module in /modules/*; do insmod "$module" 2>/dev/null; done
sleep 1

check() {
    # check CLAIM COMMAND...
    claim=$1
    shift
    if "$@" > /dev/null; then echo "ok - $claim"; else echo "not ok - $claim"; fi
    echo "# $(cut -d ' ' -f 1 /proc/uptime) s"
}

card() {
    # Name of the card with this last byte of its address.
    for place in /sys/class/net/*; do
        [ "$(cat "$place/address" 2>/dev/null)" = "52:54:00:00:00:$1" ] && [ -d "$place/device" ] && basename "$place" && return
    done
}

# Makes the network's end of a link: a card in a namespace `net`, at 192.0.2.2, with a server.
network() {
    ip netns add net
    for byte in "$@"; do ip link set "$(card "$byte")" netns net; done
    in_net ip link set lo up
    if [ $# = 1 ]; then
        device=$(in_net ip -o link | sed -n "s/^[0-9]*: \(eth[0-9]*\):.*52:54:00:00:00:$1.*/\1/p")
    else
        in_net ip link add br0 type bridge
        in_net ip -o link | sed -n 's/^[0-9]*: \(eth[0-9]*\):.*/\1/p' | while read -r member; do
            in_net ip link set "$member" master br0 up
        done
        device=br0
    fi
    in_net ip link set "$device" up
    in_net ip address add 192.0.2.2/24 dev "$device"
    in_net ip address add 2001:db8:2::2/64 dev "$device" nodad
    in_net ip route add 10.244.1.0/24 via 192.0.2.1
    in_net ip route add fd00:244:1::/64 via 2001:db8:2::1
    in_net httpd -p '[::]:80' -h /www
}

in_net() { ip netns exec net "$@"; }
in_pod() { ip netns exec pod "$@"; }

# Makes a pod on a veth pair.
pod() {
    ip netns add pod
    ip link add pod0 type veth peer name eth0 netns pod
    ip link set pod0 up
    in_pod ip link set lo up
    in_pod ip link set eth0 up
    in_pod ip address add 10.244.1.2/32 dev eth0
    in_pod ip address add fd00:244:1::2/128 dev eth0 nodad
    in_pod ip route add default via 169.254.1.1 dev eth0 onlink
    in_pod ip route add default via fe80::1 dev eth0
    in_pod httpd -p '[::]:80' -h /www
}

# Starts a switch with this uplink.
start() {
    ip link set "$1" up
    ip address add 192.0.2.1/24 dev "$1"
    ip address add 2001:db8:2::1/64 dev "$1" nodad
    mkdir -p /run/vm/policy
    cat > /run/vm/policy/all.yaml <<EOF
apiVersion: v1
kind: Namespace
metadata: {name: default}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec: {nodeName: n1, containers: [{name: c, image: c}]}
status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}, {ip: "fd00:244:1::2"}]}
EOF
    cat > /run/vm/palisade.toml <<EOF
on_stop = "detach"
pod_prefixes = ["10.244.1.0/24", "fd00:244:1::/64"]
[workers]
cores = [0]
frames = 4096
huge_pages = false
[conntrack]
flows = 4096
directory = ""
[control]
socket = "control.sock"
[policy]
directory = "policy"
[hardening]
landlock = false
[offload]
mode = "$offload"
[[ports]]
name = "uplink"
kind = "uplink"
interface = "$1"
[[routes]]
prefix = "192.0.2.0/24"
port = "uplink"
[[routes]]
prefix = "2001:db8:2::/64"
port = "uplink"
[[ports]]
name = "pod0"
kind = "pod"
pod = "default/a"
pod_addresses = ["10.244.1.2", "fd00:244:1::2"]
EOF
    palisade run --config /run/vm/palisade.toml > /run/vm/log 2>&1 &
    switch=$!
    for _ in $(seq 300); do
        grep -q "is ready" /run/vm/log && return
        kill -0 $switch 2>/dev/null || return
        sleep 0.2
    done
}

# Ends the switch and the namespaces.
stop() {
    kill $switch 2>/dev/null
    wait $switch 2>/dev/null
    echo "# $(cut -d ' ' -f 1 /proc/uptime) s: the switch has ended"
    killall httpd 2>/dev/null
    ip netns delete pod
    ip netns delete net
    sleep 1
    ip address flush dev "$1"
    ip link set "$1" down
}

fetches() {
    # Whether a namespace gets the whole file, and the head of the answer, from an address.
    received=$(ip netns exec "$1" fetch "$2" /big)
    [ "${received:-0}" -gt 300000 ]
}

wrong_checksums() {
    in_net cat /proc/net/snmp | awk '/^Tcp: [0-9]/ {print $16}'
}

# Both directions and families between the pod and the network.
carries() {
    check "$1: a pod reaches the network" fetches pod 192.0.2.2
    check "$1: the network reaches a pod" fetches net 10.244.1.2
    check "$1: a pod reaches the network over IPv6" fetches pod 2001:db8:2::2
    check "$1: the network reaches a pod over IPv6" fetches net fd00:244:1::2
    check "$1: no segment has a wrong checksum" [ "$(wrong_checksums)" = 0 ]
    check "$1: ping" in_pod ping -c 2 -W 5 192.0.2.2
}

counter() {
    palisade show counters --output json --socket /run/vm/control.sock | tr -d ' \n' | sed -n "s/.*$1\([0-9]*\).*/\1/p"
}

received() { counter '"core":0,"received":'; }
forwarded() { counter '"offloaded":'; }

# Whether the kernel has forwarded what the namespaces have fetched, but for the packets that open and end a connection.
is_offloaded() {
    [ "$(received)" -lt $(($1 + 80)) ] && [ "$(forwarded)" -gt 50 ]
}

# The same with flow offload, which kernels before Linux 6.6 do not have.
carries_offloaded() {
    before=$(received)
    carries "$1, offloaded"
    echo "# the workers have received $(($(received) - before)) packets, the kernel has forwarded $(forwarded)"
    case $(uname -r) in
    6.1.*) check "$1: the log tells why nothing is offloaded" grep -q "not offloaded.*from Linux 6.6 on" /run/vm/log ;;
    *) check "$1: the kernel forwards established flows" is_offloaded "$before" ;;
    esac
}

# Runs a check on a card of each driver.
on_cards() {
    network 02; pod; start "$(card 01)"
    "$1" virtio-net; show_log
    stop "$(card 01)"
    if [ -n "$(card 07)" ]; then
        network 08; pod; start "$(card 07)"
        "$1" igb; show_log
        stop "$(card 07)"
    fi
}

show_log() {
    grep -v ' INFO ' /run/vm/log | sed 's/^/# /' | head -20
}

offload=off
mkdir /www
yes palisade | head -c 300000 > /www/big
echo "kernel $(uname -r)"

on_cards carries
offload=kernel
on_cards carries_offloaded
offload=off

network 0a; pod
ethtool -L "$(card 09)" combined 1 2>/dev/null
start "$(card 09)"
carries "virtio-net with more queue pairs than processors"; show_log
check "its queues are not raised" [ "$(ls -d /sys/class/net/"$(card 09)"/queues/rx-* | wc -l)" = 1 ]
stop "$(card 09)"

ip link add bond0 type bond mode active-backup miimon 100
for byte in 03 05; do ip link set "$(card $byte)" down; ip link set "$(card $byte)" master bond0; done
first=$(ls -d /sys/class/net/bond0/lower_* | head -1 | sed 's/.*lower_//')
network 04 06; pod; start bond0
carries bond; show_log
ip link set "$first" down
sleep 1
check "bond: it fails over" fetches pod 192.0.2.2
ip link set "$first" up
stop bond0

refuses() {
    # refuses CLAIM INTERFACE WORDS
    ip netns add net; pod
    start "$2"
    if grep -q "$3" /run/vm/log && ! kill -0 $switch 2>/dev/null; then echo "ok - $1"; else echo "not ok - $1"; head -20 /run/vm/log; fi
    stop "$2"
}

refuses "a member of a bond is refused" "$first" "is a member of the bond"
ip link add wg0 type wireguard && refuses "a layer-3 device is refused" wg0 "has no Ethernet headers"
if ip link add nk0 type netkit; then
    refuses "netkit is refused" nk0 "netkit"
else
    echo "# netkit is not here: not tried"
fi
echo "end of the tests"
poweroff -f
