//! Names of interfaces in options.

use std::collections::BTreeMap;

use super::output::{RenderError, RenderOptions};

/// Longest name of an interface (`IFNAMSIZ` of linux/if.h, without the final NUL).
const INTERFACE_MAX: usize = 15;

/// Longest name of an interface of VPP that commands have. VPP sets no limit.
const VPP_INTERFACE_MAX: usize = 63;

/// Tests whether rules can name an interface. The kernel accepts more names, with quotes and brackets among them.
pub fn is_interface_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=INTERFACE_MAX).contains(&name.len()) && name.chars().all(is_plain)
}

/// Tests whether commands of VPP can name an interface, such as `GigabitEthernet0/8/0` or `tap0`.
fn is_vpp_interface_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    (1..=VPP_INTERFACE_MAX).contains(&name.len()) && name.chars().all(is_plain)
}

/// Checks the interfaces of pods and the uplinks, with names of VPP or of the kernel.
pub(super) fn check(options: &RenderOptions, is_vpp: bool) -> Result<(), RenderError> {
    let (is_name, rule): (fn(&str) -> bool, _) = if is_vpp {
        (is_vpp_interface_name, "a name has up to 63 letters, digits, and the characters - _ . /")
    } else {
        (is_interface_name, "a name has up to 15 letters, digits, and the characters - _ .")
    };
    let mut seen = BTreeMap::new();
    for (pod, interface) in &options.interfaces {
        let problem = if !is_name(interface) {
            rule
        } else if seen.insert(interface, pod).is_some() {
            "another pod has the same"
        } else {
            continue;
        };
        return Err(RenderError::Interface { pod: pod.clone(), interface: interface.clone(), problem });
    }
    // The kernel's match on a prefix ends with a plus.
    if let Some(prefix) = options.pod_interface_prefix.as_ref().filter(|prefix| !is_interface_name(prefix)) {
        return Err(RenderError::Prefix { prefix: prefix.clone(), problem: rule });
    }
    let mut uplinks = Vec::new();
    // Only commands of VPP name uplinks.
    for uplink in options.uplinks.iter().filter(|_| is_vpp) {
        let problem = if !is_name(uplink) {
            rule
        } else if seen.contains_key(uplink) || uplinks.contains(&uplink) {
            "a pod or another line has the same"
        } else {
            uplinks.push(uplink);
            continue;
        };
        return Err(RenderError::Uplink { interface: uplink.clone(), problem });
    }
    Ok(())
}
