//! Loop of the agent: messages of the followers become changes of the tables of one switch.

mod supervise;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use self::supervise::{Restarts, supervise};
use super::cluster::{Cluster, Step};
use super::connection::{Access, Connection};
use super::follow::Follower;
use super::kinds::KINDS;
use super::message::{Message, Timing};
use super::routes::Routes;
use super::status::{Condition, Notifier, write_conditions};
use super::target::{Target, TargetError};
use crate::control::protocol::SourceReport;
use crate::limits::{ACL_ENTRIES_MAX, ACLS_MAX, CLASSES_MAX, PREFIXES_MAX, ROWS_MAX};
use crate::tables::TablesDiff;
use crate::threads;

/// Messages of followers that wait.
const WAITING_MAX: usize = 64;
/// Longest wait without a look at the request to stop.
const TICK: Duration = Duration::from_millis(100);
/// Interval of reports to the switch that differ in nothing.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait before another attempt to complete the routes.
const ROUTES_RETRY_MAX: Duration = Duration::from_secs(30);
/// Longest wait before another attempt to load tables.
const LOAD_RETRY_MAX: Duration = Duration::from_secs(10);
/// First wait before another attempt to load tables.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of an agent.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Credentials and address of the API server.
    pub access: Access,
    /// Name of this node, whose pods get tables. All pods get tables where absent.
    pub node: Option<String>,
    /// Port that leads to the other nodes; the only uplink of the switch where absent.
    pub uplink: Option<String>,
    /// Prefixes of the routes of an earlier agent.
    pub earlier_routes: Vec<IpNet>,
    /// Most rows of all ACL tables; as many as a switch takes where absent.
    pub acl_entries_max: Option<usize>,
    /// Times of the followers.
    pub timing: Timing,
}

/// Follows the API, and keeps the tables and routes of a switch current, until `stop` is set. Calls `record` with the
/// prefixes of the routes that it adds.
pub fn run(
    settings: &Settings,
    target: &mut dyn Target,
    record: &mut dyn FnMut(&BTreeSet<IpNet>),
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("palisade-api")
        .enable_all()
        .build()?;
    let mut agent = Agent::start(settings, target, record, &runtime);
    while !stop.load(Ordering::Acquire) {
        agent.turn();
    }
    drop(agent);
    runtime.shutdown_background();
    Ok(())
}

struct Agent<'a> {
    settings: &'a Settings,
    target: &'a mut dyn Target,
    record: &'a mut dyn FnMut(&BTreeSet<IpNet>),
    runtime: &'a Runtime,
    connection: Arc<Connection>,
    messages: mpsc::Receiver<(usize, Message)>,
    restart: watch::Sender<u64>,
    /// Waits after panics of the compiler.
    panics: Restarts,
    /// Time at which all objects are listed again after a panic. Messages until then are of no use.
    restart_at: Option<Instant>,
    cluster: Cluster,
    notifier: Notifier,
    conditions: watch::Sender<Vec<Condition>>,
    routes: Routes,
    server: Option<String>,
    /// Whether the switch has the tables of the compiler.
    is_loaded: bool,
    /// Whether the routes of the switch are those of the nodes.
    has_routes: bool,
    next_load: Instant,
    load_failures: u32,
    next_routes: Instant,
    route_failures: u32,
    next_verify: Instant,
    last_report: Option<(SourceReport, Instant)>,
    last_error: Option<String>,
}

impl<'a> Agent<'a> {
    fn start(
        settings: &'a Settings,
        target: &'a mut dyn Target,
        record: &'a mut dyn FnMut(&BTreeSet<IpNet>),
        runtime: &'a Runtime,
    ) -> Agent<'a> {
        let connection = Arc::new(Connection::new(settings.access.clone()));
        let (sender, messages) = mpsc::channel(WAITING_MAX);
        let (restart, restarts) = watch::channel(0);
        for index in 0..KINDS.len() {
            let (timing, connection) = (settings.timing.clone(), connection.clone());
            let (of_follower, restarts) = (sender.clone(), restarts.clone());
            let start = move || {
                let (connection, sender) = (connection.clone(), of_follower.clone());
                Follower::new(index, connection, timing.clone(), sender, restarts.clone()).run()
            };
            runtime.spawn(supervise(index, sender.clone(), start));
        }
        let instance = settings.node.clone().unwrap_or_else(|| "palisade".to_owned());
        let (conditions, wanted) = watch::channel(Vec::new());
        runtime.spawn(write_conditions(
            connection.clone(),
            settings.timing.clone(),
            instance.clone(),
            wanted,
        ));
        let (notifier, events) = Notifier::new(connection.clone(), settings.timing.clone(), instance);
        runtime.spawn(events);
        let now = Instant::now();
        Agent {
            settings,
            target,
            record,
            runtime,
            connection,
            messages,
            restart,
            panics: Restarts::default(),
            restart_at: None,
            cluster: new_cluster(settings),
            notifier,
            conditions,
            routes: Routes::new(settings.uplink.clone(), settings.earlier_routes.iter().copied()),
            server: None,
            is_loaded: false,
            has_routes: true,
            next_load: now,
            load_failures: 0,
            next_routes: now,
            route_failures: 0,
            next_verify: now,
            last_report: None,
            last_error: None,
        }
    }

    /// Takes the messages of some milliseconds, and brings the switch up to date.
    fn turn(&mut self) {
        self.gather();
        if self.restart_at.is_some_and(|at| at <= Instant::now()) {
            self.restart_at = None;
            self.restart.send_modify(|count| *count += 1);
        }
        if let Some(attachments) = self.target.attached() {
            self.cluster.note_attached(attachments);
        }
        let compiled = catch_unwind(AssertUnwindSafe(|| self.cluster.compile()));
        let step = compiled.unwrap_or_else(|panic| {
            let message = threads::message(panic.as_ref());
            tracing::error!(
                "internal error of the policy compiler: {message}. Please report it with the objects; the tables in \
                 force stay, and all objects are listed again after a while"
            );
            self.cluster = new_cluster(self.settings);
            let now = Instant::now();
            self.restart_at = Some(now + self.panics.wait(now));
            self.is_loaded = false;
            None
        });
        self.name_server();
        self.publish(step);
        if self.is_loaded && self.cluster.services().publish(self.target, self.settings.timing.verify) {
            self.next_verify = Instant::now();
        }
        if self.is_loaded {
            self.cluster.publish_audit(self.target, self.settings.timing.audit);
        }
        self.update_routes();
        for (kind, key, issue) in self.cluster.fresh_issues() {
            self.notifier.notify(kind, key, issue);
        }
        if self.is_loaded
            && let Some(conditions) = self.cluster.changed_conditions()
        {
            self.conditions.send_replace(conditions);
        }
        self.report();
    }

    fn gather(&mut self) {
        let first = self.runtime.block_on(async { timeout(TICK, self.messages.recv()).await });
        let Ok(Some((index, message))) = first else { return };
        self.take(index, message);
        let until = Instant::now() + self.settings.timing.gather;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let next = self.runtime.block_on(async { timeout(rest, self.messages.recv()).await });
            match next {
                Ok(Some((index, message))) if !rest.is_zero() => self.take(index, message),
                Ok(Some((index, message))) => return self.take(index, message),
                _ => return,
            }
        }
    }

    fn take(&mut self, index: usize, message: Message) {
        if self.restart_at.is_none() {
            self.cluster.take(index, message);
        }
    }

    /// Passes the tables on, and compares them with those of the switch from time to time.
    fn publish(&mut self, step: Option<Step>) {
        let counts = self.cluster.counts();
        let now = Instant::now();
        let result = match step {
            Some(Step::Difference(difference)) if self.is_loaded => self.target.change(&difference, counts),
            Some(_) => {
                self.is_loaded = false;
                Ok(())
            }
            None if self.is_loaded && self.next_verify <= now => {
                self.target.change(&TablesDiff::default(), counts)
            }
            None => Ok(()),
        };
        if self.next_verify <= now {
            self.next_verify = now + self.settings.timing.verify;
        }
        match result {
            Ok(()) => {}
            Err(TargetError::OtherTables) => {
                tracing::info!(
                    "the switch has other tables than the last ones from here: it gets all of them"
                );
                self.is_loaded = false;
                self.has_routes = false;
            }
            Err(TargetError::Refused(error)) => {
                self.failed(error);
                self.is_loaded = false;
                // A switch that does not answer may have started again.
                self.has_routes = false;
                return;
            }
        }
        let Some(tables) = self.cluster.tables().filter(|_| !self.is_loaded && self.next_load <= now) else {
            return;
        };
        match self.target.load(tables, counts) {
            Ok(()) => {
                let (objects, policies) = counts;
                tracing::info!(objects, policies, "all tables are loaded");
                (self.is_loaded, self.last_error, self.load_failures) = (true, None, 0);
                self.cluster.forget_publications();
            }
            Err(error) => {
                self.failed(error.to_string());
            }
        }
    }

    fn failed(&mut self, error: String) {
        let wait = RETRY_INTERVAL.saturating_mul(1 << self.load_failures.min(8)).min(LOAD_RETRY_MAX);
        self.next_load = Instant::now() + wait;
        self.load_failures = self.load_failures.saturating_add(1);
        if self.last_error.as_ref() != Some(&error) {
            tracing::error!("the switch does not take the tables, and keeps those before: {error}");
            self.last_error = Some(error);
        }
    }

    fn update_routes(&mut self) {
        let now = Instant::now();
        if self.cluster.changed_nodes().is_some() {
            (self.has_routes, self.next_routes) = (false, now);
        }
        if self.has_routes || !self.is_loaded || self.next_routes > now {
            return;
        }
        let own = self.settings.node.as_deref();
        self.has_routes = self.routes.update(self.cluster.nodes(), own, self.target, self.record);
        let wait = RETRY_INTERVAL.saturating_mul(1 << self.route_failures.min(8)).min(ROUTES_RETRY_MAX);
        self.next_routes = now + wait;
        self.route_failures = if self.has_routes { 0 } else { self.route_failures.saturating_add(1) };
    }

    /// Names the API server, once it is known, before the tables that come from it.
    fn name_server(&mut self) {
        if self.server.is_none()
            && let Ok(server) = self.runtime.block_on(self.connection.server())
        {
            tracing::info!(server, "the API server is followed");
            self.target.server(&server);
            self.server = Some(server);
        }
    }

    /// Reports the state to the switch if it has changed, and from time to time.
    fn report(&mut self) {
        let refused = self.last_error.clone();
        let report = self.cluster.report(self.server.as_deref().unwrap_or_default());
        let report = SourceReport { refused, has_routes: self.has_routes && self.is_loaded, ..report };
        let is_due = self.last_report.as_ref().is_none_or(|(last, at)| {
            let has_changed =
                *last != SourceReport { objects: last.objects, policies: last.policies, ..report.clone() };
            has_changed || at.elapsed() >= REPORT_INTERVAL
        });
        if is_due {
            // A switch that does not answer gets the next one.
            let _ = self.target.report(&report);
            self.last_report = Some((report, Instant::now()));
        }
    }
}

/// Rows of all ACL tables beyond which a namespace is closed: each of them may be another one, and so may the default row of each
/// table.
const ACL_ROWS_MAX: usize = ROWS_MAX - ACLS_MAX;
const _: () = assert!(ACL_ROWS_MAX <= ACL_ENTRIES_MAX, "tables take as many entries");
const _: () = assert!(PREFIXES_MAX <= CLASSES_MAX, "each prefix may have a class of its own");

fn new_cluster(settings: &Settings) -> Cluster {
    let acl_entries_max = settings.acl_entries_max.unwrap_or(ACL_ROWS_MAX);
    Cluster::new(settings.node.clone(), acl_entries_max, settings.timing.reopen)
}
