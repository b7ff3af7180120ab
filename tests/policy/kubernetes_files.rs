//! The files by which a cluster's nodes join: valid YAML, the rights of the agent, and the rights of the containers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::tools::run_if_installed;
use crate::yaml::{directory, documents, texts};

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

/// `tests/kubernetes/rights.rs` compares the rights with the requests of the agent.
#[test]
fn the_rights_are_bound_to_the_account_of_the_pods() {
    let rbac = documents("rbac.yaml");
    let kinds: Vec<&str> = rbac.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]);
    let [account, bound @ ..] = &rbac[..] else { panic!("{rbac:#?}") };
    for [role, binding] in [&bound[..2], &bound[2..]].map(|pair| [&pair[0], &pair[1]]) {
        assert_eq!(
            binding["roleRef"],
            serde_json::json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": role["metadata"]["name"]})
        );
        assert_eq!(
            binding["subjects"],
            serde_json::json!([{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "palisade-system"}])
        );
    }
    let pod = &documents("daemonset.yaml")[0]["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
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
