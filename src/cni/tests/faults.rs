//! Calls that meet damaged files, plugins that hang or die, and namespaces that cannot be looked at. None needs root.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::cni::detach::Remover;
use crate::cni::ipam::{self, Failure, Ipam};
use crate::cni::link::PodNamespace;
use crate::cni::record::{Part, Record, Records};

/// Record of `eth0` of the container `c1`, with a namespace at this path.
fn record(namespace: &Path) -> Record {
    serde_json::from_value(json!({
        "container": "c1",
        "interface": "eth0",
        "network": "pods",
        "namespace": namespace,
        "pod": "default/c1",
        "kind": "tap",
        "mac": "02:00:00:00:00:01",
        "mtu": 1500,
        "config": {},
    }))
    .unwrap()
}

#[test]
fn a_namespace_is_gone_only_where_the_kernel_says_so() {
    let call = Call::of("gone", "DEL");
    let at = |name: &str| call.directory.join(name);
    fs::write(at("file"), "").unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    for name in ["nothing", "file/below", "file", "pipe", "socket", "."] {
        let found = PodNamespace::of(&record(&at(name)));
        assert!(matches!(found, Ok(None)), "{name}: {found:?}");
    }
    symlink(at("loop"), at("loop")).unwrap();
    assert_eq!(PodNamespace::of(&record(&at("loop"))).unwrap_err().code(), Code::IO);
    // A call that removed the attachment would leave its interface with an address of another pod.
    let mut call = call;
    call.with_ipam("", 0);
    call.environment.insert("CNI_NETNS", call.directory.join("loop").display().to_string());
    refused(call.answer(), Code::IO, "open namespace");
}

/// Calls the IPAM plugin of a test.
fn request(call: &Call, timeout: Duration) -> Result<CniResult, Failure> {
    let path = [call.directory.clone()];
    let config = call.config.as_object().unwrap();
    Ipam { path: &path, config, arguments: "", timeout }.add(&record(Path::new("/x")).attachment(), "/x")
}

#[test]
fn only_a_plugin_that_refuses_has_given_no_address() {
    let call = Call::of("given", "ADD");
    assert!(request(&call, ipam::TIMEOUT).unwrap_err().gave_none, "without a plugin");
    let ips = |count| vec![json!({"address": "10.0.0.2/24"}); count];
    let addresses = format!("echo '{}'", json!({"ips": ips(9)}));
    let routes = vec![json!({"dst": "10.0.0.0/8"}); 300];
    let routes = format!("echo '{}'", json!({"ips": ips(1), "routes": routes}));
    let cases = [
        ("echo '{\"code\": 11, \"msg\": \"no address is free\"}'; exit 1", true, "no address is free"),
        ("echo '{\"code\": 11}'; kill -9 $$", false, "signal"),
        ("kill -9 $$", false, "signal"),
        ("echo '{\"msg\": \"broken\"}'; exit 1", false, "broken"),
        ("echo no JSON; exit 1", false, "no JSON"),
        ("echo no JSON", false, "not JSON"),
        ("echo []", false, "not an object"),
        ("echo '{}'", false, "gave no address"),
        (addresses.as_str(), false, "gave 9 addresses"),
        (routes.as_str(), false, "gave 300 routes"),
        ("yes", false, "failed without a message"),
    ];
    for (script, gave_none, says) in cases {
        call.with_script(script);
        let failure = request(&call, ipam::TIMEOUT).unwrap_err();
        assert!(
            failure.gave_none == gave_none && failure.error.to_string().contains(says),
            "{script}: {failure:?}"
        );
    }
}

#[test]
fn a_plugin_that_closes_its_output_and_runs_on_is_killed() {
    let call = Call::of("runs-on", "ADD");
    call.with_script("exec sleep 600 < /dev/null > /dev/null");
    let failure = request(&call, Duration::from_millis(300)).unwrap_err();
    assert!(failure.error.code() == Code::TRY_AGAIN && !failure.gave_none, "{failure:?}");
}

#[test]
fn one_that_hangs_ends_the_work_for_others() {
    let call = Call::of("others", "DEL");
    call.with_script("echo started >> \"$CNI_PATH/log\"; exec sleep 600");
    let records = Records::at(call.directory.join("cni"));
    records.create().unwrap();
    for container in ["a", "b", "c"] {
        let config = call.config.as_object().unwrap().clone();
        let other = Record { container: container.to_owned(), config, ..record(Path::new("/x")) };
        records.write(Part::Pending, &other).unwrap();
    }
    let switch = Client::new(call.directory.join("control.sock"));
    let path = [call.directory.clone()];
    Remover::of(&records, &switch, &path).finish_others(None, Duration::from_millis(300));
    let log = fs::read_to_string(call.directory.join("log")).unwrap_or_default();
    assert!(log.lines().count() <= 1, "{log}");
    assert_eq!(records.list(Part::Pending).len(), 3);
}

#[test]
fn a_lock_that_stays_taken_ends_the_wait() {
    let call = Call::of("lock", "DEL");
    let records = Records::at(call.directory.join("cni"));
    records.create().unwrap();
    let attachment = record(Path::new("/x")).attachment();
    let held = records.lock(&attachment, Duration::ZERO).unwrap();
    let error = records.lock(&attachment, Duration::from_millis(20)).unwrap_err();
    assert!(error.code() == Code::TRY_AGAIN && error.to_string().contains("c1"), "{error}");
    drop(held);
    records.lock(&attachment, Duration::ZERO).unwrap();
}

#[test]
fn a_removal_that_the_switch_does_not_answer_stays_pending_without_a_record_too() {
    let call = Call::of("silent", "DEL");
    call.with_ipam("", 0);
    let listener = UnixListener::bind(call.directory.join("control.sock")).unwrap();
    // The thread ends with the tests.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    assert_eq!(call.answer(), Ok(None));
    let records = Records::at(call.directory.join("cni"));
    let attachment = record(Path::new("/x")).attachment();
    let left = records.read(Part::Pending, &attachment).unwrap().unwrap();
    assert!(left.released && left.namespace.is_empty() && left.network == "pods", "{left:?}");
    assert!(matches!(PodNamespace::of(&left), Ok(None)));
}

#[test]
fn gc_goes_on_behind_a_record_that_cannot_be_read() {
    let call = Call::of("unreadable", "GC");
    call.with_ipam("", 0);
    let records = Records::at(call.directory.join("cni"));
    records.create().unwrap();
    records.write(Part::Attached, &record(Path::new("/x"))).unwrap();
    for name in ["c0", "c2"] {
        let file = call.directory.join(format!("cni/attached/{name}@eth0.json"));
        symlink(&file, &file).unwrap();
    }
    let error = call.answer().unwrap_err().to_string();
    assert!(
        ["eth0 of container c0", "eth0 of container c2"].iter().all(|text| error.contains(text)),
        "{error}"
    );
    assert_eq!(records.read(Part::Attached, &record(Path::new("/x")).attachment()).unwrap(), None);
}

#[test]
fn a_defect_is_an_answer() {
    let error = guarded::<()>(|| panic!("a {} of this test", "panic")).unwrap_err();
    assert!(error.code().0 >= 100 && error.to_string().contains("a panic of this test"), "{error}");
}
