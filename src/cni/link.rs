//! Interfaces of pods: creation, settings and removal.

use std::fs;
use std::io::{self, ErrorKind::NotADirectory, ErrorKind::NotFound};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustix::io::Errno;

use super::environment::Attachment;
use super::error::{CniError, Code};
use super::record::{NodeRoutes, Record, port_name};
use super::result::{CniResult, Route};
use crate::net::mac::Mac;
use crate::netlink::{
    Interface, NetlinkError, NetworkNamespace, PodRoute, RouteSocket, Veth, configure_pod_interface,
};
use crate::tap::namespace_cookie;

/// Network namespace of the calling thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Network namespace of a container.
#[derive(Debug)]
pub(super) struct PodNamespace {
    path: String,
    cookie: u64,
    namespace: NetworkNamespace,
}

/// File that a path leads to.
enum Found {
    Pod(PodNamespace),
    /// The node's own namespace.
    Node,
    /// A file that is not a network namespace.
    Other,
    Nothing(io::Error),
}

/// Interface of a container as the kernel has it.
#[derive(Debug)]
pub(super) struct PodLink {
    /// Kind, such as `tun` or `veth`.
    pub(super) kind: String,
    pub(super) mac: Mac,
    pub(super) mtu: u32,
    pub(super) is_up: bool,
}

impl PodNamespace {
    /// Opens the namespace with this path.
    ///
    /// # Errors
    /// `CNI_NETNS` is no network namespace, or that of the node.
    pub(super) fn open(path: &str) -> Result<PodNamespace, CniError> {
        let invalid =
            |what: String| CniError::new(Code::INVALID_ENVIRONMENT, format!("CNI_NETNS: {path} {what}"));
        match PodNamespace::look(path)? {
            Found::Pod(namespace) => Ok(namespace),
            Found::Node => Err(invalid("is the network namespace of the node".to_owned())),
            Found::Other => Err(invalid("is not a network namespace".to_owned())),
            Found::Nothing(error) => Err(invalid(format!("cannot be opened: {error}"))),
        }
    }

    /// Opens the namespace with this path; `None` where no container's namespace is there.
    ///
    /// # Errors
    /// The kernel does not tell whether it is there.
    pub(super) fn open_if_there(path: &str) -> Result<Option<PodNamespace>, CniError> {
        match PodNamespace::look(path)? {
            Found::Pod(namespace) => Ok(Some(namespace)),
            Found::Node | Found::Other | Found::Nothing(_) => Ok(None),
        }
    }

    /// Opens the namespace of a record; `None` where it is gone, or another has its path.
    ///
    /// # Errors
    /// The kernel does not tell whether it is there.
    pub(super) fn of(record: &Record) -> Result<Option<PodNamespace>, CniError> {
        let bound = record.bound.as_deref().map(NetworkNamespace::path_of);
        let paths = bound.iter().filter_map(|path| path.to_str()).chain([record.namespace.as_str()]);
        for path in paths.filter(|path| !path.is_empty()) {
            if let Some(namespace) = PodNamespace::open_if_there(path)?
                && record.cookie.is_none_or(|recorded| recorded == namespace.cookie)
            {
                return Ok(Some(namespace));
            }
        }
        Ok(None)
    }

    fn look(path: &str) -> Result<Found, CniError> {
        let namespace = match NetworkNamespace::open(path) {
            Err(error) if [NotFound, NotADirectory].contains(&error.kind()) => {
                return Ok(Found::Nothing(error));
            }
            // The file is a socket: open(2).
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                return Ok(Found::Other);
            }
            namespace => {
                namespace.map_err(|error| CniError::io(&format!("open namespace {path}"), &error))?
            }
        };
        let own =
            fs::metadata(OWN_NAMESPACE).map_err(|error| CniError::io("find the node's namespace", &error))?;
        let inode =
            namespace.inode().map_err(|error| CniError::io(&format!("look at namespace {path}"), &error))?;
        if inode == own.ino() {
            return Ok(Found::Node);
        }
        match namespace.run(|| Ok(namespace_cookie()?)).flatten() {
            Ok(cookie) => Ok(Found::Pod(PodNamespace { path: path.to_owned(), cookie, namespace })),
            // The file is no namespace: setns(2).
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(Found::Other),
            Err(error) => Err(CniError::io(&format!("enter namespace {path}"), &error)),
        }
    }

    /// Cookie, by which a record tells the namespace from a later one with its path.
    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    fn run<T: Send>(&self, f: impl FnOnce() -> Result<T, CniError> + Send) -> Result<T, CniError> {
        self.namespace
            .run(f)
            .map_err(|error| CniError::io(&format!("enter namespace {}", self.path), &error))?
    }

    /// Looks for an interface inside.
    pub(super) fn link(&self, name: &str) -> Result<Option<PodLink>, CniError> {
        self.run(|| match Interface::find_by(&RouteSocket::open()?, name) {
            Ok(link) => Ok(Some(PodLink {
                kind: link.kind.unwrap_or_default(),
                mac: link.mac,
                mtu: link.mtu,
                is_up: link.is_up,
            })),
            Err(NetlinkError::NoInterface { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// Makes a veth pair with one end inside and one on the node, both down.
    pub(super) fn add_veth(&self, record: &Record, queues: u16) -> Result<(), CniError> {
        let attachment = record.attachment();
        let host = port_name(&attachment);
        let node = fs::File::open(OWN_NAMESPACE)
            .map_err(|error| CniError::io("open the node's network namespace", &error))?;
        self.run(|| {
            let kernel = RouteSocket::open()?;
            kernel.add_veth(&Veth {
                names: [&record.interface, &host],
                mac: record.mac,
                queues,
                mtu: record.mtu,
                peer_namespace: Some(node.as_fd()),
            })?;
            Ok(kernel.set_alias(&record.interface, &mark(&attachment))?)
        })?;
        Ok(RouteSocket::open()?.set_alias(&host, &mark(&attachment))?)
    }

    /// Marks a tap device that the switch has made.
    pub(super) fn mark_tap(&self, record: &Record) -> Result<(), CniError> {
        self.run(|| Ok(RouteSocket::open()?.set_alias(&record.interface, &mark(&record.attachment()))?))
    }

    /// Sets the interface up with its addresses and routes.
    pub(super) fn configure(&self, record: &Record, routes: &[PodRoute]) -> Result<(), CniError> {
        self.run(|| {
            let ipv6 = format!("/proc/sys/net/ipv6/conf/{}", record.interface);
            // A kernel without IPv6 has no such files.
            if Path::new(&ipv6).exists() {
                let disabled = if record.addresses.iter().any(IpAddr::is_ipv6) { "0" } else { "1" };
                // The switch is the only router, and no other station is on the link.
                for (setting, value) in [("disable_ipv6", disabled), ("accept_ra", "0"), ("accept_dad", "0")]
                {
                    let file = format!("{ipv6}/{setting}");
                    fs::write(&file, value)
                        .map_err(|error| CniError::io(&format!("write {value} to {file}"), &error))?;
                }
            }
            Ok(configure_pod_interface(&record.interface, &record.addresses, routes)?)
        })
    }

    /// Addresses of an interface inside.
    pub(super) fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, CniError> {
        self.run(|| Ok(crate::netlink::node_addresses(name)))
    }

    /// The gateway to an address, as the kernel inside finds it.
    pub(super) fn next_hop(&self, to: IpAddr) -> Result<IpAddr, CniError> {
        self.run(|| Ok(RouteSocket::open()?.next_hop(to)?))
    }
}

/// Removes all interfaces of an attachment, on the node and in its namespace. A record vouches for one without a mark: for
/// the end on the node, whose name is a hash, and for the other one in the record's own namespace.
pub(super) fn remove_links(
    attachment: &Attachment,
    namespace: Option<&PodNamespace>,
    record: Option<&Record>,
) -> Result<(), CniError> {
    let kernel = RouteSocket::open()?;
    remove_if_ours(&kernel, &port_name(attachment), attachment, record)?;
    let Some(namespace) = namespace else { return Ok(()) };
    let is_of_record = |record: &&Record| record.cookie.is_none_or(|cookie| cookie == namespace.cookie);
    let record = record.filter(is_of_record);
    namespace.run(|| remove_if_ours(&RouteSocket::open()?, &attachment.interface, attachment, record))
}

/// Removes an interface of this attachment, never one with the mark of another.
fn remove_if_ours(
    kernel: &RouteSocket,
    name: &str,
    attachment: &Attachment,
    record: Option<&Record>,
) -> Result<(), CniError> {
    let link = match Interface::find_by(kernel, name) {
        Err(NetlinkError::NoInterface { .. }) => return Ok(()),
        link => link?,
    };
    let is_ours = match kernel.alias(name)? {
        Some(alias) if alias.is_empty() => {
            record.is_some_and(|record| link.kind.as_deref() == Some(record.kind.of_the_kernel()))
        }
        alias => alias.is_some_and(|alias| alias == mark(attachment)),
    };
    if !is_ours {
        return Ok(());
    }
    match kernel.remove_link_with_index(link.index) {
        Err(NetlinkError::NoInterface { .. }) => Ok(()),
        other => Ok(other?),
    }
}

/// Routes the node's own packets to a pod by way of the switch.
pub(super) fn route_from_node(record: &Record) -> Result<(), CniError> {
    on_node_routes(record, RouteSocket::replace_gateway_route)
}

/// Removes the routes of [`route_from_node`]. Those of a removed interface are gone already.
pub(super) fn unroute_from_node(record: &Record) -> Result<(), CniError> {
    on_node_routes(record, |kernel, name, prefix, gateway| {
        match kernel.remove_gateway_route(name, prefix, gateway) {
            Err(NetlinkError::NoInterface { .. }) => Ok(()),
            other => other,
        }
    })
}

fn on_node_routes(
    record: &Record,
    change: impl Fn(&RouteSocket, &str, IpNet, IpAddr) -> Result<(), NetlinkError>,
) -> Result<(), CniError> {
    let Some(NodeRoutes { interface, gateways }) = &record.node else { return Ok(()) };
    let kernel = RouteSocket::open()?;
    for address in &record.addresses {
        let gateway = gateways.iter().find(|gateway| gateway.is_ipv4() == address.is_ipv4());
        if let Some(gateway) = gateway {
            change(&kernel, interface, (*address).into(), *gateway)?;
        }
    }
    Ok(())
}

/// Path of a namespace for a tap port: without links, and `None` for one that ends with a process.
pub(super) fn lasting_path(path: &str) -> io::Result<Option<PathBuf>> {
    let path = Path::new(path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let path = fs::canonicalize(parent)?.join(name);
    let is_link = fs::symlink_metadata(&path)?.is_symlink();
    Ok((!is_link && !path.starts_with("/proc")).then_some(path))
}

/// Routes of a pod: its subnets as long as the interface takes, and all others as long as the outside takes.
pub(super) fn routes_of(
    addresses: &CniResult,
    gateways: &[IpAddr],
    mtu: u32,
    outside_mtu: u32,
) -> Result<(Vec<PodRoute>, Vec<Route>), CniError> {
    let gateway = |prefix: &IpNet| {
        let is_v4 = prefix.addr().is_ipv4();
        gateways.iter().copied().find(|gateway| gateway.is_ipv4() == is_v4).ok_or_else(|| {
            CniError::new(Code::INVALID_CONFIG, format!("the switch has no gateway for {prefix}"))
        })
    };
    let mut routes: Vec<PodRoute> = Vec::new();
    let mut add = |prefix: IpNet, mtu: Option<u32>| -> Result<(), CniError> {
        let route = PodRoute { prefix, gateway: gateway(&prefix)?, mtu };
        if routes.iter().all(|other| other.prefix != prefix) {
            routes.push(route);
        }
        Ok(())
    };
    for ip in &addresses.ips {
        if ip.address.prefix_len() < ip.address.max_prefix_len() {
            add(ip.address.trunc(), None)?;
        }
    }
    let defaults = || {
        let has = |v4: bool| addresses.ips.iter().any(|ip| ip.address.addr().is_ipv4() == v4);
        let v4 = has(true).then(|| Ipv4Net::default().into());
        let v6 = has(false).then(|| Ipv6Net::default().into());
        let route = |dst| Route { dst, gw: None, mtu: None, others: serde_json::Map::new() };
        v4.into_iter().chain(v6).map(route).collect::<Vec<Route>>()
    };
    let wanted = if addresses.routes.is_empty() { defaults() } else { addresses.routes.clone() };
    let mut shown = Vec::new();
    for route in wanted {
        if let Some((key, value)) = route
            .others
            .iter()
            .find(|(key, value)| ["table", "scope"].contains(&key.as_str()) && !is_zero(value))
        {
            let what = format!("routes[].{key}: {value} is not supported: pods have one table of routes");
            return Err(CniError::new(Code::UNSUPPORTED_FIELD, what));
        }
        let longest = route.mtu.unwrap_or(u32::MAX).min(outside_mtu);
        let prefix = route.dst.trunc();
        add(prefix, (longest < mtu).then_some(longest))?;
        shown.push(Route { dst: prefix, gw: Some(gateway(&prefix)?), mtu: route.mtu, others: route.others });
    }
    Ok((routes, shown))
}

fn is_zero(value: &serde_json::Value) -> bool {
    value.is_null() || value.as_u64() == Some(0)
}

/// An address that a route to `prefix` leads to.
pub(super) fn address_in(prefix: &IpNet) -> IpAddr {
    match prefix {
        IpNet::V4(net) if net.prefix_len() == 0 => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpNet::V6(net) if net.prefix_len() == 0 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        other => other.addr(),
    }
}

/// Alias of the interfaces of an attachment.
fn mark(Attachment { container, interface }: &Attachment) -> String {
    format!("palisade-cni {container}/{interface}")
}
