//! The case format of policy tests: resources as anyone would write them, and single connections with the verdict they should
//! get. One document is one case or a list of cases; a file may hold several documents.

use std::net::IpAddr;

use crate::limits::DIAGNOSTICS_MAX;
use crate::net::flow::Protocol;
use crate::policy::objects::Object;
use crate::policy::read::cursor::{At, Fields, Findings};
use crate::policy::read::documents::{Reader, check_duplicates, faulty, note_left_out};
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
    let mut reader = CaseReader { source, cases: Cases::default(), errors: Vec::new(), left_out: 0 };
    for node in &nodes {
        match &node.value {
            Value::Null => {}
            Value::Sequence(items) => items.iter().for_each(|item| reader.case(item)),
            _ => reader.case(node),
        }
    }
    let (faults, _) = faulty(source, faults).into_list();
    reader.keep(faults);
    reader.errors.sort_by_key(|error| error.location.offset());
    note_left_out(&mut reader.errors, reader.left_out);
    if reader.errors.is_empty() { Ok(reader.cases) } else { Err(reader.errors) }
}

struct CaseReader<'s> {
    source: &'s Source,
    cases: Cases,
    errors: Vec<Diagnostic>,
    left_out: usize,
}

impl CaseReader<'_> {
    fn keep(&mut self, errors: Vec<Diagnostic>) {
        let room = DIAGNOSTICS_MAX.saturating_sub(self.errors.len());
        self.left_out += errors.len().saturating_sub(room);
        self.errors.extend(errors.into_iter().take(room));
    }

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
            Err(errors) => self.keep(errors),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(text: &str) -> Result<Cases, Vec<String>> {
        read_cases(&Source::new("cases.yaml", text))
            .map_err(|errors| errors.iter().map(|error| format!("{} {}", error.object, error.path)).collect())
    }

    #[test]
    fn a_case_has_objects_and_probes() {
        let text = "name: one\nresources:\n- {kind: Namespace, apiVersion: v1, metadata: {name: a}}\n- {kind: Service, apiVersion: v1, \
                    metadata: {name: s}}\nprobes:\n- {from: {pod: a/x}, to: {ip: 192.0.2.7}, protocol: UDP, port: 53, expect: deny}\n\
                    - {from: {ip: \"::1\"}, to: {pod: a/x}, protocol: ICMPv6, expect: allow}\n";
        let read = cases(text).unwrap();
        let [case] = read.cases.as_slice() else { panic!("{read:?}") };
        assert_eq!((case.name.as_str(), case.objects.len(), read.skipped.len()), ("one", 1, 1));
        let probe = &case.probes[0];
        assert_eq!((probe.protocol, probe.port, probe.expect), (Protocol::UDP, 53, Verdict::Deny));
        assert_eq!((probe.from.to_string(), probe.to.to_string()), ("a/x".into(), "192.0.2.7".into()));
        assert_eq!((probe.location.line(), case.probes[1].port), (6, 0));
    }

    #[test]
    fn a_case_or_a_list_of_cases_or_several_documents() {
        for (text, count) in [
            ("name: a", 1),
            ("- name: a\n- name: b", 2),
            ("name: a\n---\n[{name: b}, {name: c}]", 3),
            ("", 0),
        ] {
            assert_eq!(cases(text).unwrap().cases.len(), count, "{text}");
        }
    }

    #[test]
    fn errors_name_their_case_and_all_of_them_are_found() {
        let text = "- name: one\n  probes: [{from: {pod: 5}, to: {}, port: 0, expect: drop, why: x}]\n- name: two\n  resources: [{kind: Pod, \
                    apiVersion: v1, metadata: {name: p}, spec: {hostNetwok: true}}]\n- probe: []\n";
        let wanted = [
            "case \"one\" probes[0].from.pod",
            "case \"one\" probes[0].to",
            "case \"one\" probes[0].port",
            "case \"one\" probes[0].expect",
            "case \"one\" probes[0].why",
            "case \"two\": default/p spec.hostNetwok",
            "case \"\" probe",
            "case \"\" name",
        ];
        assert_eq!(cases(text).unwrap_err(), wanted);
    }

    #[test]
    fn a_probe_of_a_protocol_with_ports_needs_one() {
        let probe = |rest: &str| {
            cases(&format!(
                "{{name: a, probes: [{{from: {{ip: 10.0.0.1}}, to: {{ip: 10.0.0.2}}, expect: allow{rest}}}]}}"
            ))
        };
        assert!(probe("").is_err() && probe(", port: 65536").is_err() && probe(", port: 80").is_ok());
        assert!(
            probe(", protocol: ICMP").is_ok()
                && probe(", protocol: 47").is_ok()
                && probe(", protocol: x").is_err()
        );
    }
}
