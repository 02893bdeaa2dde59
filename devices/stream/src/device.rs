//! The device: it turns ids into memory, kernels and scripts, points into events, and hands scripts to its streams.
//!
//! Calls are expected to come through [`Checked`](ragtag_hal::Checked). What is looked at again here (that an id is known
//! and that a range lies in its buffer or region) is what keeps a wrong call from touching foreign memory.
//!
//! This module must not know how a stream or the driver works.

use crate::clock::Clock;
use crate::driver::Driver;
use crate::memory::{Buffer, DeviceMemory};
use crate::module::{Code, Entry, entries};
use crate::pins::Pins;
use crate::queue::Queue;
use crate::recording::recorded;
use crate::script::{Bound, HostSpan, Product, Registered, Script, Span, Step};
use ragtag_hal::lanes::{Common, Feeder, Lane, Task, Wait};
use ragtag_hal::{
    Adapter, BufferId, BufferRange, Command, Device, DeviceId, Dispatch, Error, HostRegion, Limits, Memory,
    Module, ModuleId, Point, PoolStats, ProgramId, QueueKind, RegionId, Result, Submission, Timeline,
    TimelineId, Timing, Waiter, Work,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// An opened device of a stream-ordered API.
pub struct StreamDevice<D: Driver> {
    id: DeviceId,
    adapter: Adapter,
    programs: HashMap<ProgramId, Arc<Script<D>>>,
    modules: HashMap<ModuleId, Vec<Entry<D>>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    common: Arc<Common>,
    /// Its drop waits for the driver, so it goes before what the driver uses.
    feeder: Feeder<Queue<D>>,
    buffers: HashMap<BufferId, Arc<Buffer<D>>>,
    regions: HashMap<RegionId, Arc<Registered<D>>>,
    memory: DeviceMemory<D>,
    /// Where programs are captured: nothing ever runs on it.
    capture: D::Stream,
    pins: Arc<Pins<D>>,
    driver: Arc<D>,
}

impl<D: Driver> StreamDevice<D> {
    /// A device over a driver that has opened this adapter. `pins` belongs to all devices of the backend.
    ///
    /// # Errors
    /// If the driver refuses, or the system gives no more threads.
    pub fn open(
        id: DeviceId,
        adapter: Adapter,
        driver: Arc<D>,
        pins: Arc<Pins<D>>,
        limits: &Limits,
    ) -> Result<Self> {
        let common = Common::new(id, &adapter.label(), limits);
        let clock = Arc::new(Mutex::new(Clock::new()));
        let lane = |kind: QueueKind| {
            let name = format!("{} {}", adapter.label(), kind.name());
            let timeline = Arc::clone(&common.timelines()[kind.index()]);
            Lane::new(name, Arc::new(Queue::new(&driver, &clock)?), timeline, Arc::clone(&common))
        };
        let [compute, upload, download] = QueueKind::ALL;
        let lanes = [lane(compute)?, lane(upload)?, lane(download)?];
        let total_bytes = adapter.memory.first().map_or(0, |memory| memory.total_bytes);
        let largest_bytes = adapter.caps.max_allocation_bytes;
        Ok(Self {
            id,
            programs: HashMap::new(),
            modules: HashMap::new(),
            imported: HashMap::new(),
            feeder: Feeder::new(format!("{} feeder", adapter.label()), lanes)?,
            buffers: HashMap::new(),
            regions: HashMap::new(),
            memory: DeviceMemory::new(Arc::clone(&driver), total_bytes, largest_bytes, limits),
            capture: driver.stream()?,
            common,
            pins,
            driver,
            adapter,
        })
    }

    fn span(&self, range: &BufferRange) -> Result<Span<D>> {
        let buffer = self.buffers.get(&range.buffer).ok_or_else(|| unknown(range.buffer))?;
        Span::new(buffer, range.offset, range.bytes)
            .ok_or_else(|| Error::invalid(format!("{range:?} of {} bytes", buffer.bytes())))
    }

    fn host_span(&self, id: RegionId, offset: u64, span: &Span<D>) -> Result<HostSpan<D>> {
        let registered = self.regions.get(&id).ok_or_else(|| unknown(id))?;
        HostSpan::new(registered, offset, span)
            .ok_or_else(|| Error::invalid(format!("a range from {offset} on that is not in {id}")))
    }

    fn steps(&self, commands: Vec<Command>) -> Result<Vec<Step<D>>> {
        commands.into_iter().map(|command| self.step(command)).filter_map(Result::transpose).collect()
    }

    /// `None` for a command that does nothing.
    fn step(&self, command: Command) -> Result<Option<Step<D>>> {
        Ok(Some(match command {
            Command::Dispatch(dispatch) if dispatch.grid.contains(&0) => return Ok(None),
            Command::Dispatch(dispatch) => self.bound(&dispatch)?,
            Command::Copy { from, to } => Step::Copy { from: self.span(&from)?, to: self.span(&to)? },
            Command::Fill { to, word } => Step::Fill { to: self.span(&to)?, word },
            Command::Upload { region, offset, to } => {
                let to = self.span(&to)?;
                Step::Upload { from: self.host_span(region, offset, &to)?, to }
            }
            Command::Download { from, region, offset } => {
                let from = self.span(&from)?;
                Step::Download { to: self.host_span(region, offset, &from)?, from }
            }
        }))
    }

    fn bound(&self, dispatch: &Dispatch) -> Result<Step<D>> {
        let Dispatch { module, entry, bindings, constants, grid } = dispatch;
        let entries = self.modules.get(module).ok_or_else(|| unknown(module))?;
        let Entry { abi, code } =
            entries.get(*entry as usize).ok_or_else(|| unknown(format!("entry {entry}")))?;
        // The driver reads as many arguments as the function has parameters.
        if (bindings.len(), constants.len()) != (abi.bindings.len(), abi.constants) {
            return Err(Error::invalid(format!("arguments that {} does not take", abi.name)));
        }
        let span = |at: usize| {
            let binding = bindings.get(at).ok_or_else(|| unknown(format!("binding {at}")))?;
            self.span(&binding.range)
        };
        match code {
            Code::Kernel(kernel) => {
                let spans = (0..bindings.len()).map(span).collect::<Result<_>>()?;
                Ok(Step::Launch(Bound::new(kernel, *grid, spans, constants)))
            }
            Code::Gemm(gemm) => {
                let product = (gemm.product)(constants);
                let [x, weights, y] = gemm.bindings.map(span);
                Ok(Step::Gemm(Product { product, x: x?, weights: weights?, y: y? }))
            }
        }
    }

    /// A point that a submission to a queue waits for. Of the same queue it need not wait for anything.
    fn wait(&self, queue: QueueKind, point: Point) -> Result<Option<Wait>> {
        let Point { timeline: TimelineId { device, queue: other }, value } = point;
        let timeline = match device == self.id {
            true if other == queue => return Ok(None),
            true => self.feeder.lane(other).timeline(),
            false => self.imported.get(&point.timeline).ok_or_else(|| unknown(point))?,
        };
        let own = (device == self.id).then_some(other);
        Ok(Some(Wait { timeline: Arc::clone(timeline), value, own }))
    }

    fn enqueue(&mut self, submission: Submission) -> Result<()> {
        let Submission { queue, work, waits, signal } = submission;
        self.common.check()?;
        let script = match work {
            Work::Commands(commands) => Arc::new(Script::new(self.steps(commands)?)),
            Work::Program(id) => self.programs.get(&id).cloned().ok_or_else(|| unknown(id))?,
        };
        let waits = waits.into_iter().filter_map(|point| self.wait(queue, point).transpose());
        self.feeder.submit(queue, Task { script, waits: waits.collect::<Result<_>>()?, signal })
    }
}

fn unknown(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} is unknown to the device"))
}

impl<D: Driver> Device for StreamDevice<D> {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        self.common.check()?;
        self.common.noted(self.memory.heap()).map(|heap| vec![heap])
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(self.feeder.lane(queue).timeline())
    }

    fn waiter(&mut self) -> Option<Box<dyn Waiter>> {
        None
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.feeder.listen(&timeline);
        self.imported.insert(timeline.id(), timeline);
        Ok(())
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.common.check()?;
        if bytes == 0 {
            return Err(Error::invalid(format!("{id} of zero bytes")));
        }
        let buffer = self.memory.allocate(bytes);
        self.buffers.insert(id, self.common.noted(buffer)?);
        Ok(())
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        let buffer = self.buffers.remove(&id).ok_or_else(|| unknown(id))?;
        // A program that names it is not submitted again, and would keep the memory.
        self.programs.retain(|_, script| !script.uses_buffer(&buffer));
        self.memory.release(buffer);
        Ok(())
    }

    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()> {
        self.common.check()?;
        let entries = entries(self.driver.as_ref(), &self.adapter, module);
        self.modules.insert(id, self.common.noted(entries)?);
        Ok(())
    }

    /// Programs keep the kernels that they launch.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.modules.remove(&id).map(drop).ok_or_else(|| unknown(id))
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.common.check()?;
        let _pin = self.pins.pin(&self.driver, &region);
        self.regions.insert(id, Arc::new(Registered { region, _pin }));
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let registered = self.regions.remove(&id).ok_or_else(|| unknown(id))?;
        self.programs.retain(|_, script| !script.uses_region(&registered.region));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.common.check()?;
        self.programs.remove(&id);
        let steps = self.steps(commands)?;
        let steps = self.common.noted(recorded(self.driver.as_ref(), &self.capture, steps))?;
        self.programs.insert(id, Arc::new(Script::new(steps)));
        Ok(())
    }

    /// A program that went away with a buffer or region of its own is forgotten already.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.programs.remove(&id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let queue = submission.queue;
        self.enqueue(submission).map_err(|error| self.feeder.lane(queue).fail(error))
    }

    fn pool_stats(&self) -> PoolStats {
        self.memory.stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.memory.trim()
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        self.common.take_timings(timings);
    }
}
