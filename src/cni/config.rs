//! Configuration of a network: the JSON object on standard input.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::environment::{Attachment, is_identifier};
use super::error::{CniError, Code};
use super::result::CniResult;
use super::version::Version;
use crate::control::DEFAULT_SOCKET;
use crate::dataplane::{Bandwidth, Bits};
use crate::limits::MTU_MAX;
use crate::net::mac::Mac;
use crate::tables::PortMapping;

/// Most bytes of a configuration. GC lists every attachment of the node, some hundred bytes each.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Longest wait for policy, seconds: less than the four minutes that kubelet gives a sandbox.
const WAIT_MAX: u64 = 120;
/// IPAM plugin without `ipam.type`.
const IPAM_DEFAULT: &str = "host-local";
/// Keys that runtimes and libcni add.
const KEYS_OF_RUNTIMES: [&str; 9] = [
    "args",
    "capabilities",
    "dns",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "prevResult",
    "runtimeConfig",
    "cniVersion",
];
/// Keys of this plugin.
const KEYS: [&str; 11] = [
    "name",
    "type",
    "ipam",
    "interface",
    "mtu",
    "outsideMtu",
    "nodeInterface",
    "socket",
    "directory",
    "waitForPolicy",
    "labels",
];

/// Keys that DEL needs.
const KEYS_OF_REMOVAL: [&str; 6] = ["cniVersion", "name", "type", "ipam", "socket", "directory"];

/// Kind of a pod's interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    /// A tap device, which the switch makes inside the pod.
    #[default]
    Tap,
    /// A veth pair, with one end on the node.
    Veth,
}

impl InterfaceKind {
    /// Kind as the kernel names it (`IFLA_INFO_KIND`).
    pub fn of_the_kernel(self) -> &'static str {
        match self {
            InterfaceKind::Tap => "tun",
            InterfaceKind::Veth => "veth",
        }
    }
}

/// Checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// Version of results and errors.
    pub version: Version,
    /// Name of the network.
    pub name: String,
    /// Kind of the pods' interfaces. `None`: a veth pair where the switch offloads flows, a tap device where not.
    pub kind: Option<InterfaceKind>,
    /// MTU of the interface; the largest that the switch carries where absent.
    pub mtu: Option<u32>,
    /// MTU of routes to the outside; that of the uplinks where absent.
    pub outside_mtu: Option<u32>,
    /// Interface of the node by which it reaches pods: its end of the veth pair of the switch's host port.
    pub node_interface: Option<String>,
    /// Control socket of the switch.
    pub socket: PathBuf,
    /// Directory of the records.
    pub directory: PathBuf,
    /// Longest wait for policy, seconds. None: two where an agent follows an API.
    pub wait_for_policy: Option<u64>,
    /// Ethernet address that the runtime asks for (capability `mac`).
    pub mac: Option<Mac>,
    /// Bandwidth that the runtime asks for (capability `bandwidth`).
    pub bandwidth: Bandwidth,
    /// Ports of the node that the runtime asks for (capability `portMappings`).
    pub port_mappings: Vec<PortMapping>,
    /// Result of the plugins before, or of ADD for CHECK and DEL.
    pub previous: Option<CniResult>,
    /// The configuration as it came, for the IPAM plugin.
    pub raw: Map<String, Value>,
}

/// Keys with types, by which the text is decoded.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Keys {
    name: Option<String>,
    mtu: Option<u32>,
    outside_mtu: Option<u32>,
    node_interface: Option<String>,
    socket: Option<PathBuf>,
    directory: Option<PathBuf>,
    wait_for_policy: Option<u64>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeConfig {
    mac: Option<Mac>,
    bandwidth: Option<RuntimeBandwidth>,
    port_mappings: Option<Vec<RuntimePortMapping>>,
}

/// Element of the capability `portMappings` (the conventions of CNI). Host port 0 maps nothing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimePortMapping {
    host_port: u16,
    container_port: u16,
    #[serde(default)]
    protocol: String,
    #[serde(default, rename = "hostIP")]
    host_ip: String,
}

impl RuntimePortMapping {
    fn mapping(&self) -> Option<Result<PortMapping, String>> {
        let RuntimePortMapping { host_port, container_port, protocol, host_ip } = self;
        let mapping = || {
            let protocol = if protocol.is_empty() { "tcp" } else { protocol };
            let mapping: PortMapping = format!("{host_port}:{container_port}/{protocol}").parse()?;
            let address = Some(host_ip).filter(|text| !text.is_empty()).map(|text| text.parse::<IpAddr>());
            let address = address.transpose().map_err(|_| format!("hostIP {host_ip:?} is no address"))?;
            Ok(PortMapping { address: address.filter(|address| !address.is_unspecified()), ..mapping })
        };
        (*host_port != 0).then(mapping)
    }
}

/// Least burst that stands for none: the annotations of Kubernetes have no burst, and runtimes pass the largest number of
/// some type.
const BURST_OF_RUNTIMES: u64 = i32::MAX as u64;

/// Capability `bandwidth` (the conventions of CNI): bits per second, and bits. Zero sets no limit. containerd writes the names
/// with a capital.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeBandwidth {
    #[serde(alias = "IngressRate")]
    ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    ingress_burst: u64,
    #[serde(alias = "EgressRate")]
    egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    egress_burst: u64,
}

impl RuntimeBandwidth {
    fn bandwidth(self) -> Bandwidth {
        let limit = |rate: u64, burst: u64| {
            let rate = (rate > 0).then_some(Bits(rate));
            let has_burst = (1..BURST_OF_RUNTIMES).contains(&burst);
            (rate, rate.and(has_burst.then_some(Bits(burst))))
        };
        let (ingress_rate, ingress_burst) = limit(self.ingress_rate, self.ingress_burst);
        let (egress_rate, egress_burst) = limit(self.egress_rate, self.egress_burst);
        Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }
    }
}

#[derive(Debug, Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container: String,
    #[serde(rename = "ifname")]
    interface: String,
}

/// Default directory of the records of the switch with this control socket.
pub fn directory_beside(socket: &Path) -> PathBuf {
    socket.parent().unwrap_or(Path::new("/")).join("cni")
}

/// Reads the JSON object on standard input.
pub(super) fn read_object(input: impl Read) -> Result<Map<String, Value>, CniError> {
    let mut bytes = Vec::new();
    let read = input.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| CniError::io("read the network configuration on standard input", &error))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        let what = format!("the network configuration is longer than {CONFIG_BYTES_MAX} bytes");
        return Err(CniError::new(Code::DECODE, what));
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => {
            Err(CniError::new(Code::DECODE, "the network configuration on standard input is not an object"))
        }
        Err(error) => Err(CniError::new(
            Code::DECODE,
            format!("the network configuration on standard input is not JSON: {error}"),
        )),
    }
}

impl NetworkConfig {
    /// Checks a configuration.
    pub fn of(raw: Map<String, Value>) -> Result<NetworkConfig, CniError> {
        let whole = Value::Object(raw);
        let version = Version::of(&whole)?;
        let keys: Keys = serde_path_to_error::deserialize(&whole)
            .map_err(|error| CniError::new(Code::DECODE, format!("{}: {}", error.path(), error.inner())))?;
        let Value::Object(raw) = whole else { unreachable!("the value is the object above") };
        let invalid = |what: String| CniError::new(Code::INVALID_CONFIG, what);
        let name = keys.name.filter(|name| is_identifier(name)).ok_or_else(|| {
            invalid(
                "name: is missing, or is not letters, digits and any of _ . - after a letter or digit".into(),
            )
        })?;
        no_unknown_key(&raw)?;
        for (key, mtu) in [("mtu", keys.mtu), ("outsideMtu", keys.outside_mtu)] {
            // "IPv6 requires that every link in the Internet have an MTU of 1280 octets or greater" (RFC 8200
            // section 5).
            if mtu.is_some_and(|mtu| !(1280..=MTU_MAX as u32).contains(&mtu)) {
                return Err(invalid(format!("{key}: is not from 1280 to {MTU_MAX}")));
            }
        }
        if keys.wait_for_policy.is_some_and(|seconds| seconds > WAIT_MAX) {
            return Err(invalid(format!("waitForPolicy: is more than {WAIT_MAX} seconds")));
        }
        let mac = keys.runtime_config.mac;
        if mac.is_some_and(|mac| !mac.is_unicast()) {
            return Err(invalid("runtimeConfig.mac: is not the address of one station".into()));
        }
        let bandwidth = keys.runtime_config.bandwidth.unwrap_or_default().bandwidth();
        if let Err((field, reason)) = bandwidth.check() {
            return Err(invalid(format!("runtimeConfig.bandwidth: {field} {reason}")));
        }
        let mappings = keys.runtime_config.port_mappings.iter().flatten();
        let mut port_mappings = mappings
            .filter_map(RuntimePortMapping::mapping)
            .collect::<Result<Vec<PortMapping>, String>>()
            .map_err(|reason| invalid(format!("runtimeConfig.portMappings: {reason}")))?;
        // Runtimes repeat a mapping for each family.
        port_mappings.sort_unstable();
        port_mappings.dedup();
        // One for all addresses has those for a single one.
        let of_all: Vec<PortMapping> =
            port_mappings.iter().filter(|mapping| mapping.address.is_none()).copied().collect();
        let is_covered = |mapping: &PortMapping| {
            mapping.address.is_some() && of_all.contains(&PortMapping { address: None, ..*mapping })
        };
        port_mappings.retain(|mapping| !is_covered(mapping));
        let socket = absolute("socket", keys.socket.unwrap_or_else(|| DEFAULT_SOCKET.into()))?;
        let beside = || directory_beside(&socket);
        let directory = absolute("directory", keys.directory.unwrap_or_else(beside))?;
        let previous = raw.get("prevResult").filter(|value| !value.is_null());
        let previous = previous.map(|value| CniResult::parse(value, "prevResult")).transpose()?;
        Ok(NetworkConfig {
            version,
            name,
            kind: interface_kind(raw.get("interface"))?,
            mtu: keys.mtu,
            outside_mtu: keys.outside_mtu,
            node_interface: keys.node_interface,
            socket,
            directory,
            wait_for_policy: keys.wait_for_policy,
            mac,
            bandwidth,
            port_mappings,
            previous,
            raw,
        })
    }

    /// Checks what DEL needs of a configuration. A fault elsewhere, as after an upgrade or an edit, keeps no container from
    /// ending, and is returned beside it.
    pub fn for_removal(raw: Map<String, Value>) -> Result<(NetworkConfig, Option<CniError>), CniError> {
        let fault = match NetworkConfig::of(raw.clone()) {
            Ok(config) => return Ok((config, None)),
            Err(fault) => fault,
        };
        let needed = raw.iter().filter(|(key, _)| KEYS_OF_REMOVAL.contains(&key.as_str()));
        let needed = needed.map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut config = NetworkConfig::of(needed)?;
        config.raw = raw;
        config.raw.remove("prevResult");
        Ok((config, Some(fault)))
    }

    /// The configuration for the IPAM plugin, with its name. Without a section `ipam`, or with host-local and no range of
    /// addresses, host-local gets the prefixes of the node's pods; `Ok(None)` where these are needed and unknown.
    pub fn for_ipam(&self, pod_prefixes: Option<&[IpNet]>) -> Result<Option<Map<String, Value>>, CniError> {
        let invalid = |what: &str| Err(CniError::new(Code::INVALID_CONFIG, what));
        let mut ipam = match self.raw.get("ipam") {
            Some(Value::Object(ipam)) => ipam.clone(),
            Some(_) => return invalid("ipam: is not an object"),
            None => Map::new(),
        };
        match ipam.get("type") {
            None => {
                ipam.insert("type".to_owned(), IPAM_DEFAULT.into());
            }
            Some(Value::String(name))
                if !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".." => {}
            Some(other) => return invalid(&format!("ipam.type: {other} is not the name of a plugin")),
        }
        let is_host_local = ipam.get("type").and_then(Value::as_str) == Some(IPAM_DEFAULT);
        if is_host_local && !ipam.contains_key("ranges") && !ipam.contains_key("subnet") {
            let Some(prefixes) = pod_prefixes else { return Ok(None) };
            if prefixes.is_empty() {
                return Err(CniError::new(
                    Code::TRY_AGAIN,
                    "ipam: has no range of addresses, and the switch does not know the prefixes of this node's pods: give \
                     ipam.ranges, or set pod_prefixes in its configuration",
                ));
            }
            let range = |prefix: &IpNet| json!([{"subnet": prefix.trunc()}]);
            ipam.insert("ranges".to_owned(), prefixes.iter().map(range).collect());
            // Leases end with a reboot, as pods do.
            ipam.entry("dataDir")
                .or_insert_with(|| self.directory.join("host-local").display().to_string().into());
        }
        let mut config = self.raw.clone();
        config.insert("ipam".to_owned(), ipam.into());
        Ok(Some(config))
    }

    /// The result before, which CHECK needs.
    pub fn required_previous(&self) -> Result<&CniResult, CniError> {
        self.previous.as_ref().ok_or_else(|| {
            CniError::new(
                Code::INVALID_CONFIG,
                "prevResult: is missing: the runtime passes the result of ADD to CHECK",
            )
        })
    }

    /// Attachments that GC keeps.
    pub fn valid_attachments(&self) -> Result<BTreeSet<Attachment>, CniError> {
        const KEY: &str = "cni.dev/valid-attachments";
        let Some(list) = self.raw.get(KEY) else {
            // Without the list every attachment of a network that is in use would go.
            return Err(CniError::new(Code::INVALID_CONFIG, format!("{KEY}: is missing: GC needs it")));
        };
        let list: Vec<ValidAttachment> = serde_path_to_error::deserialize(list).map_err(|error| {
            CniError::new(Code::DECODE, format!("{KEY}{}: {}", error.path(), error.inner()))
        })?;
        let attachment = |ValidAttachment { container, interface }| Attachment { container, interface };
        Ok(list.into_iter().map(attachment).collect())
    }
}

/// Refuses keys that mean nothing here, so that a misspelt one is not passed over. Keys with a domain belong to others.
fn no_unknown_key(raw: &Map<String, Value>) -> Result<(), CniError> {
    let is_known = |key: &&String| {
        KEYS.contains(&key.as_str()) || KEYS_OF_RUNTIMES.contains(&key.as_str()) || key.contains(['.', '/'])
    };
    match raw.iter().find(|(key, _)| !is_known(key)) {
        Some((key, value)) => {
            let known = KEYS.join(", ");
            let value = value.to_string();
            let value = crate::printable::cut(&value, 100);
            let what = format!("{key}: {value}: there is no such key; the keys are {known}");
            Err(CniError::new(Code::UNSUPPORTED_FIELD, what))
        }
        None => Ok(()),
    }
}

fn interface_kind(value: Option<&Value>) -> Result<Option<InterfaceKind>, CniError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) if text == "auto" => Ok(None),
        Some(Value::String(text)) if text == "tap" => Ok(Some(InterfaceKind::Tap)),
        Some(Value::String(text)) if text == "veth" => Ok(Some(InterfaceKind::Veth)),
        Some(other) => Err(CniError::new(
            Code::UNSUPPORTED_FIELD,
            format!("interface: {other} is none of \"auto\", \"tap\" and \"veth\""),
        )),
    }
}

fn absolute(key: &str, path: PathBuf) -> Result<PathBuf, CniError> {
    if Path::new(&path).is_absolute() {
        return Ok(path);
    }
    Err(CniError::new(Code::INVALID_CONFIG, format!("{key}: {} is not an absolute path", path.display())))
}
