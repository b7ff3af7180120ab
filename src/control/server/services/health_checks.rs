//! Health checks of load balancers: whether this node has a backend of a Service with the traffic policy `Local`
//! (`healthCheckNodePort`), as kube-proxy answers them.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::control::Switch;
use crate::control::server::connections::{self, Limits};
use crate::control::switch::NodePart;
use crate::tables::ServiceSet;

/// Interval of looks at the Services.
const INTERVAL: Duration = Duration::from_millis(100);
/// Looks until a port that another program has is tried again.
const RETRY_LOOKS: u32 = 50;
/// Most connections to one port.
const CONNECTIONS_MAX: usize = 64;
/// Longest time without a transfer on a connection.
const IDLE: Duration = Duration::from_secs(5);

/// Answer about one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answer {
    namespace: String,
    name: String,
    endpoints: usize,
}

/// Port that is served until this is dropped.
struct Port {
    answer: Arc<ArcSwap<Answer>>,
    _stop: watch::Sender<()>,
}

/// Serves the ports of the loaded Services, where the switch replaces kube-proxy, until `stopping` changes.
pub(in crate::control::server) async fn serve(switch: Arc<Switch>, mut stopping: watch::Receiver<()>) {
    if !switch.settings.replaces_kube_proxy {
        return;
    }
    let mut ports: BTreeMap<u16, Port> = BTreeMap::new();
    let (mut last, mut failed_looks): (Option<Arc<ServiceSet>>, u32) = (None, 0);
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            () = sleep(INTERVAL) => {}
        }
        let Some(services) = switch.state.load().services.as_ref().map(|loaded| loaded.set.clone()) else {
            continue;
        };
        failed_looks = failed_looks.saturating_sub(1);
        let is_same = last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &services));
        if is_same && failed_looks != 1 {
            continue;
        }
        let failure = reconcile(&mut ports, &services);
        failed_looks = if failure.is_some() { RETRY_LOOKS } else { 0 };
        switch.set_node_problem(NodePart::HealthChecks, failure);
        last = Some(services);
    }
}

/// Opens and closes ports, and sets their answers. Returns the first failure, in a sentence.
fn reconcile(ports: &mut BTreeMap<u16, Port>, services: &ServiceSet) -> Option<String> {
    let answers = answers(services);
    ports.retain(|port, _| answers.contains_key(port));
    let mut failure = None;
    for (number, answer) in answers {
        if let Some(port) = ports.get(&number) {
            port.answer.store(Arc::new(answer));
            continue;
        }
        match listen(number) {
            Ok(listener) => {
                let answer = Arc::new(ArcSwap::from_pointee(answer));
                let (stop, stopping) = watch::channel(());
                let router = Router::new().fallback(respond).with_state(answer.clone());
                let limits = Limits::for_process(CONNECTIONS_MAX, IDLE, 1);
                tokio::spawn(connections::serve(listener, move |_| router.clone(), limits, stopping));
                ports.insert(number, Port { answer, _stop: stop });
            }
            Err(error) => {
                let Answer { namespace, name, .. } = answer;
                let text = format!(
                    "load balancers do not learn whether this node serves {namespace}/{name}: port {number} cannot be \
                     opened ({error})"
                );
                failure = failure.or(Some(text));
            }
        }
    }
    failure
}

/// Answers by port.
fn answers(services: &ServiceSet) -> BTreeMap<u16, Answer> {
    let mut answers: BTreeMap<u16, Answer> = BTreeMap::new();
    for (service, port) in services.ports() {
        let Some(check) = port.health_check else { continue };
        let answer = answers.entry(check.port).or_insert_with(|| Answer {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            endpoints: 0,
        });
        if (&answer.namespace, &answer.name) == (&service.namespace, &service.name) {
            answer.endpoints = answer.endpoints.max(check.endpoints);
        }
    }
    answers
}

fn listen(port: u16) -> io::Result<TcpListener> {
    // A node without IPv6 has no such address.
    let any =
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
    let listener = std::net::TcpListener::bind(&any[..])?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn respond(State(answer): State<Arc<ArcSwap<Answer>>>) -> Response {
    let Answer { namespace, name, endpoints } = &*answer.load_full();
    let status = if *endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": endpoints,
        "serviceProxyHealthy": true,
    });
    let weight = [("X-Load-Balancing-Endpoint-Weight", endpoints.to_string())];
    (status, weight, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::flow::Protocol;
    use crate::tables::{HealthCheck, ServicePort, ServicePortName, ServiceTable};

    #[test]
    fn ports_of_one_service_have_one_answer_and_another_service_changes_nothing() {
        let entry = |name: &str, port: &str, endpoints| {
            let name = ServicePortName {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                port: Some(port.to_owned()),
                protocol: Protocol::TCP,
            };
            let number = if port == "other" { 30_002 } else { 30_001 };
            let health_check = Some(HealthCheck { port: number, endpoints });
            (name, ServicePort { health_check, ..ServicePort::default() })
        };
        let entries =
            [entry("a", "http", 1), entry("a", "https", 2), entry("b", "http", 9), entry("b", "other", 0)];
        let table = ServiceTable { ports: entries.into(), ..ServiceTable::default() };
        let answers = answers(&ServiceSet::new(&table).unwrap());
        let seen: Vec<_> = answers.iter().map(|(port, of)| (*port, &*of.name, of.endpoints)).collect();
        assert_eq!(seen, [(30_001, "a", 2), (30_002, "b", 0)]);
    }
}
