//! Creation of a lab: pods, veth pairs, addresses and routes.

use std::os::fd::AsFd;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::journal::Journal;
use super::namespace::{Namespace, current};
use super::plan::{POD_INTERFACE, PodPorts};
use super::process::Process;
use super::teardown::{Teardown, remove, require_root};
use super::{Bridge, LabError, LabSpec, Node, Pod, PodPlan};
use super::{GATEWAY_V4, GATEWAY_V6};
use crate::netlink::{PodRoute, RouteSocket, Veth, configure_pod_interface, raise_host_end};
use crate::tap::{TapDevice, TapSpec};

/// A lab. Dropped, it is removed.
#[derive(Debug)]
pub struct Lab {
    journal: Journal,
}

impl Lab {
    /// Makes a lab. A failure removes everything made until then.
    pub fn up(spec: &LabSpec) -> Result<Lab, LabError> {
        Lab::up_with(spec, &mut |_| ())
    }

    /// Makes a lab, and calls `made` for each pod after it is made.
    pub fn up_with(spec: &LabSpec, made: &mut dyn FnMut(&PodPlan)) -> Result<Lab, LabError> {
        require_root()?;
        let lab = Lab { journal: Journal::create(spec)? };
        let directory = lab.directory();
        std::fs::create_dir_all(&directory)
            .map_err(|source| LabError::Kernel { what: format!("create {}", directory.display()), source })?;
        for pod in &lab.journal.pods {
            make_pod(pod, &lab.journal)?;
            made(pod);
        }
        Ok(lab)
    }

    /// Id: six hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.journal.id
    }

    /// Journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Pods in the order of the specification.
    pub fn pods(&self) -> impl Iterator<Item = Pod> + '_ {
        self.journal.pods.iter().map(|plan| Pod::new(plan.clone()))
    }

    /// Finds the pod `name` of namespace `default`, or `namespace/name`.
    pub fn pod(&self, name: &str) -> Result<Pod, LabError> {
        Pod::of(&self.journal, name)
    }

    /// Directory for files that are removed with the lab.
    pub fn directory(&self) -> PathBuf {
        self.journal.directory()
    }

    /// Connects the pods by the kernel's bridge until the returned guard is dropped.
    pub fn bridge(&self) -> Result<Bridge, LabError> {
        Bridge::up(&self.journal)
    }

    /// Moves the host ends of the pods to a node of the lab's own until the returned guard is dropped.
    pub fn node(&self) -> Result<Node, LabError> {
        Node::up(&self.journal)
    }

    /// Writes a process outside the lab's namespaces to the journal, so that the teardown ends it.
    pub fn note_process(&mut self, pid: u32) -> Result<(), LabError> {
        self.journal.processes.retain(Process::is_alive);
        self.journal.processes.extend(Process::find(pid));
        self.journal.update()
    }

    /// Keeps the lab until `palisade lab clean`.
    pub fn keep(mut self) -> Result<Journal, LabError> {
        self.journal.owner = None;
        self.journal.update()?;
        let journal = self.journal.clone();
        std::mem::forget(self);
        Ok(journal)
    }

    /// Removes the lab, and returns the result.
    pub fn remove(self) -> Teardown {
        let mut teardown = Teardown::default();
        remove(&self.journal, &mut teardown);
        std::mem::forget(self);
        teardown
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut teardown = Teardown::default();
        remove(&self.journal, &mut teardown);
        for error in teardown.errors {
            eprintln!("lab {}: {error}", self.journal.id);
        }
    }
}

/// Makes a pod. Its veth pair is made in its namespace, and the host end is marked before it leaves. So no
/// interface outside is ever without the mark of its lab.
fn make_pod(pod: &PodPlan, journal: &Journal) -> Result<(), LabError> {
    let mark = journal.mark();
    let namespace = Namespace::create(&pod.netns, &mark)?;
    match pod.ports {
        PodPorts::Veth | PodPorts::Offload => add_veth(pod, journal, &namespace, &mark)?,
        PodPorts::Tap => add_tap(pod, journal)?,
    }
    let routes = routes(journal);
    Ok(namespace.run(|| configure_pod_interface(POD_INTERFACE, &pod.addresses, &routes))??)
}

/// Makes the tap device of a pod. A switch opens it later, and gives it a carrier.
fn add_tap(pod: &PodPlan, journal: &Journal) -> Result<(), LabError> {
    let spec = TapSpec {
        namespace: pod.netns.clone(),
        namespace_cookie: None,
        interface: POD_INTERFACE.to_owned(),
        mtu: Some(journal.mtu),
        mac: Some(pod.mac),
        queues: 1,
        is_silent: false,
    };
    TapDevice::open(&spec).map(drop).map_err(|error| LabError::Switch(error.to_string()))
}

fn add_veth(pod: &PodPlan, journal: &Journal, namespace: &Namespace, mark: &str) -> Result<(), LabError> {
    let outside = current()?;
    namespace.run(|| {
        let kernel = RouteSocket::open()?;
        kernel.add_veth(&Veth {
            names: [POD_INTERFACE, &pod.host_interface],
            mac: pod.mac,
            queues: journal.workers,
            mtu: journal.mtu,
            peer_namespace: None,
        })?;
        kernel.set_alias(&pod.host_interface, mark)?;
        kernel.set_namespace(&pod.host_interface, outside.as_fd())
    })??;
    Ok(raise_host_end(&pod.host_interface)?)
}

/// Returns the routes of a pod: default routes, and routes to the other pods where packets to the outside are to be shorter.
fn routes(journal: &Journal) -> Vec<PodRoute> {
    let route = |prefix: IpNet, mtu| {
        let gateway = if matches!(prefix, IpNet::V4(_)) { GATEWAY_V4.into() } else { GATEWAY_V6.into() };
        PodRoute { prefix, gateway, mtu }
    };
    let everywhere: [IpNet; 2] = [Ipv4Net::default().into(), Ipv6Net::default().into()];
    let outside = journal.outside.as_ref();
    let pods = outside.into_iter().flat_map(|outside| outside.pods).map(|prefix| route(prefix.trunc(), None));
    let all = everywhere.map(|prefix| route(prefix, outside.map(|outside| outside.mtu)));
    all.into_iter().chain(pods).collect()
}
