//! Pods of a lab, and processes that run in them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command, ExitStatus, Output};

use super::error::Context;
use super::journal::Journal;
use super::namespace::Namespace;
use super::{LabError, PodPlan};

/// A pod of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    plan: PodPlan,
    namespace: Namespace,
}

impl Pod {
    pub(super) fn new(plan: PodPlan) -> Pod {
        Pod { namespace: Namespace::named(&plan.netns), plan }
    }

    /// Finds the pod `name` of namespace `default`, or `namespace/name`, in a lab.
    pub fn of(journal: &Journal, name: &str) -> Result<Pod, LabError> {
        let wanted = name.parse().map_err(LabError::Plan)?;
        let found = journal.pods.iter().find(|plan| plan.pod == wanted).cloned().map(Pod::new);
        found.ok_or_else(|| LabError::NoPod {
            lab: journal.id.clone(),
            pod: name.to_owned(),
            pods: journal.pods.iter().map(|plan| plan.pod.to_string()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Plan of the pod: names and addresses.
    pub fn plan(&self) -> &PodPlan {
        &self.plan
    }

    /// Network namespace of the pod.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// IPv4 address, see [`PodPlan::v4`].
    pub fn v4(&self) -> Ipv4Addr {
        self.plan.v4()
    }

    /// IPv6 address, see [`PodPlan::v6`].
    pub fn v6(&self) -> Ipv6Addr {
        self.plan.v6()
    }

    /// Addresses, IPv4 first where the plan of the lab chose them.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.plan.addresses.clone()
    }

    /// Runs `f` on a thread inside the pod, and waits for it.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.run(f)
    }

    /// Starts a program inside the pod. It is killed when the returned guard is dropped.
    pub fn spawn(&self, command: &mut Command) -> Result<PodChild, LabError> {
        let child = self.run(|| command.spawn())?.context(|| self.start_of(command))?;
        Ok(PodChild { child })
    }

    /// Runs a program inside the pod, and collects its output.
    pub fn output(&self, command: &mut Command) -> Result<Output, LabError> {
        self.run(|| command.output())?.context(|| self.start_of(command))
    }

    /// Runs a program inside the pod on the terminal of this process.
    pub fn status(&self, command: &mut Command) -> Result<ExitStatus, LabError> {
        self.run(|| command.status())?.context(|| self.start_of(command))
    }

    fn start_of(&self, command: &Command) -> String {
        format!("start {} in pod {}", command.get_program().display(), self.plan.pod)
    }
}

/// A program that runs inside a pod. Dropped, it is killed.
#[derive(Debug)]
pub struct PodChild {
    child: Child,
}

impl PodChild {
    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the process to end.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for PodChild {
    fn drop(&mut self) {
        // Killing fails only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
