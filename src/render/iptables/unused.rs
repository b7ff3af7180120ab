//! Script that removes chains and sets of former states, whatever these were. A chain that stayed would name chains and sets that a
//! later change removes, and iptables-restore would refuse that change.

use std::fmt::Write;

use super::State;
use crate::render::output::Part;

/// Head of the script, before the names that stay.
const HEAD: &str = "#!/bin/sh
# Run last, as root: sh FILE. Removes chains (pal-, palisade-) and sets (pal4-, pal4t-, pal6-, pal6t-) that this state does not have.
# IPTABLES and IP6TABLES name other programs: iptables-legacy, ip6tables-nft.
set -eu
kept=$(mktemp)
trap 'rm -f \"$kept\"' EXIT
cat > \"$kept\" <<'KEPT'
";

/// Rest of the script.
const REST: &str = r#"KEPT
for family in iptables ip6tables; do
  case $family in
    iptables) program=${IPTABLES:-iptables} ;;
    ip6tables) program=${IP6TABLES:-ip6tables} ;;
  esac
  for table in raw filter; do
    gone=$("$program-save" -t "$table" | sed -n "s/^:\(pal-[^ ]*\|palisade-[^ ]*\) .*/$family $table \1/p" |
      grep -vxF -f "$kept" | sed 's/.* //' || true)
    [ -n "$gone" ] || continue
    {
      echo "*$table"
      printf ':%s - [0:0]\n' $gone
      printf -- '-X %s\n' $gone
      echo COMMIT
    } | "$program-restore" --noflush
  done
done
ipset list -n | sed -n 's/^pal[46]t\{0,1\}-.*/set &/p' | { grep -vxF -f "$kept" || true; } | while read -r _ name; do
  ipset destroy "$name"
done
"#;

impl State {
    /// Script that leaves this state's chains and sets alone.
    pub(super) fn removal_of_unused(&self) -> Part {
        let mut text = HEAD.to_owned();
        for (program, chains) in ["iptables", "ip6tables"].into_iter().zip(&self.families) {
            for (table, chains) in [("raw", &chains.raw), ("filter", &chains.filter)] {
                // Writing to a string cannot fail.
                chains.keys().for_each(|name| _ = writeln!(text, "{program} {table} {name}"));
            }
        }
        self.sets.keys().for_each(|name| _ = writeln!(text, "set {name}"));
        text.push_str(REST);
        Part { file: "palisade.unused", text }
    }
}
