//! `spec.ports` of a Service.

use std::collections::HashSet;

use super::values::{number, text};
use crate::limits::PORTS_OF_SERVICE_MAX;
use crate::net::flow::Protocol;
use crate::policy::objects::{PortOfService, ServiceKind, TargetPort};
use crate::policy::parse::cluster_objects::protocol_of;
use crate::policy::parse::cursor::Cursor;
use crate::policy::parse::network_policy::check_port_name;
use crate::policy::parse::syntax;

/// Parses the ports. `has_node_ports` tells whether the type permits node ports.
pub(super) fn ports(spec: &Cursor<'_>, kind: ServiceKind, has_node_ports: bool) -> Vec<PortOfService> {
    let items = spec.child_items("ports");
    if items.is_empty() && kind == ServiceKind::Virtual {
        spec.required("ports", "a Service has at least one port");
    }
    if let Some(at) = items.get(PORTS_OF_SERVICE_MAX) {
        at.error_help(
            format!("Too many: a Service has at most {PORTS_OF_SERVICE_MAX} ports here"),
            "split it into several Services",
        );
    }
    let mut taken = Taken::default();
    let several = items.len() > 1;
    items
        .iter()
        .take(PORTS_OF_SERVICE_MAX)
        .filter_map(|at| {
            let port = port(at, several, has_node_ports)?;
            taken.check(at, &port);
            Some(port)
        })
        .collect()
}

/// Names and numbers of earlier ports.
#[derive(Default)]
struct Taken {
    names: HashSet<String>,
    ports: HashSet<(Protocol, u16)>,
    node_ports: HashSet<(Protocol, u16)>,
}

impl Taken {
    /// Reports a port that has the name or a number of an earlier one.
    fn check(&mut self, at: &Cursor<'_>, port: &PortOfService) {
        let field = |name| at.child(name).unwrap_or_else(|| at.clone());
        if port.name.as_ref().is_some_and(|name| !self.names.insert(name.clone())) {
            field("name").error_help(
                format!("Duplicate value: {:?}", port.name.as_deref().unwrap_or_default()),
                "name each port differently",
            );
        }
        if !self.ports.insert((port.protocol, port.port)) {
            field("port").error_help(
                format!("Duplicate value: {} {}", port.protocol, port.port),
                "remove one of the two ports",
            );
        }
        if port.node_port.is_some_and(|number| !self.node_ports.insert((port.protocol, number))) {
            field("nodePort").error_help(
                format!("Duplicate value: {}", port.node_port.unwrap_or_default()),
                "give each port a node port of its own",
            );
        }
    }
}

fn port(at: &Cursor<'_>, is_one_of_several: bool, has_node_ports: bool) -> Option<PortOfService> {
    let name = text(at, "name").map(|(name_at, name)| {
        if let Err(wrong) = syntax::dns_label(name) {
            name_at.invalid(&wrong, "choose a name of this form");
        }
        name.to_owned()
    });
    if name.is_none() && is_one_of_several {
        at.required("name", "a port of a Service with several has a name");
    }
    if at.child("port").is_none() {
        at.required("port", "a port number");
    }
    let protocol = protocol_of(at);
    let port = port_number(at, "port");
    let target = match (text(at, "targetPort"), number(at, "targetPort")) {
        (Some((at, name)), _) => {
            check_port_name(&at, name);
            Some(TargetPort::Named(name.to_owned()))
        }
        // 0 is the default value of the type, and means that the field is absent.
        (None, Some((_, 1.. | ..=-1))) => port_number(at, "targetPort").map(TargetPort::Number),
        (None, _) => port.map(TargetPort::Number),
    };
    let node_port = number(at, "nodePort").filter(|(_, number)| *number != 0).and_then(|(at_number, _)| {
        if !has_node_ports {
            at_number.error_help(
                "Forbidden: may not be used when `type` is 'ClusterIP'",
                "write \"type: NodePort\", or remove it",
            );
        }
        port_number(at, "nodePort")
    });
    Some(PortOfService { name, protocol: protocol?, port: port?, target: target?, node_port })
}

fn port_number(parent: &Cursor<'_>, name: &str) -> Option<u16> {
    let (at, number) = number(parent, name)?;
    match syntax::port_number(number) {
        Ok(port) => Some(port),
        Err(wrong) => {
            at.invalid(&wrong, "write a port number");
            None
        }
    }
}
