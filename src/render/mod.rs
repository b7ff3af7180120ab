//! Rule tables in the terms of other systems, which enforce the same.
//!
//! Output is deterministic: the same objects give the same text. [`difference`] leads from one state to another
//! with the commands for the changed parts alone. A system that cannot express the tables is refused by name.

mod iptables;
mod nftables;
mod output;
mod plan;

use std::collections::BTreeMap;

pub use output::{Part, RenderError, RenderOptions};

use plan::{Family, Plan};

use crate::tables::{PodName, RuleTables};

/// System whose terms are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Input of `nft -f`.
    Nftables,
    /// Input of `ipset restore`, `iptables-restore` and `ip6tables-restore`.
    Iptables,
}

/// Renders tables, which have passed their check.
pub fn render(
    format: Format,
    tables: &RuleTables,
    options: &RenderOptions,
) -> Result<Vec<Part>, RenderError> {
    let plans = plans(tables, options)?;
    Ok(match format {
        Format::Nftables => nftables::Ruleset::new(&plans, options).parts(),
        Format::Iptables => iptables::State::new(&plans, options)?.parts(),
    })
}

/// Renders the change from one state of the tables to another, for a kernel that has the first.
pub fn difference(
    format: Format,
    old: &RuleTables,
    new: &RuleTables,
    options: &RenderOptions,
) -> Result<Vec<Part>, RenderError> {
    let chosen = |tables: &RuleTables| options.pod.as_ref().is_none_or(|pod| tables.pods.contains_key(pod));
    // The pod may exist on one side only.
    let plans_of = |tables: &RuleTables, other: &RuleTables| {
        if chosen(tables) || !chosen(other) { plans(tables, options) } else { Ok(Default::default()) }
    };
    let (old, new) = (plans_of(old, new)?, plans_of(new, old)?);
    Ok(match format {
        Format::Nftables => {
            nftables::Ruleset::new(&new, options).parts_since(&nftables::Ruleset::new(&old, options))
        }
        Format::Iptables => {
            iptables::State::new(&new, options)?.parts_since(&iptables::State::new(&old, options)?)
        }
    })
}

/// Plans of both families.
type Plans = [Plan; 2];

fn plans(tables: &RuleTables, options: &RenderOptions) -> Result<Plans, RenderError> {
    if let Some(pod) = options.pod.as_ref().filter(|pod| !tables.pods.contains_key(pod)) {
        return Err(RenderError::UnknownPod(pod.clone()));
    }
    check_interfaces(&options.interfaces)?;
    Ok(Family::ALL.map(|family| Plan::new(tables, family, options.pod.as_ref())))
}

/// Longest name of an interface (`IFNAMSIZ` of linux/if.h, without the final NUL).
const INTERFACE_MAX: usize = 15;

fn check_interfaces(interfaces: &BTreeMap<PodName, String>) -> Result<(), RenderError> {
    let mut seen = BTreeMap::new();
    for (pod, interface) in interfaces {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let problem =
            if interface.is_empty() || interface.len() > INTERFACE_MAX || !interface.chars().all(is_plain) {
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
