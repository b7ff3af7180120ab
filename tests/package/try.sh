#!/bin/sh
# Installs, starts, upgrades, removes and purges the Debian package in a clean root with systemd, as root:
#
#   debootstrap --variant=minbase --include=systemd-sysv,dbus,procps,iproute2,libelf1,zlib1g \
#       bookworm ROOT
#   make deb && cp target/debian/palisade_*.deb old.deb
#   make deb-package DEB="--deb-revision 2" && cp target/debian/palisade_*.deb new.deb
#   tests/package/try.sh ROOT old.deb new.deb
#
# A connection between two pods, one on a veth pair and one on a tap device, runs through the upgrade. systemd is process 1
# of namespaces that end with this script, in a cgroup of its own.
set -eu

if [ "${1-}" = inside ]; then
    step() { echo "== $*"; }
    fail() { echo "FAILED: $*" >&2; journalctl --no-pager -n 30 -u palisade >&2; exit 1; }
    files() {
        find / -xdev \( -path /var/lib/dpkg -o -path /var/log -o -path /tmp -o -path /var/cache -o -path /var/backups \) \
            -prune -o -print | sort
    }
    pid() { systemctl show --property MainPID --value palisade.service; }
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
    files > /tmp/before
    ip link set lo up
    for pod in a b; do ip netns add "$pod"; done

    step install
    dpkg -i /srv/try/old.deb
    getent group palisade palisade-view >/dev/null || fail "no groups"
    [ "$(stat -c %G:%a /run/palisade/control.sock)" = palisade:660 ] || fail "the group of the socket"
    [ -e /usr/share/man/man1/palisade-run.1.gz ] || fail "no man pages"
    systemctl --quiet is-enabled palisade.service && systemctl --quiet is-active palisade.service || fail "the unit does not run"
    palisade show status
    palisade doctor --config /etc/palisade/palisade.toml || true

    step "two pods, and a connection between them"
    ip link add veth-a type veth peer name eth0 netns a
    ip link set veth-a up
    cat > /etc/palisade/policies/pods.yaml <<'YAML'
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
    sed -i 's:^#directory = "/etc/palisade/policies":directory = "/etc/palisade/policies":' /etc/palisade/palisade.toml
    cat >> /etc/palisade/palisade.toml <<'TOML'
[[ports]]
name = "a"
kind = "pod"
interface = "veth-a"
pod = "default/a"
pod_addresses = ["10.1.0.1"]

[[ports]]
name = "b"
kind = "tap"
namespace = "b"
interface = "eth0"
pod = "default/b"
pod_addresses = ["10.1.0.2"]
TOML
    palisade run --check --config /etc/palisade/palisade.toml
    systemctl reload palisade.service
    systemctl restart palisade.service
    for pod in a:1 b:2; do
        ip -n "${pod%:*}" address add "10.1.0.${pod#*:}/32" dev eth0
        ip -n "${pod%:*}" link set eth0 up
        ip -n "${pod%:*}" route add default via 169.254.1.1 dev eth0 onlink
    done
    # The server answers each line; the client writes the number of answers to /tmp/count.
    ip netns exec b perl -MIO::Socket::INET -e '
        my $l = IO::Socket::INET->new(Listen => 5, LocalPort => 80) or die; open my $f, ">", "/tmp/listens"; close $f;
        my $c = $l->accept or die; while (<$c>) { syswrite $c, $_ }' &
    while [ ! -e /tmp/listens ]; do sleep 0.1; done
    ip netns exec a perl -MIO::Socket::INET -e '
        my $s = IO::Socket::INET->new(PeerAddr => "10.1.0.2:80", Timeout => 10) or die "no connection";
        for (my $n = 1; ; $n++) {
            syswrite $s, "$n\n" or die "closed"; my $echo = <$s>; die "cut" unless defined $echo;
            open my $f, ">", "/tmp/next"; print $f $n; close $f; rename "/tmp/next", "/tmp/count";
            select undef, undef, undef, 0.05;
        }' &
    client=$!
    count() { cat /tmp/count 2>/dev/null || echo 0; }
    goes_on() {
        from=$(count)
        for _ in $(seq 600); do [ "$(count)" -gt "$((from + 20))" ] && return 0; sleep 0.1; done
        fail "the connection does not go on: $from, then $(count)"
    }
    goes_on
    # No port but 80 is allowed: the switch, not the kernel, carries this connection.
    ! ip netns exec a perl -MIO::Socket::INET -e 'IO::Socket::INET->new(PeerAddr => "10.1.0.2:81", Timeout => 1) or
        exit($!{ECONNREFUSED} ? 0 : 1)' || fail "policy is not in force"
    [ -n "$(ls -A /sys/fs/bpf/palisade)" ] || fail "no pinned program"

    step upgrade
    old=$(pid)
    dpkg -i --force-confold /srv/try/new.deb
    [ "$(pid)" != "$old" ] && systemctl --quiet is-active palisade.service || fail "the switch was not restarted"
    goes_on
    kill -0 "$client" || fail "the connection was cut"
    grep -q '^name = "b"' /etc/palisade/palisade.toml || fail "the configuration was replaced"
    palisade show flows
    journalctl --no-pager -o cat -u palisade | tail -6
    ! journalctl --no-pager _PID="$(pid)" | grep -a 'WARN\|ERROR' || fail "warnings in the log"

    step "remove, and install again"
    dpkg -r palisade
    [ ! -e /usr/bin/palisade ] && [ -e /etc/palisade/palisade.toml ] || fail "a removal leaves the configuration alone"
    ! systemctl --quiet is-active palisade.service || fail "the switch still runs"
    ip link show veth-a | grep -q xdp || fail "the pod is open"
    dpkg -i /srv/try/new.deb
    goes_on

    step purge
    kill "$client"
    dpkg -P palisade
    ! systemctl --quiet is-active palisade.service || fail "the switch still runs"
    ! getent group palisade || fail "a group is left"
    ! getent group palisade-view || fail "a group is left"
    for path in /run/palisade /etc/palisade /sys/fs/bpf/palisade; do [ ! -e "$path" ] || fail "$path is left"; done
    [ -z "$(find /dev/shm -name 'palisade*')" ] || fail "files in /dev/shm are left"
    ! ip link show veth-a | grep xdp || fail "a program is left"
    # A tap device is its pod's, and ends with the namespace of the pod.
    # The tools of groups keep a copy of their files.
    files > /tmp/after
    left=$(comm -13 /tmp/before /tmp/after | grep -v '^/etc/g\(roup\|shadow\)-$' || true)
    [ -z "$left" ] || fail "left: $left"
    step "nothing is left"
    exit 0
fi

[ $# = 3 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$1
mkdir -p "$root/srv/try"
cp "$0" "$root/srv/try/try.sh"
cp "$2" "$root/srv/try/old.deb"
cp "$3" "$root/srv/try/new.deb"

hierarchy=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET)
cgroup=$hierarchy/palisade-package-$$
mkdir "$cgroup"
clean() {
    # unshare ignores SIGTERM. The end of process 1 ends all others.
    kill -KILL ${init:-"$boot"} 2>/dev/null || true
    wait "$boot" 2>/dev/null || true
    for _ in $(seq 100); do
        find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.1
    done
    rm -rf "$root/srv/try"
}
sh -c 'echo $$ > "$2/cgroup.procs"
exec unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child sh -eu -c '"'"'
    mount --make-rprivate /
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"
    mount -t sysfs sys "$1/sys"
    mount -t bpf bpf "$1/sys/fs/bpf"
    mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 dev "$1/dev"
    mkdir -p "$1/dev/net" "$1/dev/shm"
    for device in null zero full random urandom tty net/tun; do
        : > "$1/dev/$device"
        mount --bind "/dev/$device" "$1/dev/$device"
    done
    ln -s /proc/self/fd "$1/dev/fd"
    for directory in dev/shm run tmp; do mount -t tmpfs tmpfs "$1/$directory"; done
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" /lib/systemd/systemd --system
'"'"' boot "$1"' boot "$root" "$cgroup" </dev/null &
boot=$!
trap clean EXIT
trap 'exit 1' INT TERM
for _ in $(seq 300); do
    init=$(pgrep -x -P "$boot" systemd || true)
    [ -n "$init" ] && nsenter -t "$init" -a -r -w systemctl is-system-running 2>/dev/null | grep -q 'running\|degraded' && break
    sleep 0.1
done
nsenter -t "$init" -a -r -w /bin/sh /srv/try/try.sh inside
