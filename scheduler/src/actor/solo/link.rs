//! A link between two devices, for timing. It stages transfers through a ring in host memory, as a pipeline
//! does.

use super::SoloDevice;
use crate::error::{Error, Result};
use ragtag_hal::{
    BufferId, BufferRange, Command, Device, HostRegion, Point, QueueKind, RegionId, Timeline, Work,
};
use ragtag_transfer::Route;
use std::sync::Arc;
use std::time::Instant;

const BUFFER: BufferId = BufferId(0);
const RING: RegionId = RegionId(0);

/// A link from one device to another whose transfers can be timed outside a pipeline.
pub struct SoloLink<'a> {
    from: &'a mut SoloDevice,
    to: &'a mut SoloDevice,
    chunk_bytes: u64,
    depth: u32,
    bytes: u64,
}

impl std::fmt::Debug for SoloLink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoloLink").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

impl Drop for SoloLink<'_> {
    fn drop(&mut self) {
        self.from.device.clear();
        self.to.device.clear();
    }
}

impl<'a> SoloLink<'a> {
    /// Creates a link for transfers of at most `bytes` bytes. The two devices must have different ids.
    ///
    /// # Errors
    /// [`Error::Spec`] if `route` is not host-staged, or the error of a device.
    pub fn new(from: &'a mut SoloDevice, to: &'a mut SoloDevice, route: Route, bytes: u64) -> Result<Self> {
        let Route::HostStaged { chunk_bytes: chunk_bytes @ 1.., depth: depth @ 1.. } = route else {
            return Err(Error::Spec { what: format!("route {route:?} is not available") });
        };
        let ring = HostRegion::new(route.staging_bytes() as usize).map_err(|cause| from.failed(cause))?;
        let ring = Arc::new(ring);
        let timeline = |of: &SoloDevice, queue: QueueKind| Arc::clone(&of.own[queue.index()]);
        let [sent, taken] = [timeline(from, QueueKind::Download), timeline(to, QueueKind::Upload)];
        let prepare = |of: &mut SoloDevice, neighbour: Arc<Timeline>| {
            let made = of.device.create_buffer(BUFFER, bytes);
            let made = made.and_then(|()| of.device.register_region(RING, Arc::clone(&ring)));
            let made = made.and_then(|()| of.device.import_timeline(neighbour));
            made.map_err(|cause| of.failed(cause))
        };
        match prepare(from, taken).and_then(|()| prepare(to, sent)) {
            Ok(()) => Ok(Self { from, to, chunk_bytes, depth, bytes }),
            Err(error) => {
                from.device.clear();
                to.device.clear();
                Err(error)
            }
        }
    }

    /// Returns the time from an empty submission on the first device until the host knows of its completion,
    /// in microseconds. [`SoloLink::time_us`] includes this time in addition to the transfer.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn hand_over_us(&mut self) -> Result<f64> {
        let start = Instant::now();
        let idle = self.from.submit(QueueKind::Compute, Work::Commands(Vec::new()), &[])?;
        self.from.wait(idle)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    /// Returns the time of a transfer of `bytes` bytes, in microseconds. The time starts with an empty
    /// submission on the first device. An empty submission on the second device waits for the bytes. The time
    /// ends when the host learns that this submission has completed. `bytes` is clamped to the range from 1
    /// to the maximum of the link.
    ///
    /// # Errors
    /// Fails if a device fails.
    pub fn time_us(&mut self, bytes: u64) -> Result<f64> {
        let bytes = bytes.clamp(1, self.bytes);
        let nothing = || Work::Commands(Vec::new());
        let start = Instant::now();
        let computed = self.from.submit(QueueKind::Compute, nothing(), &[])?;
        let mut arrived: Vec<Point> = Vec::new();
        for (index, offset) in (0..bytes).step_by(self.chunk_bytes as usize).enumerate() {
            let range = BufferRange { buffer: BUFFER, offset, bytes: self.chunk_bytes.min(bytes - offset) };
            let place = (index % self.depth as usize) as u64 * self.chunk_bytes;
            let freed = index.checked_sub(self.depth as usize).map(|before| arrived[before]);
            let waits: Vec<_> = std::iter::once(computed).chain(freed).collect();
            let download = Command::Download { from: range, region: RING, offset: place };
            let sent = self.from.submit(QueueKind::Download, Work::Commands(vec![download]), &waits)?;
            let upload = Command::Upload { region: RING, offset: place, to: range };
            arrived.push(self.to.submit(QueueKind::Upload, Work::Commands(vec![upload]), &[sent])?);
        }
        let ready = self.to.submit(QueueKind::Compute, nothing(), &arrived[arrived.len() - 1..])?;
        self.to.wait(ready)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}
