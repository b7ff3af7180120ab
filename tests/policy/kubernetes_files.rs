//! The files by which a cluster's nodes join: valid YAML, the rights of the agent, and the rights of the containers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libyaml_safer::{EventData as Event, Parser};
use serde_json::{Map, Value};

use crate::tools::run_if_installed;

/// Kinds that the agent watches: API group and name of the resource.
const WATCHED: [(&str, &str); 9] = [
    ("", "namespaces"),
    ("", "nodes"),
    ("", "pods"),
    ("", "services"),
    ("discovery.k8s.io", "endpointslices"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy.networking.k8s.io", "adminnetworkpolicies"),
    ("policy.networking.k8s.io", "baselineadminnetworkpolicies"),
    ("policy.networking.k8s.io", "clusternetworkpolicies"),
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/kubernetes")
}

/// Next value of a document. Scalars stay text.
fn value(events: &mut Parser<&[u8]>, event: Event) -> Value {
    match event {
        Event::Scalar { value, .. } => Value::String(value),
        Event::SequenceStart { .. } => {
            let mut items = Vec::new();
            loop {
                match events.parse().unwrap().data {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(value(events, event)),
                }
            }
        }
        Event::MappingStart { .. } => {
            let mut entries = Map::new();
            loop {
                match events.parse().unwrap().data {
                    Event::MappingEnd => return Value::Object(entries),
                    Event::Scalar { value: key, .. } => {
                        let event = events.parse().unwrap().data;
                        let before = entries.insert(key.clone(), value(events, event));
                        assert!(before.is_none(), "{key} stands there twice");
                    }
                    other => panic!("a key is {other:?}"),
                }
            }
        }
        other => panic!("{other:?} is no value"),
    }
}

/// Documents of a file.
fn documents(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory().join(name)).unwrap();
    let mut events: Parser<&[u8]> = Parser::new();
    events.set_input(text.as_bytes());
    let mut documents = Vec::new();
    loop {
        match events.parse().unwrap_or_else(|error| panic!("{name}: {error}")).data {
            Event::StreamEnd => return documents,
            event @ (Event::MappingStart { .. } | Event::SequenceStart { .. } | Event::Scalar { .. }) => {
                documents.push(value(&mut events, event));
            }
            _ => {}
        }
    }
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn every_file_is_an_object_that_the_kustomization_names() {
    let kustomization = &documents("kustomization.yaml")[0];
    let mut named: BTreeSet<&str> = texts(&kustomization["resources"]).into_iter().collect();
    named.extend(texts(&kustomization["configMapGenerator"][0]["files"]));
    named.insert("kustomization.yaml");
    let files: BTreeSet<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files.iter().map(String::as_str).collect::<BTreeSet<_>>(), named);
    let is_yaml = |name: &&String| Path::new(name).extension().is_some_and(|extension| extension == "yaml");
    for name in files.iter().filter(is_yaml) {
        for document in documents(name) {
            assert!(document["apiVersion"].is_string() && document["kind"].is_string(), "{name}: {document}");
        }
    }
}

#[test]
fn the_agent_may_watch_what_it_watches_and_write_events_conditions_and_a_lease() {
    let rbac = documents("rbac.yaml");
    let of = |kind: &str| rbac.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    let kinds: BTreeSet<&str> = rbac.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"].into());
    assert_eq!(
        of("Role")[0]["rules"],
        serde_json::json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}])
    );
    let [role] = of("ClusterRole")[..] else { panic!("{rbac:#?}") };
    let (mut watched, mut written) = (BTreeSet::new(), BTreeSet::new());
    for rule in role["rules"].as_array().unwrap() {
        assert_eq!(rule.as_object().unwrap().len(), 3, "{rule}");
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                match texts(&rule["verbs"])[..] {
                    ["list", "watch"] | ["get", "list", "watch"] => {
                        assert!(watched.insert((group, resource)), "{group} {resource} twice");
                    }
                    ["create", "patch"] => assert!(written.insert((group, resource))),
                    ["patch"] => {
                        assert!(group == "policy.networking.k8s.io" && resource.ends_with("/status"));
                    }
                    ref verbs => panic!("{group} {resource}: {verbs:?}"),
                }
            }
        }
    }
    assert_eq!(watched, WATCHED.into());
    assert_eq!(written, [("", "events"), ("events.k8s.io", "events")].into());
    assert_eq!(of("RoleBinding")[0]["roleRef"]["name"], of("Role")[0]["metadata"]["name"]);
    let [binding] = of("ClusterRoleBinding")[..] else { panic!("{rbac:#?}") };
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let [account] = of("ServiceAccount")[..] else { panic!("{rbac:#?}") };
    assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
    assert_eq!(documents("daemonset.yaml")[0]["spec"]["template"]["spec"]["serviceAccountName"], "palisade");
}

/// Capabilities of `config/palisade.service`.
fn capabilities_of_the_unit() -> BTreeSet<String> {
    let unit = fs::read_to_string(directory().join("../palisade.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    line.split(' ').map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
}

#[test]
fn containers_have_the_rights_of_the_unit_and_every_mount_a_volume() {
    let pod = &documents("daemonset.yaml")[0]["spec"]["template"]["spec"];
    let volumes: BTreeSet<&str> =
        pod["volumes"].as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    let of = |key: &str| pod[key].as_array().unwrap().clone();
    let mut mounted = BTreeSet::new();
    for container in of("initContainers").iter().chain(&of("containers")) {
        let context = &container["securityContext"];
        assert_eq!(texts(&context["capabilities"]["drop"]), ["ALL"]);
        assert_eq!(
            [&context["allowPrivilegeEscalation"], &context["readOnlyRootFilesystem"]],
            ["false", "true"]
        );
        let mounts = container["volumeMounts"].as_array().unwrap();
        mounted.extend(mounts.iter().map(|mount| mount["name"].as_str().unwrap().to_owned()));
    }
    assert_eq!(mounted.iter().map(String::as_str).collect::<BTreeSet<_>>(), volumes);
    let switch = &of("containers")[0];
    let added = texts(&switch["securityContext"]["capabilities"]["add"]);
    assert_eq!(added.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), capabilities_of_the_unit());
    assert_eq!(
        of("initContainers").last().unwrap()["name"],
        "install-cni",
        "the node is ready once it has run"
    );
}

#[test]
fn kubectl_builds_the_kustomization() {
    let directory = directory();
    let arguments = ["kustomize", directory.to_str().unwrap()];
    let Some(output) = run_if_installed("kubectl", &arguments, b"") else { return };
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    for words in ["kind: DaemonSet", "name: palisade-", "image: palisade:0.1.0", "namespace: palisade-system"]
    {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}
