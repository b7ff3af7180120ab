//! `palisade lint`: places, forms of the findings, and annotations that silence checks.

use serde_json::json;

use super::{Scratch, policy};

#[test]
fn lint_names_the_place_of_the_field() {
    let scratch = Scratch::new("lint");
    scratch.write(
        "policy.yaml",
        &format!("# who reaches the database\n{}", policy("api", 5432, 5432).replace("app: db", "app: dbx")),
    );
    let (code, printed, _) = scratch.palisade("lint pods.yaml policy.yaml");
    assert_eq!(code, 1);
    let expected = "policy.yaml:6:3: warning: NetworkPolicy shop/db spec.podSelector: selects no pod: none in namespace shop matches app=dbx: did you mean app=db, a label of pod shop/db? [selects-no-pod]\n";
    assert_eq!(printed, expected);
    let (code, printed, _) = scratch.palisade("lint pods.yaml policy.yaml --output github");
    assert_eq!(code, 1);
    let expected = "::warning file=policy.yaml,line=6,col=3,title=selects-no-pod::NetworkPolicy shop/db spec.podSelector: selects no pod: none in namespace shop matches app=dbx: did you mean app=db, a label of pod shop/db?\n";
    assert_eq!(printed, expected);
    let sarif = scratch.json("lint pods.yaml policy.yaml --output sarif");
    let run = &sarif["runs"][0];
    let [result] = run["results"].as_array().unwrap().as_slice() else { panic!("{sarif}") };
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(
        (&place["artifactLocation"]["uri"], &place["region"]["startLine"]),
        (&"policy.yaml".into(), &6.into())
    );
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["id"] == result["ruleId"]), "{sarif}");
    scratch.write("policy.yaml", &policy("api", 5432, 5432));
    let sarif = scratch.json("lint pods.yaml policy.yaml --output sarif");
    assert_eq!(sarif["runs"][0]["results"], serde_json::json!([]));
    assert_eq!(scratch.palisade("lint pods.yaml policy.yaml").0, 0);
}

/// Policy that selects no pod, with an annotation.
fn annotated(annotation: &str) -> String {
    let metadata = format!("{{name: db, namespace: shop, annotations: {{{annotation}}}}}");
    policy("api", 1, 1).replace("app: db", "app: cache").replace("{name: db, namespace: shop}", &metadata)
}

#[test]
fn an_annotation_with_a_reason_silences_a_check_of_its_object() {
    let scratch = Scratch::new("ignored");
    scratch.write("policy.yaml", &annotated("palisade.dev/ignore-selects-no-pod: the cache comes next week"));
    let (code, printed, errors) = scratch.palisade("lint pods.yaml policy.yaml");
    let says = "Nothing found.\nAnnotations silence 1 finding.\n";
    assert_eq!((code, printed.as_str(), errors.as_str()), (0, says, ""));
    let found = scratch.json("lint pods.yaml policy.yaml --output json");
    assert_eq!(found[0]["ignored"], "the cache comes next week", "{found}");
    assert_eq!(scratch.palisade("lint pods.yaml policy.yaml --output github").1, "");
    let sarif = scratch.json("lint pods.yaml policy.yaml --output sarif");
    let suppressions = &sarif["runs"][0]["results"][0]["suppressions"];
    assert_eq!(*suppressions, json!([{"kind": "inSource", "justification": "the cache comes next week"}]));
}

#[test]
fn an_annotation_that_silences_nothing_is_found() {
    let scratch = Scratch::new("ignored-wrong");
    for (annotation, says) in [
        (
            "palisade.dev/ignore-selects-no-pods: later",
            "no check is named \"selects-no-pods\": did you mean \"selects-no-pod\"?",
        ),
        ("palisade.dev/ignore-selects-no-pod: ''", "silences nothing without a reason"),
        ("palisade.dev/ignore-blocks-dns: later", "silences nothing, because blocks-dns finds nothing here"),
    ] {
        scratch.write("policy.yaml", &annotated(annotation));
        let (code, printed, _) = scratch.palisade("lint pods.yaml policy.yaml");
        let line = printed.lines().find(|line| line.ends_with("[ignored-without-effect]"));
        assert!(code == 1 && line.is_some_and(|line| line.contains(says)), "{annotation}: {printed}");
        let place =
            "policy.yaml:3:53: warning: NetworkPolicy shop/db metadata.annotations[palisade.dev/ignore-";
        assert!(line.unwrap().starts_with(place), "{printed}");
    }
    scratch.write("policy.yaml", &annotated("palisade.dev/ignore-blocks-dns: 1"));
    assert_eq!(scratch.palisade("lint pods.yaml policy.yaml").0, 2, "an annotation is text");
}

#[test]
fn errors_and_warnings_of_manifests_are_findings_too() {
    let scratch = Scratch::new("lint-errors");
    scratch.write("policy.yaml", &policy("api", 80, 79));
    let (code, printed, errors) = scratch.palisade("lint pods.yaml policy.yaml --output github");
    let says = "::error file=policy.yaml,line=6,col=92,title=invalid::shop/db spec.ingress[0].ports[0].endPort: Invalid value: 79";
    assert!(code == 2 && errors.is_empty() && printed.starts_with(says), "{printed}{errors}");
    let sarif = scratch.json("lint pods.yaml policy.yaml --output sarif");
    assert_eq!(sarif["runs"][0]["results"][0]["level"], "error", "{sarif}");

    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, prts: 1}]}\n";
    scratch.write("pod.yaml", pod);
    let (code, printed, errors) = scratch.palisade("lint pod.yaml --output json");
    let found: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let [one] = found.as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(one["check"], "suspicious");
    let place = (&one["source"], &one["line"], &one["column"], &one["help"]);
    assert_eq!(place, (&json!("pod.yaml"), &json!(4), &json!(31), &json!("did you mean \"ports\"?")));
}

#[test]
fn an_annotation_about_a_check_that_lacks_its_objects_is_not_found() {
    let scratch = Scratch::new("ignored-without-pods");
    scratch.write("policy.yaml", &annotated("palisade.dev/ignore-selects-no-pod: later"));
    let (code, printed, errors) = scratch.palisade("lint policy.yaml");
    assert_eq!((code, printed.as_str()), (0, "Nothing found.\n"));
    assert_eq!(errors, "note: the manifests hold no pods: checks of selectors and peers are skipped\n");
}

#[test]
fn a_hostile_name_makes_no_line_of_its_own() {
    let scratch = Scratch::new("lint-lines");
    let key = "\"palisade.dev/ignore-x]\\n::error file=a::b\\nother.yaml:1:1: warning: forged [y\": r";
    scratch.write("policy.yaml", &annotated(key));
    for form in ["table", "github"] {
        let (code, printed, _) = scratch.palisade(&format!("lint pods.yaml policy.yaml --output {form}"));
        let is_own =
            |line: &str| line.starts_with("policy.yaml:") || line.starts_with("::warning file=policy.yaml,");
        assert!(code == 1 && printed.lines().count() == 2 && printed.lines().all(is_own), "{printed}");
    }
}

#[test]
fn without_an_object_of_policy_there_is_a_document_with_the_warnings() {
    let scratch = Scratch::new("lint-nothing");
    scratch.write("values.yaml", "replicas: 1\n");
    let (code, printed, errors) = scratch.palisade("lint values.yaml --output github");
    assert!(
        code == 2 && printed.starts_with("::warning file=values.yaml,line=1,col=1,title=suspicious::"),
        "{printed}"
    );
    assert!(errors.contains("none of") || errors.contains("no objects were given"), "{errors}");
    let (_, _, errors) = scratch.palisade("compile values.yaml");
    assert!(errors.contains("values of a Helm chart"), "{errors}");
}

/// Commands of a file of `config/ci`.
fn commands_of(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("{}/config/ci/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let command = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("run: ").or_else(|| line.strip_prefix("entry: "))?;
        Some(line.split(" > ").next()?.strip_prefix("palisade ")?.to_owned())
    };
    text.lines().filter_map(command).collect()
}

#[test]
fn the_commands_of_the_files_for_pipelines_run() {
    let scratch = Scratch::new("pipelines");
    for directory in ["policies", "tests"] {
        std::fs::create_dir_all(scratch.0.join(directory)).unwrap();
    }
    scratch.write("policies/db.yaml", &(super::PODS.to_owned() + "---\n" + &policy("api", 1, 1)));
    scratch.write("tests/db.yaml", &super::cases("deny"));
    for (file, count) in [("pre-commit.yaml", 2), ("github-actions.yaml", 3)] {
        let commands = commands_of(file);
        assert_eq!(commands.len(), count, "{commands:?}");
        for command in commands {
            let (code, printed, errors) = scratch.palisade(&command);
            assert_eq!((code, errors.as_str()), (0, ""), "{command}: {printed}");
        }
    }
}
