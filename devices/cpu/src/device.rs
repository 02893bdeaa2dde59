//! The device: it turns ids into memory, functions and scripts, and hands scripts to its queues.
//!
//! Calls are expected to come through [`Checked`](ragtag_hal::Checked). What is looked at again here (that an id is
//! known and that a range lies in its buffer) is what keeps a wrong call from touching foreign memory.
//!
//! This module must not know how a queue or a kernel works.

use crate::memory::{Buffer, DeviceMemory};
use crate::queue::{Queue, Task, Timings, Wait};
use crate::script::{Launch, Script, Span, Step};
use crate::team::Team;
use ragtag_hal::{
    Adapter, BufferId, BufferRange, Command, Device, DeviceId, Dispatch, Duty, EntryAbi, Error, HeapKind,
    HostFn, HostRegion, Limits, Memory, MemorySource, Module, ModuleId, ModuleSource, Point, PoolStats,
    ProgramId, QueueKind, RegionId, Result, Submission, Timeline, TimelineId, Timing, Waiter, Work,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// The entries of a module with their functions.
type Entries = Vec<(&'static EntryAbi, HostFn)>;

/// An opened share of the host's processor.
pub(crate) struct CpuDevice {
    id: DeviceId,
    adapter: Adapter,
    memory: DeviceMemory,
    buffers: HashMap<BufferId, Arc<Buffer>>,
    modules: HashMap<ModuleId, Entries>,
    regions: HashMap<RegionId, Arc<HostRegion>>,
    programs: HashMap<ProgramId, Arc<Script>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    queues: [Queue; 3],
    closing: Arc<AtomicBool>,
    timings: Timings,
}

impl CpuDevice {
    /// Opens an adapter and starts its threads. With a duty it works for so many hundredths of the time.
    ///
    /// # Errors
    /// If the system gives no more threads.
    pub(crate) fn open(
        id: DeviceId,
        adapter: Adapter,
        duty_percent: Option<u32>,
        limits: &Limits,
    ) -> Result<Self> {
        let share = adapter.memory.first().and_then(|memory| memory.free_bytes).unwrap_or(0);
        let closing = Arc::new(AtomicBool::new(false));
        let timings = Timings::default();
        let queue = |kind: QueueKind| {
            let name = format!("{} {}", adapter.label(), kind.name());
            let team = match kind {
                QueueKind::Compute => {
                    let team = Team::new(&name, adapter.caps.parallel_units)?;
                    Some((team, duty_percent.map(Duty::new)))
                }
                QueueKind::Upload | QueueKind::Download => None,
            };
            let timeline = Timeline::new(TimelineId { device: id, queue: kind });
            Queue::new(name, timeline, team, Arc::clone(&closing), Arc::clone(&timings))
        };
        let [compute, upload, download] = QueueKind::ALL;
        Ok(Self {
            id,
            memory: DeviceMemory::new(limits, share, adapter.caps.max_allocation_bytes),
            buffers: HashMap::new(),
            modules: HashMap::new(),
            regions: HashMap::new(),
            programs: HashMap::new(),
            imported: HashMap::new(),
            queues: [queue(compute)?, queue(upload)?, queue(download)?],
            adapter,
            closing,
            timings,
        })
    }

    fn span(&self, range: &BufferRange) -> Result<Span> {
        let buffer = self.buffers.get(&range.buffer).ok_or_else(|| unknown(range.buffer))?;
        Span::new(buffer, range.offset, range.bytes)
            .ok_or_else(|| Error::invalid(format!("{range:?} of {} bytes", buffer.bytes())))
    }

    fn region(&self, id: RegionId) -> Result<Arc<HostRegion>> {
        self.regions.get(&id).cloned().ok_or_else(|| unknown(id))
    }

    fn script(&self, commands: Vec<Command>) -> Result<Script> {
        commands.into_iter().map(|command| self.step(command)).collect::<Result<_>>().map(Script::new)
    }

    fn step(&self, command: Command) -> Result<Step> {
        Ok(match command {
            Command::Dispatch(dispatch) => Step::Launch(self.launch(dispatch)?),
            Command::Copy { from, to } => Step::Copy { from: self.span(&from)?, to: self.span(&to)? },
            Command::Fill { to, word } => Step::Fill { to: self.span(&to)?, word },
            Command::Upload { region, offset, to } => {
                Step::Upload { region: self.region(region)?, offset: index(offset), to: self.span(&to)? }
            }
            Command::Download { from, region, offset } => Step::Download {
                from: self.span(&from)?,
                region: self.region(region)?,
                offset: index(offset),
            },
        })
    }

    fn launch(&self, dispatch: Dispatch) -> Result<Launch> {
        let entries = self.modules.get(&dispatch.module).ok_or_else(|| unknown(dispatch.module))?;
        let entry = entries.get(dispatch.entry as usize);
        let &(abi, function) = entry.ok_or_else(|| unknown(format!("entry {}", dispatch.entry)))?;
        let spans =
            dispatch.bindings.iter().map(|binding| self.span(&binding.range)).collect::<Result<_>>()?;
        Ok(Launch::new(abi.name, function, spans, dispatch.constants, dispatch.grid))
    }

    fn wait(&self, point: Point) -> Result<Wait> {
        let foreign = point.timeline.device != self.id;
        let timeline = if foreign {
            self.imported.get(&point.timeline).ok_or_else(|| unknown(point))?
        } else {
            self.queues[point.timeline.queue.index()].timeline()
        };
        Ok(Wait { timeline: Arc::clone(timeline), value: point.value, foreign })
    }

    fn task(&self, submission: Submission) -> Result<Task> {
        let waits = submission.waits.into_iter().map(|point| self.wait(point)).collect::<Result<_>>()?;
        let script = match submission.work {
            Work::Commands(commands) => Arc::new(self.script(commands)?),
            Work::Program(id) => self.programs.get(&id).cloned().ok_or_else(|| unknown(id))?,
        };
        Ok(Task { script, waits, signal: submission.signal })
    }
}

/// An offset in host memory. One that does not fit is beyond every region, and is refused as such.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn unknown(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} is unknown to the device"))
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        Ok(vec![Memory {
            heap: HeapKind::Host,
            total_bytes: self.memory.limit_bytes(),
            free_bytes: Some(self.memory.free_bytes()),
            source: MemorySource::System,
        }])
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(self.queues[queue.index()].timeline())
    }

    fn waiter(&mut self) -> Option<Box<dyn Waiter>> {
        None
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.imported.insert(timeline.id(), timeline);
        Ok(())
    }

    fn pool_stats(&self) -> PoolStats {
        self.memory.stats()
    }

    fn trim_pool(&mut self) -> u64 {
        self.memory.trim()
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Err(Error::invalid(format!("{id} of zero bytes")));
        }
        let buffer = self.memory.allocate(bytes)?;
        self.buffers.insert(id, buffer);
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
        let ModuleSource::Host(functions) = &module.source else {
            return Err(Error::Unsupported { what: format!("module {} on a CPU device", module.name) });
        };
        self.modules.insert(id, module.entries.iter().copied().zip(functions.iter().copied()).collect());
        Ok(())
    }

    /// Programs keep the functions that they launch.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()> {
        self.modules.remove(&id).map(drop).ok_or_else(|| unknown(id))
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.regions.insert(id, region);
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        let region = self.regions.remove(&id).ok_or_else(|| unknown(id))?;
        self.programs.retain(|_, script| !script.uses_region(&region));
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        let script = self.script(commands)?;
        self.programs.insert(id, Arc::new(script));
        Ok(())
    }

    /// A program that went away with a buffer or region of its own is forgotten already.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.programs.remove(&id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let queue = submission.queue.index();
        match self.task(submission) {
            Ok(task) => {
                self.queues[queue].submit(task);
                Ok(())
            }
            Err(error) => {
                self.queues[queue].timeline().fail(error.clone());
                Err(error)
            }
        }
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        timings.append(&mut self.timings.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for CpuDevice {
    fn drop(&mut self) {
        // The queues' own drops join their threads; none of them may go on waiting for another device.
        self.closing.store(true, Ordering::Release);
    }
}
