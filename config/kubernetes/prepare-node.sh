#!/bin/sh
# Writes the configuration of this node from its template, and makes the veth pair to the node's own network stack.
#
#   prepare-node.sh TEMPLATE TARGET
#
# NODE_NAME and NODE_ADDRESSES (with commas between them) come from the DaemonSet. UPLINK names the card where it is not
# that of the default route. A second run changes nothing but the configuration.
set -eu
template=$1
target=$2

fail() { echo "prepare-node.sh: $*" >&2; exit 1; }
# Refuses words that would end a string of TOML or a command of sed.
plain() { case $2 in "" | *[!A-Za-z0-9.:,_-]*) fail "$1 is \"$2\": letters, digits and .:,_- are allowed" ;; esac; }

# Prints the word after this one in the first line of the input.
after() {
    read -r line || return 0
    # The line is split into its words.
    # shellcheck disable=SC2086
    set -- "$1" $line
    wanted=$1
    shift
    while [ $# -gt 1 ]; do
        if [ "$1" = "$wanted" ]; then echo "$2"; return 0; fi
        shift
    done
}

uplink=${UPLINK:-$(ip -4 -oneline route show default | after dev)}
uplink=${uplink:-$(ip -6 -oneline route show default | after dev)}
[ -n "$uplink" ] || fail "the node has no default route: set UPLINK to the card that leads to the other nodes"
plain NODE_NAME "${NODE_NAME:-}"
plain NODE_ADDRESSES "${NODE_ADDRESSES:-}"
plain UPLINK "$uplink"
ip link show dev "$uplink" >/dev/null 2>&1 || fail "there is no interface $uplink"

if ! ip link show dev palisade-host >/dev/null 2>&1; then
    ip link add palisade-host type veth peer name palisade-node
fi
# The switch sets no interface up, and without this end the other one has no carrier.
ip link set palisade-host up
ip link set palisade-node up

quoted=\"$(echo "$NODE_ADDRESSES" | sed 's/,/", "/g')\"
{
    sed -e "s/@NODE@/$NODE_NAME/" -e "s/@UPLINK@/$uplink/" -e "s/@NODE_ADDRESSES@/$quoted/" "$template"
    for family in 4:0.0.0.0/0 6:::/0; do
        route=$(ip "-${family%%:*}" -oneline route show default dev "$uplink")
        router=$(echo "$route" | after via)
        [ -z "$router" ] || printf '\n[[routes]]\nprefix = "%s"\nport = "uplink"\nnext_hop = "%s"\n' \
            "${family#*:}" "$router"
        # Neighbours on the link are reached without the router. Link-local addresses stay on it.
        ip "-${family%%:*}" -oneline route show dev "$uplink" proto kernel | while read -r prefix _; do
            case $prefix in fe80:* | default | multicast) continue ;; */*) ;; *) continue ;; esac
            printf '\n[[routes]]\nprefix = "%s"\nport = "uplink"\n' "$prefix"
        done
    done
} > "$target.next"
mv "$target.next" "$target"
