//! Metrics of Services.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::exposition::Kind::{Counter, Gauge};
use super::exposition::{Exposition, shown};
use crate::control::protocol::{ServiceReport, ServicesReport};
use crate::limits::METRICS_SERVICES_MAX;

/// Describes the loaded Services, and the ports that have opened the most flows.
pub(super) fn describe(out: &mut Exposition, ServicesReport { ports, .. }: &ServicesReport) {
    out.family(Gauge, "palisade_service_ports", "ports", "Ports of the loaded Services.")
        .sample(&[], ports.len() as u64);
    let idle = ports.iter().filter(|found| found.backends.is_empty()).count();
    out.family(
        Gauge,
        "palisade_refusing_service_ports",
        "ports",
        "Ports of Services without a backend, which refuse connections.",
    )
    .sample(&[], idle as u64);
    let mut sorted: Vec<&ServiceReport> = ports.iter().collect();
    // The sort is stable: of ports with equally many flows, the first by name stays.
    sorted.sort_by_key(|found| Reverse(found.flows_opened));
    let left_out = sorted.split_off(sorted.len().min(METRICS_SERVICES_MAX)).len();
    let mut flows: BTreeMap<_, u64> = BTreeMap::new();
    for ServiceReport { service, flows_opened, .. } in sorted {
        let port = shown(service.port.as_deref().unwrap_or_default());
        let labels = (shown(&service.namespace), shown(&service.name), port, service.protocol.to_string());
        *flows.entry(labels).or_default() += flows_opened;
    }
    let mut family = out.family(
        Counter,
        "palisade_service_opened_flows",
        "flows",
        "Flows that the port of a Service has opened since it is loaded.",
    );
    for ((namespace, service, port, protocol), opened) in flows {
        let labels =
            [("namespace", &*namespace), ("service", &service), ("port", &port), ("protocol", &protocol)];
        family.sample(&labels, opened);
    }
    out.family(
        Gauge,
        "palisade_left_out_service_ports",
        "ports",
        "Ports of Services without counters here, because others have opened more flows.",
    )
    .sample(&[], left_out as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::metrics::Format;
    use crate::control::protocol::BackendReport;
    use crate::net::flow::Protocol;
    use crate::tables::{ServicePort, ServicePortName};

    fn port(name: &str, flows_opened: u64, backends: &[&str]) -> ServiceReport {
        let backend = |address: &&str| BackendReport { address: address.parse().unwrap(), flows_opened: 0 };
        ServiceReport {
            service: ServicePortName {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                port: Some("http".to_owned()),
                protocol: Protocol::TCP,
            },
            port: ServicePort::default(),
            flows_opened,
            backends: backends.iter().map(backend).collect(),
        }
    }

    fn described(ports: Vec<ServiceReport>) -> String {
        let mut out = Exposition::new(Format::OpenMetrics);
        describe(&mut out, &ServicesReport { ports, ..ServicesReport::default() });
        out.finish()
    }

    #[test]
    fn flows_are_counted_by_port_and_ports_without_backends_as_well() {
        let text = described(vec![port("web", 7, &["10.0.0.2:80"]), port("db", 0, &[])]);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |service: &str, flows: u64| {
            format!(
                "palisade_service_opened_flows_total{{namespace=\"shop\",service=\"{service}\",port=\"http\",protocol=\"TCP\"}} {flows}"
            )
        };
        let expected = [
            "palisade_service_ports 2",
            "palisade_refusing_service_ports 1",
            &of("db", 0),
            &of("web", 7),
            "palisade_left_out_service_ports 0",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn ports_beyond_the_bound_are_those_with_the_fewest_flows() {
        let ports =
            (0..METRICS_SERVICES_MAX + 3).map(|number| port(&format!("s{number}"), number as u64, &[]));
        let text = described(ports.collect());
        assert_eq!(text.matches("palisade_service_opened_flows_total{").count(), METRICS_SERVICES_MAX);
        assert!(text.contains("palisade_left_out_service_ports 3\n"));
        assert!(!text.contains("service=\"s2\"") && text.contains("service=\"s3\""));
    }
}
