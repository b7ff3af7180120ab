//! Details of security groups that their verdicts do not show: fields, identifiers, and changes.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::golden::{TemporaryDirectory, render};

/// Pod `server` with two named ports, and a client.
const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: default, labels: {pod-name: server}}
spec:
  containers:
    - {name: server-container-80, image: x, ports: [{containerPort: 80, name: serve-80, protocol: TCP}]}
    - {name: server-container-81, image: x, ports: [{containerPort: 81, name: serve-81, protocol: TCP}]}
status: {podIPs: [{ip: 10.0.0.231}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default, labels: {pod-name: client}}
spec: {containers: [{name: c, image: x}]}
status: {podIPs: [{ip: 10.0.0.232}]}
";

const NAMED_PORT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-client-a-via-named-port-ingress-rule, namespace: default}
spec:
  podSelector: {matchLabels: {pod-name: server}}
  policyTypes: [Ingress]
  ingress: [{ports: [{protocol: TCP, port: serve-80}]}]
";

/// Runs the command on a manifest. Returns its output as JSON.
fn rendered(directory: &TemporaryDirectory, manifest: &str, options: &[&str]) -> Value {
    serde_json::from_str(&rendered_text(directory, manifest, options)).unwrap()
}

fn rendered_text(directory: &TemporaryDirectory, manifest: &str, options: &[&str]) -> String {
    let (code, text, errors) = attempt(directory, manifest, options);
    assert_eq!((code, errors.as_str()), (0, ""));
    text
}

fn attempt(directory: &TemporaryDirectory, manifest: &str, options: &[&str]) -> (i32, String, String) {
    let path = directory.path("manifest.yaml");
    fs::write(&path, manifest).unwrap();
    render(&[&["--to", "security-groups", &path], options].concat())
}

fn array<'v>(value: &'v Value, key: &str) -> &'v Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Group with this name.
fn group<'v>(state: &'v Value, name: &str) -> &'v Value {
    let mut named = array(state, "security_groups").iter().filter(|group| group["name"] == name);
    let found = named.next().unwrap_or_else(|| panic!("no group {name} in {state}"));
    assert!(named.next().is_none(), "two groups {name}");
    found
}

/// Names of the groups of a pod.
fn groups_of<'v>(state: &'v Value, pod: &str) -> BTreeSet<&'v str> {
    let port = array(state, "ports").iter().find(|port| port["name"] == pod).unwrap();
    let name = |id: &Value| {
        let group = array(state, "security_groups").iter().find(|group| group["id"] == *id).unwrap();
        group["name"].as_str().unwrap()
    };
    array(port, "security_groups").iter().map(name).collect()
}

/// Selected fields of the rules of a group.
fn rules(group: &Value, fields: &[&str]) -> Vec<Vec<Value>> {
    let rules = array(group, "security_group_rules").iter();
    rules.map(|rule| fields.iter().map(|field| rule[field].clone()).collect()).collect()
}

/// Step of a change.
fn step<'v>(change: &'v Value, name: &str) -> &'v Value {
    let named = array(change, "steps").iter().find_map(|step| step.get(name));
    named.unwrap_or_else(|| panic!("no {name} in {change}"))
}

fn sorted<'v>(ids: &[&'v Value]) -> Vec<&'v str> {
    let mut ids: Vec<&str> = ids.iter().map(|id| id.as_str().unwrap()).collect();
    ids.sort_unstable();
    ids
}

fn without(value: &Value, keys: &[&str]) -> Value {
    let mut value = value.clone();
    keys.iter().for_each(|key| _ = value.as_object_mut().unwrap().remove(*key));
    value
}

#[test]
fn a_group_has_the_uid_and_the_generation_of_its_policy() {
    let directory = TemporaryDirectory::new("kuryr-uid");
    let uid = "65d54bbb-70d5-11e9-9986-fa163e6aa097";
    let policy = |generation: u32| {
        let given = format!("metadata: {{uid: {uid}, generation: {generation}, name:");
        NAMED_PORT.replacen("metadata: {name:", &given, 1)
    };
    let state = rendered(&directory, &format!("{PODS}---{}", policy(3)), &[]);
    let annotations = &array(&state, "kuryrnetpolicies")[0]["metadata"]["annotations"];
    assert_eq!(annotations["networkpolicy_uid"], uid);
    let tags = |state: &Value| {
        let own = group(state, "sg-allow-client-a-via-named-port-ingress-rule");
        array(own, "tags").iter().map(|tag| tag.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tags(&state)[..2], [format!("networkpolicy_uid={uid}"), "networkpolicy_generation=3".into()]);
    let later = rendered(&directory, &format!("{PODS}---{}", policy(4)), &[]);
    assert_eq!(tags(&later)[1..], ["networkpolicy_generation=4".to_owned(), tags(&state)[2].clone()]);
}

#[test]
fn a_named_port_is_recorded_as_in_the_design_of_kuryr() {
    let directory = TemporaryDirectory::new("kuryr-named");
    let state = rendered(&directory, &format!("{PODS}---{NAMED_PORT}"), &[]);
    let [resource] = &array(&state, "kuryrnetpolicies")[..] else { panic!("{state}") };
    let name = "allow-client-a-via-named-port-ingress-rule";
    assert_eq!(
        (&resource["apiVersion"], &resource["kind"]),
        (&json!("openstack.org/v1"), &json!("KuryrNetPolicy"))
    );
    let metadata = &resource["metadata"];
    assert_eq!(metadata["name"], format!("np-{name}"));
    assert_eq!(metadata["namespace"], "default");
    let annotations = &metadata["annotations"];
    assert_eq!(annotations["networkpolicy_name"], name);
    assert_eq!(annotations["networkpolicy_namespace"], "default");
    let spec = &resource["spec"];
    assert_eq!(spec["securityGroupName"], format!("sg-{name}"));
    let own = group(&state, &format!("sg-{name}"));
    assert_eq!(spec["securityGroupId"], own["id"]);
    assert_eq!(
        own["tags"][0],
        format!("networkpolicy_uid={}", annotations["networkpolicy_uid"].as_str().unwrap())
    );
    assert!(own["tags"][1].as_str().unwrap().starts_with("generation="), "{own}");
    assert_eq!(spec["podSelector"], json!({"matchLabels": {"pod-name": "server"}}));
    assert_eq!(
        spec["networkpolicy_spec"],
        json!({
            "ingress": [{"ports": [{"port": "serve-80", "protocol": "TCP"}]}],
            "podSelector": {"matchLabels": {"pod-name": "server"}},
            "policyTypes": ["Ingress"],
        })
    );
    let [ingress] = &array(spec, "ingressSgRules")[..] else { panic!("{spec}") };
    assert_eq!(ingress["remote_ip_prefixes"], json!({"10.0.0.231": "default"}));
    let expected = json!({
        "description": "Kuryr-Kubernetes NetPolicy SG rule", "direction": "ingress", "ethertype": "IPv4",
        "port_range_max": 80, "port_range_min": 80, "protocol": "tcp", "security_group_id": own["id"],
    });
    assert_eq!(without(&ingress["security_group_rule"], &["id"]), expected);
    // All egress is one rule without a protocol, of a group that pods lose when another policy isolates them.
    let [egress] = &array(spec, "egressSgRules")[..] else { panic!("{spec}") };
    let expected = json!({
        "description": "Kuryr-Kubernetes NetPolicy SG rule", "direction": "egress", "ethertype": "IPv4",
        "security_group_id": group(&state, "sg-allow-all-egress")["id"],
    });
    assert_eq!(without(&egress["security_group_rule"], &["id"]), expected);
    assert_eq!(array(own, "security_group_rules").len(), 1);
    let open = [own["name"].as_str().unwrap(), "sg-allow-all-egress"];
    assert_eq!(groups_of(&state, "default/server"), open.into());
    // The annotations of the pod.
    let server = array(&state, "pods").iter().find(|pod| pod["metadata"]["name"] == "server").unwrap();
    let annotations = &server["metadata"]["annotations"];
    assert_eq!(annotations["openstack.org/kuryr-pod-label"], r#"{"pod-name":"server"}"#);
    assert_eq!(annotations["openstack.org/kuryr-namespace"], "default");
    assert_eq!(
        annotations["openstack.org/kuryr-security-groups"],
        json!(sorted(&[&own["id"], &egress["security_group_rule"]["security_group_id"]])).to_string()
    );
    assert_eq!(groups_of(&state, "default/client"), ["sg-allow-all-egress", "sg-allow-all-ingress"].into());
}

#[test]
fn pods_with_other_numbers_of_a_named_port_do_not_share_its_rule() {
    let directory = TemporaryDirectory::new("kuryr-numbers");
    let other =
        PODS.replace("name: server,", "name: other,").replace("containerPort: 80", "containerPort: 8080");
    let other = other.replace("10.0.0.231", "10.0.0.233").replace("name: client", "name: second");
    let manifest = format!("{PODS}---{}---{NAMED_PORT}", other.replace("10.0.0.232", "10.0.0.234"));
    let state = rendered(&directory, &manifest, &[]);
    let main = "sg-allow-client-a-via-named-port-ingress-rule";
    let open = "sg-allow-all-egress";
    let [first, second] = ["80", "8080"].map(|number| format!("{main}-serve-80-tcp-{number}"));
    assert_eq!(groups_of(&state, "default/server"), [main, first.as_str(), open].into());
    assert_eq!(groups_of(&state, "default/other"), [main, second.as_str(), open].into());
    assert_eq!(rules(group(&state, &second), &["port_range_min", "port_range_max"]), [[8080, 8080]]);
    assert!(group(&state, main).get("security_group_rules").is_none());
    let recorded = array(&state["kuryrnetpolicies"][0]["spec"], "ingressSgRules");
    let prefixes: Vec<&Value> = recorded.iter().map(|rule| &rule["remote_ip_prefixes"]).collect();
    assert_eq!(prefixes, [&json!({"10.0.0.231": "default"}), &json!({"10.0.0.233": "default"})]);
}

#[test]
fn a_block_with_an_exception_is_the_product_of_its_prefixes_and_ports() {
    let directory = TemporaryDirectory::new("kuryr-except");
    let policy = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: block, namespace: default}
spec:
  podSelector: {matchLabels: {pod-name: server}}
  policyTypes: [Ingress, Egress]
  ingress:
    - from: [{ipBlock: {cidr: 1.1.1.0/24, except: [1.1.1.0/26]}}]
      ports: [{protocol: TCP, port: 80}, {protocol: SCTP, port: 1, endPort: 65535}, {protocol: UDP}]
";
    let state = rendered(&directory, &format!("{PODS}---{policy}"), &[]);
    let fields = ["direction", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix"];
    let expected = [
        json!(["ingress", "sctp", 1, 65535, "1.1.1.64/26"]),
        json!(["ingress", "sctp", 1, 65535, "1.1.1.128/25"]),
        json!(["ingress", "tcp", 80, 80, "1.1.1.64/26"]),
        json!(["ingress", "tcp", 80, 80, "1.1.1.128/25"]),
        json!(["ingress", "udp", null, null, "1.1.1.64/26"]),
        json!(["ingress", "udp", null, null, "1.1.1.128/25"]),
    ];
    let found: Vec<Value> = rules(group(&state, "sg-block"), &fields).into_iter().map(Value::from).collect();
    assert_eq!(found, expected);
    // Egress is isolated and allows nothing.
    assert_eq!(groups_of(&state, "default/server"), ["sg-block"].into());
}

#[test]
fn a_policy_that_denies_everything_is_an_empty_group() {
    let directory = TemporaryDirectory::new("kuryr-deny");
    let name = "d".repeat(253);
    let policy = NAMED_PORT.replace("allow-client-a-via-named-port-ingress-rule", &name);
    let policy = policy.replace("  ingress: [{ports: [{protocol: TCP, port: serve-80}]}]", "");
    let state =
        rendered(&directory, &format!("{PODS}---{}", policy.replace("[Ingress]", "[Ingress, Egress]")), &[]);
    let [own] = &array(&state, "kuryrnetpolicies")[..] else { panic!("{state}") };
    let group = group(&state, own["spec"]["securityGroupName"].as_str().unwrap());
    assert!(group.get("security_group_rules").is_none(), "{group}");
    assert!(
        own["metadata"]["name"].as_str().unwrap().len() <= 253
            && group["name"].as_str().unwrap().len() <= 255
    );
    assert_eq!(own["metadata"]["annotations"]["networkpolicy_name"], name);
}

#[test]
fn ids_follow_from_names_and_content_alone() {
    let directory = TemporaryDirectory::new("kuryr-ids");
    let alone = rendered(&directory, &format!("{PODS}---{NAMED_PORT}"), &[]);
    let elsewhere = NAMED_PORT.replace("namespace: default", "namespace: elsewhere");
    let more = rendered(&directory, &format!("{elsewhere}---{NAMED_PORT}---{PODS}"), &[]);
    let ids = |state: &Value, namespace: &str| {
        let resources = array(state, "kuryrnetpolicies").iter();
        let mut of_namespace = resources.filter(|resource| resource["metadata"]["namespace"] == namespace);
        of_namespace.next().unwrap()["spec"].clone()
    };
    assert_eq!(ids(&alone, "default"), ids(&more, "default"));
    let [here, there] =
        ["default", "elsewhere"].map(|namespace| ids(&more, namespace)["securityGroupId"].clone());
    assert_ne!(here, there);
}

#[test]
fn a_change_of_one_pod_attaches_and_detaches_that_pod_alone() {
    let directory = TemporaryDirectory::new("kuryr-change");
    let state = rendered_text(&directory, "", &["config/examples"]);
    let recorded = directory.path("state.json");
    fs::write(&recorded, &state).unwrap();
    let old = fs::read_to_string("config/examples/1-pods.yaml").unwrap();
    let new = directory.path("new");
    fs::create_dir_all(&new).unwrap();
    for entry in fs::read_dir("config/examples").unwrap().flatten() {
        fs::copy(entry.path(), format!("{new}/{}", entry.file_name().display())).unwrap();
    }
    fs::write(format!("{new}/1-pods.yaml"), old.replace("labels: {role: backend}", "labels: {role: batch}"))
        .unwrap();
    let (_, since, _) = render(&["--to", "security-groups", "--since", "config/examples", &new]);
    let (code, reconciled, errors) = render(&["--to", "security-groups", "--reconcile", &recorded, &new]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(since, reconciled, "both lead from the same state to the same");
    let change: Value = serde_json::from_str(&since).unwrap();
    let ports: Vec<&Value> =
        step(&change, "update_ports").as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(ports, ["default/backend"]);
    // The pod leaves the groups of the role and of the policy for that of open egress. No group or rule changes.
    let [attach, detach] =
        ["attach", "detach"].map(|key| array(&step(&change, "update_ports")[0], key).len());
    assert_eq!((attach, detach), (1, 2), "{change}");
    assert_eq!(change["summary"], "update 1 port, annotate 1 pod");
    assert!(since.lines().count() * 5 < state.lines().count(), "{since}");
}

#[test]
fn a_recorded_state_is_reconciled_with_the_wanted_one() {
    let directory = TemporaryDirectory::new("kuryr-reconcile");
    let manifest = format!("{PODS}---{NAMED_PORT}");
    let text = rendered_text(&directory, &manifest, &[]);
    let state: Value = serde_json::from_str(&text).unwrap();
    let path = directory.path("state.json");
    let reconcile = |recorded: &str| {
        fs::write(&path, recorded).unwrap();
        attempt(&directory, &manifest, &["--reconcile", &path])
    };
    let change = |recorded: &Value| -> Value {
        let (code, text, errors) = reconcile(&recorded.to_string());
        assert_eq!((code, errors.as_str()), (0, ""));
        serde_json::from_str(&text).unwrap()
    };
    // From nothing everything is created.
    let mut nothing = state.clone();
    for key in ["security_groups", "ports", "kuryrnetpolicies", "pods"] {
        nothing[key] = json!([]);
    }
    let all = change(&nothing);
    assert_eq!(
        step(&all, "create_security_groups").as_array().unwrap().len(),
        array(&state, "security_groups").len()
    );
    let attached: Vec<&Value> =
        step(&all, "update_ports").as_array().unwrap().iter().map(|port| &port["attach"]).collect();
    let wanted: Vec<&Value> = array(&state, "ports").iter().map(|port| &port["security_groups"]).collect();
    assert_eq!(attached, wanted);
    // From the same state nothing is left to do.
    let same = change(&state);
    assert_eq!((&same["summary"], &same["steps"]), (&json!("nothing to do"), &json!([])));
    // A group that nothing uses is deleted.
    let mut stale = state.clone();
    let unused = json!({"id": "0", "name": "sg-stale", "description": "", "tags": []});
    stale["security_groups"].as_array_mut().unwrap().push(unused);
    let expected = json!([{"id": "0", "name": "sg-stale"}]);
    let cleaned = change(&stale);
    assert_eq!(
        (step(&cleaned, "delete_security_groups"), &cleaned["summary"]),
        (&expected, &json!("delete 1 group"))
    );
}

#[test]
fn a_damaged_state_is_refused() {
    let directory = TemporaryDirectory::new("kuryr-damaged");
    let manifest = format!("{PODS}---{NAMED_PORT}");
    let text = rendered_text(&directory, &manifest, &[]);
    let path = directory.path("state.json");
    for (recorded, problem) in [
        (text[..text.len() / 2].to_owned(), "EOF while parsing"),
        (String::new(), "EOF while parsing"),
        (text.replace("\"port_range_max\":80", "\"port_range_max\":90"), "has other fields than its id says"),
        (text.replace("\"SecurityGroups\"", "\"SecurityGroupChanges\""), "it is a SecurityGroupChanges"),
        (text.replace("\"ports\":", "\"prots\":"), "unknown field `prots`"),
        (text.replacen("\"security_groups\": [\"", "\"security_groups\": [\"x", 1), "which is not in it"),
    ] {
        assert_ne!(recorded, text, "{problem}");
        fs::write(&path, &recorded).unwrap();
        let (code, output, errors) = attempt(&directory, &manifest, &["--reconcile", &path]);
        assert!(code == 2 && output.is_empty(), "{output}");
        assert!(
            errors.contains("state.json: it is no recorded state") && errors.contains(problem),
            "{errors}"
        );
    }
    let missing = attempt(&directory, &manifest, &["--reconcile", "/nonexistent"]);
    assert!(missing.0 == 2 && missing.2.contains("/nonexistent"), "{}", missing.2);
    let (code, _, errors) = render(&["--to", "nftables", "--reconcile", &path, "config/examples"]);
    assert!(code == 2 && errors.contains("--reconcile needs --to security-groups"), "{errors}");
}

/// Policy for all pods that denies traffic to a peer, before a `NetworkPolicy` that allows it.
fn cluster_policy(networks: &[&str]) -> String {
    let rules = networks.iter().map(|network| format!("    - {network}\n"));
    format!(
        "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: guard}}
spec:
  tier: Admin
  priority: 1
  subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{pod-name: server}}}}}}}}
  egress:
{}",
        rules.collect::<String>()
    )
}

#[test]
fn pods_of_cluster_policies_have_groups_of_what_remains_allowed() {
    let directory = TemporaryDirectory::new("kuryr-cluster");
    let policy = cluster_policy(&["{action: Deny, to: [{networks: [128.0.0.0/1]}]}"]);
    let state = rendered(&directory, &format!("{PODS}---{policy}---{NAMED_PORT}"), &[]);
    let groups = groups_of(&state, "default/server");
    // The group of the policy allows all egress, and is not the pod's.
    assert!(!groups.contains("sg-allow-client-a-via-named-port-ingress-rule"), "{groups:?}");
    let [egress, ingress] = [("out", "egress"), ("in", "ingress")].map(|(word, direction)| {
        let own = groups.iter().find(|name| name.starts_with(&format!("sg-{word}/"))).unwrap();
        let fields = ["direction", "protocol", "port_range_min", "remote_ip_prefix"];
        let rules = rules(group(&state, own), &fields);
        assert!(rules.iter().all(|rule| rule[0] == direction), "{rules:?}");
        Value::from(rules.into_iter().map(Value::from).collect::<Vec<Value>>())
    });
    assert_eq!(egress, json!([["egress", null, null, "0.0.0.0/1"]]));
    assert_eq!(ingress, json!([["ingress", "tcp", 80, null]]));
}

#[test]
fn a_group_with_too_many_rules_is_refused_by_name() {
    let directory = TemporaryDirectory::new("kuryr-refused");
    let pods = PODS.replace("10.0.0.231", "fd00::1").replace("10.0.0.232", "fd00::2");
    // All but one address, for each protocol but TCP.
    let policy = cluster_policy(&[
        "{action: Deny, to: [{networks: [\"::/0\"]}], protocols: [{tcp: {destinationPort: {number: 80}}}]}",
        "{action: Deny, to: [{networks: [\"fd01::1/128\"]}]}",
    ]);
    let (code, output, errors) = attempt(&directory, &format!("{pods}---{policy}"), &[]);
    assert!(code == 2 && output.is_empty(), "{output}");
    assert!(errors.contains("security group sg-out/") && errors.contains("at most 4096"), "{errors}");
}
