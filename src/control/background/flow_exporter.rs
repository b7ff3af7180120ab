//! Thread that exports the flows of a switch by IPFIX.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::periodic::Periodic;
use crate::control::Switch;
use crate::control::ipfix::Exporter;
use crate::control::server::avoid_worker_cores;

/// Interval of collection. Workers keep thousands of ended flows meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// Exports the flows of a switch, until the thread is dropped: then it sends what is left. Returns once the flows of the
/// process before are counted, `None` where no collector is configured.
pub fn export_flows(switch: &Arc<Switch>) -> io::Result<Option<Periodic>> {
    let Some(settings) = switch.settings.ipfix.clone() else { return Ok(None) };
    let (ready, started) = sync_channel::<()>(0);
    let switch = switch.clone();
    let thread = Periodic::start("palisade-ipfix", move |ticks| {
        avoid_worker_cores(&switch.settings.cores);
        let Some(workers) = switch.dataplane.workers() else { return };
        let mut exporter = Exporter::start(workers.flows().counters(), &switch.ipfix, &settings);
        drop(ready);
        while ticks.wait(INTERVAL) {
            exporter.run(&switch.state.load_full());
        }
        exporter.finish(&switch.state.load_full());
    })?;
    let _ = started.recv();
    Ok(Some(thread))
}
