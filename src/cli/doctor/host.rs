//! Checks of the node: kernel, privileges, memory, cores, settings of the kernel.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::check::{AS_ROOT, Check};
use crate::config::{Config, OnStop};
use crate::dataplane::{ConntrackSettings, PortKind, flow_memory_bytes};

/// Oldest kernel: its XDP programs take packets of several buffers.
const KERNEL_MIN: (u32, u32) = (5, 18);
/// Bytes of a UMEM frame.
const FRAME_BYTES: u64 = 4096;
const FAIR: &str = "the switch works, and is slower";

/// Facts of the node that checks compare.
#[derive(Debug, Clone)]
struct Facts {
    /// `uname -r`.
    release: String,
    has_btf: bool,
    has_tun: bool,
    /// Result of opening an AF_XDP socket.
    af_xdp: Result<(), Errno>,
    capabilities: CapabilitySet,
    /// Limit of locked memory, bytes; `None` for infinity.
    memlock: Option<u64>,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`.
    huge_pages: Option<String>,
    /// Available memory, bytes.
    available: Option<u64>,
    /// Number of cores that the process may run on, and the isolated ones (`/sys/devices/system/cpu/isolated`).
    cores: usize,
    isolated: String,
    bpf_jit: Option<String>,
    forwarding: Option<String>,
}

/// Checks the node for a switch of this configuration.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    compare(config, &Facts::of_node())
}

impl Facts {
    fn of_node() -> Facts {
        let af_xdp = socket(AddressFamily::XDP, SocketType::RAW, None).map(drop);
        Facts {
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            has_btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            has_tun: Path::new("/dev/net/tun").exists(),
            af_xdp,
            capabilities: capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective),
            memlock: getrlimit(Resource::Memlock).current,
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled").ok(),
            available: available_memory(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            isolated: read("/sys/devices/system/cpu/isolated").unwrap_or_default(),
            bpf_jit: read("/proc/sys/net/core/bpf_jit_enable").ok(),
            forwarding: read("/proc/sys/net/ipv4/ip_forward").ok(),
        }
    }
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned())
}

/// `MemAvailable` of proc_meminfo(5).
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn compare(config: &Config, facts: &Facts) -> Vec<Check> {
    let has_taps = config.ports.iter().any(|port| port.kind == PortKind::Tap);
    let is_xdp = config.ports.is_empty() || config.ports.iter().any(|port| port.kind != PortKind::Tap);
    let mut checks = vec![kernel(&facts.release)];
    if is_xdp {
        checks.push(af_xdp(facts.af_xdp));
    }
    checks.push(Check::unless(
        !facts.has_btf,
        "kernel",
        if facts.has_btf {
            "has BTF"
        } else {
            "has no BTF: frames that it drops before the switch are not counted"
        },
        "boot a kernel with CONFIG_DEBUG_INFO_BTF",
    ));
    if facts.has_tun {
        checks.push(Check::ok("kernel", "has tap devices (/dev/net/tun)"));
    } else if has_taps {
        checks.push(Check::finding(
            "kernel",
            "has no /dev/net/tun, and ports are tap devices",
            "modprobe tun",
        ));
    }
    checks.push(privileges(facts.capabilities));
    checks.extend(memory(config, facts));
    checks.extend(cores(config, facts));
    checks.extend(settings(config, facts));
    checks
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = KERNEL_MIN;
    let remedy = format!("boot Linux {major}.{minor} or later");
    Check::unless(version < KERNEL_MIN, "kernel", format!("Linux {release}"), remedy)
}

fn af_xdp(opened: Result<(), Errno>) -> Check {
    match opened {
        Ok(()) => Check::ok("kernel", "has AF_XDP sockets"),
        Err(Errno::PERM | Errno::ACCESS) => {
            Check::unseen("kernel", "AF_XDP sockets need CAP_NET_RAW", AS_ROOT)
        }
        Err(error) => Check::finding(
            "kernel",
            format!("has no AF_XDP sockets: {error}"),
            "boot a kernel with CONFIG_XDP_SOCKETS, or use tap ports only",
        ),
    }
}

fn privileges(held: CapabilitySet) -> Check {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN;
    let missing: Vec<_> =
        needed.difference(held).iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    match missing.as_slice() {
        [] => Check::ok("privileges", "this process has the capabilities of a switch"),
        missing => Check::unseen(
            "privileges",
            format!("this process has no {}: a switch started like it would not start", missing.join(", ")),
            format!("{AS_ROOT}; the switch itself runs as root or by config/palisade.service"),
        ),
    }
}

fn memory(config: &Config, facts: &Facts) -> Vec<Check> {
    let workers = config.dataplane_settings().map_or(1, |settings| settings.cores.len()) as u64;
    let umem = workers * config.workers.frames as u64 * FRAME_BYTES;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let mut checks = Vec::new();
    let is_locked = facts.capabilities.contains(CapabilitySet::IPC_LOCK);
    let limit = facts.memlock.filter(|limit| !is_locked && *limit < umem);
    checks.push(match limit {
        None => Check::ok("memory", format!("{} MiB of packet memory may be locked", mib(umem))),
        Some(limit) => Check::finding(
            "memory",
            format!("{} MiB of packet memory are locked, and the limit is {} KiB", mib(umem), limit / 1024),
            "LimitMEMLOCK=infinity in the systemd unit, `ulimit -l unlimited`, or CAP_IPC_LOCK",
        ),
    });
    let flows = ConntrackSettings { flows_max: config.conntrack.flows, ..ConntrackSettings::default() };
    let needed = umem + flow_memory_bytes(&flows) as u64;
    if let Some(available) = facts.available {
        checks.push(Check::unless(
            available < needed,
            "memory",
            format!("{} MiB are available, packets and flows take {} MiB", mib(available), mib(needed)),
            "free memory, or lower workers.frames or conntrack.flows",
        ));
    }
    if config.workers.huge_pages {
        let enabled = facts.huge_pages.as_deref().unwrap_or_default();
        let off = !enabled.contains("[always]") && !enabled.contains("[madvise]");
        let what = if off {
            format!("there are no transparent huge pages: {FAIR}")
        } else {
            "huge pages".to_owned()
        };
        let remedy =
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or workers.huge_pages = false";
        checks.push(Check::unless(off, "memory", what, remedy));
    }
    checks
}

fn cores(config: &Config, facts: &Facts) -> Vec<Check> {
    let workers = match config.dataplane_settings() {
        Ok(settings) => settings.cores,
        Err(error) => return vec![Check::finding("cores", error, "correct workers.cores")],
    };
    let all = facts.cores;
    let mut checks = vec![Check::unless(
        all > 1 && workers.len() >= all,
        "cores",
        format!("{} workers on cores {workers:?} of {all}", workers.len()),
        "leave a core to the control socket and the kernel: fewer workers.cores",
    )];
    let mut twice = workers.clone();
    twice.sort_unstable();
    if twice.windows(2).any(|pair| pair[0] == pair[1]) {
        let remedy = "give each worker a core of its own in workers.cores";
        checks.push(Check::finding("cores", "two workers share a core", remedy));
    }
    let isolated = match facts.isolated.as_str() {
        "" => "none is isolated: workers share their cores with other programs (docs/install.md, Cores)"
            .to_owned(),
        list => format!("isolated: {list}"),
    };
    checks.push(Check::ok("cores", isolated));
    checks
}

fn settings(config: &Config, facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(jit) = &facts.bpf_jit {
        let what = format!("net.core.bpf_jit_enable = {jit}");
        checks.push(Check::unless(jit == "0", "sysctl", what, "sysctl -w net.core.bpf_jit_enable=1"));
    }
    if let Some(forwarding) = &facts.forwarding {
        let opens = forwarding != "0" && config.on_stop == OnStop::Detach;
        let what = format!("net.ipv4.ip_forward = {forwarding}");
        let what = if opens { format!("{what}: the node forwards between pods after a stop") } else { what };
        checks.push(Check::unless(
            opens,
            "sysctl",
            what,
            "on_stop = \"closed\", or sysctl -w net.ipv4.ip_forward=0",
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    fn sound() -> Facts {
        Facts {
            release: "6.18.44-generic".to_owned(),
            has_btf: true,
            has_tun: true,
            af_xdp: Ok(()),
            capabilities: CapabilitySet::all(),
            memlock: Some(8 << 20),
            huge_pages: Some("always [madvise] never".to_owned()),
            available: Some(8 << 30),
            cores: 8,
            isolated: "2-3".to_owned(),
            bpf_jit: Some("1".to_owned()),
            forwarding: Some("1".to_owned()),
        }
    }

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("palisade.toml")).unwrap()
    }

    /// Findings about these facts, with their remedies.
    fn findings(config: &Config, facts: &Facts) -> Vec<String> {
        let found = compare(config, facts).into_iter().filter(|check| check.state == State::Finding);
        found.map(|check| format!("{}: {} -> {}", check.subject, check.what, check.remedy.unwrap())).collect()
    }

    #[test]
    fn a_sound_node_has_no_findings_and_each_unsound_fact_has_one_with_its_remedy() {
        assert_eq!(findings(&Config::default(), &sound()), [""; 0]);
        let taps = config("[[ports]]\nname = \"a\"\nkind = \"tap\"\nnamespace = \"a\"\n");
        let detach = config("on_stop = \"detach\"\n");
        let default = Config::default();
        let no_lock = CapabilitySet::all().difference(CapabilitySet::IPC_LOCK);
        let cases = [
            (&default, Facts { release: "5.15.0-91".to_owned(), ..sound() }, "5.18"),
            (&default, Facts { release: "odd".to_owned(), ..sound() }, "5.18"),
            (&default, Facts { af_xdp: Err(Errno::AFNOSUPPORT), ..sound() }, "CONFIG_XDP_SOCKETS"),
            (&default, Facts { has_btf: false, ..sound() }, "CONFIG_DEBUG_INFO_BTF"),
            (&taps, Facts { has_tun: false, ..sound() }, "modprobe tun"),
            (&default, Facts { capabilities: no_lock, ..sound() }, "LimitMEMLOCK"),
            (
                &default,
                Facts { huge_pages: Some("always madvise [never]".to_owned()), ..sound() },
                "madvise >",
            ),
            (&default, Facts { available: Some(1 << 20), ..sound() }, "workers.frames"),
            (&default, Facts { bpf_jit: Some("0".to_owned()), ..sound() }, "bpf_jit_enable=1"),
            (&detach, sound(), "on_stop"),
        ];
        for (config, facts, remedy) in cases {
            let found = findings(config, &facts);
            assert!(found.len() == 1 && found[0].contains(remedy), "{remedy}: {found:?}");
        }
        // Tap devices and AF_XDP matter only to ports that need them.
        assert_eq!(findings(&default, &Facts { has_tun: false, ..sound() }), [""; 0]);
        assert_eq!(findings(&taps, &Facts { af_xdp: Err(Errno::AFNOSUPPORT), ..sound() }), [""; 0]);
    }

    #[test]
    fn a_check_without_its_privilege_is_unseen() {
        let facts = Facts {
            af_xdp: Err(Errno::PERM),
            capabilities: CapabilitySet::empty(),
            memlock: None,
            ..sound()
        };
        let checks = compare(&Config::default(), &facts);
        assert_eq!(checks.iter().filter(|check| check.state == State::Unseen).count(), 2, "{checks:?}");
        assert!(checks.iter().all(|check| check.state != State::Finding), "{checks:?}");
    }
}
