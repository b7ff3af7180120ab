//! Rule tables in the terms of other systems, which enforce the same.
//!
//! Output is deterministic: the same objects give the same text. [`difference`] leads from one state to another
//! with the commands for the changed parts alone. A system that cannot express the tables is refused by name.

mod contiv;
mod identity;
mod interfaces;
mod iptables;
mod nftables;
mod openflow;
mod output;
mod plan;
mod rendering;
mod security_groups;
mod vpp;

pub use interfaces::is_interface_name;
pub use output::{Part, RenderError, RenderOptions};
pub use rendering::ClusterState;

use rendering::Rendering;

use crate::nearest::nearest;
use crate::tables::{RuleOrigin, Verdict};

/// System whose terms are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Input of `nft -f`.
    Nftables,
    /// Input of `ipset restore`, `iptables-restore` and `ip6tables-restore`.
    Iptables,
    /// Rules and tables of Contiv/VPP.
    Contiv,
    /// Lists of the ACL plugin of VPP.
    VppAcl,
    /// Rules of the session layer of VPP.
    Vpptcp,
    /// Input of `ovs-ofctl`.
    Openflow,
    /// Security groups of `OpenStack` Neutron, as Kuryr makes them.
    SecurityGroups,
    /// Identities, address-to-identity cache and policy maps of Cilium.
    Identity,
}

impl Format {
    /// All formats, in the order of printing.
    pub const ALL: [Format; 8] = [
        Format::Nftables,
        Format::Iptables,
        Format::Contiv,
        Format::VppAcl,
        Format::Vpptcp,
        Format::Openflow,
        Format::SecurityGroups,
        Format::Identity,
    ];

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
            Format::VppAcl => (
                "vpp-acl",
                "one input of vppctl exec: those tables as lists of VPP's ACL plugin, at interfaces",
            ),
            Format::Vpptcp => (
                "vpptcp",
                "commands of vppctl: rules of VPP's session layer, for applications on its TCP and UDP",
            ),
            Format::Openflow => (
                "openflow",
                "one input of ovs-ofctl replace-flows, for a bridge of Open vSwitch with conntrack",
            ),
            Format::SecurityGroups => (
                "security-groups",
                "JSON: security groups of Neutron and KuryrNetPolicies, in the shape of OpenStack Kuryr",
            ),
            Format::Identity => (
                "identity",
                "JSON: identities, address-to-identity cache and policy maps, in the shape of Cilium",
            ),
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

/// Renders the change from a recorded state of security groups, which is a former [`render`] of
/// [`Format::SecurityGroups`].
pub fn reconcile(
    recorded: &str,
    wanted: ClusterState,
    options: &RenderOptions,
) -> Result<Vec<Part>, RenderError> {
    let recorded = security_groups::State::recorded(recorded)?;
    check(None, wanted, options)?;
    interfaces::check(options, false)?;
    Ok(security_groups::State::new(wanted, options)?.parts_since(&recorded))
}

fn rendered(format: Format, old: Option<Chosen>, new: Chosen) -> Result<Vec<Part>, RenderError> {
    check(old.map(|(state, _)| state), new.0, new.1)?;
    interfaces::check(new.1, matches!(format, Format::VppAcl | Format::Vpptcp))?;
    match format {
        Format::Nftables => parts::<nftables::Ruleset>(old, new),
        Format::Iptables => parts::<iptables::State>(old, new),
        Format::Contiv => parts::<contiv::State>(old, new),
        Format::VppAcl => parts::<vpp::acl::State>(old, new),
        Format::Vpptcp => parts::<vpp::sessions::State>(old, new),
        Format::Openflow => parts::<openflow::Flows>(old, new),
        Format::SecurityGroups => parts::<security_groups::State>(old, new),
        Format::Identity => parts::<identity::State>(old, new),
    }
}

/// Checks the options against the states.
fn check(old: Option<ClusterState>, new: ClusterState, options: &RenderOptions) -> Result<(), RenderError> {
    // The pod may exist on one side only.
    let pods = || old.iter().chain([&new]).flat_map(|state| state.tables.pods.keys());
    match options.pod.as_ref().filter(|pod| !pods().any(|known| known == *pod)) {
        Some(pod) => Err(RenderError::UnknownPod {
            pod: pod.clone(),
            nearest: nearest(&pod.to_string(), pods()).cloned(),
        }),
        None => Ok(()),
    }
}

fn parts<R: Rendering>(old: Option<Chosen>, (new, options): Chosen) -> Result<Vec<Part>, RenderError> {
    let new = R::new(new, options)?;
    Ok(match old {
        None => new.parts(),
        Some((old, options)) => new.parts_since(&R::new(old, options)?),
    })
}
