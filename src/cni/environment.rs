//! Parameters of a call: the environment variables of the CNI specification.

use std::path::PathBuf;

use super::error::{CniError, Code};
use crate::tables::PodName;

/// Most bytes of a container id, so that the names of files that contain it stay short.
const CONTAINER_BYTES_MAX: usize = 128;
/// Most bytes of an interface's name: `IFNAMSIZ` (16) of `linux/if.h` less the terminating zero.
const INTERFACE_BYTES_MAX: usize = 15;
/// Names that stand for something else: the directories of /proc/sys/net, and the loopback interface.
const INTERFACES_OF_THE_KERNEL: [&str; 5] = [".", "..", "lo", "all", "default"];
/// Most bytes of any of the variables.
const VARIABLE_BYTES_MAX: usize = 16 << 10;
/// Kubernetes namespace of containers that no orchestrator has named.
const NAMESPACE_DEFAULT: &str = "default";

/// Verb of a call (`CNI_COMMAND`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Attaches a container.
    Add,
    /// Detaches a container.
    Del,
    /// Compares an attachment with its result.
    Check,
    /// Removes attachments that are no longer valid.
    Gc,
    /// Tells whether ADD would be served.
    Status,
    /// Tells the supported versions.
    Version,
}

/// An attachment: one interface of one container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Id of the container.
    pub container: String,
    /// Name of the interface inside the container.
    pub interface: String,
}

/// Environment variables of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub verb: Verb,
    /// Raw `CNI_ARGS`, which delegates get unchanged.
    pub arguments: String,
    /// Directories of plugins.
    pub path: Vec<PathBuf>,
    container: Option<String>,
    interface: Option<String>,
    namespace: Option<String>,
}

impl Environment {
    /// Reads the variables by `variable`. Those that a verb needs are checked when they are used.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Environment, CniError> {
        let get = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
            Some(value) if value.len() > VARIABLE_BYTES_MAX || value.contains('\0') => {
                Err(invalid(name, &format!("is longer than {VARIABLE_BYTES_MAX} bytes")))
            }
            value => Ok(value),
        };
        let verb = match get("CNI_COMMAND")?.as_deref() {
            Some("ADD") => Verb::Add,
            Some("DEL") => Verb::Del,
            Some("CHECK") => Verb::Check,
            Some("GC") => Verb::Gc,
            Some("STATUS") => Verb::Status,
            Some("VERSION") => Verb::Version,
            Some(other) => {
                let verbs = "ADD, DEL, CHECK, GC, STATUS and VERSION";
                return Err(invalid("CNI_COMMAND", &format!("is {other:?}, and the verbs are {verbs}")));
            }
            None => return Err(missing("CNI_COMMAND")),
        };
        let path = get("CNI_PATH")?.unwrap_or_default();
        Ok(Environment {
            verb,
            arguments: get("CNI_ARGS")?.unwrap_or_default(),
            path: path.split(':').filter(|part| !part.is_empty()).map(PathBuf::from).collect(),
            container: get("CNI_CONTAINERID")?,
            interface: get("CNI_IFNAME")?,
            namespace: get("CNI_NETNS")?,
        })
    }

    /// The attachment that the call is about.
    pub fn attachment(&self) -> Result<Attachment, CniError> {
        let container = self.container.clone().ok_or_else(|| missing("CNI_CONTAINERID"))?;
        if !is_identifier(&container) || container.len() > CONTAINER_BYTES_MAX {
            return Err(invalid(
                "CNI_CONTAINERID",
                &format!(
                    "is {container:?}: it begins with a letter or digit, and has up to {CONTAINER_BYTES_MAX} letters, \
                     digits and any of _ . -"
                ),
            ));
        }
        let interface = self.interface.clone().ok_or_else(|| missing("CNI_IFNAME"))?;
        let is_part = |c: char| !c.is_whitespace() && !c.is_control() && !"/:%".contains(c);
        if interface.len() > INTERFACE_BYTES_MAX
            || INTERFACES_OF_THE_KERNEL.contains(&interface.as_str())
            || !interface.chars().all(is_part)
        {
            return Err(invalid(
                "CNI_IFNAME",
                &format!(
                    "is {interface:?}: a new interface's name has up to {INTERFACE_BYTES_MAX} bytes, without spaces, / and :"
                ),
            ));
        }
        Ok(Attachment { container, interface })
    }

    /// Path of the container's network namespace.
    pub fn namespace(&self) -> Result<&str, CniError> {
        match self.namespace.as_deref() {
            None => Err(missing("CNI_NETNS")),
            Some(path) if !path.starts_with('/') => {
                Err(invalid("CNI_NETNS", &format!("is {path:?}, and must be an absolute path")))
            }
            Some(path) => Ok(path),
        }
    }

    /// Path of the container's network namespace, which DEL may lack.
    pub fn namespace_if_any(&self) -> Option<&str> {
        self.namespace().ok()
    }

    /// Name of the pod: `K8S_POD_NAMESPACE` and `K8S_POD_NAME` of `CNI_ARGS`, and the container's id without them.
    pub fn pod(&self, container: &str) -> Result<PodName, CniError> {
        let (mut namespace, mut name) = (None, None);
        for pair in self.arguments.split(';').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("K8S_POD_NAMESPACE", value)) => namespace = Some(value),
                Some(("K8S_POD_NAME", value)) => name = Some(value),
                Some(_) => {}
                None => {
                    return Err(invalid(
                        "CNI_ARGS",
                        &format!("has {pair:?}, and must be KEY=VALUE;KEY=VALUE"),
                    ));
                }
            }
        }
        let namespace = namespace.filter(|value| !value.is_empty()).unwrap_or(NAMESPACE_DEFAULT);
        let name = name.filter(|value| !value.is_empty()).unwrap_or(container);
        let pod = format!("{namespace}/{name}");
        match pod.parse::<PodName>() {
            Ok(parsed) if pod.len() <= 2 * CONTAINER_BYTES_MAX + 253 => Ok(parsed),
            _ => Err(invalid("CNI_ARGS", &format!("names the pod {pod:?}, which no pod is named"))),
        }
    }
}

/// Whether a text is what the specification takes as a container id or the name of a network.
pub(super) fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn missing(variable: &str) -> CniError {
    CniError::new(Code::INVALID_ENVIRONMENT, format!("{variable} is missing: the container runtime sets it"))
}

fn invalid(variable: &str, fault: &str) -> CniError {
    CniError::new(Code::INVALID_ENVIRONMENT, format!("{variable} {fault}"))
}
