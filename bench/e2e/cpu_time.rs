//! Processor time of a window, by core and of the processes of a system.
//!
//! The kernel's own work counts for no process of the system. It counts for the core, as softirq or as system
//! time of the interrupted thread, so results have both. `/proc` counts in ticks of `USER_HZ`, a hundred a
//! second (proc(5)).

use std::fs;
use std::time::Instant;

use palisade::lab::{POD_INTERFACE, Pod};
use serde_json::{Map, Value, json};

use crate::common::json_lines;
use crate::error::BenchError;
use crate::rig::{Rig, SYSTEM_CORE, TRAFFIC_CORE};

/// Ticks a second.
const USER_HZ: f64 = 100.0;

/// Counters at one moment.
pub(crate) struct CpuSample {
    at: Instant,
    cores: Vec<Core>,
    processes: u64,
    packets: u64,
}

/// Processor time between two samples, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CpuUsage {
    pub(crate) window_s: f64,
    /// Time of the core that traffic comes from.
    pub(crate) traffic_core_s: f64,
    /// Time of the core of the system under test.
    pub(crate) system_core_s: f64,
    /// Time of all cores in softirq.
    pub(crate) softirq_s: f64,
    /// Time of all cores.
    pub(crate) all_cores_s: f64,
    /// Time of the system's processes.
    pub(crate) processes_s: f64,
    /// Time that the hypervisor gave to other guests.
    pub(crate) stolen_s: f64,
    /// Packets that client and server sent. A segment before segmentation offload is one packet.
    pub(crate) packets: u64,
}

/// Ticks of one core: line `cpuN` of `/proc/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Core {
    busy: u64,
    softirq: u64,
    stolen: u64,
}

impl CpuSample {
    /// Reads the counters of the machine, of processes, and of client and server.
    pub(crate) fn now(rig: &Rig, pids: &[u32]) -> Result<CpuSample, BenchError> {
        let packets = sent_packets(&rig.pod("client")?)? + sent_packets(&rig.pod("server")?)?;
        let stat = fs::read_to_string("/proc/stat")?;
        let processes = pids.iter().map(|&pid| process_ticks(pid)).sum::<Result<u64, BenchError>>()?;
        Ok(CpuSample { at: Instant::now(), cores: cores(&stat), processes, packets })
    }

    pub(crate) fn until(&self, end: &CpuSample) -> CpuUsage {
        let core = |number: usize, of: fn(&Core) -> u64| {
            let at = |moment: &CpuSample| moment.cores.get(number).map_or(0, of);
            at(end).saturating_sub(at(self)) as f64 / USER_HZ
        };
        let all = |of: fn(&Core) -> u64| (0..end.cores.len()).map(|number| core(number, of)).sum();
        CpuUsage {
            window_s: end.at.duration_since(self.at).as_secs_f64(),
            traffic_core_s: core(TRAFFIC_CORE, |core| core.busy),
            system_core_s: core(SYSTEM_CORE, |core| core.busy),
            softirq_s: all(|core| core.softirq),
            all_cores_s: all(|core| core.busy),
            processes_s: end.processes.saturating_sub(self.processes) as f64 / USER_HZ,
            stolen_s: all(|core| core.stolen),
            packets: end.packets.saturating_sub(self.packets),
        }
    }
}

impl CpuUsage {
    fn per_million_packets(&self, seconds: f64) -> Option<f64> {
        (self.packets > 0).then(|| seconds * 1e6 / self.packets as f64)
    }

    /// Returns the fields of a result.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let rounded = |seconds: f64| (seconds * 1e3).round() / 1e3;
        let fields = json!({
            "window_s": rounded(self.window_s),
            "cpu_traffic_core_s": rounded(self.traffic_core_s),
            "cpu_system_core_s": rounded(self.system_core_s),
            "cpu_softirq_s": rounded(self.softirq_s),
            "cpu_all_cores_s": rounded(self.all_cores_s),
            "cpu_processes_s": rounded(self.processes_s),
            "cpu_stolen_s": rounded(self.stolen_s),
            "packets": self.packets,
            "cpu_s_per_mpkt": self.per_million_packets(self.system_core_s),
            "cpu_all_s_per_mpkt": self.per_million_packets(self.all_cores_s),
        });
        json_lines::fields(fields)
    }
}

/// Reads the packets that a pod's interface has sent: the tenth number of `/proc/net/dev`.
fn sent_packets(pod: &Pod) -> Result<u64, BenchError> {
    let text = pod.run(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(POD_INTERFACE)?.strip_prefix(':'));
    Ok(line.and_then(|line| line.split_ascii_whitespace().nth(9)?.parse().ok()).unwrap_or(0))
}

fn cores(stat: &str) -> Vec<Core> {
    let lines = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    lines.map(core).collect()
}

/// Parses the columns user, nice, system, idle, iowait, irq, softirq and steal. User time includes guest
/// time.
fn core(line: &str) -> Core {
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let at = |place: usize| ticks.get(place).copied().unwrap_or(0);
    Core { busy: at(0) + at(1) + at(2) + at(5) + at(6), softirq: at(6), stolen: at(7) }
}

/// Reads user and system time of a process with all its threads: fields 14 and 15 of `/proc/PID/stat`.
fn process_ticks(pid: u32) -> Result<u64, BenchError> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may contain any character. Field 3 follows it.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    Ok(fields.split_ascii_whitespace().skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum())
}
