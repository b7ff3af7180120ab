# Runs before the commands of docs/getting-started.md, in a mount and a network namespace of their own. It makes a node with a
# NIC and a router, and replaces the commands that need an installed system. $PALISADE is the binary, $SOURCES the sources.
set -eu -o pipefail
mount -t tmpfs tmpfs /run
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
mkdir /run/etc /run/bin /run/sources
cp -a /etc/. /run/etc/
mount --bind /run/etc /etc
mount --bind /run/bin /usr/local/bin
export PATH=/usr/local/bin:$PATH
cp -a "$SOURCES/config" /run/sources/
cd /run/sources

ip link set lo up
ip netns add router
ip link add eth0 type veth peer name eth0 netns router
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up
ip -n router address add 192.0.2.1/24 dev eth0
ip -n router link set eth0 up
ip route add default via 192.0.2.1
ip -n router route add 10.77.0.0/24 via 192.0.2.10

sudo() { "$@"; }

make() {
    mkdir -p target/release
    ln -s "$PALISADE" target/release/palisade
}

# A program of a debug build is large: a link takes its place.
install() {
    if [ -L "$3" ]; then ln -s "$(readlink "$3")" "$4"; else command install "$@"; fi
}

unit() { sed -n "s/^$1=//p" /etc/systemd/system/palisade.service; }

# As systemd does for this unit: group, capabilities, and a start that returns when the process reports READY=1.
systemctl() {
    case $1 in
    enable)
        # A small switch.
        printf '[workers]\nframes = 8192\n[conntrack]\nflows = 16384\n' >> /etc/palisade/palisade.toml
        local capabilities=-all name listener
        for name in $(unit CapabilityBoundingSet); do capabilities+=,+$(tr '[:upper:]' '[:lower:]' <<< "${name#CAP_}"); done
        python3 -c 'import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind("/run/notify"); assert s.recv(64) == b"READY=1"' &
        listener=$!
        until [ -S /run/notify ]; do sleep 0.1; done
        NOTIFY_SOCKET=/run/notify setpriv --regid="$(unit Group)" --clear-groups --bounding-set="$capabilities" \
            --no-new-privs $(unit ExecStart) >&2 &
        echo $! > /run/pid
        wait $listener
        disown
        ;;
    disable)
        kill "$(cat /run/pid)"
        while kill -0 "$(cat /run/pid)" 2> /dev/null; do sleep 0.1; done
        ;;
    esac
}
