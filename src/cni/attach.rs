//! Attachment of a container: ADD.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::config::{InterfaceKind, NetworkConfig};
use super::detach::{OTHERS_BUDGET, Remover};
use super::environment::{Attachment, Environment};
use super::error::{CniError, Code, note};
use super::link::{PodNamespace, lasting_path, route_from_node, routes_of};
use super::record::{LOCK_TIMEOUT, NodeRoutes, Part, Record, Records, mac_of, port_name};
use super::result::{CniResult, Interface, Ip};
use crate::control::protocol::{PodInfo, Status};
use crate::control::{Client, ClientError};
use crate::dataplane::{Backend, Bandwidth, GATEWAY_V4, GATEWAY_V6};
use crate::netlink::{self, NetworkNamespace, raise_host_end};
use crate::tables::{PodName, PortMapping};
use crate::xdp::mtu_of_this_kernel;

/// MTU of routes to the outside without an uplink: that of an Ethernet.
const OUTSIDE_MTU: u32 = 1500;
/// The node's end of the veth pair to the switch, where the configuration names none.
const NODE_INTERFACE: &str = "palisade-node";
/// Interval of questions whether the tables know a pod.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for policy where the configuration says nothing and an agent follows an API.
const WAIT_FOR_AGENT: Duration = Duration::from_secs(2);

/// One call of ADD.
pub(super) struct Attacher<'a> {
    pub(super) environment: &'a Environment,
    pub(super) config: &'a NetworkConfig,
    pub(super) records: &'a Records,
    pub(super) switch: &'a Client,
}

impl Attacher<'_> {
    /// Attaches the container, and returns the result for the runtime. After a failure nothing is left of it.
    pub(super) fn add(&self) -> Result<CniResult, CniError> {
        let attachment = self.environment.attachment()?;
        let path = self.environment.namespace()?;
        let pod = self.environment.pod(&attachment.container)?;
        let namespace = PodNamespace::open(path)?;
        self.records.create()?;
        let lock = self.records.lock(&attachment, LOCK_TIMEOUT)?;
        let status = self.switch.status()?;
        let own = self.earlier(&attachment, &namespace, path, &pod).and_then(|earlier| match earlier {
            Some(result) => Ok(result),
            None => self.add_anew(&attachment, &namespace, path, &pod, &status),
        });
        drop(lock);
        // After a failure too: the next ADD may need the addresses of others.
        self.remover().finish_others(Some(&attachment), OTHERS_BUDGET);
        let own = own?;
        self.wait_for_policy(&pod);
        Ok(self.config.previous.clone().unwrap_or_default().followed_by(own))
    }

    fn remover(&self) -> Remover<'_> {
        Remover::of(self.records, self.switch, &self.environment.path)
    }

    /// Returns the result of an earlier ADD of the same attachment that is whole. Removes one that is not.
    ///
    /// # Errors
    /// Another network has attached the interface.
    fn earlier(
        &self,
        attachment: &Attachment,
        namespace: &PodNamespace,
        path: &str,
        wanted: &PodName,
    ) -> Result<Option<CniResult>, CniError> {
        let is_pending = self.records.read(Part::Pending, attachment)?.is_some();
        let record = self.records.read(Part::Attached, attachment)?;
        if let Some(other) =
            record.as_ref().filter(|record| !is_pending && record.network != self.config.name)
            && PodNamespace::of(other)?.is_some()
        {
            let Attachment { container, interface } = attachment;
            let network = &other.network;
            let what =
                format!("CNI_IFNAME: {interface} of container {container} belongs to network {network}");
            return Err(CniError::new(Code::INVALID_ENVIRONMENT, what));
        }
        if let Some(Record {
            namespace: recorded,
            network,
            cookie,
            result: Some(result),
            pod,
            mac,
            addresses,
            ..
        }) = &record
            && !is_pending
            && (network, pod) == (&self.config.name, wanted)
            && cookie.is_none_or(|cookie| cookie == namespace.cookie())
            && (recorded == path || lasting_path(path).is_ok_and(|lasting| lasting == Some(recorded.into())))
            && namespace.link(&attachment.interface)?.is_some_and(|link| link.mac == *mac)
        {
            let port = port_name(attachment);
            let has = self
                .switch
                .pods()?
                .iter()
                .any(|info| info.pod == *pod && info.port == port && info.addresses == *addresses);
            if has {
                return Ok(Some(result.clone()));
            }
        }
        if is_pending || record.is_some() {
            self.remover().remove_recorded(attachment)?;
        }
        Ok(None)
    }

    fn add_anew(
        &self,
        attachment: &Attachment,
        namespace: &PodNamespace,
        path: &str,
        pod: &PodName,
        status: &Status,
    ) -> Result<CniResult, CniError> {
        let interface = &attachment.interface;
        if namespace.link(interface)?.is_some() {
            let what = format!("CNI_IFNAME: {interface} exists already in {path}");
            return Err(CniError::new(Code::INVALID_ENVIRONMENT, what));
        }
        let config = self.config.for_ipam(Some(&status.pod_prefixes))?;
        let mut config = config.unwrap_or_default();
        config.remove("prevResult");
        let mut record = Record {
            container: attachment.container.clone(),
            interface: interface.clone(),
            network: self.config.name.clone(),
            namespace: path.to_owned(),
            cookie: Some(namespace.cookie()),
            bound: None,
            pod: pod.clone(),
            kind: self.config.kind.unwrap_or_else(|| kind_for(status)),
            mac: self.config.mac.unwrap_or_else(|| mac_of(attachment)),
            mtu: self.config.mtu.unwrap_or_else(mtu_of_this_kernel),
            addresses: Vec::new(),
            bandwidth: enforced_bandwidth(self.config.bandwidth, status.backend),
            port_mappings: served_mappings(&self.config.port_mappings, status.backend),
            node: None,
            arguments: self.environment.arguments.clone(),
            config,
            result: None,
            released: false,
        };
        if record.kind == InterfaceKind::Tap {
            name_namespace(&mut record)?;
        }
        // From here on a call that is killed leaves a record of all that it may have made.
        self.records.write(Part::Pending, &record)?;
        let attached = self.attach(&mut record, namespace, status).and_then(|result| {
            record.result = Some(result.clone());
            self.records.write(Part::Attached, &record)?;
            self.records.remove(Part::Pending, attachment)?;
            Ok(result)
        });
        attached.map_err(|error| match self.remover().remove(attachment, Some(path), None) {
            Ok(_) => error,
            Err(further) => error.and(&format!("a later call undoes the rest: {further}")),
        })
    }

    fn attach(
        &self,
        record: &mut Record,
        namespace: &PodNamespace,
        status: &Status,
    ) -> Result<CniResult, CniError> {
        let attachment = record.attachment();
        let port = port_name(&attachment);
        let addresses = self.addresses(record)?;
        record.addresses = addresses.ips.iter().map(|ip| ip.address.addr()).collect();
        let outside = self.config.outside_mtu.or(status.uplink_mtu).unwrap_or(OUTSIDE_MTU);
        let gateways = gateways(status);
        let (routes, shown) = routes_of(&addresses, &gateways, record.mtu, outside)?;
        match record.kind {
            InterfaceKind::Veth => {
                namespace.add_veth(record, status.cores.len().max(1) as u16)?;
                // The host end is down until its XDP program is attached: the node's stack sees no frame of the pod.
                self.put_port(record)?;
                raise_host_end(&port)?;
            }
            InterfaceKind::Tap => {
                if let Some(name) = &record.bound {
                    NetworkNamespace::unbind(name)
                        .and_then(|()| NetworkNamespace::bind(record.namespace.as_ref(), name))
                        .map_err(|error| {
                            CniError::io(&format!("name namespace {}", record.namespace), &error)
                        })?;
                }
                self.put_port(record)?;
                namespace.mark_tap(record)?;
            }
        }
        namespace.configure(record, &routes)?;
        self.put_pod(record)?;
        self.route_from_node(record, &gateways)?;
        self.result(record, &addresses, shown, &gateways)
    }

    /// Requests addresses. A plugin that refuses has given none; one that was killed or makes no sense may have.
    fn addresses(&self, record: &mut Record) -> Result<CniResult, CniError> {
        let added = self.remover().ipam_of(record).add(&record.attachment(), &record.namespace);
        if added.as_ref().is_err_and(|failure| failure.gave_none) {
            record.released = true;
            self.records.write(Part::Pending, record)?;
        }
        Ok(added?)
    }

    /// Adds the port. One of the same name is left over from a lost record.
    fn put_port(&self, record: &Record) -> Result<(), CniError> {
        let attachment = record.attachment();
        let (port, request) = (port_name(&attachment), record.port_request());
        match self.switch.put_port(&port, &request) {
            Err(error) if error.status() == Some(409) => {
                self.remover().detach(&attachment)?;
                Ok(self.switch.put_port(&port, &request).map(drop)?)
            }
            other => Ok(other.map(drop)?),
        }
    }

    /// Attaches the pod. Another attachment of this plugin with its name, one of its addresses or one of its ports of the node
    /// gives way if its container is gone.
    fn put_pod(&self, record: &Record) -> Result<(), CniError> {
        let (pod, request) = (&record.pod, &record.pod_request());
        let refused = match self.switch.put_pod(pod, request) {
            Err(error) if error.status() == Some(409) => error,
            other => return Ok(other.map(drop)?),
        };
        let has_address = |other: &IpAddr| request.addresses.contains(other);
        let has_port = |other: &PortMapping| request.port_mappings.iter().any(|own| own.overlaps(other));
        let has_conflict = |info: &&PodInfo| {
            info.pod == *pod
                || info.addresses.iter().any(has_address)
                || info.port_mappings.iter().any(has_port)
        };
        let pods = self.switch.pods()?;
        let others = pods.iter().filter(has_conflict);
        let ports: Vec<&str> = others.map(|info| info.port.as_str()).collect();
        let remover = self.remover().until(Instant::now() + OTHERS_BUDGET);
        let recorded = [Part::Pending, Part::Attached].map(|part| self.records.list(part)).concat();
        for other in recorded.iter().filter(|other| ports.contains(&port_name(other).as_str())) {
            // A call that runs has the lock, this one its own.
            let Ok(Some(_lock)) = self.records.try_lock(other) else { continue };
            let is_left = self.records.list(Part::Pending).contains(other);
            let record = self.records.read(Part::Attached, other)?;
            // A container whose namespace cannot be looked at may run.
            let is_gone = |record| PodNamespace::of(&record).is_ok_and(|found| found.is_none());
            if (is_left || record.is_some_and(is_gone))
                && let Err(error) = remover.remove_recorded(other)
            {
                let Attachment { container, interface } = other;
                note(&format!("{interface} of container {container} is removed later: {error}"));
            }
        }
        self.switch.put_pod(pod, request).map(drop).map_err(|_| conflict(refused))
    }

    /// Routes the node's packets to the pod. The record has the routes before they are there.
    fn route_from_node(&self, record: &mut Record, gateways: &[IpAddr]) -> Result<(), CniError> {
        let interface = match &self.config.node_interface {
            Some(name) => name,
            // A node that was prepared has this interface.
            None if netlink::Interface::find(NODE_INTERFACE).is_ok() => NODE_INTERFACE,
            None => return Ok(()),
        };
        record.node = Some(NodeRoutes { interface: interface.to_owned(), gateways: gateways.to_vec() });
        self.records.write(Part::Pending, record)?;
        route_from_node(record)
    }

    fn result(
        &self,
        record: &Record,
        addresses: &CniResult,
        routes: Vec<super::result::Route>,
        gateways: &[IpAddr],
    ) -> Result<CniResult, CniError> {
        let inside = Interface {
            name: record.interface.clone(),
            mac: Some(record.mac.to_string()),
            mtu: Some(record.mtu),
            sandbox: Some(self.environment.namespace()?.to_owned()),
            ..Interface::default()
        };
        let mut interfaces = Vec::new();
        if record.kind == InterfaceKind::Veth {
            let host = netlink::Interface::find(&port_name(&record.attachment()))?;
            let mac = Some(host.mac.to_string());
            let mtu = Some(record.mtu);
            interfaces.push(Interface { name: host.name, mac, mtu, ..Interface::default() });
        }
        let index = Some(interfaces.len());
        interfaces.push(inside);
        let gateway_of = |ip: &Ip| {
            gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ip.address.addr().is_ipv4())
        };
        let ips = addresses.ips.iter().map(|ip| Ip {
            // The pod is alone on its link: the subnet of the IPAM plugin is nobody's neighbour.
            address: IpNet::from(ip.address.addr()),
            gateway: gateway_of(ip),
            interface: index,
        });
        let of_config = self.config.raw.get("dns").and_then(|dns| dns.as_object()).cloned();
        let dns =
            if addresses.dns.is_empty() { of_config.unwrap_or_default() } else { addresses.dns.clone() };
        Ok(CniResult { interfaces, ips: ips.collect(), routes, dns })
    }

    /// Waits until the tables of the switch know the pod, for as long as the configuration says. The pod is closed until
    /// then, also after the wait.
    fn wait_for_policy(&self, pod: &PodName) {
        let by_agent = || {
            let has_agent = self.switch.status().is_ok_and(|status| status.source.is_some());
            if has_agent { WAIT_FOR_AGENT } else { Duration::ZERO }
        };
        let timeout = self.config.wait_for_policy.map_or_else(by_agent, Duration::from_secs);
        let start = Instant::now();
        while start.elapsed() < timeout {
            let pods = self.switch.pods().unwrap_or_default();
            if pods.iter().any(|info| info.pod == *pod && info.known) {
                return;
            }
            sleep(POLL_INTERVAL);
        }
        if !timeout.is_zero() {
            note(&format!("no tables know pod {pod} after {} s: it is closed", timeout.as_secs()));
        }
    }
}

/// Bandwidth that the backend enforces. A pod without its limit is better than none.
fn enforced_bandwidth(bandwidth: Bandwidth, backend: Backend) -> Bandwidth {
    if backend == Backend::AfXdp || bandwidth.is_unlimited() {
        return bandwidth;
    }
    note(&format!("runtimeConfig.bandwidth: {bandwidth}: has no effect with the backend {backend}"));
    Bandwidth::default()
}

/// Ports of the node that the backend serves. A pod without them is better than none.
fn served_mappings(mappings: &[PortMapping], backend: Backend) -> Vec<PortMapping> {
    if backend == Backend::AfXdp || mappings.is_empty() {
        return mappings.to_vec();
    }
    note(&format!(
        "runtimeConfig.portMappings: have no effect with the backend {backend}: chain the plugin portmap"
    ));
    Vec::new()
}

/// Gateways of pods: the addresses of the switch, and those of every pod's own link where it has none of a family. The
/// switch answers for every address that is not the pod's own.
fn gateways(status: &Status) -> Vec<IpAddr> {
    let defaults = [IpAddr::V4(GATEWAY_V4), IpAddr::V6(GATEWAY_V6)];
    // The kernel takes a gateway outside the pod's subnets with the flag `onlink`, of IPv6 only a link-local one.
    let usable = |gateway: &IpAddr| match gateway {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    status.gateway.iter().copied().filter(usable).chain(defaults).collect()
}

/// Kind of an interface that the configuration leaves to the plugin.
fn kind_for(status: &Status) -> InterfaceKind {
    if status.offloads { InterfaceKind::Veth } else { InterfaceKind::Tap }
}

/// Chooses the path by which the switch finds the namespace of a tap device, which must outlive every process.
fn name_namespace(record: &mut Record) -> Result<(), CniError> {
    let lasting = lasting_path(&record.namespace)
        .map_err(|error| CniError::io(&format!("look at {}", record.namespace), &error))?;
    let Some(lasting) = lasting else {
        record.bound = Some(port_name(&record.attachment()));
        return Ok(());
    };
    match lasting.into_os_string().into_string() {
        Ok(path) => record.namespace = path,
        Err(_) => record.bound = Some(port_name(&record.attachment())),
    }
    Ok(())
}

fn conflict(refused: ClientError) -> CniError {
    CniError::from(refused).with_code(Code::TRY_AGAIN)
}
