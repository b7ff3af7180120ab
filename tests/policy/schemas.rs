//! JSON Schemas in `config/schemas`: they take what the programs take, and refuse what these refuse.
//! `PALISADE_WRITE_REFERENCE=1` writes that of the configuration.

use std::path::Path;
use std::{env, fs};

use assert_cmd::Command;
use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};

fn path(name: &str) -> String {
    format!("{}/config/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A compiled schema.
struct Schema(Schemas, SchemaIndex);

impl Schema {
    fn of(name: &str) -> Schema {
        let schema: Value =
            serde_json::from_str(&fs::read_to_string(path(&format!("schemas/{name}"))).unwrap()).unwrap();
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("http://palisade/schema", schema).unwrap();
        let index = compiler.compile("http://palisade/schema", &mut schemas).unwrap();
        Schema(schemas, index)
    }

    fn takes(&self, value: &Value) -> bool {
        self.0.validate(value, self.1).is_ok()
    }
}

/// Exit code of `palisade` with this standard input.
fn code(arguments: &[&str], input: &str) -> i32 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.args(arguments).write_stdin(input).output().unwrap().status.code().unwrap()
}

#[test]
fn the_schema_of_the_configuration_is_that_of_its_parser() {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade")).args(["config", "schema"]).output().unwrap();
    let (printed, file) = (String::from_utf8(output.stdout).unwrap(), path("schemas/palisade.schema.json"));
    if env::var_os("PALISADE_WRITE_REFERENCE").is_some() {
        fs::write(&file, &printed).unwrap();
    }
    assert!(
        fs::read_to_string(&file).is_ok_and(|text| text == printed),
        "{file} is not that of the code: PALISADE_WRITE_REFERENCE=1 cargo test --test policy schemas writes it"
    );
}

#[test]
fn the_schema_of_the_configuration_takes_the_shipped_files_and_refuses_what_run_refuses() {
    let schema = Schema::of("palisade.schema.json");
    let value = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    for name in ["palisade.toml", "kubernetes/palisade.toml"] {
        let text = fs::read_to_string(path(name)).unwrap().replace("@NODE_ADDRESSES@", "\"192.0.2.1\"");
        assert!(schema.takes(&value(&text)), "{name}");
    }
    let directory = env::temp_dir().join(format!("palisade-schemas-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("palisade.toml");
    let run_takes = |text: &str, file: &Path| {
        fs::write(file, text).unwrap();
        // The check goes on to the node, which may lack something else: a wrong key is exit code 2 with its line.
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        let output = command.args(["run", "--check", "--config"]).arg(file).output().unwrap();
        !String::from_utf8_lossy(&output.stderr).contains("palisade.toml:")
    };
    for (text, is_right) in [
        ("backend = \"nftables\"\n", true),
        ("backend = \"dpdk\"\n", false),
        ("[workers]\ncores = [0]\nspin_us = 10\n", true),
        ("[workers]\nspin_us = 1000001\n", false),
        ("[workers]\nspin = 1\n", false),
        ("[workers]\nhuge_pages = 1\n", false),
        ("[workers]\ncores = 2\n", false),
        ("[[ports]]\nname = \"db\"\nkind = \"pod\"\n", true),
        ("[[ports]]\nname = \"db\"\nkind = \"switch\"\n", false),
        ("[[ports]]\nname = \"db\"\n", false),
        ("[conntrack.timeouts]\nother_s = 0\n", false),
        ("worker = {}\n", false),
    ] {
        assert_eq!((schema.takes(&value(text)), run_takes(text, &file)), (is_right, is_right), "{text}");
    }
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_schema_of_policy_tests_takes_and_refuses_what_test_does() {
    let schema = Schema::of("policy-test.schema.json");
    let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"}, "spec": {"containers": []}});
    let with = |probe: &Value| json!({"name": "a", "resources": [pod("web"), pod("db")], "probes": [probe]});
    let probe = json!({"from": {"pod": "shop/web"}, "to": {"pod": "shop/db"}, "port": 80, "expect": "allow"});
    let edited = |field: &str, value: Value| {
        let mut probe = probe.clone();
        match value {
            Value::Null => _ = probe.as_object_mut().unwrap().remove(field),
            value => probe[field] = value,
        }
        with(&probe)
    };
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}});
    let mut to_service = edited("to", json!({"service": "shop/db"}));
    to_service["resources"].as_array_mut().unwrap().push(service);
    to_service["probes"][0]["expect"] = "deny".into();
    for (case, is_right) in [
        (with(&probe), true),
        (json!([with(&probe), with(&probe)]), true),
        (edited("protocol", json!("UDP")), true),
        (edited("protocol", json!(6)), true),
        (edited("from", json!({"ip": "192.0.2.7"})), true),
        (to_service, true),
        (edited("expect", json!("accept")), false),
        (edited("expect", Value::Null), false),
        (edited("port", json!("80")), false),
        (edited("port", json!(65536)), false),
        (edited("protocol", json!(256)), false),
        (edited("from", json!({"pod": "shop/web", "ip": "192.0.2.7"})), false),
        (edited("to", json!({})), false),
        (edited("why", json!("x")), false),
        (json!({"name": "a", "resource": []}), false),
        (json!({"probes": [probe]}), false),
        (json!({"name": "a", "resources": [pod("web")]}), false),
        (json!({"name": "a", "probes": []}), false),
        (json!({"name": "a", "probes": [], "files": "x"}), false),
    ] {
        let is_taken = code(&["test", "-"], &case.to_string()) == 0;
        assert_eq!((schema.takes(&case), is_taken), (is_right, is_right), "{case}");
    }
}
