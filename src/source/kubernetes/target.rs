//! Switch that gets the tables: of the same process, or behind a control socket.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::control::protocol::{
    AuditTables, PodInfo, PolicyOrigin, PolicySource, PortInfo, RouteInfo, RouteRequest, ServicesPatch,
    SourceReport, TablesPatch,
};
use crate::control::{ApiError, Client, ClientError, CoverageCheck, Switch};
use crate::dataplane::PortKind;
use crate::ids::Generation;
use crate::tables::{PodName, PolicyRef, RuleTables, ServiceTable, ServicesDiff, TablesDiff, TablesError};

/// Attached pods, with their addresses.
pub type Attachments = BTreeMap<PodName, Vec<IpAddr>>;

/// Interval of looks at the attached pods of another process.
const ATTACHED_INTERVAL: Duration = Duration::from_millis(200);

/// Switch that gets the tables.
pub trait Target {
    /// Loads whole tables, compiled from so many objects and policies.
    fn load(&mut self, tables: &RuleTables, counts: (usize, usize)) -> Result<(), TargetError>;
    /// Changes the tables of the last load.
    fn change(&mut self, difference: &TablesDiff, counts: (usize, usize)) -> Result<(), TargetError>;
    /// Loads all Services.
    fn load_services(&mut self, table: &ServiceTable) -> Result<(), TargetError>;
    /// Changes the Services of the last load.
    fn change_services(&mut self, difference: &ServicesDiff) -> Result<(), TargetError>;
    /// Loads the policies in audit mode, and tables in which they are enforced too, beside the tables of the last load
    /// or change.
    fn audit(&mut self, policies: &[PolicyRef], tables: RuleTables) -> Result<(), TargetError>;
    /// Ends the audit: no policy is in audit mode.
    fn end_audit(&mut self) -> Result<(), TargetError>;
    /// Pods that are attached, with their addresses, if they may have changed since the last call.
    fn attached(&mut self) -> Option<Attachments>;
    /// Names of the uplinks.
    fn uplinks(&self) -> Result<Vec<String>, TargetError>;
    /// Routes that the switch has.
    fn routes(&self) -> Result<Vec<RouteInfo>, TargetError>;
    /// Adds routes, in place of those to the same prefixes. Returns those that the switch does not take.
    fn put_routes(&self, routes: &[(IpNet, RouteRequest)]) -> Vec<(IpNet, TargetError)>;
    /// Removes a route, if it is there.
    fn delete_route(&self, prefix: IpNet) -> Result<(), TargetError>;
    /// Passes the state of the agent on.
    fn report(&self, report: &SourceReport) -> Result<(), TargetError>;
    /// Names the API server, for the origin of the tables.
    fn server(&mut self, server: &str);
}

/// Reason for which the switch does not take a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Switch has other tables: it has started again, or another client has loaded some.
    #[error("the switch has other tables")]
    OtherTables,
    /// Switch refuses the request, or does not answer.
    #[error("{0}")]
    Refused(String),
}

/// Switch of this process.
pub struct SwitchTarget<'s> {
    switch: &'s Switch,
    base: Option<Generation>,
    services_base: Option<Generation>,
    server: String,
    /// Generation of the last look at attached pods.
    attached_at: Option<Generation>,
}

impl<'s> SwitchTarget<'s> {
    /// Creates a target.
    pub fn new(switch: &'s Switch) -> SwitchTarget<'s> {
        SwitchTarget { switch, base: None, services_base: None, server: String::new(), attached_at: None }
    }

    fn origin(&self, (objects, policies): (usize, usize)) -> PolicyOrigin {
        let source = PolicySource::Kubernetes { server: self.server.clone() };
        PolicyOrigin { source, objects: Some(objects), policies: Some(policies) }
    }
}

impl From<ApiError> for TargetError {
    fn from(error: ApiError) -> TargetError {
        match error {
            ApiError::NoBase
            | ApiError::Tables(TablesError::Base { .. })
            | ApiError::NoServicesBase
            | ApiError::ServicesBase { .. } => TargetError::OtherTables,
            other => TargetError::Refused(other.to_string()),
        }
    }
}

impl Target for SwitchTarget<'_> {
    fn load(&mut self, tables: &RuleTables, counts: (usize, usize)) -> Result<(), TargetError> {
        let origin = self.origin(counts);
        let loaded = self.switch.replace_tables(tables.clone(), origin, CoverageCheck::Skip)?;
        self.base = Some(loaded.generation);
        Ok(())
    }

    fn change(&mut self, difference: &TablesDiff, counts: (usize, usize)) -> Result<(), TargetError> {
        let base = self.base.ok_or(TargetError::OtherTables)?;
        let origin = self.origin(counts);
        let loaded = self.switch.change_tables(base, difference, origin, CoverageCheck::Skip)?;
        if !difference.is_empty() {
            self.base = Some(loaded.generation);
        }
        Ok(())
    }

    fn load_services(&mut self, table: &ServiceTable) -> Result<(), TargetError> {
        self.services_base = Some(self.switch.replace_services(table)?.generation);
        Ok(())
    }

    fn change_services(&mut self, difference: &ServicesDiff) -> Result<(), TargetError> {
        let base = self.services_base.ok_or(TargetError::OtherTables)?;
        let loaded = self.switch.change_services(base, difference)?;
        if !difference.is_empty() {
            self.services_base = Some(loaded.generation);
        }
        Ok(())
    }

    fn audit(&mut self, policies: &[PolicyRef], tables: RuleTables) -> Result<(), TargetError> {
        let base = self.base.ok_or(TargetError::OtherTables)?;
        Ok(self.switch.load_audit(base, policies.to_vec(), Ok(tables))?)
    }

    fn end_audit(&mut self) -> Result<(), TargetError> {
        self.switch.clear_audit();
        Ok(())
    }

    fn attached(&mut self) -> Option<Attachments> {
        let generation = self.switch.generation();
        let is_new = self.attached_at.replace(generation) != Some(generation);
        is_new.then(|| attachments(self.switch.pods()))
    }

    fn uplinks(&self) -> Result<Vec<String>, TargetError> {
        Ok(uplinks(self.switch.ports()))
    }

    fn routes(&self) -> Result<Vec<RouteInfo>, TargetError> {
        Ok(self.switch.routes())
    }

    fn put_routes(&self, routes: &[(IpNet, RouteRequest)]) -> Vec<(IpNet, TargetError)> {
        let refused = self.switch.put_routes(routes).into_iter();
        refused.map(|(prefix, error)| (prefix, error.into())).collect()
    }

    fn delete_route(&self, prefix: IpNet) -> Result<(), TargetError> {
        match self.switch.delete_route(prefix) {
            Ok(()) | Err(ApiError::NoRoute { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn report(&self, report: &SourceReport) -> Result<(), TargetError> {
        self.switch.set_source(report.clone());
        Ok(())
    }

    fn server(&mut self, server: &str) {
        server.clone_into(&mut self.server);
    }
}

/// Switch behind a control socket.
pub struct ClientTarget {
    client: Client,
    base: Option<Generation>,
    services_base: Option<Generation>,
    /// Time of the last look at attached pods.
    attached_at: Option<Instant>,
}

impl ClientTarget {
    /// Creates a target.
    pub fn new(client: Client) -> ClientTarget {
        ClientTarget { client, base: None, services_base: None, attached_at: None }
    }
}

impl From<ClientError> for TargetError {
    fn from(error: ClientError) -> TargetError {
        match error.status() {
            Some(409) => TargetError::OtherTables,
            _ => TargetError::Refused(error.to_string()),
        }
    }
}

impl Target for ClientTarget {
    fn load(&mut self, tables: &RuleTables, _counts: (usize, usize)) -> Result<(), TargetError> {
        // Pods are attached before the API shows their addresses, so that tables may know none of them.
        self.base = Some(self.client.put_tables_allow_empty(tables)?.generation);
        Ok(())
    }

    fn change(&mut self, difference: &TablesDiff, _counts: (usize, usize)) -> Result<(), TargetError> {
        let base = self.base.ok_or(TargetError::OtherTables)?;
        let patch = TablesPatch { base, diff: difference.clone() };
        let loaded = self.client.patch_tables_allow_empty(&patch)?;
        if !difference.is_empty() {
            self.base = Some(loaded.generation);
        }
        Ok(())
    }

    fn load_services(&mut self, table: &ServiceTable) -> Result<(), TargetError> {
        self.services_base = Some(self.client.put_services(table)?.generation);
        Ok(())
    }

    fn change_services(&mut self, difference: &ServicesDiff) -> Result<(), TargetError> {
        let base = self.services_base.ok_or(TargetError::OtherTables)?;
        let patch = ServicesPatch { base, diff: difference.clone() };
        let loaded = self.client.patch_services(&patch)?;
        if !difference.is_empty() {
            self.services_base = Some(loaded.generation);
        }
        Ok(())
    }

    fn audit(&mut self, policies: &[PolicyRef], tables: RuleTables) -> Result<(), TargetError> {
        let base = self.base.ok_or(TargetError::OtherTables)?;
        self.client.put_audit(&AuditTables { base, policies: policies.to_vec(), tables })?;
        Ok(())
    }

    fn end_audit(&mut self) -> Result<(), TargetError> {
        match self.client.delete_audit() {
            // A switch of an earlier version has none.
            Err(error) if error.status() != Some(404) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn attached(&mut self) -> Option<Attachments> {
        if self.attached_at.is_some_and(|at| at.elapsed() < ATTACHED_INTERVAL) {
            return None;
        }
        self.attached_at = Some(Instant::now());
        // A switch that does not answer has the pods of the last look.
        self.client.pods().ok().map(attachments)
    }

    fn uplinks(&self) -> Result<Vec<String>, TargetError> {
        Ok(uplinks(self.client.ports()?))
    }

    fn routes(&self) -> Result<Vec<RouteInfo>, TargetError> {
        Ok(self.client.routes()?)
    }

    fn put_routes(&self, routes: &[(IpNet, RouteRequest)]) -> Vec<(IpNet, TargetError)> {
        let put = |(prefix, request): &(IpNet, RouteRequest)| {
            let error = match self.client.put_route(*prefix, request) {
                // There is one already.
                Err(error) if error.status() == Some(409) => self
                    .client
                    .delete_route(*prefix)
                    .and_then(|()| self.client.put_route(*prefix, request).map(drop)),
                other => other.map(drop),
            };
            error.err().map(|error| (*prefix, TargetError::Refused(error.to_string())))
        };
        routes.iter().filter_map(put).collect()
    }

    fn delete_route(&self, prefix: IpNet) -> Result<(), TargetError> {
        match self.client.delete_route(prefix) {
            Err(error) if error.status() != Some(404) => Err(TargetError::Refused(error.to_string())),
            _ => Ok(()),
        }
    }

    fn report(&self, report: &SourceReport) -> Result<(), TargetError> {
        Ok(self.client.put_source(report)?)
    }

    fn server(&mut self, _server: &str) {}
}

fn attachments(pods: Vec<PodInfo>) -> Attachments {
    pods.into_iter().map(|pod| (pod.pod, pod.addresses)).collect()
}

fn uplinks(ports: Vec<PortInfo>) -> Vec<String> {
    ports.into_iter().filter(|port| port.spec.kind == PortKind::Uplink).map(|port| port.name).collect()
}
