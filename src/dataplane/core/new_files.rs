//! Files for the next process that a start has made: a start that fails removes them.

use std::mem;

use super::Core;
use crate::dataplane::conntrack::storage::NewDirectory;
use crate::xdp::Pins;
use crate::xdp::offload::MapPins;

/// Files that this process has made, removed on drop.
#[derive(Default)]
pub(in crate::dataplane) struct NewFiles {
    flow_table: NewDirectory,
    offload_maps: Option<MapPins>,
}

impl NewFiles {
    /// Leaves the files to the next process.
    pub(in crate::dataplane) fn keep(&mut self) {
        self.flow_table.keep();
        self.offload_maps = None;
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        if let Some(maps) = &self.offload_maps {
            maps.remove_all();
        }
    }
}

impl Core {
    /// Takes the files that this process has made. `pins` are those of the network namespace.
    pub(in crate::dataplane) fn take_new_files(&mut self, pins: Option<&Pins>) -> NewFiles {
        let has_new_maps = self.shared.offload.as_ref().is_some_and(|offload| !offload.maps().are_left());
        let directory = self.flow_table.directory.as_ref().filter(|_| has_new_maps);
        NewFiles {
            flow_table: mem::take(&mut self.new_directory),
            offload_maps: pins.zip(directory).map(|(pins, directory)| MapPins::of(pins, directory)),
        }
    }
}
