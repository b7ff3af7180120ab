//! Commands about policies, run as processes: output and exit codes.

mod lint;
mod matrix;
mod named_files;
mod services;

use std::fs;
use std::path::PathBuf;

use assert_cmd::Command;

const PODS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c}]}}
";

/// Manifest of a policy that lets some pods reach the database on a range of ports.
fn policy(app: &str, first: u16, last: u16) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db, namespace: shop}}
spec:
  podSelector: {{matchLabels: {{app: db}}}}
  ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}], ports: [{{port: {first}, endPort: {last}}}]}}]
"
    )
}

/// Temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("palisade-commands-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let scratch = Scratch(path);
        scratch.write("pods.yaml", PODS);
        scratch
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// Runs `palisade` here and returns exit code, standard output and standard error.
    fn palisade(&self, arguments: &str) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        let output = command.current_dir(&self.0).args(arguments.split(' ')).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn json(&self, arguments: &str) -> serde_json::Value {
        let (_, printed, errors) = self.palisade(arguments);
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}{errors}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cases(expect: &str) -> String {
    let resources: String = PODS.split("---").flat_map(|pod| ["  - ", pod.trim(), "\n"]).collect();
    let policy = policy("api", 5432, 5432).replace('\n', "\n    ");
    format!(
        "name: the database\nresources:\n{resources}  - {}\nprobes:\n  \
         - {{from: {{pod: shop/api}}, to: {{pod: shop/db}}, port: 5432, expect: allow}}\n  \
         - {{from: {{pod: shop/web}}, to: {{pod: shop/db}}, port: 5432, expect: {expect}}}\n",
        policy.trim_end()
    )
}
#[test]
fn test_counts_what_passed_and_explains_what_failed() {
    let scratch = Scratch::new("test");
    scratch.write("good.yaml", &cases("deny"));
    let (code, printed, _) = scratch.palisade("test good.yaml");
    assert_eq!((code, printed.as_str()), (0, "cases: 1 passed, 0 failed\nprobes: 2 passed, 0 failed\n"));

    scratch.write("bad.yaml", &cases("allow"));
    let (code, printed, _) = scratch.palisade("test bad.yaml");
    assert_eq!(code, 1);
    assert!(
        printed.contains("TCP from shop/web to shop/db port 5432: expected allow, got deny"),
        "{printed}"
    );
    assert!(printed.contains(r#"pod shop/web has app="web", not app=api"#), "{printed}");
    assert!(printed.ends_with("cases: 0 passed, 1 failed\nprobes: 1 passed, 1 failed\n"), "{printed}");

    let json = scratch.json("test good.yaml bad.yaml --output json");
    assert_eq!(json["probes"], serde_json::json!({"passed": 3, "failed": 1}));
    assert_eq!(json["results"][1]["failures"][0]["got"], "deny");
    let (_, junit, _) = scratch.palisade("test bad.yaml --output junit");
    assert!(
        junit.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\">"),
        "a test case for each probe: {junit}"
    );
    let passed = "<testcase name=\"TCP from shop/api to shop/db port 5432\" classname=\"the database\" file=\"bad.yaml\" line=\"13\"/>";
    assert!(junit.contains(passed), "{junit}");
    let (code, annotations, _) = scratch.palisade("test bad.yaml --output github");
    let says = "::error file=bad.yaml,line=14,col=5,title=the database::TCP from shop/web to shop/db port 5432: expected allow, got deny%0A";
    assert!(code == 1 && annotations.starts_with(says) && annotations.lines().count() == 1, "{annotations}");
}

#[test]
fn the_case_in_the_documentation_passes() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/policy-tests.md")).unwrap();
    let (_, rest) = page.split_once("```yaml\nname: only the API").expect("the first case of the page");
    let (case, _) = rest.split_once("```").unwrap();
    let scratch = Scratch::new("page");
    scratch.write("case.yaml", &format!("name: only the API{case}"));
    let (code, printed, errors) = scratch.palisade("test case.yaml");
    assert_eq!(
        (code, printed.as_str()),
        (0, "cases: 1 passed, 0 failed\nprobes: 3 passed, 0 failed\n"),
        "{errors}"
    );
}

#[test]
fn test_refuses_a_pod_that_is_not_there_and_a_filter_that_matches_nothing() {
    let scratch = Scratch::new("refuse");
    scratch.write("typo.yaml", &cases("deny").replace("{pod: shop/web}", "{pod: shop/wep}"));
    let (code, printed, _) = scratch.palisade("test typo.yaml");
    assert_eq!(code, 2);
    assert!(printed.contains("REFUSED the database (typo.yaml:1)\n  typo.yaml:"), "{printed}");
    assert!(printed.contains("there is no pod shop/wep: is it shop/web?"), "{printed}");
    let (code, _, errors) = scratch.palisade("test typo.yaml --filter cache");
    assert_eq!(code, 2);
    assert!(errors.contains("none of 1 cases has a name that matches cache"), "{errors}");
}

#[test]
fn explain_says_which_rule_decides_and_exits_by_the_verdict() {
    let scratch = Scratch::new("explain");
    scratch.write("policy.yaml", &policy("api", 5432, 5440));
    let (code, printed, errors) =
        scratch.palisade("explain --from shop/api --to shop/db --port 5433 pods.yaml policy.yaml");
    assert_eq!(code, 0, "{errors}");
    assert!(printed.contains("ingress of shop/db: allow: NetworkPolicy shop/db ingress[0]"), "{printed}");
    let (code, printed, _) =
        scratch.palisade("explain --from shop/api --to shop/db --port 80 pods.yaml policy.yaml");
    assert_eq!(code, 1);
    assert!(printed.contains("NetworkPolicy shop/db (policy.yaml:1)"), "{printed}");
    assert!(printed.contains("[0] allow: no (came close): TCP 80 is not TCP 5432-5440"), "{printed}");
    let json =
        scratch.json("explain --from 192.0.2.7 --to shop/db --port 80 pods.yaml policy.yaml --output json");
    assert_eq!(json[0]["ingress"]["policies"][0]["rules"][0]["peers_miss"][0]["on"], "not-a-pod");
    let (code, ..) = scratch.palisade("explain --from shop/api --to shop/db pods.yaml");
    assert_eq!(code, 2, "TCP needs a port");
}

#[test]
fn diff_tells_exactly_the_ports_that_open_and_close() {
    let scratch = Scratch::new("diff");
    scratch.write("old.yaml", &policy("api", 5432, 5440));
    scratch.write("new.yaml", &policy("api", 5435, 5450));
    let (code, printed, errors) = scratch.palisade("diff old.yaml new.yaml --with pods.yaml");
    assert_eq!(code, 1, "{errors}");
    let expected = "+ opens  TCP 5441-5450\n    from shop/api\n    to   shop/db\n- closes TCP 5432-5434\n    from shop/api\n    to   shop/db\n";
    assert_eq!(printed, expected);
    let (code, ..) = scratch.palisade("diff old.yaml new.yaml --with pods.yaml --assert-no-opening");
    assert_eq!(code, 1);

    scratch.write("less.yaml", &policy("api", 5433, 5434));
    let (code, ..) = scratch.palisade("diff old.yaml less.yaml --with pods.yaml --assert-no-opening");
    assert_eq!(code, 0, "closing is no opening");
    let (code, printed, _) = scratch.palisade("diff old.yaml old.yaml --with pods.yaml");
    assert_eq!((code, printed.as_str()), (0, "No connection opens or closes.\n"));
}

#[test]
fn diff_names_whom_a_change_is_about() {
    let scratch = Scratch::new("names");
    scratch.write("old.yaml", &policy("api", 5432, 5432));
    scratch.write("none.yaml", "");
    let json = scratch.json("diff old.yaml none.yaml --with pods.yaml --output json");
    let changes = json["changes"].as_array().unwrap();
    let from: Vec<&str> = changes.iter().map(|change| change["from"].as_str().unwrap()).collect();
    assert_eq!(from, ["shop/api", "shop/web and 0.0.0.0/0, ::/0"], "{json:#}");
    assert!(changes.iter().all(|change| change["turn"] == "opens" && change["to"] == "shop/db"));
    assert_eq!(changes[0]["traffic"]["TCP"], serde_json::json!(["0-5431", "5433-65535"]));
}

#[test]
fn replicas_are_evaluated_as_two_pods_by_every_command() {
    let scratch = Scratch::new("replicas");
    let workload = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: db, namespace: shop}, spec: {replicas: 2, selector: {matchLabels: {app: db}}, \
                    template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c}]}}}}\n";
    scratch.write("pods.yaml", workload);
    scratch.write("policy.yaml", &policy("api", 5432, 5432));
    let (code, printed, _) =
        scratch.palisade("explain --from shop/db --to shop/db --port 5432 pods.yaml policy.yaml");
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("isolated for ingress by NetworkPolicy shop/db"), "{printed}");
    let json = scratch.json("matrix pods.yaml policy.yaml --output json");
    assert_eq!(
        (&json["ends"][0]["name"], &json["cells"][0]["traffic"]["TCP"]),
        (&"shop/db".into(), &serde_json::json!([]))
    );
    scratch.write("open.yaml", "");
    let (code, printed, _) = scratch.palisade("diff open.yaml policy.yaml --with pods.yaml");
    assert_eq!(code, 1);
    assert!(printed.contains("from shop/db") || printed.contains("from all pods"), "{printed}");
    scratch.write("pods.yaml", &workload.replace("replicas: 2", "replicas: 1"));
    let (code, printed, _) =
        scratch.palisade("explain --from shop/db --to shop/db --port 5432 pods.yaml policy.yaml");
    assert!(code == 0 && printed.contains("a pod always reaches itself"), "{printed}");
    // The last of two workloads with one name counts, with all its pods.
    scratch.write("pods.yaml", &format!("{workload}---\n{}", workload.replace("replicas: 2", "replicas: 1")));
    let json = scratch.json("matrix pods.yaml policy.yaml --each-pod --output json");
    assert_eq!(json["ends"][0]["pods"], serde_json::json!(["shop/db"]));
    assert!(json["ends"][1].get("pods").is_none(), "{json:#}");
}

#[test]
fn a_pod_without_an_address_is_in_no_block_but_a_whole_one() {
    let scratch = Scratch::new("placeholder");
    let internet = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\nspec:\n  podSelector: {matchLabels: {app: db}}\n  \
                    ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}]\n";
    scratch.write("internet.yaml", internet);
    let (code, printed, _) =
        scratch.palisade("explain --from shop/web --to shop/db --port 80 pods.yaml internet.yaml");
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("pod shop/web has no address that could be in 0.0.0.0/0"), "{printed}");
    let json = scratch.json("matrix pods.yaml internet.yaml --output json");
    let index = |name: &str| {
        let ends = json["ends"].as_array().unwrap();
        ends.iter().position(|end| end["name"].as_str().unwrap().contains(name)).unwrap()
    };
    let cell = |from: usize, to: usize| {
        let cells = json["cells"].as_array().unwrap();
        cells.iter().find(|cell| cell["from"] == from && cell["to"] == to).unwrap()["traffic"]["TCP"].clone()
    };
    assert_eq!(cell(index("shop/web"), index("shop/db")), serde_json::json!([]));
    assert_eq!(cell(index("0.0.0.0/0 except"), index("shop/db")), serde_json::json!(["0-65535"]));
    scratch.write("closed.yaml", &policy("nobody", 1, 1));
    let (_, printed, _) = scratch.palisade("diff closed.yaml internet.yaml --with pods.yaml");
    assert!(
        printed.contains("from 0.0.0.0/0 except 10.0.0.0/8\n") && !printed.contains("shop/web"),
        "{printed}"
    );
    let (code, printed, _) = scratch.palisade("lint pods.yaml internet.yaml");
    assert_eq!(code, 0, "{printed}");
}

#[test]
fn excluded_files_of_a_directory_are_not_read() {
    let scratch = Scratch::new("excluded");
    fs::create_dir_all(scratch.0.join("chart/templates")).unwrap();
    scratch.write("policy.yaml", &policy("api", 1, 1));
    scratch.write("chart/values.yaml", "replicas: 1\n");
    scratch.write("chart/templates/db.yaml", &policy("{{ .Values.app }}", 1, 1));
    for command in
        ["lint", "compile", "matrix", "explain --from shop/api --to shop/db --port 1", "render --to nftables"]
    {
        let (code, _, errors) = scratch.palisade(&format!("{command} ."));
        assert!(code == 2 && errors.contains("template of a Helm chart"), "{command}: {errors}");
        let (code, _, errors) = scratch.palisade(&format!("{command} --exclude chart ."));
        assert!(code == 0 && !errors.contains("Helm"), "{command}: {errors}");
    }
    let (code, _, errors) = scratch.palisade("diff --exclude chart/ . .");
    assert_eq!(code, 0, "{errors}");
    scratch.write("tests.yaml", &cases("deny"));
    assert_eq!(scratch.palisade("test --exclude p*.yaml --exclude chart .").0, 0);
}

#[test]
fn render_says_which_pods_have_no_rules_for_want_of_an_address() {
    let scratch = Scratch::new("render-addresses");
    scratch.write("policy.yaml", &policy("api", 1, 1));
    let (code, _, errors) = scratch.palisade("render --to nftables pods.yaml policy.yaml");
    assert_eq!(code, 0);
    assert!(
        errors.contains("3 pods or workloads have no address") && errors.contains("shop/api"),
        "{errors}"
    );
}

#[test]
fn a_file_that_is_not_there_exits_with_two() {
    let scratch = Scratch::new("missing");
    for command in
        ["test", "lint", "matrix", "diff pods.yaml", "explain --from 10.0.0.1 --to 10.0.0.2 --port 1"]
    {
        let (code, _, errors) = scratch.palisade(&format!("{command} nowhere.yaml"));
        assert_eq!(code, 2, "{command}");
        assert!(errors.contains("nowhere.yaml"), "{command}: {errors}");
    }
}

/// Cases of [`cases`] under other names, with probes that are wrong, refused or absent.
fn one_of_each() -> String {
    let item = |text: String| format!("- {}\n", text.trim_end().replace('\n', "\n  "));
    let good = cases("deny");
    let typo = good.replace("name: the database", "name: typo").replace("podSelector", "podSelecter");
    let nobody =
        good.replace("name: the database", "name: nobody").replace("{pod: shop/web}", "{pod: shop/wep}");
    let (no_probes, _) = good.split_once("probes:").unwrap();
    let idle = no_probes.replace("name: the database", "name: idle");
    [good.clone(), typo, nobody, idle].map(item).concat()
}

#[test]
fn a_refused_case_does_not_stop_the_others_and_one_without_probes_fails() {
    let scratch = Scratch::new("each");
    scratch.write("cases.yaml", &one_of_each());
    let (code, printed, errors) = scratch.palisade("test cases.yaml");
    assert_eq!((code, errors.as_str()), (2, ""), "{printed}");
    assert!(printed.contains("REFUSED typo (cases.yaml:"), "{printed}");
    assert!(printed.contains("did you mean \"podSelector\"?"), "{printed}");
    assert!(printed.contains("REFUSED nobody (cases.yaml:"), "{printed}");
    assert!(printed.contains("FAILED idle (cases.yaml:") && printed.contains("has no probes"), "{printed}");
    let sums = "cases: 1 passed, 1 failed, 2 refused\nprobes: 2 passed, 0 failed\n";
    assert!(printed.ends_with(sums), "{printed}");

    let (code, printed, _) = scratch.palisade("test cases.yaml --filter ^idle$");
    assert_eq!(code, 1, "{printed}");
    let (code, printed, _) = scratch.palisade("test cases.yaml --filter database");
    assert_eq!(code, 0, "{printed}");
    let json = scratch.json("test cases.yaml --output json");
    assert_eq!(json["cases"], serde_json::json!({"passed": 1, "failed": 1, "refused": 2}));
    let (_, junit, _) = scratch.palisade("test cases.yaml --output junit");
    assert!(
        junit.contains(
            "<testsuites name=\"palisade test\" tests=\"5\" failures=\"1\" errors=\"2\" skipped=\"0\">"
        ),
        "{junit}"
    );
    assert_eq!(junit.matches("<error message=").count(), 2, "{junit}");

    scratch.write("broken.yaml", "name: [");
    let (code, printed, errors) = scratch.palisade("test cases.yaml broken.yaml --filter database");
    assert_eq!(code, 2, "{printed}");
    assert!(printed.contains("cases: 1 passed") && errors.contains("broken.yaml:1"), "{printed}{errors}");
}

#[test]
fn test_says_in_one_sentence_that_manifests_are_no_cases() {
    let scratch = Scratch::new("manifests");
    scratch.write("policy.yaml", &policy("api", 5432, 5432));
    let (code, printed, errors) = scratch.palisade("test pods.yaml policy.yaml");
    assert_eq!((code, printed.as_str()), (2, ""));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.contains("pods.yaml:2: a Kubernetes object where a policy test should be and 3 more"),
        "{errors}"
    );
    assert!(errors.contains("palisade lint, explain or matrix"), "{errors}");
}

/// Runs `palisade` on a pseudo-terminal.
fn on_a_terminal(scratch: &Scratch, variables: &[(&str, &str)], arguments: &str) -> String {
    let program = env!("CARGO_BIN_EXE_palisade");
    let mut command = Command::new("script");
    command
        .args(["-qec", &format!("{program} {arguments}"), "/dev/null"])
        .env_remove("NO_COLOR")
        .env_remove("CI");
    let output =
        command.env("TERM", "xterm").envs(variables.iter().copied()).current_dir(&scratch.0).output();
    String::from_utf8(output.expect("util-linux has script").stdout).unwrap()
}

#[test]
fn no_color_holds_for_diagnostics_the_log_and_the_help() {
    let scratch = Scratch::new("colors");
    scratch.write("wrong.yaml", &policy("api", 5432, 5432).replace("podSelector:", "podSelecter:"));
    scratch.write("wrong.toml", "[policy]\nfail = \"open\"\ndirectory = \"nowhere\"\n");
    for arguments in ["compile wrong.yaml", "run --config wrong.toml", "--help", "fly"] {
        let colored = on_a_terminal(&scratch, &[], arguments);
        assert!(colored.contains("\u{1b}["), "{arguments}: {colored:?}");
        for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            // Some libraries give a terminal colours because `CI` is set.
            for variables in [&[variable][..], &[variable, ("CI", "true")]] {
                let plain = on_a_terminal(&scratch, variables, arguments);
                assert!(
                    !plain.is_empty() && !plain.contains('\u{1b}'),
                    "{arguments}, {variables:?}: {plain:?}"
                );
            }
        }
    }
}

#[test]
fn nothing_that_manifests_say_steers_the_terminal() {
    let scratch = Scratch::new("steer");
    let hostile = r"\u001b[2J\u009b31m\u202e\u007f\nb";
    let named = |name: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{"containers": [], "{name}": 1}}}}"#
        )
    };
    scratch.write("pod.json", &named(hostile));
    scratch.write("raw.json", &named("\u{9b}31m\u{202e}\u{7f}x"));
    scratch.write("raw.yaml", "kind: \"\u{1b}[2J\u{9b}31m\"\n");
    let case = |name: &str| format!(r#"{{"name": "{name}", "resources": [{}], "probes": []}}"#, named(name));
    scratch.write("case.json", &case(hostile));
    scratch.write("idle.json", &format!(r#"{{"name": "{hostile}", "probes": []}}"#));
    let long = "x".repeat(1 << 20);
    scratch.write("long.json", &named(&format!("{long}\\u001b")));
    for arguments in [
        "compile pod.json",
        "compile raw.json",
        "compile raw.yaml",
        "compile long.json",
        "test case.json",
        "test idle.json",
        "test case.json --output json",
        "test idle.json --output junit",
        "compile nowhere\u{1b}[2J\n.yaml",
        "explain --from \u{1b}[2Jx --to b/c --port 1 pods.yaml",
        "explain --from shop/\u{9b}x --to shop/db --port 1 pods.yaml",
        "show \u{1b}[2J",
    ] {
        let (code, printed, errors) = scratch.palisade(arguments);
        assert_ne!(code, 0, "{arguments}");
        for text in [&printed, &errors] {
            let steering = text.chars().find(|c| *c != '\n' && palisade::printable::is_steering(*c));
            assert_eq!(steering, None, "{arguments:?}: {text:?}");
            assert!(text.len() < 20_000, "{arguments:?} prints {} bytes", text.len());
        }
        assert!(!printed.contains("\nb") && !errors.contains("\nb"), "{arguments:?}: {printed}{errors}");
    }
}

const ROLLOUT: &str = "
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: pay, namespace: shop}
spec: {template: {metadata: {labels: {app: pay}}, spec: {containers: [{name: c}]}}}
---
";

#[test]
fn lint_and_explain_name_the_passed_over_object_whose_pods_are_meant() {
    let scratch = Scratch::new("unread");
    let on_pay = policy("api", 1, 1).replace("app: db", "app: pay");
    let service = "---\n{apiVersion: v1, kind: Service, metadata: {name: pay, namespace: shop}, spec: {selector: {app: pay}, \
                   ports: [{port: 1}]}}\n";
    let peer = "---\n".to_owned() + &policy("pay", 1, 1).replace("name: db", "name: peer");
    scratch.write("rollout.yaml", &format!("{ROLLOUT}{on_pay}{service}{peer}"));
    let says = "selects no pod that is read: a Rollout (shop/pay, rollout.yaml:2) is passed over, and its pods are unknown: give";
    for files in ["pods.yaml rollout.yaml", "rollout.yaml"] {
        let (code, printed, _) = scratch.palisade(&format!("lint {files}"));
        assert_eq!(code, 1, "{printed}");
        for place in ["spec.podSelector", "spec.selector", "spec.ingress[0].from[0]"] {
            let line = printed.lines().find(|line| line.contains(&format!(" {place}: {says}")));
            assert!(line.is_some(), "{files}, {place}: {printed}");
        }
    }
    for pod in ["shop/pay", "shop/pay-5d9c-x2x"] {
        let (code, _, errors) =
            scratch.palisade(&format!("explain --from shop/api --to {pod} --port 1 pods.yaml rollout.yaml"));
        let says = format!("there is no pod {pod}: a Rollout (shop/pay, rollout.yaml:2) is passed over");
        assert!(code == 2 && errors.contains(&says), "{errors}");
    }
    let (_, _, errors) =
        scratch.palisade("explain --from shop/api --to shop/dbx --port 1 pods.yaml rollout.yaml");
    assert!(errors.contains("there is no pod shop/dbx: is it shop/db?"), "{errors}");
}

#[test]
fn compile_says_why_pods_without_addresses_get_no_tables() {
    let scratch = Scratch::new("addresses");
    let (code, printed, errors) = scratch.palisade("compile pods.yaml");
    assert!(code == 0 && printed.contains("\"pods\": {}"), "{printed}");
    let says = "note: 3 pods or workloads have no address, and are left out: shop/db, shop/api, shop/web; a running pod has it in \
                status.podIPs";
    assert!(errors.contains(says), "{errors}");
    let (first, _) = PODS.split_once("---").unwrap();
    scratch.write("pods.yaml", &first.replace("}]}}", "}]}, status: {podIPs: [{ip: 10.0.0.1}]}}"));
    let (code, printed, errors) = scratch.palisade("compile pods.yaml");
    assert!(code == 0 && printed.contains("shop/db") && errors.is_empty(), "{printed}{errors}");
}

#[test]
fn all_formats_are_rendered_but_those_that_refuse_which_are_named_at_the_end() {
    let scratch = Scratch::new("refused");
    let addressed = |pod: (usize, &str)| {
        let status = format!("}}]}}, status: {{podIPs: [{{ip: 10.0.0.{}}}]}}}}", pod.0 + 1);
        pod.1.replace("}]}}", &status)
    };
    let pods = PODS.split("---").enumerate().map(addressed).collect::<Vec<_>>().join("---");
    scratch.write("pods.yaml", &pods);
    // Contiv has no ranges of ports.
    scratch.write("policy.yaml", &policy("api", 1, 60_000));
    let (code, printed, errors) = scratch.palisade("render --to all pods.yaml policy.yaml");
    let is_refused = |format: &str| errors.contains(&format!("palisade: {format}: "));
    assert!(code == 2 && is_refused("contiv") && !is_refused("nftables"), "{errors}");
    assert!(
        printed.contains("### palisade.nft\n") && printed.contains("### palisade.identity.json\n"),
        "{printed}"
    );
    assert!(!printed.contains("### palisade.contiv\n"));
    assert!(errors.ends_with(" formats are left out, for the reasons above\n"), "{errors}");
    let (code, printed, one) = scratch.palisade("render --to contiv pods.yaml policy.yaml");
    assert_eq!((code, printed.as_str()), (2, ""));
    assert!(!one.contains("left out"), "{one}");
}
