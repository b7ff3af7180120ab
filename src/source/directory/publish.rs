//! Publication of the tables of a directory.

use super::{PolicyDirectory, PublishError, Reload, TablesChange};
use crate::control::{ApiError, CoverageCheck, Switch};
use crate::tables::{TablesDiff, TablesError};

impl PolicyDirectory {
    /// Publishes the tables again, unless the switch has them.
    pub(super) fn republish(&mut self, switch: &Switch) -> Result<Reload, PublishError> {
        self.publish(&TablesChange::Difference(TablesDiff::default()), switch, Vec::new())
    }

    pub(super) fn publish(
        &mut self,
        step: &TablesChange,
        switch: &Switch,
        warnings: Vec<String>,
    ) -> Result<Reload, PublishError> {
        let origin = self.origin();
        if let (TablesChange::Difference(difference), Some(base)) = (step, self.published.take()) {
            match switch.change_tables(base, difference, origin.clone(), CoverageCheck::RequireIfCovered) {
                Ok(loaded) => {
                    self.published = Some(loaded.generation);
                    return Ok(if difference.is_empty() {
                        Reload::Same
                    } else {
                        Reload::Loaded { generation: loaded.generation, warnings }
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
        let loaded = switch
            .replace_tables(tables.clone(), origin, CoverageCheck::RequireIfCovered)
            .map_err(PublishError::Refused)?;
        self.published = Some(loaded.generation);
        Ok(Reload::Loaded { generation: loaded.generation, warnings })
    }
}
