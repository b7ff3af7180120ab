//! Messages to systemd about the state of the switch: sd_notify(3) and sd_watchdog_enabled(3).

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::control::Switch;

/// Longest wait for a receiver with a full queue (`net.unix.max_dgram_qlen`).
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// systemd, if it has started this process by a unit of `Type=notify`.
pub(super) struct ServiceManager {
    /// `$NOTIFY_SOCKET`: the path of a datagram socket, or an abstract name after "@".
    socket: Option<OsString>,
    /// Half of the watchdog's timeout; `None` without a watchdog.
    interval: Option<Duration>,
}

impl ServiceManager {
    /// Reads the environment that systemd has set.
    pub(super) fn from_environment() -> ServiceManager {
        let text = |name| env::var(name).ok();
        let interval = watchdog_interval(text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref());
        ServiceManager { socket: env::var_os("NOTIFY_SOCKET"), interval }
    }

    /// Reports that the start, or a reload, is complete.
    pub(super) fn ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that a reload begins.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Reports that the switch stops.
    pub(super) fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// Reports at half of the watchdog's timeout that the switch is alive, until the other end of `stopped` is gone. Says
    /// nothing while a worker has not come to the end of a batch for that long.
    pub(super) fn feed_watchdog(&self, switch: &Switch, stopped: &Receiver<()>) {
        let Some(interval) = self.interval.filter(|_| self.socket.is_some()) else { return };
        crate::control::avoid_worker_cores(&switch.status().cores);
        let mut was_stuck = false;
        loop {
            let stuck = switch.stuck_workers().into_iter().find(|worker| worker.since >= interval);
            match &stuck {
                None => self.notify("WATCHDOG=1"),
                Some(worker) if !was_stuck => tracing::error!(
                    worker = %worker.worker,
                    "a worker does not come to the end of a batch: systemd's watchdog is not fed, and restarts the switch"
                ),
                Some(_) => {}
            }
            was_stuck = stuck.is_some();
            if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn notify(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        send(socket, message)
            .unwrap_or_else(|error| tracing::warn!("$NOTIFY_SOCKET takes no message: {error}"));
    }
}

/// Waits for room in the receiver's queue, at most [`SEND_TIMEOUT`]: no message repeats a state, and systemd would take a
/// lost one for a start or a reload that never ends.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_write_timeout(Some(SEND_TIMEOUT))?;
    sender.send_to_addr(message.as_bytes(), &address).map(drop)
}

/// Half of `$WATCHDOG_USEC`, if `$WATCHDOG_PID` is absent or this process. sd_watchdog_enabled(3): "send a notification
/// every half of the time".
fn watchdog_interval(timeout_us: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
    let timeout_us: u64 = timeout_us?.parse().ok()?;
    (is_ours && timeout_us > 1).then(|| Duration::from_micros(timeout_us / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_on_a_path_and_on_an_abstract_name() {
        let name = format!("palisade-notify-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let received = |address: &SocketAddr, socket: &OsStr| {
            let systemd = UnixDatagram::bind_addr(address).unwrap();
            send(socket, "READY=1").unwrap();
            let mut message = [0; 16];
            let length = systemd.recv(&mut message).unwrap();
            message[..length].to_vec()
        };
        let pathname = SocketAddr::from_pathname(&path).unwrap();
        assert_eq!(received(&pathname, path.as_os_str()), b"READY=1");
        std::fs::remove_file(&path).unwrap();
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        assert_eq!(received(&abstract_name, OsStr::new(&format!("@{name}"))), b"READY=1");
        assert!(send(path.as_os_str(), "READY=1").is_err(), "nobody listens");
    }

    #[test]
    fn a_message_waits_for_room_in_a_full_queue() {
        let path = env::temp_dir().join(format!("palisade-full-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let systemd = UnixDatagram::bind(&path).unwrap();
        let filler = UnixDatagram::unbound().unwrap();
        filler.set_nonblocking(true).unwrap();
        while filler.send_to(b"WATCHDOG=1", &path).is_ok() {}
        let message = || {
            let mut message = [0; 16];
            let length = systemd.recv(&mut message).unwrap();
            String::from_utf8(message[..length].to_vec()).unwrap()
        };
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send(path.as_os_str(), "READY=1"));
            while message() != "READY=1" {}
            sent.join().unwrap().unwrap();
        });
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_watchdog_is_fed_twice_in_its_timeout_by_the_process_that_it_watches() {
        let this = std::process::id().to_string();
        let half = Some(Duration::from_secs(15));
        assert_eq!(watchdog_interval(Some("30000000"), None), half);
        assert_eq!(watchdog_interval(Some("30000000"), Some(&this)), half);
        assert_eq!(watchdog_interval(Some("30000000"), Some("1")), None);
        for none in [None, Some(""), Some("0"), Some("-5"), Some("soon")] {
            assert_eq!(watchdog_interval(none, None), None, "{none:?}");
        }
    }
}
