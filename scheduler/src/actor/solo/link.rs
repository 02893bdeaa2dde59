//! A link between two devices, for timing and verification. It transfers bytes as the edges of a pipeline do,
//! in one direction or in both.

use super::verify::{Contents, Mismatch};
use super::{FILLING, SoloDevice};
use crate::actor::checksum::{ChecksumIds, Checksums};
use crate::actor::copy::copy_command;
use crate::actor::edge::{sending_queue, share_semaphore};
use crate::core::End;
use crate::error::{Error, Result};
use ragtag_hal::{
    BufferId, BufferRange, Command, Device, HostRegion, KernelLanguage, ModuleId, Point, QueueKind, RegionId,
    Submission, Timeline, Work,
};
use ragtag_kernels::checksum::of_bytes;
use ragtag_transfer::{
    Action, Copy, Receiver, ReceiverEvent, Route, Routes, Sender, SenderEvent, TransferId,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Each device's own slot, the imported slot of the other device, and the ring, for each direction.
const SLOTS: [BufferId; 2] = [BufferId(0), BufferId(2)];
const OTHERS: [BufferId; 2] = [BufferId(1), BufferId(3)];
const RINGS: [RegionId; 2] = [RegionId(0), RegionId(1)];
/// Host memory for contents to verify.
const CONTENTS: RegionId = RegionId(2);
/// Objects for checksums of the slot that a device receives.
const SUMS: ChecksumIds = ChecksumIds { module: ModuleId(0), sums: BufferId(6), region: RegionId(3) };
/// Buffers between which each device of a busy link copies on its compute queue, and their size in bytes.
const BUSY: [BufferId; 2] = [BufferId(4), BufferId(5)];
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

impl std::fmt::Debug for SoloLink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoloLink").field("ends", &self.ends).finish_non_exhaustive()
    }
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
        let direction = Direction::new(at, route)?;
        direction.prepare(&mut self.ends, route, self.bytes)?;
        self.directions.push(direction);
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
        let mut moving = Moving { copies: Some(Vec::new()), ..direction.start(part, computed) };
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
        for &TimedCopy { end, bytes, signal } in copies {
            let at = usize::from(end == End::Incoming);
            // The sender of a slot that the receiver reads only waits.
            if bytes == 0 && end == End::Outgoing {
                continue;
            }
            let timing = self.ends[at].timing(signal)?;
            if bytes > 0 {
                start_ns = timing.start_ns.min(start_ns);
            }
            if end == End::Incoming {
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
        for end in &mut self.ends {
            let registered = end.device.register_region(CONTENTS, Arc::clone(&region));
            registered.map_err(|cause| end.failed(cause))?;
        }
        let (mut after, mut sums) = (Vec::new(), Vec::new());
        for at in all.clone() {
            let upload = || Command::Upload { region: CONTENTS, offset: 0, to: framed.slot(at) };
            let mut host = self.host(&region)?;
            contents(at).write_complement(framed.contents(&mut host));
            drop(host);
            self.ends[1 - at].run(QueueKind::Upload, upload())?;
            let mut host = self.host(&region)?;
            contents(at).write(framed.contents(&mut host));
            sums.push(of_bytes(&host));
            drop(host);
            self.ends[at].run(QueueKind::Upload, upload())?;
            // The other device imports only the timelines for which the stages of a pipeline wait.
            after.push(self.ends[at].empty(&[])?);
        }
        self.top_up()?;
        let moved = self.transfer(all.clone(), &part, &after)?;
        moved.iter().enumerate().try_for_each(|(at, moved)| self.wait_busily(1 - at, moved.arrived))?;
        self.drain()?;
        let mut mismatch = None;
        for (at, moved) in all.zip(&moved) {
            let sum = if framed.fits { self.checksum(1 - at, framed.slot(at))? } else { None };
            if sum != Some(sums[at]) {
                let mut host = self.host(&region)?;
                contents(at).write_complement(framed.contents(&mut host));
                drop(host);
                let download = Command::Download { from: framed.slot(at), region: CONTENTS, offset: 0 };
                self.ends[1 - at].run(QueueKind::Download, download)?;
                let wrong = contents(at).compare(framed.contents(&mut self.host(&region)?));
                let bytes = part.end - part.start;
                let unseen = sum.map(|_| Mismatch { bytes, wrong: 0, first: 0 });
                mismatch = mismatch.or(wrong).or(unseen);
            }
            self.settle(at, moved)?;
        }
        for end in &mut self.ends {
            end.device.unregister_region(CONTENTS).map_err(|cause| end.failed(cause))?;
        }
        Ok(mismatch)
    }

    /// Returns the checksum of `slot`, which a kernel on one end computes. Returns `None` if the end is a
    /// CPU, whose memory the host reads itself, or if it cannot run the kernel.
    fn checksum(&mut self, at: usize, slot: BufferRange) -> Result<Option<u64>> {
        let end = &mut *self.ends[at];
        let checksums = self.checksums[at].get_or_insert_with(|| {
            let is_host = end.adapter().caps.languages.contains(&KernelLanguage::Host);
            let created = (!is_host).then(|| Checksums::new(&mut end.device, SUMS, self.bytes, 1));
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
    fn host<'r>(&self, region: &'r HostRegion) -> Result<ragtag_hal::LeaseMut<'r>> {
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

    /// Returns the range in the slot of a direction.
    fn slot(&self, at: usize) -> BufferRange {
        BufferRange { buffer: SLOTS[at], offset: self.start, bytes: self.bytes() }
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
        for id in BUSY {
            self.device.create_buffer(id, BUSY_BYTES).map_err(|cause| self.failed(cause))?;
        }
        let [from, to] = BUSY.map(|buffer| BufferRange { buffer, offset: 0, bytes: BUSY_BYTES });
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

    /// Runs a command to its end.
    fn run(&mut self, queue: QueueKind, command: Command) -> Result<()> {
        let done = self.submit(queue, Work::Commands(vec![command]), &[])?;
        self.wait(done)
    }
}

/// One direction of a link.
struct Direction {
    /// Index of the sending end.
    from: usize,
    sender: Sender,
    receiver: Receiver,
    transfers: u64,
}

/// A transfer that was requested completely.
struct Moved {
    /// Point after which the sender may reuse its slot.
    sent: Point,
    /// Point after which the receiver may read its slot.
    arrived: Point,
}

/// A transfer that is being requested.
struct Moving {
    transfer: TransferId,
    to_sender: Vec<SenderEvent>,
    to_receiver: Vec<ReceiverEvent>,
    sent: Option<Point>,
    arrived: Option<Point>,
    /// Copies at both ends. `None` if they are not timed.
    copies: Option<Vec<TimedCopy>>,
}

/// A timed copy at one end of a transfer. Its submission signals `signal`.
#[derive(Clone, Copy)]
struct TimedCopy {
    end: End,
    bytes: u64,
    signal: Point,
}

impl Moving {
    fn is_over(&self) -> bool {
        self.to_sender.is_empty() && self.to_receiver.is_empty()
    }

    fn end(self) -> Result<Moved> {
        match (self.sent, self.arrived) {
            (Some(sent), Some(arrived)) => Ok(Moved { sent, arrived }),
            _ => Err(Error::protocol(format!("{} did not arrive", self.transfer))),
        }
    }
}

impl Direction {
    fn new(from: usize, route: Route) -> Result<Self> {
        let routes = Routes::from(route);
        let unusable = |error: ragtag_transfer::Error| Error::Spec { what: error.to_string() };
        let sender = Sender::new(&routes, 1).map_err(unusable)?;
        let receiver = Receiver::new(&routes, 1).map_err(unusable)?;
        Ok(Self { from, sender, receiver, transfers: 0 })
    }

    /// Creates the slots and the ring, and shares them as the route requires.
    fn prepare(&self, ends: &mut [&mut SoloDevice; 2], route: Route, bytes: u64) -> Result<()> {
        let (slot, other, ring_id) = (SLOTS[self.from], OTHERS[self.from], RINGS[self.from]);
        let [from, to] = [self.from, 1 - self.from];
        let ring = HostRegion::new(route.staging_bytes().max(1) as usize);
        let ring = Arc::new(ring.map_err(|cause| ends[from].failed(cause))?);
        let timeline = |of: &SoloDevice, queue: QueueKind| Arc::clone(&of.own[queue.index()]);
        let from_next = vec![timeline(ends[to], QueueKind::Upload)];
        let from_previous =
            [QueueKind::Compute, QueueKind::Download].map(|queue| timeline(ends[from], queue));
        let open = |of: &mut SoloDevice, timelines: Vec<Arc<Timeline>>, is_lent: bool| {
            let made = match is_lent {
                true => of.device.create_shared_buffer(slot, bytes),
                false => of.device.create_buffer(slot, bytes),
            };
            let made = made.and_then(|()| of.device.register_region(ring_id, Arc::clone(&ring)));
            let mut timelines = timelines.into_iter();
            let made = made.and_then(|()| timelines.try_for_each(|other| of.device.import_timeline(other)));
            made.map_err(|cause| of.failed(cause))
        };
        open(ends[from], from_next, route == Route::Import)?;
        open(ends[to], from_previous.into(), route == Route::Peer)?;
        let mut share = |owner: usize, user: usize| {
            let memory = ends[owner].device.export_buffer(slot).map_err(|cause| ends[owner].failed(cause))?;
            ends[user].device.import_buffer(other, &memory).map_err(|cause| ends[user].failed(cause))
        };
        let owner = match route {
            Route::Peer => to,
            Route::Import => from,
            Route::HostStaged { .. } => return Ok(()),
        };
        share(owner, 1 - owner)?;
        let sender = ends[from].own[sending_queue(route).index()].id();
        if let Ok(semaphore) = ends[owner].device.create_semaphore()
            && share_semaphore(&mut ends[from].device, &semaphore, route, None)
        {
            share_semaphore(&mut ends[to].device, &semaphore, route, Some(sender));
        }
        Ok(())
    }

    fn start(&mut self, part: &Range<u64>, after: Point) -> Moving {
        let (transfer, bytes) = (TransferId(self.transfers), part.end - part.start);
        self.transfers += 1;
        Moving {
            transfer,
            to_sender: vec![SenderEvent::Send { transfer, slot: 0, bytes, after }],
            to_receiver: vec![ReceiverEvent::Expect { transfer, bytes }],
            sent: None,
            arrived: None,
            copies: None,
        }
    }

    /// Handles the events of a transfer once at each end.
    fn step(&mut self, ends: &mut [&mut SoloDevice; 2], start: u64, moving: &mut Moving) -> Result<()> {
        for event in std::mem::take(&mut moving.to_sender) {
            let mut actions = Vec::new();
            self.sender.step(event, &mut ends[self.from].points.download, &mut actions)?;
            for action in actions {
                match action {
                    Action::Copy(copy) => self.copy(ends, End::Outgoing, start, copy, &mut moving.copies)?,
                    Action::Message(message) => moving.to_receiver.push(ReceiverEvent::Message(message)),
                    Action::Done { at, .. } => moving.sent = Some(at),
                    // The transfers of a link are not verified.
                    Action::Sum { .. } | Action::Resent { .. } => {}
                }
            }
        }
        for event in std::mem::take(&mut moving.to_receiver) {
            let mut actions = Vec::new();
            self.receiver.step(event, &mut ends[1 - self.from].points.upload, &mut actions)?;
            for action in actions {
                match action {
                    Action::Copy(copy) => self.copy(ends, End::Incoming, start, copy, &mut moving.copies)?,
                    Action::Message(message) => moving.to_sender.push(SenderEvent::Message(message)),
                    Action::Done { at, .. } => moving.arrived = Some(at),
                    Action::Sum { .. } | Action::Resent { .. } => {}
                }
            }
        }
        Ok(())
    }

    /// Submits a copy to one of the two devices, and adds it to `timed` if that is not `None`. `start` is the
    /// offset of the transfer in the slots.
    fn copy(
        &self,
        ends: &mut [&mut SoloDevice; 2],
        end: End,
        start: u64,
        copy: Copy,
        timed: &mut Option<Vec<TimedCopy>>,
    ) -> Result<()> {
        let device = match end {
            End::Outgoing => &mut *ends[self.from],
            End::Incoming => &mut *ends[1 - self.from],
        };
        let own = BufferRange { buffer: SLOTS[self.from], offset: start + copy.offset, bytes: copy.bytes };
        let command = copy_command(end, &copy, own, Some(RINGS[self.from]), &[OTHERS[self.from]])?;
        let work = Work::Commands(command.into_iter().collect());
        let Copy { waits, signal, bytes, .. } = copy;
        let is_timed = timed.is_some();
        timed.iter_mut().for_each(|timed| timed.push(TimedCopy { end, bytes, signal }));
        let submission = Submission { queue: end.queue(), work, waits, signal, is_timed };
        device.device.submit(submission).map_err(|cause| device.failed(cause))
    }

    /// Frees the slot of the destination.
    fn free(&mut self, ends: &mut [&mut SoloDevice; 2]) -> Result<()> {
        let mut announced = Vec::new();
        let uploads = &mut ends[1 - self.from].points.upload;
        self.receiver.step(ReceiverEvent::Free(0), uploads, &mut announced)?;
        for action in announced {
            if let Action::Message(message) = action {
                let event = SenderEvent::Message(message);
                self.sender.step(event, &mut ends[self.from].points.download, &mut Vec::new())?;
            }
        }
        Ok(())
    }
}
