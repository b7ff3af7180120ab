//! Agent on a fake API server, and a switch that records what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use palisade::control::protocol::{RouteInfo, RouteRequest, SourceReport};
use palisade::policy::objects::Object;
use palisade::policy::parse::parse_value;
use palisade::policy::services::{Services, ServicesOptions};
use palisade::policy::{Compiler, Options};
use palisade::source::kubernetes::{Access, Settings, Target, TargetError, Timing, run};
use palisade::tables::{PodName, PolicyRef, RuleTables, ServiceSet, ServiceTable, ServicesDiff, TablesDiff};
use serde_json::{Value, json};

use crate::server::ApiServer;

/// Name of the agent's node.
pub(crate) const NODE: &str = "n1";
/// Longest wait for a condition.
const TIMEOUT: Duration = Duration::from_mins(1);

/// State of the recording switch.
#[derive(Default)]
pub(crate) struct Recorded {
    /// Most rows of ACL tables that the switch takes.
    pub(crate) acl_entries_max: Option<usize>,
    pub(crate) tables: Option<RuleTables>,
    /// All tables so far, if they are wanted.
    pub(crate) history: Option<Vec<RuleTables>>,
    pub(crate) loads: usize,
    pub(crate) changes: usize,
    pub(crate) has_other_tables: bool,
    pub(crate) refuses: bool,
    pub(crate) services: Option<ServiceTable>,
    pub(crate) service_loads: usize,
    pub(crate) service_changes: usize,
    pub(crate) has_other_services: bool,
    pub(crate) audit: Option<(Vec<PolicyRef>, RuleTables)>,
    pub(crate) attached: BTreeMap<PodName, Vec<IpAddr>>,
    pub(crate) uplinks: Vec<String>,
    pub(crate) routes: BTreeMap<IpNet, RouteRequest>,
    pub(crate) refuses_routes: bool,
    /// Changes of routes so far.
    pub(crate) route_changes: Vec<String>,
    pub(crate) report: SourceReport,
}

impl Recorded {
    fn note(&mut self) {
        if let Some(history) = &mut self.history {
            history.extend(self.tables.clone());
        }
    }
}

pub(crate) struct Recorder(pub(crate) Arc<Mutex<Recorded>>);

impl Target for Recorder {
    fn load(&mut self, tables: &RuleTables, _: (usize, usize)) -> Result<(), TargetError> {
        let mut recorded = self.0.lock().unwrap();
        if recorded.refuses {
            return Err(TargetError::Refused("it is asleep".to_owned()));
        }
        tables.check().unwrap();
        assert!(recorded.acl_entries_max.is_none_or(|max| tables.acl_entries() <= max));
        recorded.tables = Some(tables.clone());
        recorded.loads += 1;
        recorded.has_other_tables = false;
        recorded.note();
        Ok(())
    }

    fn change(&mut self, difference: &TablesDiff, _: (usize, usize)) -> Result<(), TargetError> {
        let mut recorded = self.0.lock().unwrap();
        if recorded.refuses {
            return Err(TargetError::Refused("it is asleep".to_owned()));
        }
        if recorded.has_other_tables {
            return Err(TargetError::OtherTables);
        }
        recorded.changes += usize::from(!difference.is_empty());
        let tables = recorded.tables.as_mut().unwrap();
        tables.apply(difference);
        tables.check().unwrap();
        let entries = tables.acl_entries();
        assert!(recorded.acl_entries_max.is_none_or(|max| entries <= max));
        recorded.note();
        Ok(())
    }

    fn load_services(&mut self, table: &ServiceTable) -> Result<(), TargetError> {
        let mut recorded = self.0.lock().unwrap();
        if recorded.refuses {
            return Err(TargetError::Refused("it is asleep".to_owned()));
        }
        assert!(recorded.tables.is_some(), "the tables come first");
        ServiceSet::new(table).unwrap();
        recorded.services = Some(table.clone());
        recorded.service_loads += 1;
        recorded.has_other_services = false;
        Ok(())
    }

    fn change_services(&mut self, difference: &ServicesDiff) -> Result<(), TargetError> {
        let mut recorded = self.0.lock().unwrap();
        if recorded.refuses {
            return Err(TargetError::Refused("it is asleep".to_owned()));
        }
        if recorded.has_other_services {
            return Err(TargetError::OtherTables);
        }
        recorded.service_changes += usize::from(!difference.is_empty());
        let before = ServiceSet::new(recorded.services.as_ref().unwrap()).unwrap();
        recorded.services = Some(before.changed(difference).unwrap().table());
        Ok(())
    }

    fn audit(&mut self, policies: &[PolicyRef], tables: RuleTables) -> Result<(), TargetError> {
        tables.check().unwrap();
        self.0.lock().unwrap().audit = Some((policies.to_vec(), tables));
        Ok(())
    }

    fn end_audit(&mut self) -> Result<(), TargetError> {
        self.0.lock().unwrap().audit = None;
        Ok(())
    }

    fn attached(&mut self) -> Option<BTreeMap<PodName, Vec<IpAddr>>> {
        Some(self.0.lock().unwrap().attached.clone())
    }

    fn uplinks(&self) -> Result<Vec<String>, TargetError> {
        Ok(self.0.lock().unwrap().uplinks.clone())
    }

    fn routes(&self) -> Result<Vec<RouteInfo>, TargetError> {
        let shown = |(prefix, route): (&IpNet, &RouteRequest)| {
            let info = json!({"prefix": prefix, "origin": "configured", "in_force": true, "port": route.port,
                "next_hop": route.next_hop, "node": route.node});
            serde_json::from_value(info).unwrap()
        };
        Ok(self.0.lock().unwrap().routes.iter().map(shown).collect())
    }

    fn put_routes(&self, routes: &[(IpNet, RouteRequest)]) -> Vec<(IpNet, TargetError)> {
        let mut recorded = self.0.lock().unwrap();
        let put = |(prefix, request): &(IpNet, RouteRequest)| {
            recorded.route_changes.push(format!("put {prefix}"));
            if recorded.refuses_routes {
                return Some((*prefix, TargetError::Refused("its port is away".to_owned())));
            }
            recorded.routes.insert(*prefix, request.clone());
            None
        };
        routes.iter().filter_map(put).collect()
    }

    fn delete_route(&self, prefix: IpNet) -> Result<(), TargetError> {
        let mut recorded = self.0.lock().unwrap();
        recorded.route_changes.push(format!("delete {prefix}"));
        if recorded.refuses_routes {
            return Err(TargetError::Refused("it is busy".to_owned()));
        }
        recorded.routes.remove(&prefix);
        Ok(())
    }

    fn report(&self, report: &SourceReport) -> Result<(), TargetError> {
        self.0.lock().unwrap().report = report.clone();
        Ok(())
    }

    fn server(&mut self, _: &str) {}
}

/// Short times, so that faults show soon.
pub(crate) fn timing() -> Timing {
    Timing {
        gather: Duration::from_millis(2),
        idle: Duration::from_secs(2),
        settle: Duration::from_millis(50),
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(200),
        absent: Duration::from_millis(100),
        vanished: Duration::from_millis(400),
        verify: Duration::from_millis(50),
        audit: Duration::from_millis(50),
        reopen: Duration::from_millis(100),
        lease: Duration::from_secs(1),
        watch: Duration::from_mins(1),
        page: 3,
    }
}

/// Directory of a test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("palisade-agent-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Agent in a thread.
pub(crate) struct Agent {
    pub(crate) recorded: Arc<Mutex<Recorded>>,
    pub(crate) recorded_routes: Arc<Mutex<BTreeSet<IpNet>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _scratch: Scratch,
}

impl Agent {
    pub(crate) fn start(server: &ApiServer) -> Agent {
        Agent::start_as(server, &json!({}), |_| {})
    }

    /// Starts an agent with these credentials.
    pub(crate) fn start_as(server: &ApiServer, user: &Value, set: impl FnOnce(&mut Settings)) -> Agent {
        let recorded = Recorded { uplinks: vec!["up".to_owned()], ..Recorded::default() };
        Agent::start_on(Arc::new(Mutex::new(recorded)), server, user, set)
    }

    /// Starts an agent of this switch.
    pub(crate) fn start_on(
        recorded: Arc<Mutex<Recorded>>,
        server: &ApiServer,
        user: &Value,
        set: impl FnOnce(&mut Settings),
    ) -> Agent {
        let scratch = Scratch::new();
        let kubeconfig = scratch.write("kubeconfig", &server.kubeconfig(user));
        Agent::start_with(recorded, kubeconfig, scratch, set)
    }

    /// Starts an agent with this file of credentials.
    pub(crate) fn start_at(kubeconfig: PathBuf, set: impl FnOnce(&mut Settings)) -> Agent {
        Agent::start_with(Arc::default(), kubeconfig, Scratch::new(), set)
    }

    fn start_with(
        recorded: Arc<Mutex<Recorded>>,
        kubeconfig: PathBuf,
        scratch: Scratch,
        set: impl FnOnce(&mut Settings),
    ) -> Agent {
        let mut settings = Settings {
            access: Access { kubeconfig: Some(kubeconfig), context: None },
            node: Some(NODE.to_owned()),
            timing: timing(),
            ..Settings::default()
        };
        set(&mut settings);
        let recorded_routes: Arc<Mutex<BTreeSet<IpNet>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopping, routes) = (recorded.clone(), stop.clone(), recorded_routes.clone());
        let thread = std::thread::spawn(move || {
            let mut record = |prefixes: &BTreeSet<IpNet>| routes.lock().unwrap().clone_from(prefixes);
            run(&settings, &mut Recorder(of_thread), &mut record, &stopping).unwrap();
        });
        Agent { recorded, recorded_routes, stop, thread: Some(thread), _scratch: scratch }
    }

    pub(crate) fn see<T>(&self, see: impl FnOnce(&mut Recorded) -> T) -> T {
        see(&mut self.recorded.lock().unwrap())
    }

    /// Waits until the switch has the tables and Services of the server's objects.
    #[track_caller]
    pub(crate) fn converges(&self, server: &ApiServer) {
        let objects = server.objects();
        self.gets_services_of(&objects);
        self.gets_tables_of(&objects);
    }

    /// Waits until the switch has the Services of these objects.
    #[track_caller]
    pub(crate) fn gets_services_of(&self, objects: &[Value]) {
        let services = Some(served(objects));
        eventually("the Services are those of the objects", || {
            self.see(|recorded| recorded.services == services)
        });
    }

    /// Waits until the switch has the tables of these objects.
    #[track_caller]
    pub(crate) fn gets_tables_of(&self, objects: &[Value]) {
        let expected = compiled(objects);
        let has_expected = || {
            self.see(|recorded| recorded.tables.as_ref().map(RuleTables::canonical)) == Some(expected.clone())
        };
        eventually("the tables are those of the objects", has_expected);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || std::thread::panicking(), "the agent has panicked");
    }
}

/// Valid objects.
fn parsed(objects: &[Value]) -> impl Iterator<Item = Object> {
    objects.iter().map(|object| {
        let mut object = object.clone();
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        parse_value("object", &object).unwrap().objects.remove(0).0
    })
}

/// Tables of valid objects, compiled from scratch. Pods of namespaces that have no object are closed.
pub(crate) fn compiled(objects: &[Value]) -> RuleTables {
    let options = Options { node: Some(NODE.to_owned()) };
    let namespaces: BTreeSet<&str> = objects
        .iter()
        .filter(|object| object["kind"] == "Namespace")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    let objects = parsed(objects).filter(|object| match object {
        Object::Pod(pod) => namespaces.contains(pod.name.namespace.as_str()),
        _ => true,
    });
    Compiler::from_objects(objects, options).into_tables().canonical()
}

/// Services of valid objects, resolved from scratch.
pub(crate) fn served(objects: &[Value]) -> ServiceTable {
    let options = ServicesOptions { node: Some(NODE.to_owned()), derive_endpoints: false };
    Services::from_objects(parsed(objects), options).table().clone()
}

/// Messages about objects that are not enforced as written.
pub(crate) fn unenforced(agent: &Agent) -> Vec<String> {
    agent.see(|recorded| {
        let shown = recorded.report.unenforced.iter();
        shown.map(|object| format!("{}: {}: {}", object.name, object.reason, object.consequence)).collect()
    })
}

/// Waits for a condition.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "not in {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn pod(name: &str, node: &str, app: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": name, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running"}})
}

pub(crate) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub(crate) fn node(name: &str, prefixes: &[&str], address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDRs": prefixes},
        "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]}})
}

/// Policy that lets pods with the label `app: from` reach those with `app: to`.
pub(crate) fn policy(name: &str, to: &str, from: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": name},
        "spec": {"podSelector": {"matchLabels": {"app": to}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": from}}}], "ports": [{"port": "http"}]}]}})
}

pub(crate) fn admin_policy(name: &str, priority: u32) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy", "metadata": {"name": name},
        "spec": {"priority": priority, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}}]}]}})
}

/// Service as the API server stores it, with fields that are not followed.
pub(crate) fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]},
        "status": {"loadBalancer": {}}})
}

/// Slice of a Service with these addresses of ready endpoints.
pub(crate) fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| {
        json!({"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n1", "targetRef": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "u"}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}]})
}

/// Small cluster: pods of two nodes, and policies.
pub(crate) fn small_cluster(server: &ApiServer) {
    server.put(namespace("shop"));
    server.put(node("n1", &["10.1.0.0/24"], "192.0.2.1"));
    server.put(node("n2", &["10.2.0.0/24"], "192.0.2.2"));
    for i in 0..8 {
        let (node, prefix) = if i % 2 == 0 { ("n1", "10.1.0") } else { ("n2", "10.2.0") };
        let app = ["db", "web", "cache"][i % 3];
        server.put(pod(&format!("pod-{i}"), node, app, &format!("{prefix}.{}", i + 1)));
    }
    server.put(policy("db", "db", "web"));
    server.put(admin_policy("admin", 5));
}
