//! Steps of a load.

use crate::render::output::Part;

/// Name of the file.
const FILE: &str = "palisade.nft";
/// Names of the files of the steps of a load.
const STEP_FILES: [&str; 3] = ["palisade-1.nft", "palisade-2.nft", "palisade-3.nft"];

/// Commands of a load, in three steps. A transaction is not one instant for the packets that pass meanwhile: the kernel takes
/// new rules into use before it publishes the elements of new sets, and ends elements while packets are in the old rules.
#[derive(Default)]
pub(super) struct Steps {
    /// Sets, maps and chains that no packet meets yet.
    pub(super) added: String,
    /// Hooks, and elements and rules of sets and chains that were there before: the change of decisions.
    pub(super) changed: String,
    /// Sets, maps and chains that no packet meets any more.
    pub(super) removed: String,
}

impl Steps {
    /// One part for each step, or one that takes them all.
    pub(super) fn parts(self, effect: &str, is_in_steps: bool) -> Vec<Part> {
        let texts = [self.added, self.changed, self.removed];
        if is_in_steps {
            return STEP_FILES.into_iter().zip(texts).map(|(file, text)| Part { file, text }).collect();
        }
        let text = format!("# Load with: nft -f FILE. {effect}\n{}", texts.concat());
        vec![Part { file: FILE, text }]
    }
}
