//! Conversions of the configuration into settings of dataplane and control side, and into requests.

use std::path::PathBuf;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::{Config, Cores, Denied, Fail, OnStop, PollingMode, PortConfig, SchedulingPolicy, SourceKind};
use crate::cni::directory_beside;
use crate::control::protocol::{PodRequest, PortRequest};
use crate::control::{Configured, PortRoute, SwitchSettings};
use crate::dataplane::{
    Backend, ConntrackSettings, FlowMemory, Masquerade, Polling, PortKind, Scheduling, Settings,
    TunnelSettings,
};
use crate::tables::PodName;

impl Config {
    /// Directory of the records of attached containers; `None` where a start attaches none.
    pub fn cni_directory(&self) -> Option<PathBuf> {
        match &self.cni.directory {
            None => Some(directory_beside(&self.control.socket)),
            Some(none) if none.as_os_str().is_empty() => None,
            Some(directory) => Some(directory.clone()),
        }
    }

    /// Converts to settings of the dataplane. Fails if the process may not run on one of the cores.
    pub fn dataplane_settings(&self) -> Result<Settings, String> {
        let workers = &self.workers;
        let tunnel = self.tunnel_settings();
        if tunnel.as_ref().is_some_and(|tunnel| tunnel.addresses.is_empty()) {
            let what =
                "tunnel.mode needs a port of kind \"host\" with the addresses of the node: tunnels end there";
            return Err(what.to_owned());
        }
        Ok(Settings {
            cores: worker_cores(&workers.cores)?,
            frames_per_worker: workers.frames,
            huge_pages: workers.huge_pages,
            polling: match workers.polling {
                PollingMode::Adaptive => Polling::Adaptive { spin_us: workers.spin_us },
                PollingMode::Busy => Polling::Busy,
            },
            prefer_busy_poll: workers.prefer_busy_poll,
            scheduling: match workers.scheduling {
                SchedulingPolicy::Fair => Scheduling::Fair,
                SchedulingPolicy::RealTime => Scheduling::RealTime,
            },
            needs_xdp: self.ports.is_empty() || self.ports.iter().any(|port| port.kind != PortKind::Tap),
            pin_directory: self.xdp.pin_directory.clone(),
            conntrack: ConntrackSettings {
                flows_max: self.conntrack.flows,
                pod_quota_percent: self.conntrack.pod_quota_percent,
                tcp_pickup: self.conntrack.tcp_pickup,
                tcp_reset_unknown: self.conntrack.tcp_reset_unknown,
                memory: self.flow_memory(),
                timeouts: (&self.conntrack.timeouts).into(),
            },
            masquerade: self.masquerade.settings(),
            tunnel,
            offload: self.offload.settings(),
        })
    }

    /// Tunnels to other nodes. They end at the addresses of the node's own port.
    fn tunnel_settings(&self) -> Option<TunnelSettings> {
        let node = self.ports.iter().filter(|port| port.kind == PortKind::Host);
        Some(TunnelSettings {
            mode: self.tunnel.mode.tunnel_mode()?,
            port: self.tunnel.port,
            vni: self.tunnel.vni,
            addresses: node.flat_map(|port| port.addresses.iter().copied()).collect(),
        })
    }

    /// Location of the flow table: beside the control socket, which differs for each switch of a node, unless
    /// configured otherwise.
    pub(crate) fn flow_memory(&self) -> FlowMemory {
        match &self.conntrack.directory {
            Some(none) if none.as_os_str().is_empty() => FlowMemory::Process,
            Some(path) => FlowMemory::Directory { path: path.clone(), fallback: None },
            None => FlowMemory::beside(&self.control.socket),
        }
    }

    /// Reason for which the backend does not do what the configuration has.
    pub fn backend_lacks(&self) -> Option<&'static str> {
        if self.backend == Backend::AfXdp {
            return None;
        }
        if self.policy.denied == Denied::Reject {
            return Some(
                "policy.denied = \"reject\" needs the backend af-xdp: the rules of nftables drop without an answer",
            );
        }
        if self.ports.iter().any(|port| !port.pod_bandwidth.is_unlimited()) {
            return Some("ports.pod_bandwidth needs the backend af-xdp: the rules of nftables limit no rate");
        }
        if self.ports.iter().any(|port| !port.pod_port_mappings.is_empty()) {
            return Some(
                "ports.pod_port_mappings needs the backend af-xdp: with nftables the kernel translates",
            );
        }
        if !self.masquerade.addresses.is_empty() {
            return Some(
                "masquerade.addresses needs the backend af-xdp: with nftables the kernel masquerades",
            );
        }
        if self.tunnel.mode.tunnel_mode().is_some() {
            return Some("tunnel.mode needs the backend af-xdp: with nftables the kernel has the tunnels");
        }
        if self.offload.settings().is_some() {
            return Some(
                "offload.mode needs the backend af-xdp: with nftables the kernel forwards every packet",
            );
        }
        if self.ipfix.collector.is_some() {
            return Some("ipfix.collector needs the backend af-xdp: the flows are the kernel's");
        }
        None
    }

    /// Converts to settings of the control side. `cores` are those of the workers.
    pub fn switch_settings(&self, cores: Vec<usize>) -> SwitchSettings {
        SwitchSettings {
            cores,
            gateway: self.gateway.clone(),
            fail_open: self.policy.fail == Fail::Open,
            rejects: self.policy.denied == Denied::Reject,
            detach: self.on_stop == OnStop::Detach,
            denied_interval: Duration::from_secs(self.log.denied_interval_s.into()),
            pod_prefixes: self.pod_prefixes.iter().map(ipnet::IpNet::trunc).collect(),
            routes: self.port_routes(),
            masquerade: self.masquerade.settings().map(|external| Masquerade {
                external,
                except: self.masquerade.except.iter().map(ipnet::IpNet::trunc).collect(),
                waits: self.policy.source == SourceKind::Kubernetes,
                serves_outside: self.services.replace_kube_proxy,
            }),
            tunnel: self.tunnel_settings(),
            ipfix: self.ipfix.settings(),
            pin_directory: self.xdp.pin_directory.clone(),
            replaces_kube_proxy: self.services.replace_kube_proxy,
            socket_cgroup: self.services.cgroup.clone(),
        }
    }

    /// Ports, pods and routes, for the report on what a restart forgets.
    pub fn configured(&self) -> Configured {
        Configured {
            ports: self
                .ports
                .iter()
                .map(|port| (port.name.clone(), (port.port_request(), port.pod_request())))
                .collect(),
            routes: self.port_routes(),
        }
    }

    /// Routes with the host bits of their prefixes cleared.
    pub fn port_routes(&self) -> Vec<PortRoute> {
        let routes = self.routes.iter();
        routes.map(|route| PortRoute { prefix: route.prefix.trunc(), ..route.clone() }).collect()
    }
}

impl PortConfig {
    /// Request that opens the port.
    pub fn port_request(&self) -> PortRequest {
        PortRequest {
            interface: self.interface.clone(),
            vlan: self.vlan,
            addresses: self.addresses.clone(),
            namespace: self.namespace.clone(),
            mtu: self.mtu,
            ..PortRequest::of(self.kind)
        }
    }

    /// Request that attaches the pod behind the port, if there is one.
    pub fn pod_request(&self) -> Option<(PodName, PodRequest)> {
        let request = PodRequest {
            port: self.name.clone(),
            addresses: self.pod_addresses.clone(),
            mac: self.pod_mac,
            bandwidth: self.pod_bandwidth,
            port_mappings: self.pod_port_mappings.clone(),
        };
        self.pod.clone().map(|pod| (pod, request))
    }
}

fn worker_cores(cores: &Cores) -> Result<Vec<usize>, String> {
    let allowed = sched_getaffinity(None).map_err(|error| format!("the cores cannot be read: {error}"))?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    match cores {
        Cores::Auto => Ok(allowed.last().copied().into_iter().collect()),
        Cores::List(list) => match list.iter().find(|core| !allowed.contains(core)) {
            None => Ok(list.clone()),
            Some(core) => Err(format!(
                "there is no core {core} for a worker, this process may run on {allowed:?}: correct the list, or the \
                 CPU set that the process is started in"
            )),
        },
    }
}
