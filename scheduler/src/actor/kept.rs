//! Weights that stay in memory when other stages replace those of a pipeline.
//!
//! The memory of some devices consists of pages of host memory, which several open devices can use. This module holds the
//! pages of the weights on such a device. Stages that load on the device later import them instead of uploading the
//! weights again. Nothing writes to loaded weights, so stages that end and their successors can use them at the same time.

use crate::actor::owned::OwnedDevice;
use crate::actor::streaming::{Streamed, Streaming};
use ragtag_graph::{CompiledStage, WeightBuffer};
use ragtag_hal::{BufferId, Device, MemoryHandle, SharedMemory};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Loaded weights of a device, with their memory.
type DeviceWeights = Vec<(WeightBuffer, SharedMemory)>;

/// Weights of each device, by its label.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptWeights(Arc<Mutex<HashMap<String, DeviceWeights>>>);

impl KeptWeights {
    /// Returns whether weights on a device can be kept.
    pub(super) fn can_keep(device: &dyn Device) -> bool {
        let sharing = &device.adapter().caps.sharing;
        [&sharing.exports, &sharing.imports].into_iter().all(|kinds| kinds.contains(&MemoryHandle::HostPages))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, DeviceWeights>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Imports the kept weights that are resident in `stages`, which are about to load on the device with this label.
    pub(super) fn import(
        &self,
        label: &str,
        device: &mut OwnedDevice,
        stages: &[(&CompiledStage, Streamed<'_>)],
    ) -> Vec<(WeightBuffer, BufferId)> {
        let all = self.lock();
        let mut imported: Vec<(WeightBuffer, BufferId)> = Vec::new();
        for (weight, memory) in all.get(label).into_iter().flatten() {
            if !stages.iter().any(|(stage, streamed)| is_resident(stage, *streamed, weight)) {
                continue;
            }
            let id = device.new_buffer_id();
            match device.import_buffer(id, memory) {
                Ok(()) => imported.push((weight.clone(), id)),
                Err(error) => {
                    tracing::debug!(label, %error, "cannot keep weights; loading them again");
                    break;
                }
            }
        }
        imported
    }

    /// Keeps the loaded weights of a device, and forgets its other weights.
    pub(super) fn keep(&self, label: &str, device: &OwnedDevice, loaded: &[(WeightBuffer, BufferId)]) {
        let mut all = self.lock();
        let mut before = all.remove(label).unwrap_or_default();
        let memory = |(weight, buffer): &(WeightBuffer, BufferId)| {
            // An imported buffer cannot be exported again.
            let known = before.iter().position(|(known, _)| known.is_same(weight));
            let memory = match known {
                Some(at) => before.swap_remove(at).1,
                None => device.export_buffer(*buffer).ok()?,
            };
            Some((weight.clone(), memory))
        };
        all.insert(label.to_owned(), loaded.iter().filter_map(memory).collect());
    }

    /// Returns the bytes of the kept weights that a stage uses on the device with this label.
    pub(crate) fn bytes(&self, label: &str, stage: &CompiledStage) -> u64 {
        let all = self.lock();
        let kept = all.get(label).into_iter().flatten();
        let used = kept.filter(|(kept, _)| stage.weights.iter().any(|weight| weight.is_same(kept)));
        used.map(|(_, memory)| memory.bytes).sum()
    }

    /// Forgets the weights of all devices but those with these labels.
    pub(crate) fn retain(&self, labels: &[String]) {
        self.lock().retain(|label, _| labels.contains(label));
    }
}

/// Returns whether a stage holds a weight, and does not stream it.
fn is_resident(stage: &CompiledStage, streamed: Streamed<'_>, weight: &WeightBuffer) -> bool {
    let layout = Streaming::new(stage, streamed, |_| false);
    let held = stage.weights.iter().position(|held| held.is_same(weight));
    held.is_some_and(|at| !layout.streams(at))
}
