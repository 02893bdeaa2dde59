//! Adapts a device for single operators. Memory is reference-counted, each module is created once, and all
//! work runs in one sequence.

use super::error::{Error, Result};
use super::pending::Wakers;
use super::tensor::{Shape, Tensor, Type};
use ragtag_hal::{
    Adapter, Binding, BufferId, BufferRange, Caps, Checked, Command, Device, Dispatch, HostRegion, Module,
    ModuleId, QueueKind, RegionId, Submission, Timeline, Work,
};
use ragtag_kernels::{Kernel, Variant, module_source, select};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device that several threads can share.
pub(super) struct Shared {
    adapter: Adapter,
    timeline: Arc<Timeline>,
    wakers: Arc<Wakers>,
    core: Mutex<Core>,
}

struct Core {
    device: Option<Checked>,
    next_id: u32,
    signalled: u64,
    modules: HashMap<(Kernel, &'static str), ModuleId>,
    /// Resources to destroy, each with the timeline value after which no work uses it.
    left: Vec<(u64, Left)>,
}

#[derive(Clone, Copy)]
enum Left {
    Buffer(BufferId),
    Region(RegionId),
}

/// Buffer on a device. After this value is dropped, the device destroys the buffer as soon as no submitted
/// work uses it.
pub(super) struct Memory {
    shared: Arc<Shared>,
    range: BufferRange,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.shared.lock().leave(Left::Buffer(self.range.buffer));
    }
}

impl Shared {
    pub(super) fn new(device: Checked) -> Result<Arc<Self>> {
        let (adapter, timeline) = (device.adapter().clone(), device.timeline(QueueKind::Compute));
        let wakers = Wakers::new()?;
        let woken = Arc::clone(&wakers);
        timeline.subscribe(move |progress| woken.wake(progress));
        let signalled = timeline.value();
        let core =
            Core { device: Some(device), next_id: 0, signalled, modules: HashMap::new(), left: Vec::new() };
        Ok(Arc::new(Self { adapter, timeline, wakers, core: Mutex::new(core) }))
    }

    pub(super) fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    pub(super) fn caps(&self) -> &Caps {
        &self.adapter.caps
    }

    pub(super) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    pub(super) fn wakers(&self) -> &Wakers {
        &self.wakers
    }

    /// Returns the timeline value that the last submission signals.
    pub(super) fn signalled(&self) -> u64 {
        self.lock().signalled
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates uninitialised memory. Returns `None` if `bytes` is 0.
    pub(super) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Option<Arc<Memory>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let id = loop {
            let mut core = self.lock();
            match core.create_buffer(bytes) {
                Err(Error::Device(error)) if error.is_out_of_memory() && !core.left.is_empty() => {
                    let last = core.signalled;
                    drop(core);
                    // Waits without the lock, so other threads continue. Resources in `left` become free when
                    // the outstanding work completes.
                    self.timeline.wait(last, None)?;
                }
                created => break created?,
            }
        };
        let range = BufferRange { buffer: id, offset: 0, bytes };
        Ok(Some(Arc::new(Memory { shared: Arc::clone(self), range })))
    }

    /// Creates a tensor whose values are undefined.
    pub(super) fn tensor(self: &Arc<Self>, shape: impl Into<Shape>, kind: Type) -> Result<Tensor> {
        let shape = shape.into();
        let memory = self.allocate(kind.bytes(&shape)?)?;
        Ok(Tensor { shape, kind, memory })
    }

    /// Uploads to `to` the bytes that `fill` writes.
    pub(super) fn upload(&self, to: &Memory, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<u64> {
        let bytes = to.range.bytes as usize;
        let region = Arc::new(HostRegion::new(bytes)?);
        fill(&mut region.write(0..bytes)?)?;
        let mut core = self.lock();
        let id = core.register(&region)?;
        let command = Command::Upload { region: id, offset: 0, to: to.range };
        let outcome = core.submit(vec![command]);
        core.leave(Left::Region(id));
        outcome
    }

    /// Downloads `from` into a host region. The bytes of the region are valid once the timeline has reached
    /// the returned value.
    pub(super) fn download(&self, from: &Memory) -> Result<(u64, Arc<HostRegion>)> {
        let region = Arc::new(HostRegion::new(from.range.bytes as usize)?);
        let mut core = self.lock();
        let id = core.register(&region)?;
        let command = Command::Download { from: from.range, region: id, offset: 0 };
        let outcome = core.submit(vec![command]);
        core.leave(Left::Region(id));
        Ok((outcome?, region))
    }

    /// Fills memory with the 32-bit word `word`.
    pub(super) fn fill(&self, to: &Memory, word: u32) -> Result<u64> {
        self.lock().submit(vec![Command::Fill { to: to.range, word }])
    }

    /// Copies `from` to `to`, which has the same size.
    pub(super) fn copy(&self, from: &Memory, to: &Memory) -> Result<u64> {
        self.lock().submit(vec![Command::Copy { from: from.range, to: to.range }])
    }

    /// Launches a kernel. `tensors` are its operands, in the order that the kernel's interface defines. For
    /// an empty tensor, binds memory that the kernel does not read.
    pub(super) fn launch(
        self: &Arc<Self>,
        kernel: Kernel,
        rows: u32,
        tensors: &[&Tensor],
        constants: &[u32],
    ) -> Result<u64> {
        let no_kernel = || Error::NoKernel { device: self.adapter.label(), kernel: kernel.to_string() };
        let variant = select(kernel, self.caps(), rows).ok_or_else(no_kernel)?;
        let nothing = match tensors.iter().any(|tensor| tensor.memory.is_none()) {
            true => self.allocate(4)?,
            false => None,
        };
        let ranges = tensors.iter().filter_map(|t| t.memory.as_ref().or(nothing.as_ref())).map(|m| m.range);
        let accesses = variant.abi.bindings.iter();
        let bindings = ranges.zip(accesses).map(|(range, &access)| Binding { range, access }).collect();
        let (constants, grid) = (constants.to_vec(), variant.grid(constants, self.caps()));
        let mut core = self.lock();
        let module = core.module(variant, self.caps())?;
        core.submit(vec![Command::Dispatch(Dispatch { module, entry: 0, bindings, constants, grid })])
    }
}

impl Core {
    fn device(&mut self) -> Result<&mut Checked> {
        self.device.as_mut().ok_or_else(|| Error::Open("the device is closed".into()))
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn create_buffer(&mut self, bytes: u64) -> Result<BufferId> {
        self.sweep()?;
        let id = BufferId(self.id());
        self.device()?.create_buffer(id, bytes)?;
        Ok(id)
    }

    fn module(&mut self, variant: &'static Variant, caps: &Caps) -> Result<ModuleId> {
        let key = (variant.kernel, variant.name);
        if let Some(module) = self.modules.get(&key) {
            return Ok(*module);
        }
        let name = format!("{} ({})", variant.kernel, variant.name);
        let source = module_source([variant], caps)
            .ok_or_else(|| Error::Open(format!("no source for kernel {name}")))?;
        let id = ModuleId(self.id());
        self.device()?.create_module(id, &Module { name, entries: vec![variant.abi], source })?;
        self.modules.insert(key, id);
        Ok(id)
    }

    fn register(&mut self, region: &Arc<HostRegion>) -> Result<RegionId> {
        let id = RegionId(self.id());
        self.device()?.register_region(id, Arc::clone(region))?;
        Ok(id)
    }

    /// Submits commands that run after all earlier work. Returns the timeline value that they signal.
    fn submit(&mut self, commands: Vec<Command>) -> Result<u64> {
        self.sweep()?;
        let value = self.signalled + 1;
        let device = self.device()?;
        let timeline = device.timeline(QueueKind::Compute);
        let (signal, work) = (timeline.id().at(value), Work::Commands(commands));
        let submission = Submission::timed(QueueKind::Compute, work, Vec::new(), signal);
        let outcome = device.submit(submission);
        // If the device rejects a submission, the timeline fails, and `value` counts as used. The next
        // submission reports the failure.
        if outcome.is_ok() || timeline.failure().is_some() {
            self.signalled = value;
        }
        Ok(outcome.map(|()| value)?)
    }

    /// Destroys a resource as soon as no submitted work uses it.
    fn leave(&mut self, left: Left) {
        self.left.push((self.signalled, left));
        // If destruction fails, the next submission retries it and reports the failure.
        let _ = self.sweep();
    }

    /// Destroys the resources in `left` that no submitted work uses any more.
    fn sweep(&mut self) -> Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let timeline = device.timeline(QueueKind::Compute);
        let passed = if timeline.failure().is_some() { u64::MAX } else { timeline.value() };
        let mut outcome = Ok(());
        for (_, left) in self.left.extract_if(.., |(point, _)| *point <= passed) {
            let destroyed = match left {
                Left::Buffer(id) => device.destroy_buffer(id),
                Left::Region(id) => device.unregister_region(id),
            };
            outcome = outcome.and(destroyed);
        }
        outcome.map_err(Into::into)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A failed device has no outstanding work. Any other device reaches its last point.
        if let Some(device) = &self.device {
            let _ = device.timeline(QueueKind::Compute).wait(self.signalled, None);
        }
        let _ = self.sweep();
        if let Some(device) = &mut self.device {
            for (_, id) in self.modules.drain() {
                let _ = device.destroy_module(id);
            }
        }
    }
}

impl Memory {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compute;
    use ragtag_devices::{Backends, Config};
    use ragtag_hal::{DeviceId, Faults, Limits};
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};
    use std::thread;
    use std::time::Duration;

    /// Returns the CPU device with the injected faults `faults`.
    fn processor(faults: Faults) -> Compute {
        let backends = Backends::new(&Config::default());
        let adapter = backends.probe().adapters().find(|adapter| adapter.backend == "cpu").unwrap().clone();
        let opened = backends.open_with(&[(adapter, DeviceId(0))], &Limits::default(), &move |_, device| {
            Checked::with_faults(device, faults.clone())
        });
        Compute::on(opened.unwrap().swap_remove(0)).unwrap()
    }

    fn late(delay: Duration) -> Faults {
        Faults { delay_us: [delay.as_micros() as u64; 3], ..Faults::default() }
    }

    #[test]
    fn the_cause_of_a_refused_submission_reaches_all_later_calls() {
        let device = processor(Faults { failing_submission: Some(2), ..Faults::default() });
        let zeros = || device.zeros([4])?.wait().map(drop);
        assert_eq!(zeros().map_err(|error| error.to_string()), Ok(()));
        for _ in 0..3 {
            let error = zeros().unwrap_err().to_string();
            assert!(error.contains("injected fault"), "{error}");
        }
    }

    /// Task that completes when it is woken, and then drops the value that it holds.
    struct Last<T> {
        held: Mutex<Option<T>>,
        over: mpsc::Sender<()>,
    }

    impl<T: Send + 'static> Wake for Last<T> {
        fn wake(self: Arc<Self>) {
            drop(self.held.lock().unwrap().take());
            self.over.send(()).unwrap();
        }
    }

    #[test]
    fn a_woken_task_may_drop_the_device() {
        let device = processor(late(Duration::from_millis(50)));
        let zeros = device.zeros([4]).unwrap();
        let tensor = zeros.queued().clone();
        let mut pending = device.read(&tensor).unwrap();
        let (over, woken) = mpsc::channel();
        let task = Arc::new(Last { held: Mutex::default(), over });
        let waker = Waker::from(Arc::clone(&task));
        assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
        *task.held.lock().unwrap() = Some((device, zeros, tensor, pending));
        drop((task, waker));
        woken.recv_timeout(Duration::from_secs(30)).expect("the task is woken and ends");
    }

    #[test]
    fn a_thread_that_waits_for_memory_does_not_block_others() {
        let device = processor(Faults { most_bytes: Some(4096), ..late(Duration::from_secs(2)) });
        let first = device.zeros([1024]).unwrap();
        let point = device.shared.signalled();
        drop(first);
        let other = device.clone();
        let second = thread::spawn(move || other.zeros([1024])?.wait().map(drop));
        thread::sleep(Duration::from_millis(200));
        assert_eq!(device.shared.signalled(), point, "nothing was submitted yet");
        assert!(device.shared.timeline().value() < point, "reported before the memory was available");
        assert_eq!(second.join().unwrap().map_err(|error| error.to_string()), Ok(()));
    }
}
