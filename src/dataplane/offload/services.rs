//! Epochs of Services: a change of a Service makes the packets of its flows upcalls, until a worker has compared them with it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{CLOSED, Offload};
use crate::ids::Generation;

impl Offload {
    /// Takes over the epochs of Services in a snapshot that is published. Without Services all packets of their flows are upcalls.
    pub(crate) fn set_services(&self, epochs: Option<impl Iterator<Item = Generation>>) {
        match epochs {
            Some(epochs) => {
                self.service_epochs.iter().zip(epochs).for_each(|(word, epoch)| word.store(epoch.0, Relaxed));
            }
            None => self.service_epochs.iter().for_each(|word| word.store(CLOSED, Relaxed)),
        }
        if !self.held.iter().any(|held| held.load(Relaxed)) {
            self.store_service_epochs();
        }
    }

    /// Gives the program the epochs of Services of the published snapshot.
    pub(super) fn store_service_epochs(&self) {
        for (words, epoch) in self.maps.services.iter().zip(&self.service_epochs) {
            let epoch = epoch.load(Relaxed);
            if words.epoch.load(Relaxed) != epoch {
                words.epoch.store(epoch, SeqCst);
            }
        }
    }
}
