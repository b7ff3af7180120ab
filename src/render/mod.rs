//! Rule tables in the terms of other systems, which enforce the same.
//!
//! Output is deterministic: the same objects give the same text. [`difference`] leads from one state to another
//! with the commands for the changed parts alone. A system that cannot express the tables is refused by name.

mod contiv;
mod iptables;
mod nftables;
mod openflow;
mod output;
mod plan;
mod rendering;

use std::collections::BTreeMap;

pub use output::{Part, RenderError, RenderOptions};
pub use rendering::ClusterState;

use rendering::Rendering;

use crate::tables::{PodName, RuleOrigin, Verdict};

/// System whose terms are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Input of `nft -f`.
    Nftables,
    /// Input of `ipset restore`, `iptables-restore` and `ip6tables-restore`.
    Iptables,
    /// Rules and tables of Contiv/VPP.
    Contiv,
    /// Input of `ovs-ofctl`.
    Openflow,
}

impl Format {
    /// All formats, in the order of printing.
    pub const ALL: [Format; 4] = [Format::Nftables, Format::Iptables, Format::Contiv, Format::Openflow];

    /// Name on the command line, and what it prints.
    pub fn describe(self) -> (&'static str, &'static str) {
        match self {
            Format::Nftables => {
                ("nftables", "one input of nft -f, which replaces the tables of palisade in one transaction")
            }
            Format::Iptables => (
                "iptables",
                "inputs of ipset restore, iptables-restore and ip6tables-restore, in the shape of Calico's Felix",
            ),
            Format::Contiv => (
                "contiv",
                "6-tuple rules of Contiv/VPP, and the tables of its renderer cache: local, global, reflective",
            ),
            Format::Openflow => (
                "openflow",
                "one input of ovs-ofctl replace-flows, for a bridge of Open vSwitch with conntrack",
            ),
        }
    }

    /// Tests whether the format refuses some policies, since its rules cannot express them.
    pub fn refuses_policies(self) -> bool {
        match self {
            Format::Nftables | Format::Iptables | Format::Openflow => false,
            Format::Contiv => true,
        }
    }
}

/// Renders a state.
pub fn render(
    format: Format,
    state: ClusterState,
    options: &RenderOptions,
) -> Result<Vec<Part>, RenderError> {
    rendered(format, None, (state, options))
}

/// Renders the change from one state to another, for a system that has the first.
pub fn difference(
    format: Format,
    old: ClusterState,
    new: ClusterState,
    options: &RenderOptions,
) -> Result<Vec<Part>, RenderError> {
    rendered(format, Some((old, options)), (new, options))
}

/// State, and the choice of pods with their interfaces.
pub type Chosen<'a> = (ClusterState<'a>, &'a RenderOptions);

/// Renders like [`difference`], where the interfaces differ too.
pub fn difference_of(format: Format, old: Chosen, new: Chosen) -> Result<Vec<Part>, RenderError> {
    rendered(format, Some(old), new)
}

/// Name of the counter of a decision ([`RenderOptions::every_packet`]).
pub fn counter_name(origin: &RuleOrigin, verdict: Verdict) -> String {
    plan::counter(origin, verdict)
}

fn rendered(format: Format, old: Option<Chosen>, new: Chosen) -> Result<Vec<Part>, RenderError> {
    let options = new.1;
    // The pod may exist on one side only.
    let has = |pod: &PodName| old.iter().chain([&new]).any(|(state, _)| state.tables.pods.contains_key(pod));
    if let Some(pod) = options.pod.as_ref().filter(|pod| !has(pod)) {
        return Err(RenderError::UnknownPod(pod.clone()));
    }
    check_interfaces(&options.interfaces)?;
    match format {
        Format::Nftables => parts::<nftables::Ruleset>(old, new),
        Format::Iptables => parts::<iptables::State>(old, new),
        Format::Contiv => parts::<contiv::State>(old, new),
        Format::Openflow => parts::<openflow::Flows>(old, new),
    }
}

fn parts<R: Rendering>(old: Option<Chosen>, (new, options): Chosen) -> Result<Vec<Part>, RenderError> {
    let new = R::new(new, options)?;
    Ok(match old {
        None => new.parts(),
        Some((old, options)) => new.parts_since(&R::new(old, options)?),
    })
}

/// Longest name of an interface (`IFNAMSIZ` of linux/if.h, without the final NUL).
const INTERFACE_MAX: usize = 15;

/// Tests whether rules can name an interface. The kernel accepts more names, with quotes and brackets among them.
pub fn is_interface_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=INTERFACE_MAX).contains(&name.len()) && name.chars().all(is_plain)
}

fn check_interfaces(interfaces: &BTreeMap<PodName, String>) -> Result<(), RenderError> {
    let mut seen = BTreeMap::new();
    for (pod, interface) in interfaces {
        let problem = if !is_interface_name(interface) {
            "a name has up to 15 letters, digits, and the characters - _ ."
        } else if seen.insert(interface, pod).is_some() {
            "another pod has the same"
        } else {
            continue;
        };
        return Err(RenderError::Interface { pod: pod.clone(), interface: interface.clone(), problem });
    }
    Ok(())
}
