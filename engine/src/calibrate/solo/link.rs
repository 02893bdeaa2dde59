//! A link between two devices, for timing and verification. It transfers bytes as the edges of a pipeline do,
//! in one direction or in both.

use super::direction::{Direction, Moved, Moving, TimedCopy};
use super::verify::{Contents, Mismatch};
use super::{FILLING, SoloDevice};
use ragtag_hal::{
    BufferId, BufferRange, Command, Device, HostRegion, KernelLanguage, LeaseMut, Point, QueueKind, RegionId,
    Work,
};
use ragtag_kernels::checksum::of_bytes;
use ragtag_scheduler::Result;
use ragtag_scheduler::direct::Checksums;
use ragtag_transfer::Route;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size in bytes of the buffers between which each device of a busy link copies on its compute queue.
const BUSY_BYTES: u64 = 2 << 20;
/// Approximate duration of a submission to the compute queue of a busy device, and the maximum number of its
/// copies. Two such submissions are in flight, so that the queue does not run empty.
const BUSY_US: f64 = 1000.0;
const MAX_BUSY_COPIES: f64 = 512.0;
const BUSY_IN_FLIGHT: usize = 2;

/// A link from one device to another, on which transfers can be timed and verified outside a pipeline.
/// Directions are numbered: 0 is there, and 1 is back.
pub struct SoloLink<'a> {
    /// The device that sends in direction 0, and the device that sends in direction 1.
    ends: [&'a mut SoloDevice; 2],
    directions: Vec<Direction>,
    bytes: u64,
    /// Work that keeps the devices busy, for each end. `None` if the devices only transfer.
    busy: Option<[Busywork; 2]>,
    /// Checksums for each end. `None` if they are not created yet, and `Some(None)` if the host must compare
    /// the bytes.
    checksums: [Option<Option<Checksums>>; 2],
}

/// Copies that keep the compute queue of a device busy.
struct Busywork {
    commands: Vec<Command>,
    in_flight: VecDeque<Point>,
}

impl Drop for SoloLink<'_> {
    fn drop(&mut self) {
        self.ends.iter_mut().for_each(|end| end.device.clear());
    }
}

impl<'a> SoloLink<'a> {
    /// Creates a link for transfers of at most `bytes` bytes. The two devices must have different ids.
    ///
    /// # Errors
    /// [`Error::Spec`] if `route` is unusable, or the error of a device. A device that cannot share memory
    /// refuses the routes that need it.
    pub fn new(from: &'a mut SoloDevice, to: &'a mut SoloDevice, route: Route, bytes: u64) -> Result<Self> {
        Self { ends: [from, to], directions: Vec::new(), bytes, busy: None, checksums: [None, None] }
            .with_direction(route)
    }

    /// Adds the opposite direction, whose transfers take `route`. All measurements then run in both
    /// directions at once.
    ///
    /// # Errors
    /// The errors of [`SoloLink::new`].
    pub fn and_back(self, route: Route) -> Result<Self> {
        self.with_direction(route)
    }

    /// Keeps the compute queues of both devices busy during all later verifications and timings. Devices of
    /// a pipeline compute while they transfer.
    ///
    /// # Errors
    /// Fails if a device runs out of memory or fails.
    pub fn keep_busy(&mut self) -> Result<()> {
        let [first, second] = &mut self.ends;
        self.busy = Some([first.busywork()?, second.busywork()?]);
        Ok(())
    }

    fn with_direction(mut self, route: Route) -> Result<Self> {
        let at = self.directions.len();
        self.directions.push(Direction::new(at, route, &mut self.ends, self.bytes)?);
        Ok(self)
    }

    /// Returns the alignment in bytes of the offset and the size that both devices can copy.
    pub fn alignment_bytes(&self) -> u64 {
        self.ends.iter().map(|end| end.adapter().caps.copy_alignment_bytes).fold(1, u64::max)
    }

    /// Returns the time of a transfer of `bytes` bytes in direction 0, in microseconds, as the statistics of a
    /// pipeline count it: from the start of its first copy until its last byte has arrived. As between two
    /// stages, the transfer is submitted while the sending device computes, and the receiving device is idle.
    /// The sending device computes only if [`SoloLink::keep_busy`] was called. `bytes` is clamped to the range
    /// from 1 to the maximum of the link.
    ///
    /// # Errors
    /// Fails if a device fails.
    pub fn hop_us(&mut self, bytes: u64) -> Result<f64> {
        let part = 0..bytes.clamp(1, self.bytes);
        match self.hop(&part, false)? {
            (Some(timed_us), _) => Ok(timed_us),
            // A device does not report times.
            (None, _) => self.hop(&part, true).map(|(timed_us, waited_us)| timed_us.unwrap_or(waited_us)),
        }
    }

    /// Transfers `part` in direction 0 after a computation. Returns the time of the transfer that the devices
    /// report, if they do, and the time that the host waits for it. If `watched` is set, the latter begins
    /// when the host knows of the end of the computation.
    fn hop(&mut self, part: &Range<u64>, watched: bool) -> Result<(Option<f64>, f64)> {
        let computing = self.busy.iter().flat_map(|[first, _]| first.commands.clone()).collect();
        let computed = self.ends[0].enqueue(QueueKind::Compute, Work::Commands(computing), &[], false)?;
        let direction = &mut self.directions[0];
        let mut moving = direction.start(part, computed);
        moving.copies = Some(Vec::new());
        while !moving.is_over() {
            direction.step(&mut self.ends, part.start, &mut moving)?;
        }
        let copies = moving.copies.take().unwrap_or_default();
        let moved = moving.end()?;
        if watched {
            self.ends[0].wait(computed)?;
        }
        let start = Instant::now();
        self.ends[1].wait(moved.arrived)?;
        let waited_us = start.elapsed().as_secs_f64() * 1e6;
        self.settle(0, &moved)?;
        let timed_us = self.timed_us(&copies);
        self.ends.iter_mut().for_each(|end| end.timings.clear());
        Ok((timed_us, waited_us))
    }

    /// Returns the time from the start of the first of `copies` to the end of the last one on the receiving
    /// device, in microseconds. Returns `None` if a device does not report it.
    fn timed_us(&mut self, copies: &[TimedCopy]) -> Option<f64> {
        let (mut start_ns, mut end_ns) = (u64::MAX, 0);
        for &TimedCopy { is_outgoing, bytes, signal } in copies {
            // The sender of a slot that the receiver reads only waits.
            if bytes == 0 && is_outgoing {
                continue;
            }
            let timing = self.ends[usize::from(!is_outgoing)].timing(signal)?;
            if bytes > 0 {
                start_ns = timing.start_ns.min(start_ns);
            }
            if !is_outgoing {
                end_ns = timing.end_ns.max(end_ns);
            }
        }
        (start_ns < end_ns).then(|| (end_ns - start_ns) as f64 / 1e3)
    }

    /// Returns the time of `count` transfers, each of `bytes` bytes in each direction, in microseconds. The
    /// host submits all of them at once. The time starts with an empty submission on each sending device. An
    /// empty submission on each receiving device waits for the bytes. The time ends when the host learns that
    /// these submissions have completed. `bytes` is clamped to the range from 1 to the maximum of the link.
    ///
    /// # Errors
    /// Fails if a device fails.
    pub fn times_us(&mut self, bytes: u64, count: usize) -> Result<f64> {
        let part = 0..bytes.clamp(1, self.bytes);
        let all = 0..self.directions.len();
        let start = Instant::now();
        let after: Vec<_> = all.clone().map(|at| self.ends[at].empty(&[])).collect::<Result<_>>()?;
        let moved = self.transfers(all, &part, &after, count)?;
        let ready = moved.iter().enumerate();
        let ready: Vec<_> =
            ready.map(|(at, moved)| self.ends[1 - at].empty(&[moved.arrived])).collect::<Result<_>>()?;
        ready.iter().enumerate().try_for_each(|(at, ready)| self.ends[1 - at].wait(*ready))?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        moved.iter().enumerate().try_for_each(|(at, moved)| self.settle(at, moved))?;
        Ok(us)
    }

    /// Returns the time of `count` transfers, each of `bytes` bytes in each direction, while both devices
    /// compute, in microseconds. The time ends when the host learns that the bytes have arrived. Call
    /// [`SoloLink::keep_busy`] first. `bytes` is clamped to the range from 1 to the maximum of the link.
    ///
    /// # Errors
    /// Fails if a device fails.
    pub fn busy_times_us(&mut self, bytes: u64, count: usize) -> Result<f64> {
        let part = 0..bytes.clamp(1, self.bytes);
        let all = 0..self.directions.len();
        let after: Vec<_> = all.clone().map(|at| self.ends[at].empty(&[])).collect::<Result<_>>()?;
        after.iter().enumerate().try_for_each(|(at, &after)| self.ends[at].wait(after))?;
        self.top_up()?;
        let start = Instant::now();
        let moved = self.transfers(all, &part, &after, count)?;
        moved.iter().enumerate().try_for_each(|(at, moved)| self.wait_busily(1 - at, moved.arrived))?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        moved.iter().enumerate().try_for_each(|(at, moved)| self.settle(at, moved))?;
        self.drain()?;
        Ok(us)
    }

    /// Submits work to the compute queues of a busy link, so that they do not run empty.
    fn top_up(&mut self) -> Result<()> {
        for (end, busy) in self.ends.iter_mut().zip(self.busy.iter_mut().flatten()) {
            while busy.in_flight.front().is_some_and(|&point| end.has_passed(point)) {
                busy.in_flight.pop_front();
            }
            while busy.in_flight.len() < BUSY_IN_FLIGHT {
                let work = Work::Commands(busy.commands.clone());
                busy.in_flight.push_back(end.submit(QueueKind::Compute, work, &[])?);
            }
        }
        Ok(())
    }

    /// Waits for a point of one end. Until then, keeps the compute queues of a busy link busy.
    fn wait_busily(&mut self, end: usize, point: Point) -> Result<()> {
        let limit = self.busy.is_some().then_some(Duration::from_micros(BUSY_US as u64 / 2));
        while !self.ends[end].passes(point, limit)? {
            self.top_up()?;
        }
        Ok(())
    }

    /// Waits for the work of a busy link, so that the next measurement starts with idle compute queues.
    fn drain(&mut self) -> Result<()> {
        for (end, busy) in self.ends.iter().zip(self.busy.iter_mut().flatten()) {
            busy.in_flight.drain(..).try_for_each(|point| end.wait(point))?;
        }
        Ok(())
    }

    /// Transfers pseudo-random contents in each direction at once, and checks them at the far end. `part` is
    /// the range of bytes in the slots. The devices of a busy link compute during the transfers. Returns the
    /// wrong bytes of the first corrupt direction, or `None` if all bytes are right. The contents depend on
    /// `seed`.
    ///
    /// Each receiving slot first holds the complement of its contents, so a byte that was not copied is
    /// wrong. A kernel on the receiving device computes the checksum of its slot. If the device is a CPU or
    /// cannot run the kernel, or if the checksum is wrong, the device copies its slot to host memory, where
    /// the host compares all bytes.
    ///
    /// # Errors
    /// Fails if a device fails, or if `part` does not fit the link.
    pub fn verify(&mut self, part: Range<u64>, seed: u64) -> Result<Option<Mismatch>> {
        let framed = Framed::new(&self.ends, &part, self.bytes);
        let contents = |at: usize| Contents::new(seed.wrapping_mul(2).wrapping_add(at as u64));
        let all = 0..self.directions.len();
        let region = HostRegion::new(framed.bytes() as usize).map_err(|cause| self.ends[0].failed(cause))?;
        let region = Arc::new(region);
        let mut ids = [RegionId(0); 2];
        for (end, id) in self.ends.iter_mut().zip(&mut ids) {
            *id = end.device.new_region(&region).map_err(|cause| end.failed(cause))?;
        }
        let slots: Vec<_> = self.directions.iter().map(|direction| direction.slots).collect();
        let slot = |at: usize, end: usize| framed.slot(slots[at][end]);
        let (mut after, mut sums) = (Vec::new(), Vec::new());
        for at in all.clone() {
            let upload = |end| Command::Upload { region: ids[end], offset: 0, to: slot(at, end) };
            let mut host = self.host(&region)?;
            contents(at).write_complement(framed.contents(&mut host));
            drop(host);
            self.ends[1 - at].run(QueueKind::Upload, upload(1 - at))?;
            let mut host = self.host(&region)?;
            contents(at).write(framed.contents(&mut host));
            sums.push(of_bytes(&host));
            drop(host);
            self.ends[at].run(QueueKind::Upload, upload(at))?;
            // The other device imports only the timelines for which the stages of a pipeline wait.
            after.push(self.ends[at].empty(&[])?);
        }
        self.top_up()?;
        let moved = self.transfer(all.clone(), &part, &after)?;
        moved.iter().enumerate().try_for_each(|(at, moved)| self.wait_busily(1 - at, moved.arrived))?;
        self.drain()?;
        let mut mismatch = None;
        for (at, moved) in all.zip(&moved) {
            let to = 1 - at;
            let sum = if framed.fits { self.checksum(to, slot(at, to))? } else { None };
            if sum != Some(sums[at]) {
                let mut host = self.host(&region)?;
                contents(at).write_complement(framed.contents(&mut host));
                drop(host);
                let download = Command::Download { from: slot(at, to), region: ids[to], offset: 0 };
                self.ends[to].run(QueueKind::Download, download)?;
                let wrong = contents(at).compare(framed.contents(&mut self.host(&region)?));
                let bytes = part.end - part.start;
                let unseen = sum.map(|_| Mismatch { bytes, wrong: 0, first: 0 });
                mismatch = mismatch.or(wrong).or(unseen);
            }
            self.settle(at, moved)?;
        }
        for (end, id) in self.ends.iter_mut().zip(ids) {
            end.device.unregister_region(id).map_err(|cause| end.failed(cause))?;
        }
        Ok(mismatch)
    }

    /// Returns the checksum of `slot`, which a kernel on one end computes. Returns `None` if the end is a
    /// CPU, whose memory the host reads itself, or if it cannot run the kernel.
    fn checksum(&mut self, at: usize, slot: BufferRange) -> Result<Option<u64>> {
        let end = &mut *self.ends[at];
        let checksums = self.checksums[at].get_or_insert_with(|| {
            let is_host = end.adapter().caps.languages.contains(&KernelLanguage::Host);
            let created = (!is_host).then(|| Checksums::new(&mut end.device, self.bytes, 1));
            let why = |error: &ragtag_hal::Error| tracing::debug!(%error, "the host compares transfers");
            created.and_then(|created| created.inspect_err(why).ok())
        });
        let Some(checksums) = checksums else { return Ok(None) };
        let [sum, download] = checksums.commands(&end.device, (0, 1), slot);
        end.run(QueueKind::Compute, sum)?;
        end.run(QueueKind::Download, download)?;
        checksums.read(0, slot.bytes).map(Some)
    }

    /// Leases the host memory for contents. No device uses it at the time of the call.
    fn host<'r>(&self, region: &'r HostRegion) -> Result<LeaseMut<'r>> {
        region.write(0..region.bytes()).map_err(|cause| self.ends[0].failed(cause))
    }

    /// Submits a transfer in each direction in `which`. `after` has the point of each transfer after which
    /// its bytes can be read.
    fn transfer(&mut self, which: Range<usize>, part: &Range<u64>, after: &[Point]) -> Result<Vec<Moved>> {
        let directions = &mut self.directions[which];
        let starting = directions.iter_mut().zip(after);
        let mut moving: Vec<_> = starting.map(|(direction, &after)| direction.start(part, after)).collect();
        // Both directions proceed in turn, so that neither waits until the other is submitted completely.
        while moving.iter().any(|moving| !moving.is_over()) {
            for (direction, moving) in directions.iter_mut().zip(&mut moving) {
                direction.step(&mut self.ends, part.start, moving)?;
            }
        }
        moving.into_iter().map(Moving::end).collect()
    }

    /// Submits `count` transfers in each direction in `which`, and returns the last ones. They use the same
    /// slots, so later transfers overwrite the bytes of earlier ones.
    fn transfers(
        &mut self,
        which: Range<usize>,
        part: &Range<u64>,
        after: &[Point],
        count: usize,
    ) -> Result<Vec<Moved>> {
        for _ in 1..count {
            self.transfer(which.clone(), part, after)?;
            self.directions[which.clone()].iter_mut().try_for_each(|each| each.free(&mut self.ends))?;
        }
        self.transfer(which, part, after)
    }

    /// Waits until the source slot of a transfer is free, and frees the slot of its destination.
    fn settle(&mut self, at: usize, moved: &Moved) -> Result<()> {
        self.ends[at].wait(moved.sent)?;
        self.directions[at].free(&mut self.ends)
    }
}

/// Range of a slot that a kernel can bind, with a transfer in it. The bytes around the transfer are zero.
struct Framed {
    /// First byte of the range in the slot.
    start: u64,
    /// The transfer, relative to the range.
    part: Range<usize>,
    end: u64,
    /// Whether a kernel can bind the range.
    fits: bool,
}

impl Framed {
    fn new(ends: &[&mut SoloDevice; 2], part: &Range<u64>, slot_bytes: u64) -> Self {
        let caps = ends.iter().map(|end| &end.adapter().caps);
        let (binding, copy) = caps.fold((4, 4), |(binding, copy): (u64, u64), caps| {
            (binding.max(caps.binding_alignment_bytes), copy.max(caps.copy_alignment_bytes))
        });
        let alignment = binding.max(copy);
        let (start, end) = (part.start / alignment * alignment, part.end.next_multiple_of(copy));
        let fits = end <= slot_bytes && part.start < part.end;
        let (start, end) = if fits { (start, end) } else { (part.start, part.end) };
        let first = (part.start - start) as usize;
        Self { start, part: first..first + part.end.saturating_sub(part.start) as usize, end, fits }
    }

    fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns the range in a slot.
    fn slot(&self, buffer: BufferId) -> BufferRange {
        BufferRange { buffer, offset: self.start, bytes: self.bytes() }
    }

    /// Returns the part of a copy of the range that holds the transfer.
    fn contents<'h>(&self, host: &'h mut [u8]) -> &'h mut [u8] {
        &mut host[self.part.clone()]
    }
}

impl SoloDevice {
    /// Submits nothing to the compute queue after `waits`.
    fn empty(&mut self, waits: &[Point]) -> Result<Point> {
        self.enqueue(QueueKind::Compute, Work::Commands(Vec::new()), waits, false)
    }

    /// Creates two buffers and returns copies between them that take about [`BUSY_US`].
    fn busywork(&mut self) -> Result<Busywork> {
        let mut buffer = || -> Result<BufferRange> {
            let buffer = self.device.new_buffer(BUSY_BYTES).map_err(|cause| self.failed(cause))?;
            Ok(BufferRange { buffer, offset: 0, bytes: BUSY_BYTES })
        };
        let (from, to) = (buffer()?, buffer()?);
        let fill = Command::Fill { to: from, word: FILLING };
        self.run(QueueKind::Compute, fill)?;
        let copy = Command::Copy { from, to };
        self.run(QueueKind::Compute, copy.clone())?;
        let start = Instant::now();
        self.run(QueueKind::Compute, copy.clone())?;
        let copy_us = start.elapsed().as_secs_f64() * 1e6;
        let copies = (BUSY_US / copy_us.max(1.0)).clamp(1.0, MAX_BUSY_COPIES) as usize;
        Ok(Busywork { commands: vec![copy; copies], in_flight: VecDeque::new() })
    }

    fn has_passed(&self, point: Point) -> bool {
        self.own[point.timeline.queue.index()].value() >= point.value
    }
}
