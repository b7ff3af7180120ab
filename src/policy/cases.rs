//! The case format of policy tests: resources as anyone would write them, and single connections with the verdict they should
//! get. One document is one case or a list of cases; a file may hold several documents.

use std::net::IpAddr;

use crate::net::flow::Protocol;
use crate::policy::objects::Object;
use crate::policy::read::cursor::{At, Fields, Findings};
use crate::policy::read::documents::{Reader, check_duplicates, faulty};
use crate::policy::read::tree::{self, Node, Value};
use crate::policy::read::{Diagnostic, Location, Parsed, Severity, Skipped, Source};
use crate::tables::{PodName, Verdict};

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    /// `name`.
    pub name: String,
    /// Where it stands.
    pub location: Location,
    /// `resources`, read as any manifest.
    pub objects: Vec<(Object, Location)>,
    /// `probes`, each a new connection.
    pub probes: Vec<Probe>,
}

/// One connection, and what should become of it.
#[derive(Debug, Clone)]
pub struct Probe {
    /// `from`.
    pub from: Endpoint,
    /// `to`.
    pub to: Endpoint,
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
    /// `port`: the destination's; 0 for protocols without ports.
    pub port: u16,
    /// `expect`.
    pub expect: Verdict,
    /// Where it stands.
    pub location: Location,
}

/// An end of a probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `{pod: namespace/name}`.
    Pod(PodName),
    /// `{ip: 192.0.2.7}`.
    Ip(IpAddr),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Pod(pod) => pod.fmt(f),
            Endpoint::Ip(address) => address.fmt(f),
        }
    }
}

/// The cases of a text.
#[derive(Debug, Clone, Default)]
pub struct Cases {
    /// The cases, in the order of the text.
    pub cases: Vec<Case>,
    /// What the authors of the resources should know.
    pub warnings: Vec<Diagnostic>,
    /// Resources of kinds that policy does not depend on.
    pub skipped: Vec<Skipped>,
}

/// Reads the cases of a text; or every error, each with the name of its case.
pub fn read_cases(source: &Source) -> Result<Cases, Vec<Diagnostic>> {
    let (nodes, faults) = tree::parse(source.text(), source.is_json());
    let mut reader = CaseReader { source, cases: Cases::default(), errors: Vec::new() };
    for node in &nodes {
        match &node.value {
            Value::Null => {}
            Value::Sequence(items) => items.iter().for_each(|item| reader.case(item)),
            _ => reader.case(node),
        }
    }
    reader.errors.extend(faulty(source, faults).into_list());
    reader.errors.sort_by_key(|error| error.location.offset());
    if reader.errors.is_empty() { Ok(reader.cases) } else { Err(reader.errors) }
}

struct CaseReader<'s> {
    source: &'s Source,
    cases: Cases,
    errors: Vec<Diagnostic>,
}

impl CaseReader<'_> {
    fn case(&mut self, node: &Node<'_>) {
        let name = node.get("name").and_then(|node| node.text()).unwrap_or_default();
        let context = format!("case {name:?}");
        let findings = Findings::new(self.source, context.as_str());
        let at = At::root(node, &findings);
        check_duplicates(&at, false);
        let fields = at.fields(&["name", "probes", "resources"]);
        fields.required("name").and_then(|at| at.text());
        let mut resources = Reader::new(Severity::Warning);
        for item in fields.items("resources") {
            resources.object(item.node, self.source, &format!("{context}: "));
        }
        let probes: Vec<Probe> = fields.items("probes").iter().filter_map(probe).collect();
        resources.keep(findings);
        match resources.finish() {
            Ok(Parsed { objects, warnings, skipped }) => {
                self.cases.warnings.extend(warnings);
                self.cases.skipped.extend(skipped);
                let location = Location::new(self.source, node.span);
                self.cases.cases.push(Case { name: name.to_owned(), location, objects, probes });
            }
            Err(errors) => self.errors.extend(errors),
        }
    }
}

fn probe(at: &At<'_>) -> Option<Probe> {
    check_duplicates(at, true);
    let fields = at.fields(&["expect", "from", "port", "protocol", "to"]);
    let from = fields.required("from").and_then(|at| endpoint(&at));
    let to = fields.required("to").and_then(|at| endpoint(&at));
    let protocol = protocol(&fields);
    let port = protocol.and_then(|protocol| port(&fields, protocol));
    let expect = fields.required("expect").and_then(|at| verdict(&at));
    Some(Probe {
        from: from?,
        to: to?,
        protocol: protocol?,
        port: port?,
        expect: expect?,
        location: at.location(),
    })
}

fn endpoint(at: &At<'_>) -> Option<Endpoint> {
    let fields = at.fields(&["ip", "pod"]);
    match (fields.get("pod"), fields.get("ip")) {
        (Some(pod), None) => parsed(&pod, "write namespace/name").map(Endpoint::Pod),
        (None, Some(ip)) => parsed(&ip, "write an address without a prefix length").map(Endpoint::Ip),
        _ => {
            at.error_help(
                "Invalid value: an end of a probe is a pod or an address",
                "write {pod: namespace/name} or {ip: 192.0.2.7}",
            );
            None
        }
    }
}

fn parsed<T: std::str::FromStr>(at: &At<'_>, help: &str) -> Option<T>
where
    T::Err: std::fmt::Display,
{
    match at.text()?.parse() {
        Ok(value) => Some(value),
        Err(wrong) => {
            at.invalid(&format!("{wrong}"), help);
            None
        }
    }
}

fn protocol(fields: &Fields<'_>) -> Option<Protocol> {
    let Some(at) = fields.get("protocol") else { return Some(Protocol::TCP) };
    if let Value::Number(text) = &at.node.value
        && let Ok(number) = text.parse()
    {
        return Some(Protocol(number));
    }
    parsed(&at, "write TCP, UDP, SCTP, ICMP, ICMPv6 or a protocol number")
}

fn port(fields: &Fields<'_>, protocol: Protocol) -> Option<u16> {
    match fields.get("port") {
        None if protocol.has_ports() => {
            fields.at.required("port", "the destination port");
            None
        }
        None => Some(0),
        Some(at) => match u16::try_from(at.integer()?) {
            Ok(port) if port > 0 || !protocol.has_ports() => Some(port),
            _ => {
                at.invalid("must be between 1 and 65535, inclusive", "write a port number");
                None
            }
        },
    }
}

fn verdict(at: &At<'_>) -> Option<Verdict> {
    match at.text()? {
        "allow" => Some(Verdict::Allow),
        "deny" => Some(Verdict::Deny),
        _ => {
            at.unsupported(&["allow", "deny"]);
            None
        }
    }
}
