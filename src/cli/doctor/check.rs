//! A condition that was checked, and its remedy.

use serde::Serialize;

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// Needs a remedy.
    Finding,
    /// Not visible to this process.
    Unseen,
}

/// A condition and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) state: State,
    /// Part of the node, such as `kernel` or `interface eth0`.
    pub(super) subject: String,
    /// Condition, in words.
    pub(super) what: String,
    /// Step that ends the finding, or that makes the condition visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(subject: &str, what: impl Into<String>) -> Check {
        Check { state: State::Ok, subject: subject.to_owned(), what: what.into(), remedy: None }
    }

    pub(super) fn finding(subject: &str, what: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { state: State::Finding, remedy: Some(remedy.into()), ..Check::ok(subject, what) }
    }

    pub(super) fn unseen(subject: &str, what: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { state: State::Unseen, ..Check::finding(subject, what, remedy) }
    }

    /// A finding if `bad`.
    pub(super) fn unless(
        bad: bool,
        subject: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        if bad { Check::finding(subject, what, remedy) } else { Check::ok(subject, what) }
    }
}

/// Remedy for what a switch that does not run has left: to start it, or the command `step`. In a container the switch may run
/// outside, where this process does not see it.
pub(super) fn start_or(step: &str) -> String {
    // `PROC_PID_INIT_INO` of `linux/proc_ns.h`: the process namespace of the machine.
    const OF_MACHINE: &str = "pid:[4026531836]";
    let sees_all = std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == OF_MACHINE);
    let condition = if sees_all { "" } else { " where none runs outside of this container" };
    format!("start the switch; or give it up{condition}: {step}")
}

/// Remedy of a check that needs to see all processes of the machine, and what they have open.
pub(super) const SEEING_ALL: &str =
    "run `palisade doctor` on the node as root, with all capabilities (CAP_SYS_PTRACE too)";

/// Remedy of a check that needs a privilege.
pub(super) const AS_ROOT: &str = "run `palisade doctor` as root";
