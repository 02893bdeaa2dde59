//! Wraps a device with helpers for tests. The helpers allocate ids and points, copy data to and from the
//! device, and limit the duration of waits.

use ragtag_hal::{
    BufferId, BufferRange, Caps, Checked, Command, Device, HostRegion, Module, ModuleId, Point, ProgramId,
    QueueKind, RegionId, Submission, Timeline, Work,
};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a wait for a point. It is far longer than any test needs, so only a hang exceeds it. A CPU
/// driver may compile a kernel at its first launch, which can take minutes on a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(600);

/// Result of a step of a test. The error is a message.
pub(crate) type Attempt<T> = Result<T, String>;

/// Extension trait that prefixes an error with a description of the action that failed.
pub(crate) trait Context<T> {
    fn context(self, what: &str) -> Attempt<T>;
}

impl<T> Context<T> for ragtag_hal::Result<T> {
    fn context(self, what: &str) -> Attempt<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// Returns an error unless `got` equals `wanted`. `what` describes the value.
pub(crate) fn expect_equal<T: PartialEq + std::fmt::Debug>(got: T, wanted: T, what: &str) -> Attempt<()> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: got {got:?}, wanted {wanted:?}")) }
}

/// Returns an error unless the bytes are equal. The error describes the first difference.
pub(crate) fn expect_bytes(got: &[u8], wanted: &[u8], what: &str) -> Attempt<()> {
    expect_equal(got.len(), wanted.len(), what)?;
    match got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{what}: byte {at} of {} is {:#04x} instead of {:#04x}",
            wanted.len(),
            got[at],
            wanted[at]
        )),
    }
}

/// Returns `bytes` pseudo-random bytes. The value of a byte depends on its position and on `seed`.
pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // Xorshift generator with 64 bits.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A device on which tests run.
pub(crate) struct Bench {
    device: Checked,
    next_id: u32,
    signalled: [u64; 3],
    buffers: Vec<BufferId>,
    regions: Vec<RegionId>,
    /// Staging region through which the contents of buffers are copied. It is reused, because creating a
    /// region takes longer than running most kernels.
    staging: Option<(RegionId, Arc<HostRegion>)>,
    programs: Vec<ProgramId>,
    modules: Vec<ModuleId>,
    is_out_of_memory: Cell<bool>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Work of a failed test may still be outstanding. The device warns about leftover objects.
        let _ = self.clear();
        if let Some((id, _)) = self.staging.take() {
            let _ = self.device.unregister_region(id);
        }
        for id in std::mem::take(&mut self.modules) {
            let _ = self.device.destroy_module(id);
        }
    }
}

impl Bench {
    pub(crate) fn new(device: Checked) -> Self {
        Self {
            device,
            next_id: 0,
            signalled: [0; 3],
            buffers: Vec::new(),
            regions: Vec::new(),
            staging: None,
            programs: Vec::new(),
            modules: Vec::new(),
            is_out_of_memory: Cell::new(false),
        }
    }

    /// Returns whether an allocation has failed, or work for lack of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.is_out_of_memory.get()
    }

    /// Remembers whether a call has failed for lack of memory.
    fn noted<T>(&self, result: ragtag_hal::Result<T>) -> ragtag_hal::Result<T> {
        result.inspect_err(|error| {
            self.is_out_of_memory.set(self.is_out_of_memory.get() || error.is_out_of_memory());
        })
    }

    pub(crate) fn device(&mut self) -> &mut Checked {
        &mut self.device
    }

    pub(crate) fn caps(&self) -> &Caps {
        &self.device.adapter().caps
    }

    /// Rounds an offset or a length up to the copy alignment of the device.
    pub(crate) fn aligned(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.caps().copy_alignment_bytes.max(1) as usize)
    }

    /// Destroys the objects that the last test created.
    pub(crate) fn clear(&mut self) -> Attempt<()> {
        for id in std::mem::take(&mut self.programs) {
            self.device.destroy_program(id).context("destroying a program")?;
        }
        for id in std::mem::take(&mut self.buffers) {
            self.device.destroy_buffer(id).context("destroying a buffer")?;
        }
        for id in std::mem::take(&mut self.regions) {
            self.device.unregister_region(id).context("unregistering a region")?;
        }
        Ok(())
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Creates a buffer that exists until the end of the test.
    pub(crate) fn buffer(&mut self, bytes: u64) -> Attempt<BufferRange> {
        let buffer = self.try_buffer(bytes).context(&format!("a buffer of {bytes} bytes"))?;
        Ok(BufferRange { buffer, offset: 0, bytes })
    }

    pub(crate) fn try_buffer(&mut self, bytes: u64) -> ragtag_hal::Result<BufferId> {
        let id = BufferId(self.id());
        let created = self.device.create_buffer(id, bytes);
        self.noted(created)?;
        self.buffers.push(id);
        Ok(id)
    }

    /// Creates a region that exists until the end of the test.
    pub(crate) fn region(&mut self, bytes: usize) -> Attempt<(RegionId, Arc<HostRegion>)> {
        let (id, region) = self.registered(bytes)?;
        self.regions.push(id);
        Ok((id, region))
    }

    fn registered(&mut self, bytes: usize) -> Attempt<(RegionId, Arc<HostRegion>)> {
        let region = Arc::new(self.noted(HostRegion::new(bytes)).context("a host region")?);
        let id = RegionId(self.id());
        let registered = self.device.register_region(id, Arc::clone(&region));
        self.noted(registered).context("registering a region")?;
        Ok((id, region))
    }

    /// Returns the staging region, enlarged to at least `bytes` bytes (and at least one byte). The region is
    /// valid only for the next copy.
    fn staging(&mut self, bytes: usize) -> Attempt<(RegionId, Arc<HostRegion>)> {
        const STEP_BYTES: usize = 64 << 10;
        if let Some((id, _)) = self.staging.take_if(|(_, region)| region.bytes() < bytes) {
            self.device.unregister_region(id).context("unregistering a region")?;
        }
        if let Some(staging) = &self.staging {
            return Ok(staging.clone());
        }
        let staging = self.registered(bytes.max(1).next_multiple_of(STEP_BYTES))?;
        Ok(self.staging.insert(staging).clone())
    }

    /// Creates a module that exists as long as the device.
    pub(crate) fn module(&mut self, module: &Module) -> Attempt<ModuleId> {
        let id = ModuleId(self.id());
        let created = self.device.create_module(id, module);
        self.noted(created).context("creating a module")?;
        self.modules.push(id);
        Ok(id)
    }

    /// Records a program that exists until the end of the test.
    pub(crate) fn record(&mut self, commands: Vec<Command>) -> Attempt<ProgramId> {
        let id = ProgramId(self.id());
        let recorded = self.device.record(id, commands);
        self.noted(recorded).context("recording")?;
        self.programs.push(id);
        Ok(id)
    }

    /// Submits work that signals the next point of its queue.
    pub(crate) fn submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Attempt<Point> {
        let value = &mut self.signalled[queue.index()];
        *value += 1;
        let signal = self.device.timeline(queue).id().at(*value);
        let submission = Submission::timed(queue, work, waits.to_vec(), signal);
        let submitted = self.device.submit(submission);
        self.noted(submitted).context("a submission")?;
        Ok(signal)
    }

    pub(crate) fn commands(
        &mut self,
        queue: QueueKind,
        commands: Vec<Command>,
        waits: &[Point],
    ) -> Attempt<Point> {
        self.submit(queue, Work::Commands(commands), waits)
    }

    /// Runs commands on the compute queue and waits for them.
    pub(crate) fn compute(&mut self, commands: Vec<Command>) -> Attempt<()> {
        let point = self.commands(QueueKind::Compute, commands, &[])?;
        self.wait(point)
    }

    pub(crate) fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        self.device.timeline(queue)
    }

    /// Waits until a point of this device has passed.
    pub(crate) fn wait(&self, point: Point) -> Attempt<()> {
        match self.outcome(point)? {
            None => Ok(()),
            Some(error) => Err(error.to_string()),
        }
    }

    /// Waits until a point of this device has passed or failed. If it failed, returns the cause.
    pub(crate) fn outcome(&self, point: Point) -> Attempt<Option<ragtag_hal::Error>> {
        match self.timeline(point.timeline.queue).wait(point.value, Some(WAIT_LIMIT)) {
            Ok(true) => Ok(None),
            Ok(false) => Err(format!("{point} has not passed after {} s", WAIT_LIMIT.as_secs())),
            Err(error) => Ok(self.noted(Err::<(), _>(error)).err()),
        }
    }

    /// Writes `bytes` to a range of the same length through the upload queue.
    pub(crate) fn put(&mut self, to: BufferRange, bytes: &[u8]) -> Attempt<()> {
        let (id, region) = self.staging(bytes.len())?;
        region.write(0..bytes.len()).context("a lease")?.copy_from_slice(bytes);
        let point =
            self.commands(QueueKind::Upload, vec![Command::Upload { region: id, offset: 0, to }], &[])?;
        self.wait(point)
    }

    /// Reads the bytes of a range through the download queue.
    pub(crate) fn get(&mut self, from: BufferRange) -> Attempt<Vec<u8>> {
        let bytes = from.bytes as usize;
        let (id, region) = self.staging(bytes)?;
        // Fills the region, so that bytes that the download fails to write do not look right by chance.
        region.write(0..bytes).context("a lease")?.fill(0xe7);
        let point =
            self.commands(QueueKind::Download, vec![Command::Download { from, region: id, offset: 0 }], &[])?;
        self.wait(point)?;
        Ok(region.read(0..bytes).context("a lease")?.to_vec())
    }

    /// Creates a buffer that contains `bytes`.
    pub(crate) fn filled(&mut self, bytes: &[u8]) -> Attempt<BufferRange> {
        let buffer = self.buffer(bytes.len() as u64)?;
        self.put(buffer, bytes)?;
        Ok(buffer)
    }
}

/// Returns the part of a buffer range that starts at `offset` within it.
pub(crate) fn part(of: BufferRange, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { buffer: of.buffer, offset: of.offset + offset, bytes }
}
