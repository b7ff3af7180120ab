//! Reports on what is in force: the tables of a pod, classes, policies, routes, the path of a connection.

mod acl;
mod audit;
mod hits;
mod labels;
mod members;
mod policies;

use self::hits::Hits;
use super::explain::{self, LiveState, PathReport};
use super::protocol::{AclReport, Checked, ClassInfo, ClassesReport, PodInfo, PoliciesReport, RouteInfo};
use super::switch::Switch;
use super::{ApiError, CoverageCheck};
use crate::dataplane::{RouteOrigin, Workers};
use crate::limits::{CLASS_POLICIES_MAX, REPORT_ENTRIES_MAX};
use crate::nearest::nearest;
use crate::net::flow::{FlowKey, Protocol};
use crate::policy::testcase::{Endpoint, expand_probe};
use crate::tables::{PodName, RuleTables};
use std::net::SocketAddr;

impl Switch {
    /// Checks full tables as [`Switch::replace_tables`] does, and loads nothing.
    pub fn check_tables(&self, tables: &RuleTables, coverage: CoverageCheck) -> Result<Checked, ApiError> {
        let state = self.state.load();
        // The cheapest check comes first.
        state.check_coverage(tables, coverage, self.settings.fail_open)?;
        tables.check()?;
        Ok(Checked { generation: state.generation })
    }

    /// Explains a new connection: one report for each address family that both ends have. One to an address of a Service gets this
    /// backend, if the Service has it.
    pub fn explain(
        &self,
        ends: [&Endpoint; 2],
        protocol: Protocol,
        port: Option<u16>,
        backend: Option<SocketAddr>,
    ) -> Result<Vec<PathReport>, ApiError> {
        if protocol.has_ports() && port.is_none_or(|port| port == 0) {
            let reason = format!("{protocol} needs a destination port, from 1 to 65535");
            return Err(ApiError::Field { field: "port", reason });
        }
        let state = self.state.load_full();
        let addresses = |end: &Endpoint| match end {
            Endpoint::Pod(name) => {
                Some(state.known_addresses(name).map(|addresses| (name.clone(), addresses)))
            }
            Endpoint::Ip(_) => None,
        };
        let pods = ends.into_iter().filter_map(addresses).collect::<Result<_, _>>()?;
        let flows = expand_probe(&pods, ends[0], ends[1], protocol, port.unwrap_or_default())?;
        let hits = self.hits();
        let hits = hits.iter().map(|((origin, verdict), count)| ((origin, *verdict), *count)).collect();
        let report = |flow: &FlowKey| {
            let path = self.dataplane.path(flow, backend);
            let judged = path.judged();
            let route = |address| Some(state.route_info(&self.dataplane.route_of(address)?));
            let live = LiveState::new([judged.src, judged.dst].map(route), &hits);
            let report = explain::report(&path, ends, &state, &self.settings, &live);
            let candidates = self.dataplane.workers().map(Workers::candidates);
            PathReport {
                audit: candidates.and_then(|tables| self.audit.denial(&judged, &state, tables)),
                ..report
            }
        };
        Ok(flows.iter().map(report).collect())
    }

    /// Reports the tables of a pod.
    pub fn acl(&self, pod: &PodName) -> Result<AclReport, ApiError> {
        let hits = self.hits();
        let state = self.state.load_full();
        let tables = state.tables.as_deref().ok_or(ApiError::NoTables)?;
        let policy = tables.pods.get(pod).ok_or_else(|| {
            let nearest = nearest(&pod.to_string(), tables.pods.keys()).cloned();
            ApiError::PodWithoutTables { pod: pod.clone(), nearest }
        })?;
        let info = state.pods.get(pod).map(|record| state.pod_info(pod, record, self.settings.fail_open));
        let [ingress, egress] = acl::directions(tables, policy, &hits);
        Ok(AclReport {
            pod: pod.clone(),
            generation: state.generation,
            addresses: policy.addresses.clone(),
            port: info.as_ref().map(|info| info.port.clone()),
            warnings: info.map(|info| info.warnings).unwrap_or_default(),
            ingress,
            egress,
        })
    }

    /// Reports the classes of the loaded tables: none while no tables are loaded.
    pub fn classes(&self) -> ClassesReport {
        let state = self.state.load_full();
        let mut report = ClassesReport { generation: state.generation, ..ClassesReport::default() };
        if let Some(tables) = state.tables.as_deref() {
            let mut classes = members::classes(tables);
            report.left_out = classes.len().saturating_sub(REPORT_ENTRIES_MAX);
            classes.truncate(REPORT_ENTRIES_MAX);
            let wanted = classes.iter().copied().collect();
            let mut policies = labels::policies(tables, &wanted);
            let of_class = |(class, members)| {
                let policies = policies.remove(&class).unwrap_or_default();
                let policies_left_out = policies.len().saturating_sub(CLASS_POLICIES_MAX);
                let policies = policies.into_iter().take(CLASS_POLICIES_MAX).cloned().collect();
                ClassInfo { class, members, policies, policies_left_out }
            };
            report.classes = members::members(tables, &wanted).into_iter().map(of_class).collect();
        }
        report
    }

    /// Reports the policies of the loaded tables.
    pub fn policies(&self) -> PoliciesReport {
        let hits = self.hits();
        let state = self.state.load_full();
        let mut policies =
            state.tables.as_deref().map(|tables| policies::policies(tables, &hits)).unwrap_or_default();
        let left_out = policies.len().saturating_sub(REPORT_ENTRIES_MAX);
        policies.truncate(REPORT_ENTRIES_MAX);
        let pods = state.pods.iter().map(|(name, pod)| state.pod_info(name, pod, self.settings.fail_open));
        let of_pod = |pod: PodInfo| {
            let name = pod.pod.to_string();
            pod.warnings.into_iter().map(move |warning| format!("{name}: {warning}"))
        };
        PoliciesReport {
            generation: state.generation,
            status: state.policy_status(),
            rejected_reload: self.status().rejected_reload,
            source: self.source(),
            policies,
            left_out,
            audited: self.audit.policies(&state).0,
            warnings: pods.flat_map(of_pod).collect(),
        }
    }

    /// Lists the routes that the workers use, and the configured ones that they do not use.
    pub fn routes(&self) -> Vec<RouteInfo> {
        let routes = self.dataplane.routes();
        let state = self.state.load_full();
        let mut routes: Vec<RouteInfo> = routes.iter().map(|route| state.route_info(route)).collect();
        let unused = state.routes.iter().map(|route| state.unused_route(route)).filter(|unused| {
            !routes.iter().any(|route| {
                route.origin == RouteOrigin::Configured
                    && (route.prefix, &route.port, route.next_hop)
                        == (unused.prefix, &unused.port, unused.next_hop)
            })
        });
        let unused: Vec<RouteInfo> = unused.collect();
        routes.extend(unused);
        routes.sort_by_key(|route| (route.prefix, !route.in_force));
        routes
    }

    fn hits(&self) -> Hits {
        let decisions = self.dataplane.counters().decisions.into_iter();
        decisions.map(|count| ((count.origin, count.verdict), count.packets)).collect()
    }
}
