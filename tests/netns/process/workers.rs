//! Workers that panic or hang: a panic ends the switch, a worker that hangs is named, pods stay closed, and
//! no change is reported as loaded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use palisade::lab::{Lab, LabSpec, SwitchSpec};

use super::http::address_of;
use crate::support::capture::Capture;
use crate::support::closed::assert_closed;
use crate::support::veth::{host_end, program_on};
use crate::support::{Rig, assert_allowed, eventually, isolated, only_from, spec_of};

/// Thread id of a process's thread, by name.
pub(super) fn thread_of(process: u32, name: &str) -> i32 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let named = threads
        .map(|thread| thread.path())
        .find(|thread| std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim() == name));
    named.expect("the thread runs").file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Thread stopped by ptrace(2) until drop. Only the thread that stopped it may resume it.
pub(super) struct Stopped(i32);

impl Stopped {
    pub(super) fn stop(thread: i32) -> Stopped {
        // SAFETY: neither request reads or writes memory of this process.
        unsafe {
            assert_eq!(
                libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0),
                0,
                "{}",
                std::io::Error::last_os_error()
            );
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        Stopped(thread)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: the request neither reads nor writes memory of this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

#[test]
fn a_change_that_a_stuck_worker_does_not_take_fails_and_the_status_names_the_worker() {
    let Some(_isolated) = isolated() else { return };
    let rig = Rig::with(&["client", "server"], 2, "[http]\nlisten = \"127.0.0.1:0\"\n");
    let address = address_of(&rig);
    let probe = || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    eventually("the probe finds healthy workers", || probe().ends_with("\r\n\r\nok\n"));
    let problems = || rig.switch.client().status().unwrap().problems;
    let is_named = || problems().iter().any(|problem| problem.contains("worker 1"));
    assert!(!is_named(), "{:?}", problems());
    let stopped = Stopped::stop(thread_of(rig.switch.pid(), "palisade-w1"));
    let pods = palisade::lab::manifests(&rig.lab, |plan| [("app".to_owned(), plan.pod.name.clone())].into());
    let policies = only_from("server", "client");
    let error = rig.switch.apply(&format!("{pods}---\n{policies}")).unwrap_err().to_string();
    assert!(error.contains("worker 1 has not taken it"), "{error}");
    eventually("the status names the worker", is_named);
    let answer = probe();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("worker 1 (core "), "{answer}");
    drop(stopped);
    eventually("the worker goes on", || !is_named());
    eventually("the probe finds healthy workers", || probe().starts_with("HTTP/1.1 200"));
    // Without traffic a worker sleeps for a tenth of a second at a time, and is healthy all the same: also after more than
    // the second after which a worker counts as halted.
    let sleeps = || rig.switch.client().worker_times().unwrap()[1].sleeps;
    let before = sleeps();
    eventually("the worker sleeps", || sleeps() > before + 15);
    let answer = probe();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    rig.apply(&policies);
}

#[test]
fn a_worker_that_panics_ends_the_switch_with_a_sentence_and_its_pods_stay_closed() {
    let Some(_isolated) = isolated() else { return };
    let mut lab = Lab::up(&LabSpec { workers: 1, ..spec_of(&["client", "server"]) }).unwrap();
    let (client, server) = (lab.pod("client").unwrap(), lab.pod("server").unwrap());
    let told = lab.directory().join("panic");
    // The script sets the variable and becomes the switch. Only debug builds read it.
    let script = lab.directory().join("palisade");
    let text = format!(
        "#!/bin/sh\nPALISADE_DEBUG_PANIC={:?} exec {} \"$@\"\n",
        told,
        env!("CARGO_BIN_EXE_palisade")
    );
    std::fs::write(&script, text).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&script).status().unwrap().success());
    let spec = SwitchSpec { stay_closed: true, ..SwitchSpec::of(&script) };
    let mut switch = palisade::lab::Switch::start(&mut lab, &spec).unwrap();
    switch.attach_all(&lab).unwrap();
    switch.apply(&palisade::lab::manifests(&lab, |_| [].into())).unwrap();
    {
        let _server = palisade::lab::traffic::Server::start(
            &server,
            &[crate::support::PORT],
            palisade::lab::traffic::Services::Tcp,
        )
        .unwrap();
        assert_allowed(&client, server.v4().into());
    }
    let before = program_on(&host_end(&client));
    std::fs::write(&told, "").unwrap();
    let mut ended = None;
    eventually("the switch ends", || {
        ended = switch.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(palisade::threads::EXIT_PANICKED));
    let log = switch.log().unwrap();
    assert!(log.contains("thread palisade-w0 has panicked"), "{log}");
    assert!(before.is_some() && program_on(&host_end(&client)) == before);
    let detector = Capture::on(&host_end(&client), Command::new("tcpdump"));
    assert_closed(&client, server.v4().into());
    assert_eq!(detector.frames(), [""; 0], "a frame reached the node's stack");
    // The next start succeeds.
    let switch = Rig::start(&mut lab, "");
    let rig = Rig { switch, lab };
    assert!(
        crate::support::connection::Connection::open(&rig.pod("client"), &rig.pod("server"))
            .goes_on(crate::support::TIMEOUT)
    );
}
