//! Keys and values that pass from the prefill stage to the stages that decode: places, caches and checksums.

use super::{Memory, Passed};
use crate::core::MicroBatch;
use crate::sim::device::Passing;
use std::sync::Arc;

impl Memory {
    /// Checks that the prefill stage may write to a place, and that `part` has not overwritten the keys and
    /// values before.
    pub(super) fn pass(&mut self, part: usize, passing: &Passing) -> Result<(), String> {
        let Passing { passage, place, ref micro_batch, .. } = *passing;
        self.check_copied(part, micro_batch)?;
        let held = &mut self.places[passage][place as usize];
        match held {
            Some(unread) if unread.micro_batch != micro_batch.id => {
                Err(format!("{} overwrites the keys and values of {unread:?}", micro_batch.id))
            }
            Some(_) => Ok(()),
            None => {
                *held = Some(Passed { micro_batch: micro_batch.id, wrong: false });
                Ok(())
            }
        }
    }

    /// Writes the keys and values of a part to a place.
    pub(super) fn passed(&mut self, part: usize, passing: &Passing) -> Result<(), String> {
        self.check_copied(part, &passing.micro_batch)?;
        let prefill = self.prefill.as_ref().map_or(0, |(prefill, _)| *prefill);
        let wrong = self.is_wrong(prefill);
        if let Some(passed) = self.place(passing)? {
            passed.wrong |= wrong;
        }
        Ok(())
    }

    /// Checks that `part` has not overwritten the keys and values of a micro-batch. Without verification, it
    /// may do so, because the next copy replaces them at the receiver.
    fn check_copied(&self, part: usize, micro_batch: &MicroBatch) -> Result<(), String> {
        let latest = self.prefilled.get(&part).filter(|latest| **latest != micro_batch.id && self.verified);
        latest.map_or(Ok(()), |latest| {
            Err(format!("{latest} overwrites the keys and values of {} before they pass", micro_batch.id))
        })
    }

    /// Checks that a receiver may copy keys and values from a place to its cache.
    pub(super) fn keep(&mut self, stage: usize, passing: &Passing) -> Result<(), String> {
        if let Some(earlier) = self.stages[stage].unsummed.filter(|_| self.verified) {
            return Err(format!("{} overwrites {earlier} before its checksum", passing.micro_batch.id));
        }
        self.place(passing).map(drop)
    }

    /// Writes the keys and values of a micro-batch to the cache of a receiver.
    pub(super) fn kept(&mut self, stage: usize, passing: &Passing) -> Result<(), String> {
        let passed = self.place(passing)?.take();
        let (memory, micro_batch) = (&mut self.stages[stage], &passing.micro_batch);
        memory.unsummed = Some(micro_batch.id);
        if passed.is_some_and(|passed| passed.wrong) {
            memory.wrong.push(Arc::clone(micro_batch));
        }
        self.texts.as_ref().map_or(Ok(()), |texts| memory.cache.append(micro_batch, texts))
    }

    /// Returns the place from which a stage reads keys and values.
    fn place(&mut self, passing: &Passing) -> Result<&mut Option<Passed>, String> {
        let Passing { passage, place, ref micro_batch, .. } = *passing;
        let held = &mut self.places[passage][place as usize];
        match held {
            Some(passed) if passed.micro_batch == micro_batch.id => Ok(held),
            other => Err(format!("the keys and values of {} are read where {other:?} is", micro_batch.id)),
        }
    }

    /// Returns the checksum of a micro-batch's keys and values in a stage's cache. Wrong bytes change it.
    pub(super) fn checksum_passed(&self, stage: usize, passing: &Passing) -> Result<u64, String> {
        let (memory, id) = (&self.stages[stage], passing.micro_batch.id);
        let receives = self.prefill.as_ref().is_none_or(|(prefill, _)| *prefill != stage);
        if receives && memory.unsummed != Some(id) {
            return Err(format!("a checksum of the keys and values of {id} that are not in the cache"));
        }
        let is_wrong = receives && memory.wrong.iter().any(|wrong| wrong.id == id);
        Ok(id.0 << 1 | u64::from(is_wrong))
    }

    /// Takes the checksum of keys and values that a device has copied to the host.
    pub(in crate::sim) fn take_passed_sum(&mut self, stage: usize, passing: &Passing) -> Result<u64, String> {
        let sum = self.passed_sums.remove(&(stage, passing.passage, passing.place));
        sum.ok_or_else(|| format!("no checksum of the keys and values of {}", passing.micro_batch.id))
    }

    /// Checks that a verified stage does not compute with wrong keys and values.
    pub(super) fn check_verified(&self, stage: usize, batch: &MicroBatch) -> Result<(), String> {
        let attends = |wrong: &&Arc<MicroBatch>| {
            let sequences = wrong.items.iter().map(|item| item.sequence);
            sequences.into_iter().any(|of| batch.items.iter().any(|item| item.sequence == of))
        };
        match self.stages[stage].wrong.iter().find(attends).filter(|_| self.verified) {
            Some(wrong) => {
                Err(format!("{} computes with the wrong keys and values of {}", batch.id, wrong.id))
            }
            None => Ok(()),
        }
    }
}
