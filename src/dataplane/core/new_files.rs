//! Files for the next process that a start has made: a start that fails removes them.

use std::fs;
use std::path::PathBuf;

use super::Core;
use crate::xdp::Pins;
use crate::xdp::offload::MapPins;

/// Files that this process has made, removed on drop.
#[derive(Default)]
pub(in crate::dataplane) struct NewFiles {
    flow_table: Option<PathBuf>,
    offload_maps: Option<MapPins>,
}

impl NewFiles {
    /// Leaves the files to the next process.
    pub(in crate::dataplane) fn keep(&mut self) {
        (self.flow_table, self.offload_maps) = (None, None);
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        if let Some(maps) = &self.offload_maps {
            maps.remove_all();
        }
        if let Some(directory) = &self.flow_table
            && let Err(error) = fs::remove_dir_all(directory)
        {
            tracing::warn!("the flow table in {} stays: {error}", directory.display());
        }
    }
}

impl Core {
    /// Files that this process has made. `pins` are those of the network namespace.
    pub(in crate::dataplane) fn new_files(&self, pins: Option<&Pins>) -> NewFiles {
        let has_new_maps = self.shared.offload.as_ref().is_some_and(|offload| !offload.maps().are_left());
        let directory = self.flow_table.directory.as_ref().filter(|_| has_new_maps);
        NewFiles {
            flow_table: self.new_directory.clone(),
            offload_maps: pins.zip(directory).map(|(pins, directory)| MapPins::of(pins, directory)),
        }
    }
}
