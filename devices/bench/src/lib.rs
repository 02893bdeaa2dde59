//! Test bench for backends: an opened device, a test kernel in a language that the device accepts, buffers
//! and a host region. The bench assigns IDs and points, and limits the duration of waits.
//!
//! | file | subject |
//! | --- | --- |
//! | `text.rs`, `spir_v.rs` | the test kernel in each GPU language |
//! | `suite.rs` | the tests that every backend must pass |
//! | `probes.rs` | probing in a child process |
//! | `shared.rs` | buffers that two devices share |
//! | `stray.rs` | a kernel that writes to an invalid address |
//! | `faults.rs` | device loss and out-of-memory errors |
//!
//! This crate is only for tests, and knows no backend. If a device breaks its contract, the calling test
//! fails.

#![allow(clippy::print_stdout)] // test output

pub mod faults;
mod probes;
mod shared;
mod spir_v;
mod stray;
pub mod suite;
mod text;

pub use probes::{prints_its_probe, probed};
pub use shared::shares;
pub use spir_v::scale_binary;
pub use stray::{STRAY, STRAY_PTX, goes_astray};
pub use text::{
    Code, SCALE, function, module_of, module_of_codes, scale_code, scale_code_adding, scale_text,
};

use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, BufferRange, Checked, Command, Device, DeviceId, Dispatch,
    Error, HostRegion, Limits, ModuleId, Point, ProgramId, QueueKind, RegionId, Submission, Timeline, Work,
};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a wait for one point.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Size in words of each buffer of [`Bench`].
pub const WORDS: usize = 4096;
/// Number of work items in a group of the test kernels.
pub(crate) const GROUP: u32 = 64;

/// Returns `adapters`, unless the list is empty.
///
/// # Errors
/// If the list is empty, returns the reason to skip the test.
pub fn some(adapters: Vec<Adapter>) -> Result<Vec<Adapter>, String> {
    if adapters.is_empty() { Err("the driver has no device".into()) } else { Ok(adapters) }
}

/// Opens a device.
#[track_caller]
pub fn open(backend: &dyn Backend, adapter: &Adapter, id: u16, limits: &Limits) -> Checked {
    let mut devices = backend.open(&[(adapter.clone(), DeviceId(id))], limits).unwrap();
    Checked::new(devices.swap_remove(0))
}

/// Opens two devices in one call, so that they can share a driver context.
#[track_caller]
pub fn open_both(backend: &dyn Backend, [first, second]: [&Adapter; 2]) -> [Bench; 2] {
    let wanted = [(first.clone(), DeviceId(0)), (second.clone(), DeviceId(1))];
    let opened = backend.open(&wanted, &Limits::default()).unwrap();
    let benches: Vec<Bench> = opened.into_iter().map(|device| Bench::new(Checked::new(device))).collect();
    benches.try_into().ok().expect("two devices")
}

/// Returns the range of `words` words that starts at word `first` of a buffer.
pub fn buffer_range(buffer: u32, first: usize, words: usize) -> BufferRange {
    BufferRange { buffer: BufferId(buffer), offset: first as u64 * 4, bytes: words as u64 * 4 }
}

/// Returns the range that covers a whole buffer of [`Bench`].
pub fn all(buffer: u32) -> BufferRange {
    buffer_range(buffer, 0, WORDS)
}

/// Returns a command that launches [`SCALE`] from the module with ID `module`.
pub fn scale_of(module: u32, from: BufferRange, to: BufferRange, factor: u32) -> Command {
    let words = (to.bytes / 4) as u32;
    let bindings =
        vec![Binding { range: from, access: Access::Read }, Binding { range: to, access: Access::Write }];
    let grid = [words.div_ceil(GROUP), 1, 1];
    let constants = vec![factor, words];
    Command::Dispatch(Dispatch { module: ModuleId(module), entry: 0, bindings, constants, grid })
}

/// Returns a command that launches [`SCALE`] from module 0.
pub fn scale(from: BufferRange, to: BufferRange, factor: u32) -> Command {
    scale_of(0, from, to, factor)
}

/// Returns a command that uploads the start of region 0 to all of `buffer`.
pub fn upload(buffer: u32) -> Command {
    Command::Upload { region: RegionId(0), offset: 0, to: all(buffer) }
}

/// Returns a command that downloads all of `buffer` to the start of region 0.
pub fn download(buffer: u32) -> Command {
    Command::Download { from: all(buffer), region: RegionId(0), offset: 0 }
}

/// A device with buffers 0 to 3 of [`WORDS`] words and region 0 of the same size. If the device accepts a
/// language in which [`SCALE`] is available, module 0 contains that kernel.
pub struct Bench {
    /// Device.
    pub device: Checked,
    /// Region 0.
    pub region: Arc<HostRegion>,
    next: [u64; 3],
}

impl Bench {
    /// Creates the bench on a device.
    #[track_caller]
    pub fn new(device: Checked) -> Self {
        Self::try_new(device).unwrap()
    }

    /// Creates the bench on a device. Unlike `new`, returns the device's error instead of failing the test.
    ///
    /// # Errors
    /// Returns an error if a call to the device fails.
    pub fn try_new(mut device: Checked) -> Result<Self, Error> {
        let languages = device.adapter().caps.languages.clone();
        let module = languages.into_iter().find_map(|language| {
            Some(module_of_codes(language, vec![(scale_code(language)?, function("scale"))]))
        });
        if let Some(module) = module {
            device.create_module(ModuleId(0), &module)?;
        }
        let region = Arc::new(HostRegion::new(WORDS * 4)?);
        device.register_region(RegionId(0), Arc::clone(&region))?;
        (0..4).try_for_each(|id| device.create_buffer(BufferId(id), WORDS as u64 * 4))?;
        Ok(Bench { device, region, next: [0; 3] })
    }

    /// Returns the device's label, such as `opencl:0`.
    pub fn label(&self) -> String {
        self.device.adapter().label()
    }

    /// Returns the next point of a queue.
    pub fn point(&mut self, queue: QueueKind) -> Point {
        self.next[queue.index()] += 1;
        self.device.timeline(queue).id().at(self.next[queue.index()])
    }

    /// Submits work that signals the queue's next point.
    ///
    /// # Errors
    /// Returns an error if a call to the device fails.
    pub fn try_submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Result<Point, Error> {
        let signal = self.point(queue);
        self.device.submit(Submission::timed(queue, work, waits.to_vec(), signal)).map(|()| signal)
    }

    /// Submits work. Fails the test if the device rejects it.
    #[track_caller]
    pub fn submit(&mut self, queue: QueueKind, work: Work, waits: &[Point]) -> Point {
        self.try_submit(queue, work, waits).unwrap()
    }

    /// Submits commands.
    #[track_caller]
    pub fn commands(&mut self, queue: QueueKind, commands: Vec<Command>, waits: &[Point]) -> Point {
        self.submit(queue, Work::Commands(commands), waits)
    }

    /// Submits a program.
    #[track_caller]
    pub fn program(&mut self, id: u32, waits: &[Point]) -> Point {
        self.submit(QueueKind::Compute, Work::Program(ProgramId(id)), waits)
    }

    /// Returns a queue's timeline.
    pub fn timeline(&self, queue: QueueKind) -> Arc<Timeline> {
        self.device.timeline(queue)
    }

    /// Waits for a point. Fails the test if the point does not pass.
    #[track_caller]
    pub fn wait(&self, point: Point) {
        assert_eq!(self.outcome(point), None, "{point}");
    }

    /// Returns the error with which a point failed, if any.
    #[track_caller]
    pub fn outcome(&self, point: Point) -> Option<Error> {
        match self.timeline(point.timeline.queue).wait(point.value, Some(TIMEOUT)) {
            Ok(true) => None,
            Ok(false) => panic!("{point} takes too long"),
            Err(error) => Some(error),
        }
    }

    /// Submits commands and returns their error, if any.
    #[track_caller]
    pub fn failure(&mut self, queue: QueueKind, commands: Vec<Command>) -> Option<Error> {
        match self.try_submit(queue, Work::Commands(commands), &[]) {
            Ok(point) => self.outcome(point),
            Err(error) => Some(error),
        }
    }

    /// Sets each word of the region to `word(index)`.
    #[track_caller]
    pub fn fill_region(&self, word: impl Fn(u32) -> u32) {
        let mut region = self.region.write(0..WORDS * 4).unwrap();
        for (at, bytes) in (0..).zip(region.as_chunks_mut::<4>().0) {
            *bytes = word(at).to_ne_bytes();
        }
    }

    /// Returns the words of the region.
    #[track_caller]
    pub fn region_words(&self) -> Vec<u32> {
        let region = self.region.read(0..WORDS * 4).unwrap();
        region.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    }

    /// Downloads the words of a buffer through the region.
    #[track_caller]
    pub fn words(&mut self, buffer: u32) -> Vec<u32> {
        self.fill_region(|_| 0xe7e7_e7e7);
        let point = self.commands(QueueKind::Download, vec![download(buffer)], &[]);
        self.wait(point);
        self.region_words()
    }

    /// Asserts that the kernel computes the correct results for changing inputs, which reach the device through
    /// the region.
    #[track_caller]
    pub fn works_repeatedly(&mut self, what: &str) {
        for round in 1..20u32 {
            self.fill_region(|at| at * round);
            let up = self.commands(QueueKind::Upload, vec![upload(0)], &[]);
            let computed = self.commands(QueueKind::Compute, vec![scale(all(0), all(1), 3)], &[up]);
            self.wait(computed);
            same(&self.words(1), &expected(|at| 3 * at * round + 1), format!("{} {what}", self.label()));
        }
    }

    /// Asserts that the kernel in module 0 computes the correct result. Uploads the input from the region,
    /// and downloads the result into the region.
    #[track_caller]
    pub fn works(&mut self) {
        self.fill_region(|at| at);
        let up = self.commands(QueueKind::Upload, vec![upload(0)], &[]);
        let ran = self.commands(QueueKind::Compute, vec![scale(all(0), all(1), 3)], &[up]);
        self.wait(ran);
        let wanted: Vec<_> = (0..WORDS as u32).map(|at| 3 * at + 1).collect();
        same(&self.words(1), &wanted, self.device.adapter().label());
    }
}

/// Returns the words that a test expects in a buffer of [`Bench`]: `word(index)` for each index.
pub fn expected(word: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..WORDS as u32).map(word).collect()
}

/// Asserts that words are equal. Reports the first difference.
#[track_caller]
pub fn same(words: &[u32], wanted: &[u32], what: impl std::fmt::Display) {
    assert_eq!(words.len(), wanted.len(), "{what}");
    if let Some(at) = words.iter().zip(wanted).position(|(word, wanted)| word != wanted) {
        panic!("{what}: word {at} is {:#x} instead of {:#x}", words[at], wanted[at]);
    }
}

/// Runs code that may hang. Fails the test after a time limit.
#[track_caller]
pub fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = run();
        // The send fails only after the time limit.
        let _ = done.send(());
        result
    });
    assert!(finished.recv_timeout(TIMEOUT).is_ok(), "{what} hangs");
    thread.join().unwrap()
}
