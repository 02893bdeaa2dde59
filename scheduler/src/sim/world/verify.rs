//! Verification of transfers, and transfers that are sent again.

use super::World;
use crate::core::VerifyAction;
use crate::error::Error;
use crate::sim::device::{Job, Submitted, Summed};
use ragtag_hal::{Point, QueueKind};
use ragtag_transfer::Route;

impl World<'_> {
    /// Executes an action about the transfers of a stage.
    pub(super) fn verify(&mut self, stage: usize, action: VerifyAction) {
        match action {
            VerifyAction::Sum { end, transfer, slot, bytes, waits, computed, signal } => {
                let summed = Summed { end, transfer, slot, bytes };
                self.sum(stage, [Job::Checksum(summed), Job::Sum(summed)], waits, [computed, signal]);
            }
            VerifyAction::Resent { .. } => self.report.resent += 1,
            VerifyAction::Corrupted { route } => {
                self.end_edge(stage, |from, to| Error::Corrupted { from, to, route });
            }
            VerifyAction::Unreplaced => {
                let (route, cause) = (Route::Peer, ragtag_hal::Error::invalid("made up"));
                self.end_edge(stage, |from, to| Error::Transfer { from, to, route, cause });
            }
        }
    }

    /// Submits the computation of a checksum, and its copy to the host.
    pub(super) fn sum(
        &mut self,
        stage: usize,
        [sum, copy]: [Job; 2],
        waits: Vec<Point>,
        [computed, signal]: [Point; 2],
    ) {
        self.submit(Submitted { stage, queue: QueueKind::Compute, job: sum, waits, signal: computed });
        if self.devices[self.topology.hosts[stage]].failure.is_none() {
            let (queue, waits) = (QueueKind::Download, vec![computed]);
            self.submit(Submitted { stage, queue, job: copy, waits, signal });
        }
    }

    /// Ends the run because a stage has no route to the next stage.
    fn end_edge(&mut self, stage: usize, error: impl FnOnce(String, String) -> Error) {
        let [from, to] = [stage, stage + 1].map(|stage| self.topology.label(stage));
        self.end_run(stage, error(from, to));
    }
}
