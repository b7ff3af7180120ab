#!/bin/sh
# Runs containers of podman on the switch, by the CNI plugin and host-local, and prints a transcript: two containers reach
# each other under a policy and a third does not, the node reaches them, one is killed, the switch is restarted meanwhile,
# 50 with published ports start at once while the switch is restarted, and half of them are killed. The transcript of
# docs/kubernetes.md is the output of this script.
#
#   tests/cni/podman.sh [DIRECTORY OF palisade AND palisade-cni]     (default: target/debug)
#
# It needs root and the packages podman, crun, containernetworking-plugins, iptables and busybox-static. Everything that it makes is
# in one directory and the namespaces of its containers, and is removed at its end.
set -eu
# The node is a network namespace, which takes interfaces and packet filters with it. crun takes no hierarchy of cgroups of
# both versions: the script sees one of version 2.
if [ "${PALISADE_PODMAN_INSIDE:-}" != 1 ]; then
    export PALISADE_PODMAN_INSIDE=1
    exec unshare --mount --net "$0" "$@"
fi
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || mount -t cgroup2 none /sys/fs/cgroup
# States of podman, crun and CNI end with the mount namespace, too.
mkdir -p /var/lib/cni
for state in /run /var/lib/cni /dev/shm; do mount -t tmpfs tmpfs "$state"; done
bin=$(cd "${1:-target/debug}" && pwd)
work=$(mktemp -d /tmp/palisade-podman.XXXXXX)
node_end=palisade-node
switch_end=palisade-host
socket=$work/control.sock
storage="--root $work/storage --runroot $work/run --storage-driver vfs --cgroup-manager cgroupfs --runtime crun"
export CONTAINERS_CONF="$work/containers.conf"
export PALISADE_SOCKET="$socket"
switch=

finish() {
    status=$?
    trap - EXIT
    set +e
    pod ps -aq 2>/dev/null | while read -r container; do pod rm -f -t 0 "$container" >/dev/null 2>&1 || true; done
    [ -z "$switch" ] || { kill "$switch" 2>/dev/null; wait "$switch" 2>/dev/null; } || true
    [ $status -eq 0 ] || { echo "--- the switch said:"; tail -n 20 "$work/switch.log"; }
    for mount in $(awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | sort -r); do umount "$mount"; done
    rm -rf "$work"
    exit $status
}
trap finish EXIT
trap 'exit 1' INT TERM

# Options of the storage are left out of the transcript.
# shellcheck disable=SC2086
pod() { podman $storage "$@"; }
# Prints a command as an operator types it, and runs it.
show() {
    echo "# $*"
    case $1 in
    podman) shift; pod "$@" </dev/null ;;
    palisade) shift; "$bin/palisade" "$@" ;;
    *) "$@" ;;
    esac
}
refused() { if "$@"; then echo "FAILED: it passed"; exit 1; else echo "(exit code $?)"; fi; }
# Waits until a command succeeds.
eventually() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "FAILED: in vain: $*"; exit 1; }
        sleep 0.1
    done
}
start_switch() {
    "$bin/palisade" run --config "$work/palisade.toml" >>"$work/switch.log" 2>&1 &
    switch=$!
    eventually "$bin/palisade" show status
}
address() { pod inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$1"; }
# Loads the containers as pods, and the policy: web reaches db, and nobody else.
apply() {
    {
        echo '{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}'
        for name in "$@"; do
            printf -- '---\n{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "%s", "namespace": "default", "labels": {"app": "%s"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Running", "podIPs": [{"ip": "%s"}]}}\n' \
                "$name" "$name" "$(address "$name")"
        done
        cat <<'POLICY'
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: to-db, namespace: default}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 80}]
POLICY
    } >"$work/policies.yaml"
    "$bin/palisade" apply "$work/policies.yaml"
}

# An image of busybox alone. Programs of a static one resolve no names.
mkdir -p "$work/image/bin" "$work/plugins" "$work/net.d"
cp /bin/busybox "$work/image/bin/busybox"
for tool in echo nc sleep; do ln -s busybox "$work/image/bin/$tool"; done
cat >"$work/containers.conf" <<CONF
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:$(ulimit -Hn)", "nproc=1024:1024"]
[engine]
events_logger = "file"
[network]
network_backend = "cni"
cni_plugin_dirs = ["$work/plugins", "/usr/lib/cni"]
network_config_dir = "$work/net.d"
default_network = "pods"
CONF
cat >"$work/pods.conflist" <<CONF
{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "palisade-cni",
    "socket": "$socket",
    "ipam": {"type": "host-local", "dataDir": "$work/leases", "ranges": [[{"subnet": "10.89.77.0/24"}]]}
  }, {
    "type": "portmap", "capabilities": {"portMappings": true}
  }]
}
CONF
cat >"$work/palisade.toml" <<CONF
[workers]
frames = 8192
[conntrack]
directory = ""
[control]
socket = "$socket"
[xdp]
pin_directory = "$work/pins"
[[ports]]
name = "node"
kind = "host"
interface = "$switch_end"
addresses = ["192.0.2.77"]
CONF
ip link set lo up
ip link add "$switch_end" type veth peer name "$node_end"
ip link set "$switch_end" up
ip link set "$node_end" up
ip address add 192.0.2.77/32 dev "$node_end"
start_switch
"$bin/palisade-cni" install --bin-dir "$work/plugins" --conf-dir "$work/net.d" --conf "$work/pods.conflist" >/dev/null
tar -C "$work/image" -c . | pod import - busybox >/dev/null 2>&1

echo "# podman run -d --network pods -p 18077:80 --name db busybox nc -ll -p 80 -e echo the page of db     (and web, other)"
pod run -d --cgroups=disabled --network pods -p 18077:80 --name db busybox /bin/nc -ll -p 80 -e echo the page of db >/dev/null
pod run -d --cgroups=disabled --network pods --name web busybox /bin/sleep 600 >/dev/null
pod run -d --cgroups=disabled --network pods --name other busybox /bin/sleep 600 >/dev/null
show palisade show pods
echo "# palisade apply policies.yaml"
apply web db other
db=$(address db)
show podman exec web nc -w 20 "$db" 80
refused show podman exec other nc -w 2 "$db" 80
echo "# palisade show drops --pod default/db | tail -n 2"
"$bin/palisade" show drops --pod default/db | tail -n 2
echo "# nc $db 80     (on the node)"
/bin/busybox nc -w 20 "$db" 80 </dev/null
echo "# nc 192.0.2.77 18077     (a published port, by the plugin portmap)"
/bin/busybox nc -w 20 192.0.2.77 18077 </dev/null

echo "# podman kill db; systemctl kill -s KILL palisade; podman start db"
pod kill db >/dev/null
kill -9 "$switch"
wait "$switch" 2>/dev/null || true
switch=
eventually pod wait db
if pod start db >/dev/null 2>"$work/refused"; then echo "FAILED: it started without a switch"; exit 1; fi
grep -o 'no switch answers at.*is it running?' "$work/refused" | head -n 1
start_switch
echo "# systemctl start palisade; podman start db"
pod start db >/dev/null
apply web db other
db=$(address db)
show podman exec web nc -w 20 "$db" 80
refused show podman exec other nc -w 2 "$db" 80

count=${COUNT:-50}
echo "# for n in \$(seq $count); do podman run -d --network pods -p \$((18100 + n)):80 --name c\$n busybox nc -ll -p 80 -e echo the page of c\$n & done"
# A container that the plugin refuses while the switch is away is started again, as a runtime does.
attach() {
    port=$((18100 + $1))
    pod run -d --cgroups=disabled --network pods -p $port:80 --name "c$1" busybox /bin/nc -ll -p 80 -e echo the page of "c$1" \
        >/dev/null 2>&1 && return
    echo "c$1" >>"$work/again"
    eventually pod start "c$1"
}
: >"$work/again"
processes=
for n in $(seq "$count"); do
    attach "$n" &
    processes="$processes $!"
done
attached() { "$bin/palisade" show pods 2>/dev/null | grep -c '^ default/c'; }
some_are_attached() { [ "$(attached)" -ge $((count / 5)) ]; }
eventually some_are_attached
echo "# systemctl kill -s KILL palisade; systemctl start palisade     (meanwhile)"
kill -9 "$switch"
wait "$switch" 2>/dev/null || true
start_switch
for process in $processes; do wait "$process"; done
echo "# palisade show pods | grep -c '^ default/c'"
attached
# shellcheck disable=SC2046
apply web db other $(seq -f c%g "$count") >/dev/null
echo "# for n in \$(seq $count); do nc 192.0.2.77 \$((18100 + n)); done | sort -u | wc -l"
for n in $(seq "$count"); do
    /bin/busybox nc -w 20 192.0.2.77 $((18100 + n)) </dev/null || echo "FAILED: c$n does not answer"
done >"$work/pages"
sort -u "$work/pages" | grep -c '^the page of c'
[ "$(sort -u "$work/pages" | grep -c '^the page of c')" = "$count" ] || { echo "FAILED:"; cat "$work/pages"; exit 1; }
refused show podman exec other nc -w 2 "$db" 80
half=$((count / 2))
echo "# for n in \$(seq $half); do podman kill c\$n; done"
# shellcheck disable=SC2046
pod kill $(seq -f c%g "$half") >/dev/null
rest_is_attached() { [ "$(attached)" = $((count - half)) ]; }
eventually rest_is_attached
echo "# palisade show pods | grep -c '^ default/c'"
attached
echo "# podman rm -f -a"
pod rm -f -t 0 -a >/dev/null
show palisade show pods
left=$(find "$work/cni/attached" "$work/cni/pending" "$work/leases" -type f ! -name lock ! -name 'last_reserved*' | wc -l)
[ "$left" = 0 ] || { echo "FAILED: $left records and leases are left"; exit 1; }
