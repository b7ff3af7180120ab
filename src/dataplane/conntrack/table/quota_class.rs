//! Quota owner and quota class of the flows in the table, as their states change: see
//! [`super::super::quota`].

use super::super::entry::{Entry, QuotaOwner};
use super::super::state::{FlowState, QuotaClass};
use super::layout::Conntrack;
use super::slot::Slot;
use crate::ids::PortId;

impl Conntrack {
    /// Follows a change of a flow's state: an answered flow becomes assured, a closed one counts as ended. Returns whether
    /// its class has changed.
    #[inline]
    pub(crate) fn on_state_change(&self, slot: Slot, old: FlowState, new: FlowState) -> bool {
        let is_another = old.class() != new.class();
        if is_another {
            self.update_class(self.entry(slot));
        }
        is_another
    }

    /// Gives a flow the class of its state, as far as its port's quota allows. The worker whose
    /// compare-and-swap changes the owner in the entry counts it, so that the counts are exact whatever two
    /// workers do at once.
    pub(super) fn update_class(&self, entry: &Entry) {
        let Some(old) = entry.quota_owner() else { return };
        let new = QuotaOwner { class: entry.state().class(), ..old };
        if new == old || (new.class == QuotaClass::Assured && !self.quotas.may_assure(new.port)) {
            return;
        }
        self.replace_owner(entry, old, new);
    }

    /// Makes an assured flow an unassured one, which a new flow may take the slot of.
    pub(super) fn unassure(&self, entry: &Entry) {
        let assured = |owner: &QuotaOwner| owner.class == QuotaClass::Assured;
        if let Some(old) = entry.quota_owner().filter(assured) {
            self.replace_owner(entry, old, QuotaOwner { class: QuotaClass::Unassured, ..old });
        }
    }

    /// Makes a flow count against this port: its originator's port has another number than at the insertion.
    pub(crate) fn set_owner_port(&self, slot: Slot, port: PortId) {
        let entry = self.entry(slot);
        if let Some(old) = entry.quota_owner().filter(|owner| owner.port != port) {
            self.replace_owner(entry, old, QuotaOwner { port, ..old });
        }
    }

    fn replace_owner(&self, entry: &Entry, old: QuotaOwner, new: QuotaOwner) {
        self.quotas.add(new);
        let replaced = entry.replace_quota_owner(Some(old), new);
        self.quotas.remove(replaced.unwrap_or(new));
    }
}
