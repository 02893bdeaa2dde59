//! Checks the results of a simulation.

use super::World;
use crate::core::{FinishReason, SequenceId};
use crate::error::{Error, Refusal};
use crate::sim::expected::expected;
use crate::sim::request::SimRequest;
use crate::sim::spec::Fault;
use crate::sim::{SimFailure, SimOutcome, SimReport};
use ragtag_transfer::Route;

impl World<'_> {
    /// Checks the final state and returns the report.
    pub(super) fn finish(self) -> Result<SimReport, SimFailure> {
        let violation = |what: String| Err(SimFailure::Violation { at_ns: self.queue.now, what });
        let all = (0..self.spec.requests.len() as u64).map(SequenceId);
        let unfinished: Vec<_> = all.filter(|s| !self.report.outcomes.contains_key(s)).collect();
        if !unfinished.is_empty() {
            return Err(SimFailure::Deadlock { at_ns: self.queue.now, sequences: unfinished });
        }
        let counts = self.run.counts();
        let run = &self.spec.run;
        let ring_blocks = run.kv_ring.map_or(0, |ring| ring.total);
        let home = (counts.waiting, counts.active, counts.in_flight) == (0, 0, 0)
            && counts.waiting_tokens == 0
            && (counts.free_credits, counts.free_blocks) == (run.credits, run.kv_blocks)
            && counts.free_ring_blocks == ring_blocks;
        if !home {
            return violation(format!("the coordinator ends with {counts:?}"));
        }
        if !self.stopped
            && let Some(device) = self.cores.iter().position(|core| !core.is_idle())
        {
            return violation(format!("device {device} ends without all its credits"));
        }
        for (index, request) in self.spec.requests.iter().enumerate() {
            let outcome = &self.report.outcomes[&SequenceId(index as u64)];
            if let Err(what) = self.check(index as u64, request, outcome) {
                return violation(format!("sequence {index}, {request:?}: {what}: {outcome:?}"));
            }
        }
        Ok(self.report)
    }

    fn is_stopped_by_spec(&self) -> bool {
        self.spec.faults.iter().any(|fault| matches!(fault, Fault::Stopped { .. }))
    }

    fn check(&self, sequence: u64, request: &SimRequest, outcome: &SimOutcome) -> Result<(), &'static str> {
        let expected = expected(self.spec, sequence, request);
        match (outcome, expected) {
            (SimOutcome::Failed { error: Error::Refused(got) }, Err(wanted)) if *got == wanted => Ok(()),
            // `check_limits` has checked these refusals.
            (SimOutcome::Failed { error: Error::Refused(Refusal::Busy { .. }) }, _) => Ok(()),
            (SimOutcome::Failed { error: Error::Stage { stage, device, cause } }, _) => {
                let host = self.topology.hosts.get(*stage as usize);
                let failed = host.is_some_and(|&host| self.devices[host].failure.as_ref() == Some(cause));
                let named = host.is_some() && self.topology.label(*stage as usize) == *device;
                if failed && named { Ok(()) } else { Err("failed though that device did not, or not so") }
            }
            (SimOutcome::Failed { error: Error::WrongKeysAndValues { from, stage, to } }, _) => {
                let prefill = self.spec.stages.len();
                let is_wrong = |fault: &Fault| match fault {
                    Fault::WrongBytes { stage, .. } => *stage as usize == prefill,
                    _ => false,
                };
                let wrong = self.spec.verified && self.spec.faults.iter().any(is_wrong);
                let named = [prefill, *stage as usize].map(|at| self.topology.label(at));
                let named = [from, to] == named.each_ref();
                if wrong && named { Ok(()) } else { Err("failed without wrong keys and values, or not so") }
            }
            (SimOutcome::Failed { error: Error::Corrupted { .. } }, _) => {
                let wrong = |fault: &Fault| matches!(fault, Fault::WrongBytes { copies: 2.., .. });
                let wrong = self.spec.verified && self.spec.faults.iter().any(wrong);
                if wrong { Ok(()) } else { Err("failed without wrong bytes") }
            }
            (SimOutcome::Failed { error: Error::Transfer { route: Route::Peer, .. } }, _) => {
                let refused = |fault: &Fault| matches!(fault, Fault::CopyRefused { .. });
                let refused = !self.spec.verified && self.spec.faults.iter().any(refused);
                if refused { Ok(()) } else { Err("failed without a refused copy") }
            }
            (SimOutcome::Failed { error: Error::Stopped }, _) if self.is_stopped_by_spec() => Ok(()),
            (SimOutcome::Finished { reason: FinishReason::Cancelled, tokens }, Ok((_, all))) => {
                let asked = request.cancel_ns.is_some() || self.is_stopped_by_spec();
                if asked && all.starts_with(tokens) { Ok(()) } else { Err("cancelled wrongly") }
            }
            (SimOutcome::Finished { reason: FinishReason::Deadline, tokens }, Ok((_, all))) => {
                if all.starts_with(tokens) { Ok(()) } else { Err("ended with wrong tokens") }
            }
            (SimOutcome::Finished { reason, tokens }, Ok((wanted, all))) => {
                if *reason == wanted && *tokens == all { Ok(()) } else { Err("not what was to come") }
            }
            _ => Err("ended in the wrong way"),
        }
    }
}
