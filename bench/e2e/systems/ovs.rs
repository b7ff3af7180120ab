//! Open vSwitch with its userspace datapath: AF_XDP ports on one PMD thread, conntrack, conjunctive matches
//! for the rules, and the signature match cache (SMC) on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::policy::{CHANGED_PORT, PolicySpec};
use crate::error::BenchError;
use crate::process::{Daemon, run, version};
use crate::rig::{GATEWAY_MAC, Rig, SYSTEM_CORE};
use crate::system::{FlowMemory, Kind, PolicyToggle, Running, System};

/// Longest wait for a daemon.
const PATIENCE: Duration = Duration::from_secs(20);
/// Schema of its database.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

pub(super) struct Ovs;

struct Daemons {
    // The fields drop in this order.
    switch: Daemon,
    _database: Daemon,
    ports: &'static str,
}

impl System for Ovs {
    fn name(&self) -> &'static str {
        "ovs"
    }

    fn kind(&self) -> Kind {
        Kind::Peer
    }

    fn versions(&self) -> Vec<String> {
        version("ovs-vswitchd", &["--version"]).into_iter().collect()
    }

    fn mtu_max(&self) -> u32 {
        // `FRAME_SIZE` of its AF_XDP ports is 2,048, headroom included.
        1500
    }

    fn start(&self, rig: &mut Rig, shape: &PolicySpec) -> Result<Box<dyn Running>, BenchError> {
        let files = Files { directory: rig.lab().directory() };
        rig.set_gateway_neighbor(|_| GATEWAY_MAC)?;
        rig.disable_tx_offload_in_pods()?;
        run(Command::new("ovsdb-tool").arg("create").arg(files.file("conf.db")).arg(SCHEMA), "")?;
        let database = files.daemon(rig, "ovsdb-server", |command| {
            command.arg(files.file("conf.db")).arg(format!("--remote=p{}", files.database()));
        })?;
        files.configure(rig, &["--no-wait", "init"])?;
        let mask = format!("other_config:pmd-cpu-mask=0x{:x}", 1 << SYSTEM_CORE);
        let tuning = [&mask, "other_config:smc-enable=true"];
        files.configure(rig, &[&["--no-wait", "set", "Open_vSwitch", "."], &tuning[..]].concat())?;
        let switch = files.daemon(rig, "ovs-vswitchd", |command| {
            command.arg(files.database());
        })?;
        let bridge =
            ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail-mode=secure"];
        files.configure(rig, &bridge)?;
        let ports = files.add_ports(rig)?;
        let mut load = rig.node_command("ovs-ofctl");
        load.args(["-O", "OpenFlow15", "--bundle", "add-flows", "br0", "-"]);
        run(files.env(&mut load), &flows(rig, shape)?)?;
        Ok(Box::new(Daemons { switch, _database: database, ports }))
    }
}

impl Running for Daemons {
    fn pids(&self) -> Vec<u32> {
        vec![self.switch.pid()]
    }

    fn flow_memory(&self, _: &Rig) -> Result<FlowMemory, BenchError> {
        self.switch.resident_bytes().map(FlowMemory::Grows)
    }

    fn policy_toggle<'a>(&'a self, rig: &'a Rig, _: &PolicySpec) -> Result<PolicyToggle<'a>, BenchError> {
        let files = Files { directory: rig.lab().directory() };
        let matches = format!("table=2,priority=20,udp,nw_src={},tp_dst={CHANGED_PORT}", rig.client_v4()?);
        let flow = format!("{matches},actions=ct(commit),resubmit(,3)");
        Ok(Box::new(move |open| {
            let words = if open {
                ["add-flow", "br0", &flow].to_vec()
            } else {
                ["--strict", "del-flows", "br0", &matches].to_vec()
            };
            let mut command = rig.node_command("ovs-ofctl");
            run(files.env(command.args(["-O", "OpenFlow15"]).args(words)), "")?;
            Ok(())
        }))
    }

    fn note(&self) -> Option<String> {
        Some(format!("{}; checksums are finished in the pods", self.ports))
    }
}

/// Directory of its files, which is the lab's.
struct Files {
    directory: PathBuf,
}

impl Files {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn database(&self) -> String {
        format!("unix:{}", self.file("db.sock").display())
    }

    fn env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            command.env(name, &self.directory);
        }
        command
    }

    fn daemon(
        &self,
        rig: &mut Rig,
        name: &str,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Daemon, BenchError> {
        let mut command = rig.node_command(name);
        arguments(self.env(&mut command));
        let pidfile = self.file(&format!("{name}.pid"));
        command.arg(format!("--pidfile={}", pidfile.display())).arg("-vconsole:warn");
        let mut daemon = Daemon::start(&mut command, name, self.file(&format!("{name}.out")))?;
        rig.lab_and_node().0.note_process(daemon.pid())?;
        daemon.wait_for(PATIENCE, |_| pidfile.exists())?;
        Ok(daemon)
    }

    fn configure(&self, rig: &Rig, words: &[&str]) -> Result<String, BenchError> {
        let mut command = rig.node_command("ovs-vsctl");
        command.arg(format!("--db={}", self.database())).arg("--timeout=60").args(words);
        run(self.env(&mut command), "")
    }

    /// Adds the host ends as AF_XDP ports, or as packet sockets if those are refused.
    fn add_ports(&self, rig: &Rig) -> Result<&'static str, BenchError> {
        let ends = rig.host_ends();
        let add = |kind: &[&str]| {
            let mut words = vec![];
            for (number, end) in (1..).zip(&ends) {
                let mut port: Vec<String> = ["--", "add-port", "br0", end].map(str::to_owned).into();
                port.extend(["--", "set", "interface", end].map(str::to_owned));
                port.push(format!("ofport_request={number}"));
                port.extend(kind.iter().map(|&word| word.to_owned()));
                words.extend(port);
            }
            self.configure(rig, &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
        };
        add(&["type=afxdp", "options:n_rxq=1", "options:xdp-mode=best-effort"])?;
        let refused =
            self.configure(rig, &["--bare", "--columns=error", "find", "interface", "type=afxdp"])?;
        if refused.trim().is_empty() {
            return Ok("AF_XDP ports");
        }
        let remove: Vec<&str> = ends.iter().flat_map(|end| ["--", "del-port", "br0", end]).collect();
        self.configure(rig, &remove[1..])?;
        add(&[])?;
        Ok("packet sockets: AF_XDP ports were refused")
    }
}

/// Renders the flows. Table 0 tracks, 1 splits known connections from new ones, 2 has the rules, 3 routes.
fn flows(rig: &Rig, shape: &PolicySpec) -> Result<String, BenchError> {
    let mut text = String::new();
    let mut add = |flow: &str| {
        text.push_str(flow);
        text.push('\n');
    };
    add("table=0,priority=1,ip,actions=ct(table=1)");
    add("table=0,priority=0,actions=drop");
    add("table=1,priority=100,ip,ct_state=+trk+inv,actions=drop");
    add("table=1,priority=90,ip,ct_state=+trk+est,actions=resubmit(,3)");
    add("table=1,priority=90,ip,ct_state=+trk+rel,actions=resubmit(,3)");
    for pod in rig.receivers() {
        add(&format!("table=1,priority=80,ip,nw_dst={},actions=resubmit(,2)", pod.v4()));
    }
    add("table=1,priority=10,ip,ct_state=+trk+new,actions=ct(commit),resubmit(,3)");
    // A match that is part of several conjunctions is one flow.
    let mut parts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (number, group) in (1..).zip(shape.rule_groups(rig.client_v4()?)) {
        add(&format!("table=2,priority=10,ip,conj_id={number},actions=ct(commit),resubmit(,3)"));
        let mut part = |what: String, place: u8| {
            parts.entry(what).or_default().push(format!("conjunction({number},{place}/2)"));
        };
        for block in &group.blocks {
            part(format!("ip,nw_src={block}"), 1);
        }
        for (port, length) in group.ports.prefixes() {
            let mask = u16::MAX.checked_shl(u32::from(16 - length)).unwrap_or(0);
            part(format!("{},tp_dst=0x{port:x}/0x{mask:x}", group.ports.protocol_name()), 2);
        }
    }
    for (what, conjunctions) in parts {
        add(&format!("table=2,priority=10,{what},actions={}", conjunctions.join(",")));
    }
    add("table=2,priority=0,actions=drop");
    for (number, pod) in (1..).zip(rig.lab().pods()) {
        let (mac, to) = (pod.plan().mac, pod.v4());
        add(&format!(
            "table=3,ip,nw_dst={to},actions=dec_ttl,set_field:{GATEWAY_MAC}->eth_src,set_field:{mac}->eth_dst,output:{number}"
        ));
    }
    Ok(text)
}
