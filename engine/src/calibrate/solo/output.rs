//! Outputs of a solo stage for given input rows, and its keys and values.

use super::{SoloBatch, SoloStage, protocol};
use ragtag_hal::{BufferRange, Command, Device, HostRegion, QueueKind, RegionId};
use ragtag_scheduler::Result;

impl SoloStage<'_> {
    /// Runs a micro-batch on `input`, the values of its rows. Returns the logits if the micro-batch needs
    /// logits, and otherwise the rows that the stage sends. `input` is empty if the stage starts with the
    /// embedding. The wire type of the stage must be f32.
    ///
    /// # Errors
    /// Fails if the micro-batch does not fit the stage, or if the device fails.
    pub fn output(&mut self, batch: &SoloBatch, input: &[f32]) -> Result<Vec<f32>> {
        let batch = self.micro_batch(batch);
        let rows_bytes = u64::from(batch.rows()) * self.memory.compiled().edge_row_bytes();
        let rows = self.memory.rows(0, rows_bytes);
        let output = self.memory.logits(0, batch.logit_rows()).unwrap_or(rows);
        let input_bytes = std::mem::size_of_val(input) as u64;
        let (id, region) = self.on.region(output.bytes.max(input_bytes))?;
        if !input.is_empty() {
            self.write(&region, input)?;
            let to = BufferRange { bytes: input_bytes, ..rows };
            self.on.run(QueueKind::Upload, Command::Upload { region: id, offset: 0, to })?;
        }
        let computed = self.compute(0, &batch)?;
        self.on.wait(computed)?;
        self.on.run(QueueKind::Download, Command::Download { from: output, region: id, offset: 0 })?;
        let lease = region.read(0..output.bytes as usize).map_err(|cause| self.on.failed(cause))?;
        let values = lease.floats().unwrap_or_default().to_vec();
        drop(lease);
        self.on.device.unregister_region(id).map_err(|cause| self.on.failed(cause))?;
        Ok(values)
    }

    /// Returns the keys and values in the stage's cache, buffer after buffer.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn keys_and_values(&mut self) -> Result<Vec<u8>> {
        self.with_cache(|stage, (id, region), ranges| {
            for (offset, from) in ranges {
                let download = Command::Download { from, region: id, offset };
                stage.on.run(QueueKind::Download, download)?;
            }
            let lease = region.read(0..region.bytes()).map_err(|cause| stage.on.failed(cause))?;
            Ok(lease.to_vec())
        })
    }

    /// Replaces the keys and values in the stage's cache by those of an equal stage on another device.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the caches have different sizes. Also fails if the device fails.
    pub fn set_keys_and_values(&mut self, bytes: &[u8]) -> Result<()> {
        self.with_cache(|stage, (id, region), ranges| {
            if region.bytes() != bytes.len() {
                return Err(protocol("keys and values of another layout".into()));
            }
            let mut lease = region.write(0..bytes.len()).map_err(|cause| stage.on.failed(cause))?;
            lease.copy_from_slice(bytes);
            drop(lease);
            ranges.into_iter().try_for_each(|(offset, to)| {
                stage.on.run(QueueKind::Upload, Command::Upload { region: id, offset, to })
            })
        })
    }

    /// Calls `run` with host memory for the whole cache, and with the offset of each buffer in this memory.
    fn with_cache<T>(
        &mut self,
        run: impl FnOnce(&mut Self, (RegionId, &HostRegion), Vec<(u64, BufferRange)>) -> Result<T>,
    ) -> Result<T> {
        let mut all = 0;
        let range = |range: BufferRange| {
            let offset = all;
            all += range.bytes;
            (offset, range)
        };
        let ranges: Vec<(u64, BufferRange)> = self.memory.kv().map(range).collect();
        let (id, region) = self.on.region(all)?;
        let done = run(self, (id, &region), ranges);
        self.on.device.unregister_region(id).map_err(|cause| self.on.failed(cause))?;
        done
    }

    fn write(&self, region: &HostRegion, values: &[f32]) -> Result<()> {
        let lease = region.write(0..std::mem::size_of_val(values));
        let mut lease = lease.map_err(|cause| self.on.failed(cause))?;
        for (bytes, value) in lease.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *bytes = value.to_ne_bytes();
        }
        Ok(())
    }
}
