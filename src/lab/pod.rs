//! A pod of a lab, and how to run things in it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command, ExitStatus, Output};

use super::error::Doing;
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

    /// The pod `name` of namespace `default`, or `namespace/name`, of a lab.
    pub fn of(record: &Journal, name: &str) -> Result<Pod, LabError> {
        let wanted = name.parse().map_err(LabError::Plan)?;
        let found = record.pods.iter().find(|plan| plan.pod == wanted).cloned().map(Pod::new);
        found.ok_or_else(|| LabError::NoPod {
            lab: record.id.clone(),
            pod: name.to_owned(),
            pods: record.pods.iter().map(|plan| plan.pod.to_string()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Its plan: names and addresses.
    pub fn plan(&self) -> &PodPlan {
        &self.plan
    }

    /// Its network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its IPv4 address, as [`PodPlan::v4`] has it.
    pub fn v4(&self) -> Ipv4Addr {
        self.plan.v4()
    }

    /// Its IPv6 address, as [`PodPlan::v6`] has it.
    pub fn v6(&self) -> Ipv6Addr {
        self.plan.v6()
    }

    /// Its addresses, IPv4 first where the plan of the lab chose them.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.plan.addresses.clone()
    }

    /// Runs `f` inside the pod, on a thread of its own, and waits for it.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.run(f)
    }

    /// Starts a program inside the pod; it ends at the latest when the answer is dropped.
    pub fn spawn(&self, command: &mut Command) -> Result<PodChild, LabError> {
        let child = self.run(|| command.spawn())?.doing(|| self.start_of(command))?;
        Ok(PodChild { child })
    }

    /// Runs a program inside the pod, and collects what it prints.
    pub fn output(&self, command: &mut Command) -> Result<Output, LabError> {
        self.run(|| command.output())?.doing(|| self.start_of(command))
    }

    /// Runs a program inside the pod on the terminal of this one.
    pub fn status(&self, command: &mut Command) -> Result<ExitStatus, LabError> {
        self.run(|| command.status())?.doing(|| self.start_of(command))
    }

    fn start_of(&self, command: &Command) -> String {
        format!("start {} in pod {}", command.get_program().display(), self.plan.pod)
    }
}

/// A program that runs inside a pod. Dropped, it ends.
#[derive(Debug)]
pub struct PodChild {
    child: Child,
}

impl PodChild {
    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for its end.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for PodChild {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
