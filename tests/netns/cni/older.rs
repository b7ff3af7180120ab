//! IPAM plugins of earlier versions of CNI: fakes, so that the version of the host-local that is installed does not matter.

use std::fs;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::rig::{Container, Network, addresses, plugin};
use crate::support::isolated;

/// Plugin that knows CNI up to `known`, and notes its calls. `first` are commands that come before the look at the version, as
/// in plugins of the CNI project before 1.2, which answer so and with status 1.
fn script(known: &str, first: &str, log: &str) -> String {
    format!(
        r#"version=$(grep -o '"cniVersion":"[^"]*"' | head -1 | cut -d'"' -f4)
echo "$CNI_COMMAND $version ${{CNI_CONTAINERID-none}}" >> {log}
refuse() {{ printf '{{\n    "code": %s,\n    "msg": "%s",\n    "details": "%s"\n}}' "$@"; exit 1; }}
{first}
case " {known} " in
*" $version "*) ;;
*) refuse 1 "incompatible CNI versions" "config is \\\"$version\\\"" ;;
esac
case $CNI_COMMAND in
ADD) echo '{{"cniVersion": "'$version'", "ips": [{{"version": "4", "address": "10.88.7.7/16", "gateway": "10.88.0.1"}}]}}' ;;
DEL | CHECK) ;;
*) refuse 4 "unknown CNI_COMMAND: $CNI_COMMAND" "" ;;
esac"#
    )
}

/// Commands before the look at the version: of the CNI project before 1.2, of one that looks at the verb, and none.
const FIRST: [&str; 3] = [
    "[ -n \"$CNI_CONTAINERID\" ] || refuse 3 'missing containerID' ''",
    "case $CNI_COMMAND in STATUS | GC) refuse 4 \"unknown CNI_COMMAND: $CNI_COMMAND\" '' ;; esac",
    "",
];

#[test]
fn an_ipam_plugin_that_lacks_a_version_or_a_verb_serves_the_rest() {
    let Some(_isolated) = isolated() else { return };
    let mut network = Network::up(1);
    let log = network.lab.directory().join("ipam.log");
    let web = Container::new("web");
    for known in ["0.4.0", "0.4.0 1.0.0"] {
        for first in FIRST {
            plugin(&mut network, "older", &script(known, first, &log.display().to_string()));
            let mut config = network.with("cniVersion", "1.1.0");
            config["ipam"] = json!({"type": "older"});
            let call = |verb: &str, config: &Value| -> Vec<String> {
                fs::write(&log, "").unwrap();
                let answer = network.call(verb, &web, config);
                assert!(answer.success, "{known}, {first}: {verb}: {answer:?}");
                if verb == "ADD" {
                    assert_eq!(addresses(&answer.json), ["10.88.7.7".parse::<IpAddr>().unwrap()]);
                }
                fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect()
            };
            // Each verb with the newest version that the plugin knows, behind those that it refuses.
            let asked = |verb: &str| -> Vec<String> {
                let versions = ["1.1.0", "1.0.0", "0.4.0"];
                let newest = versions.iter().position(|version| known.contains(version)).unwrap();
                versions[..=newest].iter().map(|version| format!("{verb} {version} {}", web.id)).collect()
            };
            assert_eq!(call("STATUS", &config), ["STATUS 1.1.0 none"]);
            assert_eq!(call("ADD", &config), asked("ADD"));
            let mut chained = config.clone();
            chained["prevResult"] = network.call("ADD", &web, &config).json;
            assert_eq!(call("CHECK", &chained), asked("CHECK"));
            let mut collected = config.clone();
            collected["cni.dev/valid-attachments"] = json!([{"containerID": web.id, "ifname": "eth0"}]);
            assert_eq!(call("GC", &collected), ["GC 1.1.0 none"]);
            assert!(web.has_interface());
            assert_eq!(call("DEL", &config), asked("DEL"));
        }
    }
    // Another refusal is that of the plugin, not of its age.
    plugin(
        &mut network,
        "older",
        &script("1.1.0", "[ $CNI_COMMAND != STATUS ] || refuse 50 'no address is left' ''", "/dev/null"),
    );
    let mut config = network.with("cniVersion", "1.1.0");
    config["ipam"] = json!({"type": "older"});
    network.call("STATUS", &web, &config).refused(50, "no address is left");
    network.assert_empty();
}
