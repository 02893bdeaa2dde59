//! The made-up device: a thread for each queue, buffers as vectors of bytes.

use crate::support::model::interpret;
use ragtag_hal::*;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct FakeOptions {
    pub id: u16,
    /// Longest time that a submission sleeps before it starts.
    pub delay: Duration,
    /// The submission of this queue that fails, counted from 1.
    pub fails: Option<(QueueKind, u64)>,
    pub memory_bytes: u64,
}

impl FakeOptions {
    pub fn new(id: u16) -> Self {
        let delay = Duration::ZERO;
        Self { id, delay, fails: None, memory_bytes: 1 << 30 }
    }
}

type Buffers = Arc<Mutex<HashMap<BufferId, Vec<u8>>>>;
type Regions = Arc<Mutex<HashMap<RegionId, Arc<HostRegion>>>>;

struct Task {
    commands: Vec<Command>,
    waits: Vec<(Arc<Timeline>, u64)>,
    signal: Point,
}

struct Queue {
    timeline: Arc<Timeline>,
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

pub struct FakeDevice {
    id: DeviceId,
    adapter: Adapter,
    options: FakeOptions,
    used_bytes: u64,
    buffers: Buffers,
    regions: Regions,
    programs: HashMap<ProgramId, Vec<Command>>,
    imported: HashMap<TimelineId, Arc<Timeline>>,
    queues: Vec<Queue>,
    closing: Arc<AtomicBool>,
    timings: Arc<Mutex<Vec<Timing>>>,
}

impl FakeDevice {
    /// A device behind the checks that every backend gets.
    pub fn open(options: FakeOptions) -> Box<dyn Device> {
        Box::new(Self::checked(options))
    }

    /// The same, for those who want to know what it is left with.
    pub fn checked(options: FakeOptions) -> Checked {
        Checked::new(Box::new(Self::new(options)))
    }

    fn new(options: FakeOptions) -> Self {
        let id = DeviceId(options.id);
        let adapter = Adapter {
            backend: "fake".into(),
            index: u32::from(options.id),
            name: "made up".into(),
            driver: "none".into(),
            kind: AdapterKind::Software,
            identity: PhysicalIdentity::default(),
            memory: Vec::new(),
            caps: Caps {
                languages: BTreeSet::from([KernelLanguage::Host]),
                max_allocation_bytes: options.memory_bytes,
                max_binding_bytes: options.memory_bytes,
                binding_alignment_bytes: 4,
                ..Caps::default()
            },
        };
        let mut device = Self {
            id,
            adapter,
            used_bytes: 0,
            buffers: Buffers::default(),
            regions: Regions::default(),
            programs: HashMap::new(),
            imported: HashMap::new(),
            queues: Vec::new(),
            closing: Arc::default(),
            timings: Arc::default(),
            options,
        };
        device.queues = QueueKind::ALL.map(|queue| device.queue(queue)).into();
        device
    }

    fn queue(&self, queue: QueueKind) -> Queue {
        let timeline = Timeline::new(TimelineId { device: self.id, queue });
        let (tasks, inbox) = channel::<Task>();
        let worker = Worker {
            timeline: Arc::clone(&timeline),
            buffers: Arc::clone(&self.buffers),
            regions: Arc::clone(&self.regions),
            closing: Arc::clone(&self.closing),
            timings: Arc::clone(&self.timings),
            options: self.options.clone(),
        };
        let thread = std::thread::spawn(move || inbox.iter().for_each(|task| worker.run(task)));
        Queue { timeline, tasks: Some(tasks), thread: Some(thread) }
    }
}

struct Worker {
    timeline: Arc<Timeline>,
    buffers: Buffers,
    regions: Regions,
    closing: Arc<AtomicBool>,
    timings: Arc<Mutex<Vec<Timing>>>,
    options: FakeOptions,
}

impl Worker {
    fn run(&self, task: Task) {
        if self.timeline.failure().is_some() {
            return;
        }
        match self.execute(&task) {
            Ok(()) => self.timeline.advance(task.signal.value),
            Err(error) => self.timeline.fail(error),
        }
    }

    fn execute(&self, task: &Task) -> Result<()> {
        for (timeline, value) in &task.waits {
            while !timeline.wait(*value, Some(Duration::from_millis(5)))? {
                if self.closing.load(Ordering::Relaxed) {
                    return Err(Error::Lost { cause: "closed".into() });
                }
            }
        }
        let signal = task.signal;
        let fails = self
            .options
            .fails
            .is_some_and(|(queue, value)| queue == signal.timeline.queue && value == signal.value);
        if fails {
            return Err(Error::Lost { cause: "unplugged".into() });
        }
        let start_ns = Timing::now_ns();
        if !self.options.delay.is_zero() {
            let part = crate::support::mix(signal.value, u64::from(self.options.id)) % 16;
            std::thread::sleep(self.options.delay * part as u32 / 16);
        }
        task.commands.iter().try_for_each(|command| self.command(command))?;
        self.timings.lock().unwrap().push(Timing { point: signal, start_ns, end_ns: Timing::now_ns() });
        Ok(())
    }

    fn read(&self, range: &BufferRange) -> Vec<u8> {
        let buffers = self.buffers.lock().unwrap();
        buffers[&range.buffer][range.offset as usize..][..range.bytes as usize].to_vec()
    }

    fn write(&self, range: &BufferRange, bytes: &[u8]) {
        let mut buffers = self.buffers.lock().unwrap();
        let buffer = buffers.get_mut(&range.buffer).unwrap();
        buffer[range.offset as usize..][..range.bytes as usize].copy_from_slice(bytes);
    }

    fn command(&self, command: &Command) -> Result<()> {
        let region = |id: &RegionId| Arc::clone(&self.regions.lock().unwrap()[id]);
        match command {
            Command::Dispatch(dispatch) => {
                let mut bindings: Vec<_> = dispatch.bindings.iter().map(|b| self.read(&b.range)).collect();
                interpret(dispatch.entry, &dispatch.constants, &mut bindings);
                for (binding, bytes) in dispatch.bindings.iter().zip(&bindings) {
                    if binding.access != Access::Read {
                        self.write(&binding.range, bytes);
                    }
                }
            }
            Command::Copy { from, to } => self.write(to, &self.read(from)),
            Command::Fill { to, word } => self.write(to, &word.to_ne_bytes().repeat(to.bytes as usize / 4)),
            Command::Upload { region: id, offset, to } => {
                let (region, offset) = (region(id), *offset as usize);
                self.write(to, &region.read(offset..offset + to.bytes as usize)?);
            }
            Command::Download { from, region: id, offset } => {
                let (region, offset) = (region(id), *offset as usize);
                region.write(offset..offset + from.bytes as usize)?.copy_from_slice(&self.read(from));
            }
        }
        Ok(())
    }
}

impl Device for FakeDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    fn memory(&self) -> Result<Vec<Memory>> {
        Ok(Vec::new())
    }

    fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        Arc::clone(&self.queues[queue.index()].timeline)
    }

    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()> {
        self.imported.insert(timeline.id(), timeline);
        Ok(())
    }

    /// Every allocation is a new one.
    fn pool_stats(&self) -> PoolStats {
        let buffers = self.buffers.lock().unwrap();
        let in_use_bytes = buffers.values().map(|b| b.len() as u64).sum();
        PoolStats { in_use_buffers: buffers.len() as u64, in_use_bytes, ..PoolStats::default() }
    }

    fn trim_pool(&mut self) -> u64 {
        0
    }

    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        let free = self.options.memory_bytes - self.used_bytes;
        if bytes > free {
            return Err(Error::OutOfMemory { wanted: bytes, free: Some(free) });
        }
        self.used_bytes += bytes;
        self.buffers.lock().unwrap().insert(id, vec![0xff; bytes as usize]);
        Ok(())
    }

    fn destroy_buffer(&mut self, id: BufferId) -> Result<()> {
        if let Some(buffer) = self.buffers.lock().unwrap().remove(&id) {
            self.used_bytes -= buffer.len() as u64;
        }
        Ok(())
    }

    fn create_module(&mut self, _: ModuleId, _: &Module) -> Result<()> {
        Ok(())
    }

    fn destroy_module(&mut self, _: ModuleId) -> Result<()> {
        Ok(())
    }

    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()> {
        self.regions.lock().unwrap().insert(id, region);
        Ok(())
    }

    fn unregister_region(&mut self, id: RegionId) -> Result<()> {
        self.regions.lock().unwrap().remove(&id);
        Ok(())
    }

    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()> {
        self.programs.insert(id, commands);
        Ok(())
    }

    fn destroy_program(&mut self, id: ProgramId) -> Result<()> {
        self.programs.remove(&id);
        Ok(())
    }

    fn submit(&mut self, submission: Submission) -> Result<()> {
        let Submission { queue, work, waits, signal } = submission;
        let commands = match work {
            Work::Commands(commands) => commands,
            Work::Program(id) => self.programs[&id].clone(),
        };
        let waits = waits.iter().map(|point| {
            let own = point.timeline.device == self.id;
            let timeline = if own {
                self.timeline(point.timeline.queue)
            } else {
                Arc::clone(&self.imported[&point.timeline])
            };
            (timeline, point.value)
        });
        let task = Task { commands, waits: waits.collect(), signal };
        self.queues[queue.index()].tasks.as_ref().unwrap().send(task).unwrap();
        Ok(())
    }

    fn take_timings(&mut self, timings: &mut Vec<Timing>) {
        timings.append(&mut self.timings.lock().unwrap());
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        for queue in &mut self.queues {
            queue.tasks = None;
            queue.thread.take().unwrap().join().unwrap();
        }
    }
}
