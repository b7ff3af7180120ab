//! Publication of the tables of a directory.

use super::{PolicyDirectory, PublishError, Reload, TablesChange};
use crate::control::{ApiError, CoverageCheck, Switch};
use crate::tables::{TablesDiff, TablesError};

impl PolicyDirectory {
    /// Publishes the Services of the directory, after its tables.
    pub(super) fn publish_services(
        &mut self,
        reload: Reload,
        switch: &Switch,
        warnings: Vec<String>,
    ) -> Result<Reload, PublishError> {
        Ok(match self.services.publish(switch).map_err(PublishError::Refused)? {
            Some(generation) => Reload::Loaded { generation, warnings },
            None => reload,
        })
    }

    /// Publishes the tables again, unless the switch has them.
    pub(super) fn republish(&mut self, switch: &Switch) -> Result<Reload, PublishError> {
        self.publish(&TablesChange::Difference(TablesDiff::default()), switch, Vec::new())
    }

    /// Publishes a change of the tables, then the audit beside them.
    pub(super) fn publish(
        &mut self,
        step: &TablesChange,
        switch: &Switch,
        warnings: Vec<String>,
    ) -> Result<Reload, PublishError> {
        let reload = self.publish_tables(step, switch)?;
        let has_audit_changed = self.publish_audit(switch);
        Ok(match (reload, self.published) {
            (Reload::Loaded { generation, .. }, _) => Reload::Loaded { generation, warnings },
            (Reload::Same, Some(generation)) if has_audit_changed => Reload::Loaded { generation, warnings },
            (reload, _) => reload,
        })
    }

    fn publish_tables(&mut self, step: &TablesChange, switch: &Switch) -> Result<Reload, PublishError> {
        let loaded = |generation| Reload::Loaded { generation, warnings: Vec::new() };
        let origin = self.origin();
        if let (TablesChange::Difference(difference), Some(base)) = (step, self.published.take()) {
            match switch.change_tables(base, difference, origin.clone(), CoverageCheck::RequireIfCovered) {
                Ok(published) => {
                    self.published = Some(published.generation);
                    return Ok(if difference.is_empty() {
                        Reload::Same
                    } else {
                        loaded(published.generation)
                    });
                }
                // Other tables were loaded through the control socket.
                Err(ApiError::NoBase | ApiError::Tables(TablesError::Base { .. })) => {}
                Err(refusal) => return Err(PublishError::Refused(refusal)),
            }
        }
        let Some(tables) = self.current() else { return Ok(Reload::NotDue) };
        if switch.tables().is_some_and(|running| *running == *tables) {
            self.published = Some(switch.status().generation);
            return Ok(Reload::Same);
        }
        let published = switch
            .replace_tables(tables.clone(), origin, CoverageCheck::RequireIfCovered)
            .map_err(PublishError::Refused)?;
        self.published = Some(published.generation);
        Ok(loaded(published.generation))
    }
}
