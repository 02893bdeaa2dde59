//! Weights that the prefill stage streams from the memory of the devices that decode. Host memory then holds
//! them once.

use crate::actor::StageSpec;
use crate::actor::streaming::Streaming;
use crate::runtime::spec::PipelineSpec;
use ragtag_hal::{Device, HostPages, MemoryHandle};
use std::sync::Arc;

/// A weight that a stage and the prefill stage store in the same layout.
pub(super) struct SharedWeight {
    /// Index of the stage.
    pub(super) stage: usize,
    /// Index of the weight at the stage.
    pub(super) weight: usize,
    /// Index of the weight at the prefill stage.
    at_prefill: usize,
}

/// Returns the weights that the prefill stage can stream from the memory of other devices.
pub(super) fn shared_weights(pipeline: &PipelineSpec) -> Vec<SharedWeight> {
    let PipelineSpec { devices, stages, prefill, .. } = pipeline;
    let Some(prefill) = prefill else { return Vec::new() };
    let layout = |spec: &StageSpec| Streaming::new(&spec.compiled, spec.streamed(), |_| false);
    let at_prefill = layout(prefill);
    let shares = |(_, spec): &(usize, &StageSpec)| {
        spec.device != prefill.device && copies_from(devices[prefill.device].as_ref(), &*devices[spec.device])
    };
    let of_stage = |(stage, spec): (usize, &StageSpec)| {
        let own = layout(spec);
        let resident = spec.compiled.weights.iter().enumerate().filter(|(weight, _)| !own.streams(*weight));
        let shared = resident.filter_map(|(weight, held)| {
            let same = prefill.compiled.weights.iter().position(|other| other.is_same(held))?;
            at_prefill.streams(same).then_some(SharedWeight { stage, weight, at_prefill: same })
        });
        shared.collect::<Vec<_>>()
    };
    stages.iter().enumerate().filter(shares).flat_map(of_stage).collect()
}

/// Returns whether a device can copy from the memory of another one, which consists of pages of host memory.
fn copies_from(device: &dyn Device, owner: &dyn Device) -> bool {
    let pages = MemoryHandle::HostPages;
    let [device, owner] = [device, owner].map(|of| &of.adapter().caps.sharing);
    device.imports.contains(&pages) && owner.exports.contains(&pages)
}

/// Reserves the host memory of shared weights. Returns it for each stage, with the index of the weight at the
/// stage. The system commits the memory when the weights are loaded.
pub(super) fn shared_pages(pipeline: &PipelineSpec) -> Vec<Vec<(usize, Arc<HostPages>)>> {
    let prefill = pipeline.stages.len();
    let mut all = vec![Vec::new(); prefill + 1];
    for SharedWeight { stage, weight, at_prefill } in shared_weights(pipeline) {
        let bytes = pipeline.stages[stage].compiled.weights[weight].bytes();
        // Without memory for this weight, each stage allocates its own, and reports the error.
        let Some(pages) = HostPages::new(bytes).map(Arc::new) else { continue };
        all[stage].push((weight, Arc::clone(&pages)));
        all[prefill].push((at_prefill, pages));
    }
    all
}
