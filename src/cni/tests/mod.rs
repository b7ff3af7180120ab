//! Calls with malformed input, and calls without a switch. None needs root.

mod faults;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::*;

/// Keys that DEL passes over.
const FOR_ADD: [&str; 8] = [
    "interface",
    "ipMasq",
    "waitForPolcy",
    "mtu",
    "outsideMtu",
    "waitForPolicy",
    "runtimeConfig",
    "prevResult",
];
const VERBS: [&str; 5] = ["ADD", "DEL", "CHECK", "GC", "STATUS"];

/// A directory of this test's own, and a call in it that is right but for a running switch.
struct Call {
    directory: std::path::PathBuf,
    environment: BTreeMap<&'static str, String>,
    config: Value,
}

impl Call {
    fn of(test: &str, verb: &str) -> Call {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = format!("palisade-cni-{test}-{number}-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        let environment = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/palisade-none"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", directory.to_str().unwrap()),
        ];
        let config = json!({
            "cniVersion": "1.1.0",
            "name": "pods",
            "type": "palisade-cni",
            "socket": directory.join("control.sock"),
            "ipam": {"type": "none", "subnet": "10.0.0.0/24"},
            "cni.dev/valid-attachments": [],
        });
        Call {
            environment: environment.map(|(name, value)| (name, value.to_owned())).into(),
            directory,
            config,
        }
    }

    fn answer_to(&self, input: &[u8]) -> Result<Option<Value>, CniError> {
        answer(|name| self.environment.get(name).cloned(), input, &mut Version::V1_1)
    }

    fn answer(&self) -> Result<Option<Value>, CniError> {
        self.answer_to(self.config.to_string().as_bytes())
    }

    /// Puts an IPAM plugin `none` in place that fails with this answer, or succeeds with it.
    fn with_ipam(&self, answer: &str, code: u8) {
        self.with_script(&format!("cat > /dev/null\necho '{answer}'\nexit {code}"));
    }

    /// Puts a shell script in place as IPAM plugin `none`. Another process writes it: one that another test starts meanwhile
    /// would share the open file, and the kernel runs no file that is open for writing.
    fn with_script(&self, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", write, "sh", script]).arg(self.directory.join("none"));
        assert!(shell.status().unwrap().success());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn refused(outcome: Result<Option<Value>, CniError>, code: Code, says: &str) {
    let error = outcome.expect_err(says);
    assert!(error.code() == code && error.to_string().contains(says), "{code:?} {says}: {error:?}");
}

#[test]
fn version_needs_no_configuration() {
    let call = Call::of("version", "VERSION");
    let answer = call.answer_to(b"").unwrap().unwrap();
    assert_eq!(answer["supportedVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
    assert_eq!(answer["cniVersion"], "1.1.0");
}

#[test]
fn every_verb_refuses_input_that_is_no_configuration() {
    for verb in VERBS {
        let call = Call::of("input", verb);
        let texts: [(&[u8], &str); 7] = [
            (b"", "not JSON"),
            (b"{", "not JSON"),
            (b"[]", "not an object"),
            (b"null", "not an object"),
            (b"\xff\xfe", "not JSON"),
            (b"{\"cniVersion\": \"1.1.0\"} x", "not JSON"),
            (b"{\"cniVersion\": 1}", "not a string"),
        ];
        for (text, says) in texts {
            refused(call.answer_to(text), Code::DECODE, says);
        }
        let deep = "[".repeat(10_000);
        refused(call.answer_to(deep.as_bytes()), Code::DECODE, "not JSON");
        let long = format!("{{\"x\": \"{}\"}}", "x".repeat(5 << 20));
        refused(call.answer_to(long.as_bytes()), Code::DECODE, "longer than");
    }
}

#[test]
fn every_verb_refuses_a_wrong_configuration() {
    let cases = [
        ("cniVersion", json!("0.2.0"), Code::INCOMPATIBLE_VERSION, "0.2.0"),
        ("cniVersion", json!("1.1"), Code::INCOMPATIBLE_VERSION, "1.1"),
        ("cniVersion", json!(null), Code::DECODE, "not a string"),
        ("name", json!(""), Code::INVALID_CONFIG, "name"),
        ("name", json!("../x"), Code::INVALID_CONFIG, "name"),
        ("name", json!(null), Code::INVALID_CONFIG, "name"),
        ("name", json!(7), Code::DECODE, "name"),
        ("interface", json!("macvlan"), Code::UNSUPPORTED_FIELD, "macvlan"),
        ("interface", json!(3), Code::UNSUPPORTED_FIELD, "3"),
        ("ipMasq", json!(true), Code::UNSUPPORTED_FIELD, "ipMasq"),
        ("waitForPolcy", json!(3), Code::UNSUPPORTED_FIELD, "waitForPolcy"),
        ("mtu", json!(576), Code::INVALID_CONFIG, "mtu"),
        ("mtu", json!(70_000), Code::INVALID_CONFIG, "mtu"),
        ("mtu", json!(-1), Code::DECODE, "mtu"),
        ("outsideMtu", json!("1500"), Code::DECODE, "outsideMtu"),
        ("waitForPolicy", json!(121), Code::INVALID_CONFIG, "waitForPolicy"),
        ("waitForPolicy", json!(1e300), Code::DECODE, "waitForPolicy"),
        ("socket", json!("control.sock"), Code::INVALID_CONFIG, "socket"),
        ("directory", json!("records"), Code::INVALID_CONFIG, "directory"),
        ("runtimeConfig", json!({"mac": "01:00:00:00:00:00"}), Code::INVALID_CONFIG, "runtimeConfig.mac"),
        ("runtimeConfig", json!({"mac": "x"}), Code::DECODE, "runtimeConfig.mac"),
        ("prevResult", json!({"ips": [{"address": "10.0.0.300/24"}]}), Code::DECODE, "prevResult"),
        ("prevResult", json!([]), Code::DECODE, "prevResult"),
        ("ipam", json!("host-local"), Code::INVALID_CONFIG, "ipam"),
        ("ipam", json!({"type": "../../bin/sh"}), Code::INVALID_CONFIG, "ipam.type"),
        ("ipam", json!({"type": ""}), Code::INVALID_CONFIG, "ipam.type"),
        ("ipam", json!({"type": 1}), Code::INVALID_CONFIG, "ipam.type"),
    ];
    for verb in VERBS {
        for (key, value, code, says) in &cases {
            // A switch must answer before STATUS looks at addresses, and a namespace be there before ADD and CHECK do.
            if *key == "ipam" && !["DEL", "GC"].contains(&verb) {
                continue;
            }
            let mut call = Call::of("config", verb);
            call.config[*key] = value.clone();
            if verb == "DEL" && FOR_ADD.contains(key) {
                // A container ends whatever has become of the configuration.
                call.with_ipam("", 0);
                assert_eq!(call.answer(), Ok(None), "{key}: {value}");
                continue;
            }
            refused(call.answer(), *code, says);
        }
        let mut call = Call::of("config", verb);
        call.config.as_object_mut().unwrap().remove("cniVersion");
        refused(call.answer(), Code::INCOMPATIBLE_VERSION, "missing");
    }
}

#[test]
fn wrong_variables_are_refused() {
    let long = "x".repeat(20_000);
    let pods = format!("K8S_POD_NAME={}", "b".repeat(16_000));
    let cases: [(&[&str], &str, &str, &str); 26] = [
        (&VERBS, "CNI_COMMAND", "", "missing"),
        (&VERBS, "CNI_COMMAND", "add", "\"add\""),
        (&VERBS, "CNI_COMMAND", "UPDATE", "UPDATE"),
        (&VERBS, "CNI_PATH", &long, "longer"),
        (&VERBS, "CNI_ARGS", &long, "longer"),
        (&["ADD", "DEL", "CHECK"], "CNI_CONTAINERID", "", "missing"),
        (&["ADD", "DEL", "CHECK"], "CNI_CONTAINERID", "../../etc", "CNI_CONTAINERID"),
        (&["ADD", "DEL", "CHECK"], "CNI_CONTAINERID", ".c", "CNI_CONTAINERID"),
        (&["ADD", "DEL", "CHECK"], "CNI_CONTAINERID", "c\n1", "CNI_CONTAINERID"),
        (&["ADD", "DEL", "CHECK"], "CNI_CONTAINERID", &long[..129], "CNI_CONTAINERID"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "", "missing"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "an-interface-too-long", "CNI_IFNAME"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "..", "CNI_IFNAME"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "a/b", "CNI_IFNAME"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "eth%d", "CNI_IFNAME"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "lo", "CNI_IFNAME"),
        (&["ADD", "DEL", "CHECK"], "CNI_IFNAME", "all", "CNI_IFNAME"),
        (&["ADD"], "CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\n", "CNI_ARGS"),
        (&["ADD"], "CNI_ARGS", "K8S_POD_NAME=../../b", "CNI_ARGS"),
        (&["ADD"], "CNI_ARGS", &pods, "CNI_ARGS"),
        (&["ADD", "CHECK"], "CNI_NETNS", "", "missing"),
        (&["ADD", "CHECK"], "CNI_NETNS", "netns/x", "absolute"),
        (&["ADD"], "CNI_NETNS", "/run/netns/palisade-none", "cannot be opened"),
        (&["ADD"], "CNI_NETNS", "/proc/self/ns/net", "of the node"),
        (&["ADD"], "CNI_ARGS", "K8S_POD_NAME", "KEY=VALUE"),
        (&["ADD"], "CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b/c", "a/b/c"),
    ];
    for (verbs, variable, value, says) in cases {
        for verb in verbs {
            let mut call = Call::of("variables", verb);
            call.config["prevResult"] = json!({});
            call.environment.insert(variable, value.to_owned());
            refused(call.answer(), Code::INVALID_ENVIRONMENT, says);
        }
    }
}

#[test]
fn verbs_that_a_version_lacks_are_refused() {
    for (verb, version) in [("GC", "1.0.0"), ("STATUS", "0.4.0")] {
        let mut call = Call::of("lacks", verb);
        call.config["cniVersion"] = version.into();
        refused(call.answer(), Code::INCOMPATIBLE_VERSION, "neither GC nor STATUS");
    }
}

#[test]
fn check_needs_the_result_and_gc_the_attachments() {
    let call = Call::of("needs", "CHECK");
    refused(call.answer(), Code::INVALID_CONFIG, "prevResult");
    let mut call = Call::of("needs", "GC");
    call.config["cni.dev/valid-attachments"] = json!([{"containerID": 1, "ifname": "eth0"}]);
    refused(call.answer(), Code::DECODE, "valid-attachments");
    call.config.as_object_mut().unwrap().remove("cni.dev/valid-attachments");
    refused(call.answer(), Code::INVALID_CONFIG, "valid-attachments");
}

#[test]
fn without_a_switch_status_says_so_and_del_succeeds() {
    let call = Call::of("away", "STATUS");
    refused(call.answer(), Code::LIMITED_CONNECTIVITY, "is it running?");
    for verb in ["DEL", "GC"] {
        let call = Call::of("away", verb);
        call.with_ipam("", 0);
        assert_eq!(call.answer(), Ok(None), "{verb}");
        // Nothing was attached, so nothing is left to do.
        assert_eq!(std::fs::read_dir(call.directory.join("cni/pending")).map_or(0, Iterator::count), 0);
    }
    // A call without a namespace is about a container that has ended.
    let mut call = Call::of("away", "DEL");
    call.environment.remove("CNI_NETNS");
    call.with_ipam("", 0);
    assert_eq!(call.answer(), Ok(None));
}

#[test]
fn an_error_of_the_ipam_plugin_is_passed_on() {
    let call = Call::of("ipam", "DEL");
    refused(call.answer(), Code::INVALID_CONFIG, "in none of the directories of CNI_PATH");
    call.with_ipam("{\"code\": 11, \"msg\": \"busy\", \"details\": \"lease\"}", 1);
    refused(call.answer(), Code::TRY_AGAIN, "IPAM plugin none, DEL: busy: lease");
    call.with_ipam("no JSON", 1);
    refused(call.answer(), Code::IO, "no JSON");
    call.with_ipam("no JSON", 0);
    refused(call.answer(), Code::DECODE, "not JSON");
}

#[test]
fn damaged_records_stop_nobody() {
    let call = Call::of("damaged", "GC");
    call.with_ipam("", 0);
    for part in ["attached", "pending"] {
        let directory = call.directory.join("cni").join(part);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("c1@eth0.json"), "{\"container\": \"c1\"").unwrap();
        std::fs::write(directory.join("c1@eth0.next"), "").unwrap();
        std::fs::write(directory.join("%00@x"), "").unwrap();
        std::fs::create_dir(directory.join("c3@eth0.json")).unwrap();
    }
    // They may be of other networks, whose containers run.
    assert_eq!(call.answer(), Ok(None));
    assert!(call.directory.join("cni/attached/c1@eth0.json").exists());
    let mut call = call;
    call.environment.insert("CNI_COMMAND", "DEL".to_owned());
    assert_eq!(call.answer(), Ok(None));
    for file in ["attached/c1@eth0.json", "pending/c1@eth0.json", "pending/c1@eth0.next"] {
        assert!(!call.directory.join("cni").join(file).exists(), "{file}");
    }
}

#[test]
fn errors_are_one_line_of_bounded_text() {
    let mut call = Call::of("bounded", "ADD");
    call.environment.insert("CNI_COMMAND", format!("\u{1b}[31m{}", "x".repeat(15_000)));
    let error = call.answer().unwrap_err().to_json("1.1.0");
    let message = error["msg"].as_str().unwrap();
    assert!(message.len() < 3000 && !message.contains('\u{1b}'), "{message}");
    assert_eq!((&error["cniVersion"], &error["code"]), (&json!("1.1.0"), &json!(4)));
}

#[test]
fn a_result_has_the_format_of_its_version() {
    let text = json!({
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 9000, "sandbox": "/x", "pciID": "1"}],
        "ips": [{"address": "10.0.0.2/24", "gateway": "169.254.1.1", "interface": 0}, {"address": "fd00::2/64"}],
        "routes": [{"dst": "0.0.0.0/0", "mtu": 1500, "priority": 7}],
        "dns": null,
    });
    let result = CniResult::parse(&text, "test").unwrap();
    let newest = result.to_json(Version::V1_1);
    assert_eq!(newest["interfaces"], text["interfaces"]);
    assert_eq!((&newest["ips"], &newest["routes"]), (&text["ips"], &text["routes"]));
    let older = result.to_json(Version::V1_0);
    assert_eq!(older["interfaces"][0], json!({"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x"}));
    assert_eq!((&older["routes"], &older["ips"]), (&json!([{"dst": "0.0.0.0/0"}]), &text["ips"]));
    let oldest = result.to_json(Version::V0_4);
    assert_eq!((&oldest["ips"][0]["version"], &oldest["ips"][1]["version"]), (&json!("4"), &json!("6")));
    // A result of a plugin before comes first, and indices move with it.
    let both = result.clone().followed_by(result);
    assert_eq!((both.interfaces.len(), both.ips[2].interface, both.ips[3].interface), (2, Some(1), None));
}

#[test]
fn addresses_come_from_the_prefixes_of_the_switch_where_the_configuration_has_none() {
    let call = Call::of("prefixes", "ADD");
    let mut raw = call.config.as_object().unwrap().clone();
    raw.remove("ipam");
    let config = NetworkConfig::of(raw).unwrap();
    assert_eq!(config.for_ipam(None), Ok(None));
    assert_eq!(config.for_ipam(Some(&[])).unwrap_err().code(), Code::TRY_AGAIN);
    let prefixes = ["10.244.1.7/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
    let given = config.for_ipam(Some(&prefixes)).unwrap().unwrap();
    assert_eq!(given["ipam"]["ranges"], json!([[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00::/64"}]]));
    assert_eq!(given["ipam"]["type"], "host-local");
    assert_eq!(given["ipam"]["dataDir"], call.directory.join("cni/host-local").to_str().unwrap());
}
