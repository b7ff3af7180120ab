//! Verdicts of the API server on policy objects, and the texts of errors.

use std::fs;
use std::path::{Path, PathBuf};

use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_source, parse_sources, parse_value};
use palisade::policy::testcase::parse_cases;
use proptest::prelude::*;

fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not here", path.display());
    None
}

#[test]
fn every_upstream_validation_case_gets_the_api_servers_verdict() {
    let Some(path) = shared("validation.json") else { return };
    let cases: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut evaluated = 0;
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let Some(valid) = case["valid"].as_bool() else { continue };
        let result = parse_value(name, &case["object"]);
        assert_eq!(result.is_ok(), valid, "{name}: {:?}", result.map(|parsed| parsed.objects));
        if let Ok(parsed) = result {
            assert_eq!((parsed.objects.len(), parsed.skipped.len()), (1, 0), "{name}");
        }
        evaluated += 1;
    }
    assert!(evaluated > 40, "only {evaluated} cases");
}

#[test]
fn an_object_that_no_api_server_stores_is_an_error_and_a_long_list_is_none() {
    let note = "x".repeat(1 << 20);
    let pod = |name: &str, times: usize| {
        format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\", \
             \"annotations\": {{\"note\": \"{}\"}}}}}}",
            note.repeat(times)
        )
    };
    let pods = ["a", "b"].map(|name| pod(name, 2)).join(", ");
    let list = format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{pods}]}}");
    assert_eq!(parse_source(&Source::new("list.json", list)).unwrap().objects.len(), 2);
    let errors = parse_source(&Source::new("pod.yaml", pod("c", 3))).unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(texts.len() == 1 && texts[0].contains("the object has more than 3145728 bytes"), "{texts:?}");
}

#[test]
fn every_conformance_corpus_is_read_without_error() {
    for (name, cases, probes) in [
        ("k8s-e2e.json", 65, 506),
        ("cyclonus.json", 256, 109_956),
        ("knp.json", 38, 38),
        ("cnp-conformance.json", 96, 301),
    ] {
        let Some(path) = shared(name) else { continue };
        let read = parse_cases(&Source::new(name, fs::read_to_string(path).unwrap()))
            .whole()
            .unwrap_or_else(|errors| panic!("{}", errors[0]));
        assert_eq!(read.cases.len(), cases, "{name}");
        assert_eq!(read.cases.iter().map(|case| case.probes.len()).sum::<usize>(), probes, "{name}");
        let known = |path: &str| path == "metadata.name" || path.ends_with(".endPort");
        let unexpected = read.warnings.iter().find(|warning| !known(&warning.path));
        assert!(unexpected.is_none(), "{name}: {}", unexpected.unwrap());
        assert!(
            read.skipped.iter().all(|skipped| skipped.kind == "Service"),
            "{name}: {:?}",
            read.skipped[0]
        );
    }
}

fn data(name: &str) -> Source {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    Source::new(name, fs::read_to_string(path).unwrap())
}

/// Compares text with the file in `tests/data/snapshots`.
fn golden(name: &str, text: &str) {
    insta::with_settings!({snapshot_path => "../data/snapshots", prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn every_mistake_is_reported_with_line_column_and_field_path() {
    let errors = parse_source(&data("wrong.yaml")).unwrap_err();
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    golden("wrong", &lines.join("\n"));
}

#[test]
fn a_report_underlines_the_field() {
    let errors = parse_source(&data("wrong.yaml")).unwrap_err();
    let path = "spec.ingress[0].ports[0].endPort";
    let error = errors.iter().find(|error| error.path == path).unwrap();
    golden("report", &error.report(false));
    let json = serde_json::to_value(error).unwrap();
    assert_eq!((&json["line"], &json["column"]), (&28.into(), &20.into()));
    assert_eq!((&json["object"], &json["path"]), (&"default/allow-db".into(), &path.into()));
    assert!(error.report(true).contains("\u{1b}["), "colours where they are asked for");
}

#[test]
fn one_object_of_every_kind_is_read() {
    let parsed = parse_source(&data("cluster.yaml")).unwrap();
    let lines: Vec<String> =
        parsed.objects.iter().map(|(object, location)| format!("{location} {object:#?}")).collect();
    golden("cluster", &lines.join("\n"));
    assert_eq!(parsed.skipped.len(), 1);
    assert_eq!((parsed.skipped[0].kind.as_str(), parsed.skipped[0].name.as_str()), ("ConfigMap", "shop/web"));
}

#[test]
fn kinds_of_a_newer_api_fail_closed_with_a_warning() {
    let parsed = parse_source(&data("future.yaml")).unwrap();
    golden("future", &format!("{:#?}", parsed.objects[0].0));
    assert_eq!(parsed.warnings.len(), 4);
    assert!(parsed.warnings.iter().all(|warning| warning.message.contains("fails closed")));
}

/// Reads a document by every reader and prints every error: none may panic.
fn survive(text: &str) {
    for name in ["x.yaml", "x.json"] {
        let source = Source::new(name, text);
        let findings = match parse_source(&source) {
            Ok(parsed) => parsed.warnings,
            Err(errors) => errors,
        };
        for finding in
            findings.into_iter().chain(parse_cases(&source).whole().err().into_iter().flatten()).take(20)
        {
            assert!(finding.to_string().starts_with(name));
            assert!(!finding.report(false).is_empty());
            serde_json::to_string(&finding).unwrap();
        }
    }
}

/// Strategy for a valid document with some of its bytes replaced, removed or doubled.
fn mutated() -> impl Strategy<Value = String> {
    let documents = ["wrong.yaml", "cluster.yaml", "future.yaml"].map(|name| data(name).text().to_owned());
    let edits =
        prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>(), 1..40_usize), 1..12);
    (prop::sample::select(documents.to_vec()), edits).prop_map(|(document, edits)| {
        const BYTES: &[u8] = b"{}[]:,-&*!|>\"'#%@`\n\t <~?0";
        let mut bytes = document.into_bytes();
        for (at, kind, byte, length) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len());
            let end = (at + length).min(bytes.len());
            match kind {
                0 if at < bytes.len() => bytes[at] = byte,
                1 => drop(bytes.drain(at..end)),
                2 => bytes.insert(at, BYTES[usize::from(byte) % BYTES.len()]),
                _ => {
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..crate::random::cases(400) })]

    #[test]
    fn random_text_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        survive(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_punctuation_never_panics(text in "[\\[\\]{}:,&*!|>\"'#%\\-?~<\n\t a0]{0,80}") {
        survive(&text);
    }

    #[test]
    fn mutated_documents_never_panic(text in mutated()) {
        survive(&text);
    }
}

#[test]
fn json_and_yaml_of_the_same_object_are_the_same() {
    let yaml =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\nstatus: {podIP: 10.0.0.1}\n";
    let json = "{\t\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"\\u0061\"},\n\
                \t\"spec\": {\"containers\": []}, \"status\": {\"podIP\": \"10.0.0.1\"}}\n";
    let objects =
        |name: &str, text: &str| parse_source(&Source::new(name, text)).unwrap().objects.remove(0).0;
    assert_eq!(objects("a.yaml", yaml), objects("a.json", json));
    assert_eq!(objects("<stdin>", json), objects("a.json", json));
    let value = serde_json::from_str(json).unwrap();
    assert_eq!(parse_value("watch", &value).unwrap().objects.remove(0).0, objects("a.yaml", yaml));
}

#[test]
fn the_last_of_two_objects_with_one_name_counts_and_the_author_is_told() {
    let namespace = |label: &str| {
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: a, labels: {{x: {label}}}}}\n")
    };
    let sources = [Source::new("one.yaml", namespace("b")), Source::new("two.yaml", namespace("c"))];
    let parsed = parse_sources(&sources).unwrap();
    let [(Object::Namespace(namespace), _)] = parsed.objects.as_slice() else {
        panic!("{:?}", parsed.objects)
    };
    assert_eq!(namespace.labels["x"], "c");
    assert_eq!(
        parsed.warnings[0].to_string(),
        "two.yaml:1:1: warning: a metadata.name: replaces the object with the same name at one.yaml:1 (rename one of them \
         if both are meant)"
    );
}

#[test]
fn findings_are_bounded_and_the_rest_is_counted() {
    let header = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: {ingress: [{from: [";
    let text = format!("{header}{}]}}]}}\n", "{}, ".repeat(3000));
    let errors = parse_source(&Source::new("a.yaml", text)).unwrap_err();
    assert_eq!(errors.len(), 1000);
    assert!(errors[999].to_string().ends_with("2000 more findings are not shown)"), "{}", errors[999]);
}

#[test]
fn a_misspelt_policy_kind_is_an_error_and_another_systems_is_skipped_with_a_warning() {
    let object = |kind: &str| format!("apiVersion: x.io/v1\nkind: {kind}\nmetadata: {{name: a}}\n");
    for kind in ["networkPolicy", "NetworkPolcy", "NetworkPolicys", "pod"] {
        let errors = parse_source(&Source::new("a.yaml", object(kind))).unwrap_err();
        assert!(errors[0].help.as_ref().unwrap().starts_with("did you mean"), "{kind}");
    }
    let systems = ["CiliumNetworkPolicy", "MultiNetworkPolicy", "GlobalNetworkPolicy"];
    for (kind, warnings) in
        systems.map(|kind| (kind, 1)).into_iter().chain([("Service", 1), ("PodDisruptionBudget", 0)])
    {
        let parsed = parse_source(&Source::new("a.yaml", object(kind))).unwrap();
        assert_eq!((parsed.skipped.len(), parsed.warnings.len()), (1, warnings), "{kind}");
    }
    let warning = &parse_source(&Source::new("a.yaml", object(systems[0]))).unwrap().warnings[0];
    assert_eq!(
        warning.to_string(),
        "a.yaml:2:7: warning: default/a kind: a CiliumNetworkPolicy of x.io/v1 is another system's: nothing here enforces it \
         (say the same with a NetworkPolicy or a ClusterNetworkPolicy)"
    );
}

#[test]
fn a_kind_is_read_in_its_own_api_group_and_passed_over_in_that_of_another_system() {
    let read = |version: &str, kind: &str| {
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{podSelector: {{}}}}\n"
        );
        parse_source(&Source::new("a.yaml", text))
    };
    for (version, kind, says) in [
        ("projectcalico.org/v3", "NetworkPolicy", "nothing here enforces it"),
        ("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", "nothing here enforces it"),
        ("networking.k8s.aws/v1alpha1", "ClusterNetworkPolicy", "nothing here enforces it"),
        ("apps.kruise.io/v1alpha1", "DaemonSet", "it is passed over"),
        ("serving.knative.dev/v1", "Service", "it is passed over"),
    ] {
        let parsed = read(version, kind).unwrap();
        assert_eq!(
            (parsed.objects.len(), parsed.skipped.len(), parsed.warnings.len()),
            (0, 1, 1),
            "{version} {kind}"
        );
        let warning = parsed.warnings[0].to_string();
        assert!(warning.contains(&format!("a {kind} of {version} is another system's: {says}")), "{warning}");
    }
    for (version, kind) in [
        ("networking.k8s.oi/v1", "NetworkPolicy"),
        ("networking.k8s.io/v2", "NetworkPolicy"),
        ("policy.networking.k8s.io/v1alpha2", "NetworkPolicy"),
        ("extensions/v1beta1", "NetworkPolicy"),
        ("v1", "NetworkPolicy"),
        ("apps/v1beta2", "Deployment"),
    ] {
        let errors = read(version, kind).unwrap_err();
        assert!(errors[0].message.starts_with("Unsupported value"), "{version} {kind}: {}", errors[0]);
    }
}

/// Objects of other systems that make pods.
const MAKES_PODS: [(&str, &str, &str); 6] = [
    (
        "argoproj.io/v1alpha1",
        "Rollout",
        "{replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}}",
    ),
    (
        "apps.openshift.io/v1",
        "DeploymentConfig",
        "{replicas: 2, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}}",
    ),
    ("apps.kruise.io/v1alpha1", "CloneSet", "{template: {spec: {containers: [{name: c}]}}}"),
    (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "{replicatedJobs: [{name: w, template: {spec: {template: {spec: {containers: [{name: c}]}}}}}]}",
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "{leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: c}]}}}}",
    ),
    ("argoproj.io/v1alpha1", "Workflow", "{templates: [{name: w, container: {image: x}}]}"),
];

#[test]
fn an_object_of_another_system_that_makes_pods_is_passed_over_with_a_warning() {
    let read = |version: &str, kind: &str, spec: &str| {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n");
        parse_source(&Source::new("a.yaml", text)).unwrap()
    };
    for (version, kind, spec) in MAKES_PODS {
        let parsed = read(version, kind, spec);
        let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
        let start = format!("a.yaml:2:7: warning: default/a kind: a {kind} of {version} is passed over");
        assert!(parsed.objects.is_empty() && parsed.skipped.len() == 1, "{version} {kind}");
        assert!(warnings.len() == 1 && warnings[0].starts_with(&start), "{kind}: {warnings:?}");
        assert!(warnings[0].contains("pods"), "{}", warnings[0]);
    }
    // Others make none, or make them of a workload that is read.
    for (version, kind, spec) in [
        (
            "argoproj.io/v1alpha1",
            "Rollout",
            "{workloadRef: {apiVersion: apps/v1, kind: Deployment, name: a}}",
        ),
        ("policy/v1", "PodDisruptionBudget", "{selector: {}}"),
        ("cert-manager.io/v1", "Certificate", "{secretTemplate: {labels: {a: b}}}"),
        (
            "kyverno.io/v1",
            "ClusterPolicy",
            "{rules: [{validate: {pattern: {spec: {template: {spec: {containers: [{name: c}]}}}}}}]}",
        ),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "{template: {spec: {containers: {type: array, items: {required: [name]}}}}}",
        ),
    ] {
        let parsed = read(version, kind, spec);
        assert_eq!((parsed.skipped.len(), parsed.warnings.len()), (1, 0), "{version} {kind}");
    }
}

#[test]
fn a_replication_controller_stands_for_its_pods() {
    let text = "{apiVersion: v1, kind: ReplicationController, metadata: {name: a}, spec: {replicas: 2, selector: {app: a}, template: \
                {metadata: {labels: {app: a}}, spec: {containers: [{name: c}]}}}}";
    let parsed = parse_source(&Source::new("a.yaml", text.to_owned())).unwrap();
    assert_eq!((parsed.objects.len(), parsed.skipped.len(), parsed.warnings.len()), (2, 0, 0));
}

#[test]
fn policies_of_the_cluster_are_read_in_both_of_their_versions() {
    for version in ["v1alpha2", "v1beta1"] {
        let text = format!(
            "{{apiVersion: policy.networking.k8s.io/{version}, kind: ClusterNetworkPolicy, metadata: {{name: a}}, spec: {{tier: Admin, \
             priority: 1, subject: {{namespaces: {{}}}}, ingress: [{{action: Deny, from: [{{namespaces: {{}}}}]}}]}}}}"
        );
        let parsed = parse_source(&Source::new("a.yaml", text)).unwrap();
        assert_eq!((parsed.objects.len(), parsed.warnings.len()), (1, 0), "{version}");
    }
}

#[test]
fn an_unknown_field_is_left_out_with_a_warning_except_in_a_policy() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, prots: []}], planet: x}, status: \
               {podIp: 10.0.0.1}}";
    let parsed = parse_source(&Source::new("a.yaml", pod.to_owned())).unwrap();
    let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(parsed.objects.len(), 1);
    for says in [
        "prots: unknown field \"prots\" is left out",
        "podIp: unknown field \"podIp\" is left out (did you mean",
    ] {
        assert!(warnings.iter().any(|warning| warning.contains(says)), "{says}: {warnings:?}");
    }
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a}, spec: {podSelector: {}, planet: x}}";
    let errors = parse_source(&Source::new("a.yaml", policy.to_owned())).unwrap_err();
    assert!(errors[0].to_string().contains("spec.planet: unknown field \"planet\""), "{}", errors[0]);
}

#[test]
fn entries_of_a_set_that_stand_there_twice_are_refused() {
    let policy = |to: &str, action: &str| {
        let text = format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: a}}, spec: {{tier: Admin, \
             priority: 1, subject: {{namespaces: {{}}}}, egress: [{{action: {action}, to: [{to}]}}]}}}}"
        );
        parse_source(&Source::new("policy.yaml", text))
    };
    for (to, action, path) in [
        ("{networks: [10.0.0.0/8, 'fd00::/8', 10.0.0.0/8]}", "Deny", "spec.egress[0].to[0].networks[2]"),
        ("{domainNames: [a.example, a.example]}", "Accept", "spec.egress[0].to[0].domainNames[1]"),
    ] {
        let errors = policy(to, action).unwrap_err();
        assert_eq!((errors.len(), errors[0].path.as_str()), (1, path), "{}", errors[0]);
        assert!(errors[0].message.starts_with("Duplicate value: "), "{}", errors[0]);
    }
    assert!(policy("{networks: [10.0.0.0/8]}, {networks: [10.0.0.0/8]}", "Deny").is_ok(), "of two peers");
}

#[test]
fn cluster_rules_that_the_api_server_refuses_are_refused() {
    let policy = |tier: &str, rule: &str| {
        let text = format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: a}}, spec: {{tier: \
             {tier}, priority: 1, subject: {{namespaces: {{}}}}, egress: [{{action: Accept, {rule}}}]}}}}"
        );
        parse_source(&Source::new("policy.yaml", text))
    };
    let names = "to: [{domainNames: [example.com]}]";
    for (tier, rule, path, says) in [
        (
            "Baseline",
            names.to_owned(),
            "spec.egress[0]",
            "Forbidden: domainNames may only be specified in the Admin tier",
        ),
        (
            "Admin",
            "to: [{networks: [203.0.113.0/24]}], protocols: [{destinationNamedPort: http}]".to_owned(),
            "spec.egress[0]",
            "Invalid value: networks/nodes/domainNames peer cannot be set with namedPorts",
        ),
        (
            "Admin",
            format!("{names}, protocols: [{{destinationNamedPort: http}}]"),
            "spec.egress[0]",
            "Invalid value: networks/nodes/domainNames peer cannot be set with namedPorts",
        ),
        (
            "Baseline",
            "to: [{pods: {podSelector: {}}}, {nodes: {}}], protocols: [{destinationNamedPort: http}]"
                .to_owned(),
            "spec.egress[0]",
            "Invalid value: networks/nodes/domainNames peer cannot be set with namedPorts",
        ),
    ] {
        let errors = policy(tier, &rule).unwrap_err();
        assert_eq!((errors.len(), errors[0].path.as_str()), (1, path), "{rule}: {}", errors[0]);
        assert!(errors[0].message.starts_with(says), "{rule}: {}", errors[0]);
    }
    let parsed = policy("Admin", names).unwrap();
    assert_eq!(parsed.warnings.len(), 1);
    assert!(
        parsed.warnings[0]
            .to_string()
            .contains("warning: a spec.egress[0].to[0].domainNames: domainNames are not enforced")
    );
    let by_name = "to: [{namespaces: {}}], protocols: [{destinationNamedPort: http}]";
    assert!(policy("Admin", by_name).unwrap().warnings.is_empty());
}

#[test]
fn the_mode_of_a_policy_is_audit_or_enforce() {
    let policy = |annotations: &str| {
        let text = format!(
            "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {{name: p, annotations: {annotations}}}\n"
        );
        parse_source(&Source::new("test.yaml", text))
    };
    for (annotations, is_audited) in [
        ("{palisade.dev/mode: audit}", true),
        ("{palisade.dev/mode: enforce}", false),
        ("{other.dev/mode: audit}", false),
        ("{}", false),
    ] {
        let parsed = policy(annotations).unwrap();
        assert_eq!(parsed.objects[0].0.is_audited(), is_audited, "{annotations}");
        assert!(parsed.warnings.is_empty(), "{annotations}");
    }
    for value in ["Audit", "\"\"", "null", "true", "\"audit \"", "[audit]"] {
        let errors = policy(&format!("{{palisade.dev/mode: {value}}}")).unwrap_err();
        assert!(errors[0].to_string().starts_with("test.yaml:3:54: default/p "), "{value}: {}", errors[0]);
        assert!(errors[0].path.starts_with("metadata.annotations"), "{}", errors[0]);
    }
    let parsed = policy("{palisade.dev/Mode: audit}").unwrap();
    assert!(!parsed.objects[0].0.is_audited() && parsed.warnings[0].message.contains("no annotation"));
}
