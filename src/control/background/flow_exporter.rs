//! Thread that exports the flows of a switch by IPFIX.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::control::Switch;
use crate::control::ipfix::Exporter;
use crate::control::server::avoid_worker_cores;
use crate::threads;

/// Interval of collection. Workers keep thousands of ended flows meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// Running exporter. Dropping it sends what is left, and stops the thread.
pub struct FlowExporter {
    /// Stops the thread when it is closed.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FlowExporter {
    /// Exports the flows of a switch. Returns once the flows of the process before are counted, `None` where no collector
    /// is configured.
    pub fn start(switch: &Arc<Switch>) -> io::Result<Option<FlowExporter>> {
        let Some(settings) = switch.settings.ipfix.clone() else { return Ok(None) };
        let (stop, stopped) = sync_channel(0);
        let (ready, started) = sync_channel::<()>(0);
        let switch = switch.clone();
        let thread = threads::spawn("palisade-ipfix", move || {
            avoid_worker_cores(&switch.settings.cores);
            let Some(flows) = switch.dataplane.flow_counters() else { return };
            let mut exporter = Exporter::start(flows, &switch.ipfix, &settings);
            drop(ready);
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                exporter.run(&switch.state.load_full());
            }
            exporter.finish(&switch.state.load_full());
        })?;
        let _ = started.recv();
        Ok(Some(FlowExporter { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for FlowExporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the thread has ended the process.
        self.thread.take().map(JoinHandle::join);
    }
}
