//! Checks of Services: a selector that selects no pod, and rules about the port of a Service. Policy is asked
//! about the backend of a connection, so a rule with the port of the Service does not match.

use std::collections::HashSet;

use super::finding::{Check, LintFinding, LintSubject};
use super::named_ports::{cluster_peers_hold, network_peers_hold};
use super::objects::{LintObjects, selects};
use crate::net::flow::Protocol;
use crate::policy::display;
use crate::policy::evaluate::{cluster_tiers, isolation, selectors};
use crate::policy::objects::{ClusterPort, Pod, PortMatch, PortOfService, Ports, Service, ServiceName};
use crate::policy::services::target_port;
use crate::tables::{Direction, PolicyRef};

/// Checks selectors of Services without `EndpointSlices`.
pub(super) fn check_selectors(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    let with_slices: HashSet<(&str, &str)> = objects
        .slices
        .iter()
        .filter_map(|slice| Some((slice.namespace.as_str(), slice.service.as_deref()?)))
        .collect();
    for service in &objects.services {
        let Some(selector) = &service.selector else { continue };
        let has_slice = with_slices.contains(&(service.namespace.as_str(), service.name.as_str()));
        let pods = objects.pods.of_namespace(&service.namespace, selector);
        if has_slice || pods.chain(objects.exempt.iter().copied()).any(|pod| is_behind(service, pod)) {
            continue;
        }
        let message = match objects.unread_selected(|pod| is_behind(service, pod)) {
            Some(unread) => format!("selects no pod that is read: {}", unread.advice()),
            None if objects.pods.is_empty() => continue,
            None => format!(
                "selects no pod: none in namespace {} matches {}: connections to the Service are refused{}",
                service.namespace,
                display::selector(selector),
                objects.pods.label_values().near(selector)
            ),
        };
        found.push(LintFinding {
            policy: LintSubject::of_service(&name(service)),
            path: "spec.selector".to_owned(),
            check: Check::ServiceSelectsNoPod,
            message,
        });
    }
}

fn name(service: &Service) -> ServiceName {
    ServiceName { namespace: service.namespace.clone(), name: service.name.clone() }
}

/// Tests whether a Service selects a pod.
fn is_behind(service: &Service, pod: &Pod) -> bool {
    pod.name.namespace == service.namespace
        && service.selector.as_ref().is_some_and(|selector| selectors::selects(selector, &pod.labels))
}

/// Port of a rule, and the ports that the rule matches with it.
struct RulePort<'a> {
    policy: PolicyRef,
    path: String,
    protocol: Protocol,
    port: u16,
    covers: &'a dyn Fn(&Pod, u16) -> bool,
}

/// Checks rules that name the port of a Service where its backends have another.
pub(super) fn check_ports(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        check_network(objects, direction, found);
        check_cluster(objects, direction, found);
    }
}

fn check_network(objects: &LintObjects<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    for policy in &objects.network {
        for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
            let Ports::Any(ports) = &rule.ports else { continue };
            let destination = |pod: &Pod| match direction {
                Direction::Ingress => selects(policy, pod),
                Direction::Egress => network_peers_hold(objects, &policy.namespace, rule, pod),
            };
            for (at, port) in ports.iter().enumerate() {
                let PortMatch::Range { protocol, first, last } = port else { continue };
                let covers = |pod: &Pod, number: u16| {
                    ports.iter().any(|port| match port {
                        PortMatch::Range { protocol: own, first, last } => {
                            own == protocol && (*first..=*last).contains(&number)
                        }
                        PortMatch::Named { protocol: own, name } => {
                            own == protocol && has(pod, Some(name), *protocol, number)
                        }
                    })
                };
                if first == last {
                    let path = format!("spec.{direction}[{index}].ports[{at}].port");
                    let (policy, protocol) = (isolation::name(policy), *protocol);
                    let rule_port = RulePort { policy, path, protocol, port: *first, covers: &covers };
                    check_port(objects, &rule_port, &destination, found);
                }
            }
        }
    }
}

fn check_cluster(objects: &LintObjects<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    for policy in &objects.cluster {
        for (index, rule) in cluster_tiers::rules(policy, direction).iter().enumerate() {
            let Some(ports) = &rule.ports else { continue };
            let destination = |pod: &Pod| match direction {
                Direction::Ingress => objects.evaluator.scope_selects(&policy.subject, pod),
                Direction::Egress => cluster_peers_hold(objects, &rule.peers, pod),
            };
            for (at, port) in ports.iter().enumerate() {
                let ClusterPort::Range { protocol, first, last } = port else { continue };
                let covers = |pod: &Pod, number: u16| {
                    ports.iter().any(|port| match port {
                        ClusterPort::Range { protocol: own, first, last } => {
                            own == protocol && (*first..=*last).contains(&number)
                        }
                        ClusterPort::Named { name, .. } => has(pod, Some(name), *protocol, number),
                    })
                };
                if first == last {
                    let path = format!("spec.{direction}[{index}].protocols[{at}]");
                    let (policy, protocol) = (cluster_tiers::name(policy), *protocol);
                    let rule_port = RulePort { policy, path, protocol, port: *first, covers: &covers };
                    check_port(objects, &rule_port, &destination, found);
                }
            }
        }
    }
}

/// Tests whether a pod declares a port, of a name if one is given.
fn has(pod: &Pod, name: Option<&String>, protocol: Protocol, port: u16) -> bool {
    pod.ports.iter().any(|own| {
        own.protocol == protocol
            && own.port == port
            && name.is_none_or(|name| own.name.as_ref() == Some(name))
    })
}

/// Adds a finding if a destination pod is a backend of a Service with this port, and the rule matches neither
/// a port that the pod declares nor the target port.
fn check_port(
    objects: &LintObjects<'_>,
    rule: &RulePort<'_>,
    destination: &dyn Fn(&Pod) -> bool,
    found: &mut Vec<LintFinding>,
) {
    let RulePort { protocol, port, .. } = *rule;
    let is_asked = |own: &&PortOfService| own.protocol == protocol && own.port == port;
    for service in objects.services_with(protocol, port) {
        let Some(own) = service.ports.iter().find(is_asked) else { continue };
        let Some(selector) = &service.selector else { continue };
        let backends = objects.pods.of_namespace(&service.namespace, selector);
        let backends = backends.filter(|pod| is_behind(service, pod) && destination(pod));
        let missed = backends.filter(|pod| !has(pod, None, protocol, port)).find_map(|pod| {
            target_port(pod, own).filter(|target| !(rule.covers)(pod, *target)).map(|target| (pod, target))
        });
        let Some((pod, target)) = missed else { continue };
        found.push(LintFinding {
            policy: rule.policy.clone().into(),
            path: rule.path.clone(),
            check: Check::PortOfService,
            message: format!(
                "{port} is the port of Service {}: policy is asked about the pods behind it, and pod {} has port {target}: \
                 write {target}",
                name(service),
                pod.name
            ),
        });
        return;
    }
}
