//! Services of a directory, and their publication.

use crate::control::{ApiError, Switch};
use crate::ids::Generation;
use crate::policy::Change;
use crate::policy::services::Services;
use crate::source::load::{LoadOptions, services_options};
use crate::tables::ServicesDiff;

/// Services of the files, and the state of their publication.
#[derive(Debug)]
pub(super) struct DirectoryServices {
    services: Services,
    publication: Publication,
}

/// Publication of the Services.
#[derive(Debug)]
enum Publication {
    /// No Service has been read: those that others loaded into the switch stay.
    Untouched,
    /// Switch has exactly these Services since a generation.
    Published(Generation),
    /// Switch has had the Services without a difference.
    Changed(Generation, ServicesDiff),
    /// Switch has other Services.
    Unpublished,
}

impl DirectoryServices {
    pub(super) fn new(node: Option<String>) -> DirectoryServices {
        let services = Services::new(services_options(&LoadOptions { node, ..LoadOptions::default() }));
        DirectoryServices { services, publication: Publication::Untouched }
    }

    /// Applies changes of objects.
    pub(super) fn apply(&mut self, changes: &[Change]) {
        let concerned = changes.iter().filter(|change| Services::depends_on(change)).cloned();
        let difference = self.services.apply_all(concerned);
        if difference.is_empty() || self.services.is_empty() && self.is_untouched() {
            return;
        }
        self.publication = match self.publication {
            Publication::Published(base) => Publication::Changed(base, difference),
            _ => Publication::Unpublished,
        };
    }

    /// Warnings about Services that are not served as written.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.services.warnings()
    }

    /// Tests whether the switch lacks a change.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.publication, Publication::Changed(..) | Publication::Unpublished)
    }

    fn is_untouched(&self) -> bool {
        matches!(self.publication, Publication::Untouched)
    }

    /// Publishes what the switch lacks: no Services too, so that it stops to await those of the process before. Returns the generation if that changed something.
    pub(super) fn publish(&mut self, switch: &Switch) -> Result<Option<Generation>, ApiError> {
        let table = self.services.table();
        let loaded = match &self.publication {
            Publication::Untouched => {
                if switch.services().is_none() {
                    switch.replace_services(table)?;
                }
                return Ok(None);
            }
            Publication::Published(_) => match switch.services() {
                Some((_, running)) if running == *table => return Ok(None),
                _ => switch.replace_services(table)?,
            },
            Publication::Changed(base, difference) => match switch.change_services(*base, difference) {
                // Other Services were loaded through the control socket.
                Err(ApiError::NoServicesBase | ApiError::ServicesBase { .. }) => {
                    switch.replace_services(table)?
                }
                loaded => loaded?,
            },
            Publication::Unpublished => switch.replace_services(table)?,
        };
        self.publication = Publication::Published(loaded.generation);
        Ok(Some(loaded.generation))
    }
}
