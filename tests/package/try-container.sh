#!/bin/sh
# Runs the switch in a container with the rights of docs/install.md, as root: two pods on veth pairs, a policy, a
# connection that outlives a killed container.
#
#   debootstrap --variant=minbase --include=iproute2,libelf1,zlib1g bookworm ROOT
#   apt-get install podman crun
#   tests/package/try-container.sh ROOT target/debug/palisade
#
# ROOT stands for the image: it has the packages that config/Containerfile installs. podman takes it as the root file
# system, so that no image is pulled. PODMAN may have options: PODMAN="podman --runtime runc --cgroup-manager cgroupfs".
set -eu
[ $# = 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(realpath "$1")
install "$2" "$root/usr/bin/palisade"

podman=${PODMAN:-podman}
name=palisade-try-$$
scratch=$(mktemp -d)
step() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; $podman logs "$name" >&2 || true; exit 1; }
children=
clean() {
    for child in $children; do kill "$child" 2>/dev/null || true; done
    $podman rm --force --time 5 "$name" >/dev/null 2>&1 || true
    # The interfaces go with the namespaces, and the programs with the interfaces.
    for pod in a b; do ip netns delete "$name-$pod" 2>/dev/null || true; done
    umount "$scratch/bpf" "$scratch/run" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 1' INT TERM

step "two pods"
mkdir "$scratch/etc" "$scratch/run" "$scratch/bpf"
# In memory, as /run is: beside a socket on a disk, the flow table would be in the container's own /dev/shm.
mount -t tmpfs tmpfs "$scratch/run"
# Not the node's own: a switch that runs on it keeps its programs.
mount -t bpf bpf "$scratch/bpf"
mkdir -p /run/netns
cat > "$scratch/etc/pods.yaml" <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default, labels: {app: a}}
status: {podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: default, labels: {app: b}}
status: {podIPs: [{ip: 10.1.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: to-b, namespace: default}
spec:
  podSelector: {matchLabels: {app: b}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: a}}}]
    ports: [{protocol: TCP, port: 80}]
YAML
cat > "$scratch/etc/palisade.toml" <<TOML
[policy]
directory = "/etc/palisade/pods.yaml"
[workers]
frames = 4096
TOML
for pod in a:1 b:2; do
    namespace=$name-${pod%:*} address=10.1.0.${pod#*:} port=pt$$${pod%:*}
    ip netns add "$namespace"
    ip link add "$port" type veth peer name eth0 netns "$namespace"
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set eth0 up
    ip -n "$namespace" address add "$address/32" dev eth0
    ip -n "$namespace" route add default via 169.254.1.1 dev eth0 onlink
    ip link set "$port" up
    cat >> "$scratch/etc/palisade.toml" <<TOML
[[ports]]
name = "${pod%:*}"
kind = "pod"
interface = "$port"
pod = "default/${pod%:*}"
pod_addresses = ["$address"]
TOML
done

# Where root may not raise limits, those of this shell stay, and IPC_LOCK alone has to do.
hard() { prlimit --pid $$ "--$1" --output HARD --noheadings --raw | sed 's/unlimited/-1/'; }
limit() { echo "$1=$(hard "$1"):$(hard "$1")"; }
memlock=$(limit memlock)
(ulimit -Hl unlimited) 2>/dev/null && memlock=memlock=-1:-1
start() {
    $podman run --detach --name "$name" --network host \
        --cap-drop ALL --cap-add NET_ADMIN --cap-add NET_RAW --cap-add IPC_LOCK --cap-add SYS_ADMIN --cap-add SYS_NICE \
        --security-opt no-new-privileges --security-opt apparmor=unconfined --read-only --ulimit "$memlock" \
        --device /dev/net/tun --volume "$scratch/etc:/etc/palisade:ro" --volume "$scratch/run:/run/palisade" \
        --volume "$scratch/bpf:/sys/fs/bpf" --volume /run/netns:/run/netns:rslave \
        --ulimit "$(limit nofile)" --ulimit nproc=1024:1024 --rootfs "$root" palisade run --config /etc/palisade/palisade.toml >/dev/null
    for _ in $(seq 300); do
        $podman exec "$name" palisade show status >"$scratch/status" 2>/dev/null && return 0
        sleep 0.1
    done
    fail "the switch does not start"
}
step "a container with the least rights"
start
cat "$scratch/status"
$podman logs "$name" 2>&1 | grep -i 'keeps\|warn' || true
[ -n "$(ls -A "$scratch/bpf/palisade")" ] || fail "no pinned program"

step "a connection under policy"
ip netns exec "$name-b" python3 -u -c '
import socket
s = socket.create_server(("", 80)); print("listens", flush=True); c, _ = s.accept()
while data := c.recv(99): c.sendall(data)' > "$scratch/server" &
children="$children $!"
for _ in $(seq 100); do [ -s "$scratch/server" ] && break; sleep 0.1; done
ip netns exec "$name-a" python3 -u -c '
import socket, time
s = socket.create_connection(("10.1.0.2", 80), 60); s.settimeout(60); n = 0
while True:
    s.sendall(b"x"); assert s.recv(1) == b"x"; n += 1; print(n, flush=True); time.sleep(0.05)' > "$scratch/client" &
client=$!
children="$children $client"
goes_on() {
    from=$(wc -l < "$scratch/client")
    for _ in $(seq 600); do [ "$(wc -l < "$scratch/client")" -gt "$((from + 20))" ] && return 0; sleep 0.1; done
    fail "the connection does not go on after $from answers"
}
goes_on
! ip netns exec "$name-a" python3 -c 'import socket; socket.create_connection(("10.1.0.2", 81), 1)' 2>/dev/null \
    || fail "policy is not in force"
$podman exec "$name" palisade show drops --max 3

step "kill, and start again"
$podman kill --signal KILL "$name" >/dev/null
$podman wait "$name" >/dev/null
! ip netns exec "$name-a" ping -c 1 -W 1 10.1.0.2 >/dev/null || fail "pods are open without the switch"
$podman rm "$name" >/dev/null
start
goes_on
kill -0 "$client" || fail "the connection was cut"
$podman exec "$name" palisade show flows
step "done"
