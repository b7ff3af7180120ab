//! Commands of the control side, which a worker carries out between two batches.

use super::Worker;
use super::mailbox::{Command, SlotAndKey};

impl Worker {
    /// Carries out the commands of the control side.
    pub(crate) fn handle_commands(&mut self) {
        let shared = self.shared.clone();
        while let Some(command) = shared.mailboxes[self.id.index()].next_command() {
            match command {
                Command::Open(port, access) => self.open_port(port, access),
                Command::Close(port, reply) => {
                    if let Some(access) = self.close_port(port) {
                        // The control side waits for it: without a receiver, the frames of the queue would stay lent.
                        let _ = reply.send(access);
                    }
                }
                Command::End(mut flows, reply) => {
                    let ended = self.end_flows(&mut flows);
                    let _ = reply.send((ended, flows));
                }
                Command::Reclaim(closed, reply) => {
                    self.umem.reclaim(closed, &mut self.free);
                    let _ = reply.send(());
                }
            }
        }
    }

    /// Ends flows, and leaves those in the list that have to wait for a place among the retired ones. Returns the number
    /// of those that have ended.
    fn end_flows(&mut self, flows: &mut Vec<SlotAndKey>) -> usize {
        let conntrack = &self.shared.conntrack;
        // A worker that has slept holds no slot number: from here on a slot keeps its flow as within a batch.
        conntrack.start_batch(&mut self.flows);
        let before = self.flows.ended;
        flows.retain(|(slot, key)| !conntrack.remove_key(*slot, key, &mut self.flows));
        (self.flows.ended - before) as usize
    }
}
