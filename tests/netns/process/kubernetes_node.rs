//! The script that prepares a Kubernetes node for the switch: the configuration of the node and its veth pair.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::namespace::{in_namespace, output, run};

/// Runs the script with these variables.
fn prepare(directory: &Path, variables: &[(&str, &str)]) -> Output {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/kubernetes");
    let mut command = Command::new("sh");
    command.args([
        files.join("prepare-node.sh"),
        files.join("palisade.toml"),
        directory.join("palisade.toml"),
    ]);
    command.env_remove("UPLINK").envs(variables.iter().copied()).output().unwrap()
}

/// Temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new("/run").join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_node_gets_a_configuration_that_the_switch_takes_and_again_on_the_next_start() {
    in_namespace(|| {
        let scratch = Scratch::new("node");
        let node = [("NODE_NAME", "node-1.example"), ("NODE_ADDRESSES", "192.0.2.9,2001:db8::9")];
        run("ip route delete default");
        run("ip -6 route delete default");
        let refused = prepare(&scratch.0, &node);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("no default route"), "{said}");

        run("ip link add eth7 type veth peer name far");
        run("ip address add 192.0.2.9/24 dev eth7");
        run("ip link set eth7 up");
        run("ip link set far up");
        run("ip route add default via 192.0.2.1 dev eth7");
        for variables in [
            [("NODE_NAME", "x\"y"), node[1]],
            [node[0], ("NODE_ADDRESSES", "1.2.3.4/e rm")],
            [("NODE_NAME", ""), node[1]],
        ] {
            let refused = prepare(&scratch.0, &variables);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && said.contains("letters, digits"), "{said}");
            assert!(!scratch.0.join("palisade.toml").exists());
        }
        for _ in 0..2 {
            let prepared = prepare(&scratch.0, &node);
            assert!(prepared.status.success(), "{}", String::from_utf8_lossy(&prepared.stderr));
        }
        assert!(output("ip -oneline link show palisade-node").contains("LOWER_UP"), "it has no carrier");
        let file = scratch.0.join("palisade.toml");
        let text = fs::read_to_string(&file).unwrap();
        for line in [
            "node = \"node-1.example\"",
            "addresses = [\"192.0.2.9\", \"2001:db8::9\"]",
            "interface = \"eth7\"",
            "next_hop = \"192.0.2.1\"",
            "prefix = \"192.0.2.0/24\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains('@') && text.matches("[[routes]]").count() == 2, "{text}");
        // The API server is not here.
        fs::write(&file, text.replace("source = \"kubernetes\"\n", "")).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_palisade"));
        let check = check.args(["run", "--check", "--config"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
        assert!(check.status.success(), "{said}\n{text}");
    });
}
