//! Outputs of a solo stage for given input rows.

use super::{SoloBatch, SoloStage};
use crate::error::Result;
use ragtag_hal::{BufferRange, Command, Device, HostRegion, QueueKind, RegionId, Work};
use std::sync::Arc;

/// Host memory for rows that are uploaded and downloaded. Solo stages have only the regions 0 to 2.
const ROWS: RegionId = RegionId(3);

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
        let rows = self.memory.edge_rows(0, 0, rows_bytes);
        let output = self.memory.logits(0, batch.logit_rows()).unwrap_or(rows);
        let input_bytes = std::mem::size_of_val(input) as u64;
        let region = HostRegion::new(output.bytes.max(input_bytes) as usize);
        let region = Arc::new(region.map_err(|cause| self.on.failed(cause))?);
        let registered = self.on.device.register_region(ROWS, Arc::clone(&region));
        registered.map_err(|cause| self.on.failed(cause))?;
        if !input.is_empty() {
            self.write(&region, input)?;
            let to = BufferRange { bytes: input_bytes, ..rows };
            self.copy(QueueKind::Upload, Command::Upload { region: ROWS, offset: 0, to })?;
        }
        let computed = self.compute(0, &batch)?;
        self.on.wait(computed)?;
        self.copy(QueueKind::Download, Command::Download { from: output, region: ROWS, offset: 0 })?;
        let lease = region.read(0..output.bytes as usize).map_err(|cause| self.on.failed(cause))?;
        let values = lease.floats().unwrap_or_default().to_vec();
        drop(lease);
        self.on.device.unregister_region(ROWS).map_err(|cause| self.on.failed(cause))?;
        Ok(values)
    }

    fn write(&self, region: &HostRegion, values: &[f32]) -> Result<()> {
        let lease = region.write(0..std::mem::size_of_val(values));
        let mut lease = lease.map_err(|cause| self.on.failed(cause))?;
        for (bytes, value) in lease.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *bytes = value.to_ne_bytes();
        }
        Ok(())
    }

    fn copy(&mut self, queue: QueueKind, command: Command) -> Result<()> {
        let done = self.on.submit(queue, Work::Commands(vec![command]), &[])?;
        self.on.wait(done)
    }
}
