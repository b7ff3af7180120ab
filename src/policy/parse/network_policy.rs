//! `NetworkPolicy` `networking.k8s.io/v1`, with the defaults and the validation of the API server
//! (`pkg/apis/networking/v1/defaults.go`, `pkg/apis/networking/validation/validation.go`).

use ipnet::IpNet;

use super::cursor::{Cursor, Fields};
use super::metadata::{self, Identity};
use super::selector::selector;
use super::syntax;
use crate::net::flow::Protocol;
use crate::policy::objects::{
    IpBlock, LabelSelector, NetworkPolicy, NetworkPolicyRule, Peer, Peers, PortMatch, Ports,
};
use crate::tables::Direction;

pub(super) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Parses the object. The caller has parsed its metadata.
pub(super) fn parse(object: &Fields<'_>, identity: Identity) -> NetworkPolicy {
    let spec = object.get("spec").map(|at| at.fields(&["egress", "ingress", "podSelector", "policyTypes"]));
    let rules = |direction, peers| {
        let rules = spec.as_ref().map(|spec| spec.items(direction)).unwrap_or_default();
        rules.iter().map(|at| rule(at, peers)).collect::<Vec<_>>()
    };
    let (ingress, egress) = (rules("ingress", "from"), rules("egress", "to"));
    let types = spec.as_ref().map(policy_types).unwrap_or_default();
    // "If this field is not specified, it will default based on the existence of ingress or egress rules;
    // policies that contain an egress section are assumed to affect egress, and all policies (whether or not
    // they contain an ingress section) are assumed to affect ingress" (`policyTypes`, types.go).
    let isolates_ingress = types.is_empty() || types.contains(&"Ingress");
    let isolates_egress = if types.is_empty() { !egress.is_empty() } else { types.contains(&"Egress") };
    let is_ignored = [
        (Direction::Ingress, !isolates_ingress && !ingress.is_empty()),
        (Direction::Egress, !isolates_egress && !egress.is_empty()),
    ];
    let pod_selector = spec.as_ref().and_then(|spec| spec.get("podSelector")).map(|at| selector(&at));
    NetworkPolicy {
        namespace: identity.namespace,
        name: identity.name,
        pod_selector: pod_selector.unwrap_or_default(),
        ingress: isolates_ingress.then_some(ingress),
        egress: isolates_egress.then_some(egress),
        audited: metadata::is_audited(object),
        assigned: identity.assigned,
        ignored: is_ignored.into_iter().filter(|(_, is)| *is).map(|(direction, _)| direction).collect(),
    }
}

fn policy_types<'t>(spec: &Fields<'t>) -> Vec<&'t str> {
    let items = spec.items("policyTypes");
    if let Some(list) = spec.get("policyTypes").filter(|_| items.len() > 2) {
        list.error_help(
            "Invalid value: may not specify more than two policyTypes",
            "write Ingress, Egress or both, once each",
        );
    }
    let mut types = Vec::new();
    for item in items {
        match item.text() {
            Some(text @ ("Ingress" | "Egress")) => types.push(text),
            Some(_) => item.unsupported(&["Ingress", "Egress"]),
            None => {}
        }
    }
    types
}

fn rule(at: &Cursor<'_>, peers: &'static str) -> NetworkPolicyRule {
    let fields = at.fields(&[peers, "ports"]);
    let (peer_items, port_items) = (fields.items(peers), fields.items("ports"));
    NetworkPolicyRule {
        peers: match peer_items.as_slice() {
            [] => Peers::Everyone,
            items => Peers::Any(items.iter().filter_map(peer).collect()),
        },
        ports: match port_items.as_slice() {
            [] => Ports::All,
            items => Ports::Any(items.iter().filter_map(port).collect()),
        },
    }
}

fn peer(at: &Cursor<'_>) -> Option<Peer> {
    let fields = at.fields(&["ipBlock", "namespaceSelector", "podSelector"]);
    let pods = fields.get("podSelector").map(|at| selector(&at));
    let namespaces = fields.get("namespaceSelector").map(|at| selector(&at));
    let block = fields.get("ipBlock").map(|at| ip_block(&at));
    match (block, pods, namespaces) {
        (None, None, None) => {
            at.error_help(
                "Required value: must specify a peer",
                "give podSelector, namespaceSelector or ipBlock; \"podSelector: {}\" is every pod of the namespace",
            );
            None
        }
        (Some(block), None, None) => block.map(Peer::IpBlock),
        (Some(_), ..) => {
            at.error_help(
                "Forbidden: may not specify both ipBlock and another peer",
                "make them two entries of the list: either of them may then match",
            );
            None
        }
        (None, pods, namespaces) => {
            Some(Peer::Pods { namespaces, pods: pods.unwrap_or_else(LabelSelector::default) })
        }
    }
}

fn ip_block(at: &Cursor<'_>) -> Option<IpBlock> {
    let fields = at.fields(&["cidr", "except"]);
    let block = match fields.get("cidr") {
        Some(at) if at.node.text() == Some("") => {
            fields.at.required("cidr", "a CIDR such as 10.9.8.0/24");
            None
        }
        Some(at) => cidr(&at),
        None => {
            fields.at.required("cidr", "a CIDR such as 10.9.8.0/24");
            None
        }
    };
    let mut except = Vec::new();
    for item in fields.items("except") {
        let Some(net) = cidr(&item) else { continue };
        match block {
            Some(block) if !syntax::is_strict_subset(&net, &block) => item.invalid(
                "must be a strict subset of `cidr`",
                format!("write a smaller network within {block}, or remove it"),
            ),
            _ => except.push(net),
        }
    }
    Some(IpBlock { cidr: block?, except })
}

/// CIDR. Clears bits beyond the prefix, with a warning.
pub(super) fn cidr(at: &Cursor<'_>) -> Option<IpNet> {
    match syntax::cidr(at.text()?) {
        Ok(net) => {
            let masked = net.trunc();
            if masked != net {
                at.warn(
                    format!("{net} has bits set beyond the prefix length; newer API servers refuse it"),
                    format!("it is read as {masked}: write that"),
                );
            }
            Some(masked)
        }
        Err(wrong) => {
            at.invalid(&wrong, "write an address and a prefix length");
            None
        }
    }
}

fn port(at: &Cursor<'_>) -> Option<PortMatch> {
    let fields = at.fields(&["endPort", "port", "protocol"]);
    let protocol = protocol(&fields);
    let end = fields.get("endPort");
    let Some(port) = fields.get("port") else {
        if let Some(end) = end {
            end.invalid(
                "may not be specified when `port` is not specified",
                "add port: the first port of the range",
            );
        }
        return Some(PortMatch::Range { protocol: protocol?, first: 0, last: u16::MAX });
    };
    if let Some(name) = port.node.text() {
        if let Some(end) = end {
            end.invalid(
                "may not be specified when `port` is non-numeric",
                "write port as a number, or remove endPort",
            );
        }
        check_port_name(&port, name);
        return Some(PortMatch::Named { protocol: protocol?, name: name.to_owned() });
    }
    let first = port_number(&port);
    let last = match &end {
        Some(end) => end_port(end, &port),
        None => first,
    };
    Some(PortMatch::Range { protocol: protocol?, first: first?, last: last? })
}

fn end_port(end: &Cursor<'_>, port: &Cursor<'_>) -> Option<u16> {
    let last = end.integer()?;
    if let Err(wrong) = syntax::port_number(last) {
        if last < 1 {
            end.invalid(&wrong, "write a port number");
            return None;
        }
        end.invalid_but_unambiguous(&wrong, "write 65535 for a range that ends with the last port");
    }
    // The check of the first port has reported an invalid value.
    let first = match &port.node.value {
        super::tree::Value::Number(text) => text.parse().unwrap_or(0),
        _ => 0,
    };
    if last < first {
        end.invalid("must be greater than or equal to `port`", format!("write {first} or more"));
        return None;
    }
    Some(u16::try_from(last).unwrap_or(u16::MAX))
}

/// `protocol`, TCP if absent.
pub(super) fn protocol(fields: &Fields<'_>) -> Option<Protocol> {
    let Some(at) = fields.get("protocol") else { return Some(Protocol::TCP) };
    match at.text()? {
        "TCP" => Some(Protocol::TCP),
        "UDP" => Some(Protocol::UDP),
        "SCTP" => Some(Protocol::SCTP),
        _ => {
            at.unsupported(&PROTOCOLS);
            None
        }
    }
}

/// Port number.
pub(super) fn port_number(at: &Cursor<'_>) -> Option<u16> {
    match syntax::port_number(at.integer()?) {
        Ok(port) => Some(port),
        Err(wrong) => {
            at.invalid(&wrong, "write a port number");
            None
        }
    }
}

/// Reports an invalid name of a port.
pub(super) fn check_port_name(at: &Cursor<'_>, name: &str) {
    let Err(wrong) = syntax::port_name(name) else { return };
    match name.parse::<u16>() {
        Ok(number) => at.invalid(&wrong, format!("write it without quotes if the number is meant: {number}")),
        Err(_) => at.invalid(&wrong, "write the name of a container port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::objects::{Object, Requirement};
    use crate::policy::parse::{Source, parse_source};

    /// Policy with this `spec`, in namespace `shop`.
    fn policy(spec: &str) -> NetworkPolicy {
        let header =
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: shop}\n";
        let parsed = parse_source(&Source::new("test.yaml", format!("{header}spec: {spec}\n"))).unwrap();
        let Some((Object::NetworkPolicy(policy), _)) = parsed.objects.into_iter().next() else {
            panic!("no policy")
        };
        policy
    }

    fn ingress_rule(rule: &str) -> NetworkPolicyRule {
        policy(&format!("{{ingress: [{rule}]}}")).ingress.unwrap().remove(0)
    }

    fn label(key: &str, value: &str) -> LabelSelector {
        let requirement = Requirement::In { key: key.to_owned(), values: vec![value.to_owned()] };
        LabelSelector { requirements: vec![requirement] }
    }

    fn isolates(spec: &str) -> (bool, bool) {
        let policy = policy(spec);
        (policy.ingress.is_some(), policy.egress.is_some())
    }

    #[test]
    fn policy_types_default_to_ingress_and_to_egress_where_it_has_rules() {
        assert_eq!(isolates("{}"), (true, false));
        assert_eq!(isolates("{egress: []}"), (true, false));
        assert_eq!(isolates("{egress: null}"), (true, false));
        assert_eq!(isolates("{policyTypes: []}"), (true, false));
        assert_eq!(isolates("{egress: [{}]}"), (true, true));
        assert_eq!(isolates("{policyTypes: [], egress: [{}]}"), (true, true));
    }

    #[test]
    fn policy_types_are_taken_literally_where_given() {
        assert_eq!(isolates("{policyTypes: [Ingress], egress: [{}]}"), (true, false));
        assert_eq!(isolates("{policyTypes: [Egress], ingress: [{}]}"), (false, true));
        assert_eq!(isolates("{policyTypes: [Egress, Ingress]}"), (true, true));
        assert_eq!(policy("{policyTypes: [Egress]}").egress, Some(vec![]), "denies all egress");
    }

    #[test]
    fn no_rules_allow_nothing_and_an_empty_rule_allows_everything() {
        for spec in ["{}", "{ingress: null}", "{ingress: []}"] {
            assert_eq!(policy(spec).ingress, Some(vec![]), "{spec}");
        }
        assert_eq!(ingress_rule("{}"), NetworkPolicyRule { peers: Peers::Everyone, ports: Ports::All });
        assert_eq!(ingress_rule("{from: [], ports: []}"), ingress_rule("{}"));
        assert_eq!(ingress_rule("{from: null, ports: null}"), ingress_rule("{}"));
    }

    #[test]
    fn ports_default_to_tcp_and_to_every_port() {
        let tcp = |first, last| PortMatch::Range { protocol: Protocol::TCP, first, last };
        let ports = |text: &str| ingress_rule(&format!("{{ports: [{text}]}}")).ports;
        assert_eq!(ports("{}"), Ports::Any(vec![tcp(0, 65535)]));
        assert_eq!(ports("{port: 80}"), Ports::Any(vec![tcp(80, 80)]));
        assert_eq!(ports("{port: 80, endPort: 80}"), Ports::Any(vec![tcp(80, 80)]));
        assert_eq!(ports("{port: 1, endPort: 65535}"), Ports::Any(vec![tcp(1, 65535)]));
        let udp = PortMatch::Range { protocol: Protocol::UDP, first: 0, last: 65535 };
        assert_eq!(ports("{protocol: UDP}"), Ports::Any(vec![udp]));
        let named = PortMatch::Named { protocol: Protocol::SCTP, name: "http".to_owned() };
        assert_eq!(ports("{port: http, protocol: SCTP}"), Ports::Any(vec![named]));
    }

    #[test]
    fn selectors_of_one_peer_are_both_needed_and_absent_is_not_empty() {
        let peers = |text: &str| ingress_rule(&format!("{{from: [{text}]}}")).peers;
        let pods = |namespaces, pods| Peers::Any(vec![Peer::Pods { namespaces, pods }]);
        let all = LabelSelector::default;
        assert_eq!(peers("{podSelector: {}}"), pods(None, all()));
        assert_eq!(peers("{namespaceSelector: {}}"), pods(Some(all()), all()));
        assert_eq!(peers("{namespaceSelector: {matchLabels: {a: b}}}"), pods(Some(label("a", "b")), all()));
        let both = "{namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}";
        assert_eq!(peers(both), pods(Some(label("a", "b")), label("c", "d")));
        let two = peers("{namespaceSelector: {}}, {podSelector: {matchLabels: {c: d}}}");
        let Peers::Any(two) = two else { panic!("{two:?}") };
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn empty_parts_of_a_selector_select_everything() {
        for selector in ["{}", "null", "{matchLabels: {}}", "{matchExpressions: []}", "{matchLabels: null}"] {
            assert!(
                policy(&format!("{{podSelector: {selector}}}")).pod_selector.is_everything(),
                "{selector}"
            );
        }
        assert!(policy("{}").pod_selector.is_everything());
    }

    #[test]
    fn requirements_are_sorted_and_without_doubles() {
        let text = "{matchExpressions: [{key: b, operator: NotIn, values: [w, v, w]}, {key: a, operator: Exists}, \
                    {key: c, operator: DoesNotExist}, {key: a, operator: In, values: [\"\"]}], matchLabels: {a: \"\"}}";
        let selector = policy(&format!("{{podSelector: {text}}}")).pod_selector;
        let key = |key: &str| key.to_owned();
        let wanted = [
            Requirement::In { key: key("a"), values: vec![String::new()] },
            Requirement::NotIn { key: key("b"), values: vec!["v".to_owned(), "w".to_owned()] },
            Requirement::Exists { key: key("a") },
            Requirement::DoesNotExist { key: key("c") },
        ];
        assert_eq!(selector.requirements, wanted);
    }

    #[test]
    fn host_bits_are_cleared_with_a_warning() {
        let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec:\n  ingress:\n  \
                    - from:\n    - ipBlock: {cidr: 192.168.242.213/24, except: [192.168.242.9/30]}\n";
        let parsed = parse_source(&Source::new("test.yaml", text)).unwrap();
        let Object::NetworkPolicy(policy) = &parsed.objects[0].0 else { panic!() };
        let block = IpBlock {
            cidr: "192.168.242.0/24".parse().unwrap(),
            except: vec!["192.168.242.8/30".parse().unwrap()],
        };
        let rules = policy.ingress.as_ref().unwrap();
        assert_eq!(rules[0].peers, Peers::Any(vec![Peer::IpBlock(block)]));
        assert_eq!(parsed.warnings.len(), 2);
        assert_eq!(parsed.warnings[0].path, "spec.ingress[0].from[0].ipBlock.cidr");
        assert_eq!(policy.namespace, "default");
    }

    #[test]
    fn a_dash_with_nothing_behind_it_is_refused() {
        let header = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n";
        for spec in ["{ingress: [null]}", "{ingress: [{from: [null]}]}", "{ingress: [{ports: [null]}]}"] {
            let errors =
                parse_source(&Source::new("test.yaml", format!("{header}spec: {spec}\n"))).unwrap_err();
            assert!(errors[0].message.contains("nothing in it"), "{}", errors[0]);
        }
    }
}
