//! Epochs of Services: a change of a Service makes the packets of its flows upcalls, until a worker has compared them with it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

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
        // One who releases the ports at this moment sees these epochs, or this call that none is held.
        fence(SeqCst);
        if !self.is_held() {
            self.store_service_epochs();
        }
    }

    /// Whether ports go on under the policy of the process before.
    pub(super) fn is_held(&self) -> bool {
        self.held.iter().any(|held| held.load(SeqCst))
    }

    /// Gives the program the epochs of Services of the published snapshot.
    pub(super) fn store_service_epochs(&self) {
        for (words, epoch) in self.maps.services.iter().zip(&self.service_epochs) {
            let mut wanted = epoch.load(SeqCst);
            while words.epoch.load(Relaxed) != wanted {
                words.epoch.store(wanted, SeqCst);
                // A publication may have come before the store.
                wanted = epoch.load(SeqCst);
            }
        }
    }
}
