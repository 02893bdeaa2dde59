//! Synthetic weights for timing. Reading the weights of a large model would be slow, and their values do not
//! affect the time of a matmul.

use ragtag_graph::{CompiledStage, WeightBuffer, WeightChunk};
use ragtag_scheduler::WeightSource;

/// Number of generated values. Larger weight buffers repeat them.
const VALUES: usize = 1 << 16;

/// Source of synthetic weights for a stage.
pub(super) struct Filling {
    buffers: Vec<WeightBuffer>,
    bytes: Vec<u8>,
}

impl Filling {
    /// Creates synthetic weights for a compiled stage.
    pub(super) fn new(compiled: &CompiledStage) -> Self {
        // The values are f16 numbers of either sign with magnitudes from 1/2 to 1. Read as f32, they are
        // small, but their products are still normal numbers, so CPUs do not slow down on denormals. The
        // values differ, because equal values would draw less power.
        let mut state = 1u32;
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) as u16 & 0x83ff) | 0x3800
        };
        let bytes = (0..VALUES).flat_map(|_| value().to_le_bytes()).collect();
        Self { buffers: compiled.weights.clone(), bytes }
    }
}

impl WeightSource for Filling {
    fn chunks(&self, weight: usize, max_bytes: u64) -> Vec<WeightChunk> {
        self.buffers[weight].chunks(max_bytes)
    }

    fn fill(
        &self,
        _: usize,
        _: &WeightChunk,
        out: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        out.chunks_mut(self.bytes.len()).for_each(|part| part.copy_from_slice(&self.bytes[..part.len()]));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    #[test]
    fn values_are_small_and_of_both_signs() {
        let options = crate::CalibrationOptions::default();
        let steps = super::super::steps::Steps::new(&Model::bundled().unwrap(), &options).unwrap();
        let devices = crate::DeviceOptions::selecting("cpu");
        let devices = crate::Devices::probe(&devices).unwrap();
        let filling = Filling::new(&steps.compile(0..1, &devices.selected()[0]).unwrap());
        let chunk = filling.chunks(0, 1 << 20).swap_remove(0);
        let mut out = vec![0; 3 * VALUES];
        filling.fill(0, &chunk, &mut out).unwrap();
        let values: Vec<f32> =
            out.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert!(values.iter().all(|value| value.is_normal() && value.abs() < 1e-2));
        assert!(values.iter().any(|value| *value < 0.0) && values.iter().any(|value| *value > 0.0));
    }
}
