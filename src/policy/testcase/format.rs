//! Test-case format: resources as Kubernetes manifests, and connections with their expected verdict.
//!
//! A document is one case or a list of cases. A file may contain several documents.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::destination::Destination;
use super::endpoint::Endpoint;
use crate::limits::DIAGNOSTICS_MAX;
use crate::net::flow::Protocol;
use crate::policy::objects::Object;
use crate::policy::parse::cursor::{Cursor, Diagnostics, Fields};
use crate::policy::parse::documents::{ManifestParser, check_duplicates, note_omitted, syntax_diagnostics};
use crate::policy::parse::tree::{self, Node, Value};
use crate::policy::parse::{Diagnostic, Location, Parsed, Severity, Skipped, Source};
use crate::tables::Verdict;

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    /// `name`.
    pub name: String,
    /// Location.
    pub location: Location,
    /// Manifests of `files`, then those of `resources`.
    pub objects: Vec<(Object, Location)>,
    /// `probes`, each a new connection.
    pub probes: Vec<Probe>,
}

/// Connection and its expected verdict.
#[derive(Debug, Clone)]
pub struct Probe {
    /// `from`.
    pub from: Endpoint,
    /// `to`.
    pub to: Destination,
    /// `protocol`, TCP if absent.
    pub protocol: Protocol,
    /// `port`: the destination port; 0 for protocols without ports.
    pub port: u16,
    /// `expect`.
    pub expect: Verdict,
    /// Location.
    pub location: Location,
}

/// Invalid case.
#[derive(Debug, Clone)]
pub struct InvalidCase {
    /// `name`, if the case has one.
    pub name: String,
    /// Location.
    pub location: Location,
    /// Errors of the case.
    pub errors: Vec<Diagnostic>,
}

/// Cases of a text.
#[derive(Debug, Clone, Default)]
pub struct Cases {
    /// Cases, in the order of the text.
    pub cases: Vec<Case>,
    /// Invalid cases.
    pub refused: Vec<InvalidCase>,
    /// Places of Kubernetes objects outside of a case.
    pub manifests: Vec<Location>,
    /// Syntax errors that prevent the parser from reading the text or the rest of it.
    pub syntax_errors: Vec<Diagnostic>,
    /// Warnings for the authors of the resources.
    pub warnings: Vec<Diagnostic>,
    /// Resources of kinds that policy does not depend on.
    pub skipped: Vec<Skipped>,
}

impl Cases {
    /// Returns the cases if the text has no error, or else every error in the order of the text.
    pub fn whole(self) -> Result<Cases, Vec<Diagnostic>> {
        let of_cases = self.refused.iter().flat_map(|refused| &refused.errors);
        let mut errors: Vec<Diagnostic> = of_cases.chain(&self.syntax_errors).cloned().collect();
        errors.extend(self.manifests.iter().map(manifest_error));
        errors.sort_by_key(|error| error.location.offset());
        if errors.is_empty() { Ok(self) } else { Err(errors) }
    }
}

fn manifest_error(location: &Location) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        location: location.clone(),
        object: String::new(),
        path: String::new(),
        message: "a Kubernetes object where a case should be".to_owned(),
        help: Some("put it under the resources of a case".to_owned()),
    }
}

const FILES_HELP: &str =
    "write the path of a file or a directory, from the directory of this file, with * and ** for names";

/// File of manifests, parsed once for all cases that name it.
pub struct CaseFile {
    name: String,
    parser: ManifestParser,
}

impl CaseFile {
    /// Parses a file. Its errors are those of each case that names it.
    pub fn of(source: &Source) -> CaseFile {
        let mut parser = ManifestParser::new(Severity::Warning);
        parser.source(source);
        CaseFile { name: source.name().to_owned(), parser }
    }
}

/// Reads the manifests that a case names: a path or a pattern. Returns the reason if there are none.
pub type ReadFiles<'r> = dyn FnMut(&str) -> Result<Vec<Rc<CaseFile>>, String> + 'r;

/// Parses the cases of a text whose cases name no files.
pub fn parse_cases(source: &Source) -> Cases {
    parse_cases_with(source, &mut |_| Err("only the objects of the case itself are read here".to_owned()))
}

/// Parses the cases of a text, and the files that they name. An invalid case does not affect the others.
pub fn parse_cases_with(source: &Source, read: &mut ReadFiles<'_>) -> Cases {
    let (nodes, syntax_errors) = tree::parse(source.text(), source.is_json());
    let mut reader = CaseParser { source, read, cases: Cases::default(), errors: 0 };
    for node in &nodes {
        match &node.value {
            Value::Null => {}
            Value::Sequence(items) => items.iter().for_each(|item| reader.case(item)),
            _ => reader.case(node),
        }
    }
    let (syntax_errors, omitted) = syntax_diagnostics(source, syntax_errors).into_list();
    reader.cases.syntax_errors = syntax_errors;
    note_omitted(&mut reader.cases.syntax_errors, omitted);
    reader.cases
}

struct CaseParser<'s, 'r> {
    source: &'s Source,
    read: &'s mut ReadFiles<'r>,
    cases: Cases,
    /// Number of errors kept so far.
    errors: usize,
}

impl CaseParser<'_, '_> {
    /// Records an invalid case, with at least its first error and as many as the limit permits.
    fn reject(&mut self, name: &str, location: Location, mut errors: Vec<Diagnostic>) {
        errors.sort_by_key(|error| error.location.offset());
        let room = DIAGNOSTICS_MAX.saturating_sub(self.errors).max(1);
        let omitted = errors.len().saturating_sub(room);
        errors.truncate(room);
        note_omitted(&mut errors, omitted);
        self.errors += errors.len();
        self.cases.refused.push(InvalidCase { name: name.to_owned(), location, errors });
    }

    fn case(&mut self, node: &Node<'_>) {
        let location = Location::new(self.source, node.span);
        let has = |field| node.get(field).is_some();
        if has("kind") && has("apiVersion") && !has("probes") && !has("resources") && !has("files") {
            self.cases.manifests.push(location);
            return;
        }
        let name = node.get("name").and_then(|node| node.text()).unwrap_or_default();
        let context = format!("case {name:?}");
        let diagnostics = Diagnostics::new(self.source, context.as_str());
        let at = Cursor::root(node, &diagnostics);
        check_duplicates(&at, false);
        let fields = at.fields(&["files", "name", "probes", "resources"]);
        fields.required("name").and_then(|at| at.text());
        let mut resources = ManifestParser::new(Severity::Warning);
        // A file that two patterns name is read once.
        let mut seen = BTreeSet::new();
        for at in fields.items("files") {
            let Some(pattern) = at.text() else { continue };
            if pattern.is_empty() {
                at.invalid("it names nothing", FILES_HELP);
                continue;
            }
            match (self.read)(pattern) {
                Ok(files) => files
                    .iter()
                    .filter(|file| seen.insert(file.name.clone()))
                    .for_each(|file| resources.extend(&file.parser)),
                Err(reason) => at.invalid(&reason, FILES_HELP),
            }
        }
        for item in fields.items("resources") {
            resources.object(item.node, self.source, &format!("{context}: "));
        }
        let probes: Vec<Probe> = fields.items("probes").iter().filter_map(probe).collect();
        resources.absorb(diagnostics);
        match resources.finish() {
            Ok(Parsed { objects, warnings, skipped, .. }) => {
                self.cases.warnings.extend(warnings);
                self.cases.skipped.extend(skipped);
                self.cases.cases.push(Case { name: name.to_owned(), location, objects, probes });
            }
            Err(errors) => self.reject(name, location, errors),
        }
    }
}

fn probe(at: &Cursor<'_>) -> Option<Probe> {
    check_duplicates(at, true);
    let fields = at.fields(&["expect", "from", "port", "protocol", "to"]);
    let from = fields.required("from").and_then(|at| endpoint(&at));
    let to = fields.required("to").and_then(|at| destination(&at));
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

fn destination(at: &Cursor<'_>) -> Option<Destination> {
    if at.node.get("service").is_none() {
        return endpoint(at).map(Destination::Endpoint);
    }
    let fields = at.fields(&["service"]);
    parsed(&fields.get("service")?, "write namespace/name").map(Destination::Service)
}

fn endpoint(at: &Cursor<'_>) -> Option<Endpoint> {
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

fn parsed<T: std::str::FromStr>(at: &Cursor<'_>, help: &str) -> Option<T>
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
    if let Value::Number(_) = &at.node.value {
        let number = u8::try_from(at.integer()?).map(Protocol).ok();
        if number.is_none() {
            at.invalid(
                "must be between 0 and 255, inclusive",
                "write a protocol number, or TCP, UDP, SCTP, ICMP, ICMPv6",
            );
        }
        return number;
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

fn verdict(at: &Cursor<'_>) -> Option<Verdict> {
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
        parse_cases(&Source::new("cases.yaml", text))
            .whole()
            .map_err(|errors| errors.iter().map(|error| format!("{} {}", error.object, error.path)).collect())
    }

    #[test]
    fn a_case_has_objects_and_probes() {
        let text = "name: one\nresources:\n- {kind: Namespace, apiVersion: v1, metadata: {name: a}}\n- {kind: ConfigMap, apiVersion: v1, \
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
        let text = "- name: one\n  probes: [{from: {pod: 5}, to: {}, port: 0, expect: drop, why: x}]\n- name: two\n  resources: [{kind: \
                    NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: p}, spec: {podSelecter: {}}}]\n- probe: []\n";
        let wanted = [
            "case \"one\" probes[0].from.pod",
            "case \"one\" probes[0].to",
            "case \"one\" probes[0].port",
            "case \"one\" probes[0].expect",
            "case \"one\" probes[0].why",
            "case \"two\": default/p spec.podSelecter",
            "case \"\" probe",
            "case \"\" name",
        ];
        assert_eq!(cases(text).unwrap_err(), wanted);
    }

    #[test]
    fn a_case_that_is_wrong_leaves_the_others() {
        let text = "- name: one\n  probes: [{from: x}]\n- name: two\n  resources: [{kind: Pod}]\n- name: three\n- {kind: Pod, \
                    apiVersion: v1}\n---\n[";
        let read = parse_cases(&Source::new("cases.yaml", text));
        let refused: Vec<_> =
            read.refused.iter().map(|refused| (refused.name.as_str(), refused.location.line())).collect();
        assert_eq!(refused, [("one", 1), ("two", 3)]);
        assert_eq!((read.cases.len(), read.cases[0].name.as_str()), (1, "three"));
        assert_eq!((read.manifests.len(), read.syntax_errors.len()), (1, 1));
    }

    #[test]
    fn a_protocol_that_is_none_is_told_the_range() {
        for (protocol, says) in
            [("256", "must be between 0 and 255"), ("-1", "0 and 255"), ("1.5", "a whole number")]
        {
            let text = format!(
                "{{name: a, probes: [{{from: {{ip: 10.0.0.1}}, to: {{ip: 10.0.0.2}}, protocol: {protocol}, expect: allow}}]}}"
            );
            let errors = parse_cases(&Source::new("cases.yaml", text)).whole().unwrap_err();
            assert!(errors[0].message.contains(says), "{protocol}: {}", errors[0]);
        }
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
