//! A fake driver. Each stream is a thread, and device memory is host memory. The driver checks every access
//! to memory, so it detects use after free.
//!
//! The driver has two kernels: `scale` multiplies and adds, and `hold` waits until the test releases it. The
//! fake product library interprets the bits of f16 values as integers.

#[cfg(unix)]
use crate::driver::Import;
use crate::driver::{Arguments, Driver, FunctionProperties, Heap, Launch, Operands};
#[cfg(unix)]
use ragtag_hal::OpaqueFd;
use ragtag_hal::{DeviceFunction, Error, Gemm, KernelLanguage, Result};
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Memory size of the fake device, in bytes.
pub const TOTAL_BYTES: u64 = 1 << 20;

/// An operation on a stream.
#[derive(Clone)]
enum Op {
    Copy { from: u64, to: u64, bytes: usize },
    Fill { to: u64, word: u32, words: usize },
    Launch { name: String, arguments: Arguments },
    Gemm { product: Gemm, operands: Operands },
    Record(Event),
    Wait(Event),
    Play(Arc<Vec<Op>>),
}

#[derive(Default)]
pub struct State {
    /// Allocations by address. Each block consists of 64-bit words.
    allocated: HashMap<u64, Box<[u64]>>,
    /// Addresses of the allocations that peers can access.
    shared: HashSet<u64>,
    /// Pinned ranges by address.
    pinned: HashMap<u64, usize>,
    /// Accesses to memory that was not allocated or pinned.
    violations: Vec<String>,
    /// Number of calls, by function name.
    calls: HashMap<&'static str, u32>,
    /// Error that the next call of a function returns, by function name.
    refusals: HashMap<&'static str, Error>,
    /// Error that every call returns after the device is lost.
    lost: Option<Error>,
    open: bool,
    graphs: i32,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// Imported memory, which is released on drop.
struct Imported {
    fake: Fake,
    address: u64,
}

impl Drop for Imported {
    fn drop(&mut self) {
        let released = self.fake.shared.lock().allocated.remove(&self.address);
        assert!(released.is_some(), "released twice");
    }
}

/// The fake driver.
#[derive(Clone, Default)]
pub struct Fake {
    shared: Arc<Shared>,
}

impl Fake {
    fn call(&self, name: &'static str) -> Result<()> {
        let mut state = self.shared.lock();
        *state.calls.entry(name).or_default() += 1;
        if let Some(error) = state.refusals.remove(name) {
            return Err(error);
        }
        state.lost.clone().map_or(Ok(()), Err)
    }

    pub fn calls(&self, name: &'static str) -> u32 {
        self.shared.lock().calls.get(name).copied().unwrap_or(0)
    }

    /// Makes the next call of the function `name` fail with `error`.
    pub fn refuse(&self, name: &'static str, error: Error) {
        self.shared.lock().refusals.insert(name, error);
    }

    /// Marks the device as lost.
    pub fn lose(&self, error: Error) {
        let mut state = self.shared.lock();
        state.lost = Some(error);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Releases all current and future launches of `hold`.
    pub fn release(&self) {
        self.shared.lock().open = true;
        self.shared.changed.notify_all();
    }

    /// Returns the numbers of leaked allocations, pinned ranges and graphs, and a list of invalid accesses.
    pub fn left(&self) -> (usize, usize, i32, Vec<String>) {
        let state = self.shared.lock();
        (state.allocated.len(), state.pinned.len(), state.graphs, state.violations.clone())
    }

    fn enqueue(&self, stream: &Stream, op: Op) {
        match stream.captured.lock().unwrap().as_mut() {
            Some(captured) => captured.push(op),
            None => stream.send(op),
        }
    }
}

impl Shared {
    /// Records a violation unless the range lies in device memory or in pinned host memory.
    fn check(&self, what: &str, address: u64, bytes: usize) {
        let mut state = self.lock();
        let within = |(&start, length): (&u64, usize)| {
            start <= address && address + bytes as u64 <= start + length as u64
        };
        let known = state.allocated.iter().any(|(start, block)| within((start, block.len() * 8)))
            || state.pinned.iter().any(|(start, &bytes)| within((start, bytes)));
        if !known {
            state.violations.push(format!("{what} uses {bytes} bytes that do not exist"));
        }
    }

    fn run(&self, op: &Op) {
        if self.lock().lost.is_some() {
            return;
        }
        match op {
            Op::Copy { from, to, bytes } => {
                self.check("a copy", *from, *bytes);
                self.check("a copy", *to, *bytes);
                // SAFETY: both ranges were just looked up. The code that enqueues the copy excludes
                // concurrent access.
                unsafe { std::ptr::copy_nonoverlapping(*from as *const u8, *to as *mut u8, *bytes) }
            }
            Op::Fill { to, word, words } => {
                self.check("a fill", *to, 4 * words);
                // SAFETY: as above.
                (0..*words).for_each(|at| unsafe { (*to as *mut u32).add(at).write(*word) });
            }
            Op::Launch { name, arguments } => self.launch(name, arguments.words()),
            Op::Gemm { product, operands } => self.gemm(product, operands),
            Op::Record(event) => event.pass(),
            Op::Wait(event) => event.wait(self),
            Op::Play(ops) => ops.iter().for_each(|op| self.run(op)),
        }
    }

    fn launch(&self, name: &str, words: &[u64]) {
        if name == "hold" {
            let state = self.lock();
            let closed = |state: &mut State| !state.open && state.lost.is_none();
            drop(self.changed.wait_while(state, closed).unwrap());
            return;
        }
        let (from, to, factor, count) = (words[0], words[1], words[2] as u32, words[3] as usize);
        self.check("a kernel", from, 4 * count);
        self.check("a kernel", to, 4 * count);
        for at in 0..count {
            // SAFETY: as for copies.
            unsafe {
                let word = (from as *const u32).add(at).read();
                (to as *mut u32).add(at).write(word.wrapping_mul(factor).wrapping_add(1));
            }
        }
    }
}

impl Shared {
    fn gemm(&self, product: &Gemm, operands: &Operands) {
        let Operands { x, weights, y } = *operands;
        for (address, bytes) in [x, weights, y].into_iter().zip(product.extents()) {
            self.check("a product", address, bytes as usize);
        }
        // SAFETY: as for copies. `extents` gives the sizes of these matrices.
        let half = |from: u64, at: u32| unsafe { f32::from((from as *const u16).add(at as usize).read()) };
        for (row, column) in (0..product.rows).flat_map(|row| (0..product.columns).map(move |c| (row, c))) {
            let term =
                |d| half(x, row * product.x_pitch + d) * half(weights, column * product.weights_pitch + d);
            let sum: f32 = (0..product.depth).map(term).sum();
            // SAFETY: as above.
            unsafe {
                let to = (y as *mut f32).add((row * product.y_pitch + column) as usize);
                to.write(if product.accumulate { to.read() + sum } else { sum });
            }
        }
    }
}

/// A stream, whose operations run on its own thread.
pub struct Stream {
    ops: Option<Sender<Op>>,
    captured: Mutex<Option<Vec<Op>>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    fn send(&self, op: Op) {
        self.ops.as_ref().unwrap().send(op).unwrap();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ops = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// An event: the time at which it passed, or `None` if it has not passed.
#[derive(Clone)]
pub struct Event {
    shared: Arc<Shared>,
    passed: Arc<Mutex<Option<Instant>>>,
    is_timed: bool,
}

impl Event {
    fn pass(&self) {
        *self.passed.lock().unwrap() = Some(Instant::now());
        let _state = self.shared.lock();
        self.shared.changed.notify_all();
    }

    /// Waits on a stream of `waiter`, which may be another device.
    fn wait(&self, waiter: &Shared) {
        let is_lost = |shared: &Shared| shared.lock().lost.is_some();
        while self.passed.lock().unwrap().is_none() && !is_lost(&self.shared) && !is_lost(waiter) {
            let (state, limit) = (self.shared.lock(), Duration::from_millis(1));
            drop(self.shared.changed.wait_timeout(state, limit).unwrap());
        }
    }
}

/// A function: its name and its number of parameters.
pub struct Function {
    name: String,
    parameters: usize,
}

/// A sequence of captured operations.
pub struct Graph {
    shared: Arc<Shared>,
    ops: Arc<Vec<Op>>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.shared.lock().graphs -= 1;
    }
}

impl Driver for Fake {
    type Stream = Stream;
    type Event = Event;
    type Module = String;
    type Function = Function;
    type Graph = Graph;

    fn api(&self) -> &'static str {
        "a fake API"
    }

    fn heap(&self) -> Result<Heap> {
        self.call("heap")?;
        let used: u64 = self.shared.lock().allocated.values().map(|block| block.len() as u64 * 8).sum();
        Ok(Heap { total_bytes: TOTAL_BYTES, free_bytes: TOTAL_BYTES - used })
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        self.call("allocate")?;
        if bytes > self.heap()?.free_bytes {
            return Err(Error::OutOfMemory { wanted: bytes, free: None });
        }
        let block = vec![0x6b6b_6b6b_6b6b_6b6bu64; (bytes as usize).div_ceil(8)].into_boxed_slice();
        let address = block.as_ptr() as u64;
        self.shared.lock().allocated.insert(address, block);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let mut state = self.shared.lock();
        assert!(!state.shared.contains(&address), "shared memory");
        assert!(state.allocated.remove(&address).is_some(), "freed twice");
        drop(state);
        self.call("free")
    }

    fn allocate_shared(&self, bytes: u64) -> Result<u64> {
        self.call("allocate_shared")?;
        let address = self.allocate(bytes)?;
        self.shared.lock().shared.insert(address);
        Ok(address)
    }

    unsafe fn free_shared(&self, address: u64) -> Result<()> {
        let mut state = self.shared.lock();
        assert!(state.shared.remove(&address), "not allocated as shared memory");
        assert!(state.allocated.remove(&address).is_some(), "freed twice");
        drop(state);
        self.call("free_shared")
    }

    fn reach(&self, owner: &Self) -> Result<()> {
        self.call("reach")?;
        // The devices of a test share all of their state, so each of them reaches the memory of the others.
        assert!(Arc::ptr_eq(&self.shared, &owner.shared));
        Ok(())
    }

    /// Imports new memory. The file descriptor only names the other device.
    #[cfg(unix)]
    fn import(&self, _: &OpaqueFd, bytes: u64) -> Result<Import> {
        let address = self.allocate(bytes)?;
        Ok(Import { address, owner: Box::new(Imported { fake: self.clone(), address }) })
    }

    unsafe fn pin(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        self.call("pin")?;
        assert!(self.shared.lock().pinned.insert(pointer as u64, bytes).is_none(), "pinned twice");
        Ok(())
    }

    unsafe fn pinned_address(&self, pointer: *mut u8) -> Result<u64> {
        self.call("pinned_address")?;
        assert!(self.shared.lock().pinned.contains_key(&(pointer as u64)), "not pinned");
        Ok(pointer as u64)
    }

    unsafe fn unpin(&self, pointer: *mut u8) -> Result<()> {
        assert!(self.shared.lock().pinned.remove(&(pointer as u64)).is_some(), "unpinned twice");
        self.call("unpin")
    }

    fn stream(&self) -> Result<Stream> {
        self.call("stream")?;
        let (ops, inbox) = channel::<Op>();
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::spawn(move || inbox.iter().for_each(|op| shared.run(&op)));
        Ok(Stream { ops: Some(ops), captured: Mutex::default(), thread: Some(thread) })
    }

    fn finish(&self, stream: &Stream) -> Result<()> {
        let event = self.event(false)?;
        stream.send(Op::Record(event.clone()));
        event.wait(&self.shared);
        self.call("finish")
    }

    fn event(&self, is_timed: bool) -> Result<Event> {
        self.call("event")?;
        Ok(Event { shared: Arc::clone(&self.shared), passed: Arc::default(), is_timed })
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<()> {
        self.call("record")?;
        stream.send(Op::Record(event.clone()));
        Ok(())
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        self.call("wait")?;
        stream.send(Op::Wait(event.clone()));
        Ok(())
    }

    fn has_passed(&self, event: &Event) -> bool {
        event.passed.lock().unwrap().is_some()
    }

    fn synchronise(&self, event: &Event) -> Result<()> {
        event.wait(&self.shared);
        self.call("synchronise")
    }

    fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32> {
        assert!(from.is_timed && to.is_timed, "an untimed event records no time");
        let at = |event: &Event| event.passed.lock().unwrap().ok_or_else(|| Error::invalid("not passed"));
        let (from, to) = (at(from)?, at(to)?);
        let ms = |elapsed: Duration| elapsed.as_secs_f32() * 1e3;
        Ok(if from <= to { ms(to - from) } else { -ms(from - to) })
    }

    unsafe fn upload(
        &self,
        stream: &Stream,
        from: *const u8,
        to: u64,
        bytes: usize,
        _: Option<u32>,
    ) -> Result<()> {
        self.call("upload")?;
        self.enqueue(stream, Op::Copy { from: from as u64, to, bytes });
        Ok(())
    }

    unsafe fn download(&self, stream: &Stream, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        self.call("download")?;
        self.enqueue(stream, Op::Copy { from, to: to as u64, bytes });
        Ok(())
    }

    unsafe fn copy(&self, stream: &Stream, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.call("copy")?;
        self.enqueue(stream, Op::Copy { from, to, bytes });
        Ok(())
    }

    unsafe fn fill(&self, stream: &Stream, to: u64, word: u32, words: usize) -> Result<()> {
        self.call("fill")?;
        self.enqueue(stream, Op::Fill { to, word, words });
        Ok(())
    }

    unsafe fn launch(&self, stream: &Stream, launch: &Launch<'_, Self>) -> Result<()> {
        self.call("launch")?;
        let (name, arguments) = (launch.function.name.clone(), launch.arguments.clone());
        self.enqueue(stream, Op::Launch { name, arguments });
        Ok(())
    }

    fn ready_gemm(&self) -> Result<()> {
        self.call("ready_gemm")
    }

    unsafe fn gemm(&self, stream: &Stream, product: &Gemm, operands: Operands) -> Result<()> {
        self.call("gemm")?;
        self.enqueue(stream, Op::Gemm { product: *product, operands });
        Ok(())
    }

    fn begin_capture(&self, stream: &Stream) -> Result<()> {
        self.call("begin_capture")?;
        *stream.captured.lock().unwrap() = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph> {
        let ops = Arc::new(stream.captured.lock().unwrap().take().unwrap());
        self.call("end_capture")?;
        self.shared.lock().graphs += 1;
        Ok(Graph { shared: Arc::clone(&self.shared), ops })
    }

    unsafe fn play(&self, stream: &Stream, graph: &Graph) -> Result<()> {
        self.call("play")?;
        stream.send(Op::Play(Arc::clone(&graph.ops)));
        Ok(())
    }

    fn load(&self, _: KernelLanguage, text: &str) -> Result<String> {
        self.call("load")?;
        match text.strip_prefix("broken") {
            Some(log) => Err(Error::Compile { log: log.trim().into() }),
            None => Ok(text.into()),
        }
    }

    /// Finds a function in a source. Each line of the source contains the name of a function and its number
    /// of parameters.
    fn function(&self, module: &Arc<String>, function: &DeviceFunction) -> Result<Function> {
        let lines = module.lines().filter_map(|line| line.split_once(' '));
        let found = lines.into_iter().find(|(name, _)| *name == function.name);
        let (name, parameters) = found.ok_or_else(|| Error::Compile { log: "no such function".into() })?;
        Ok(Function { name: name.into(), parameters: parameters.parse().unwrap() })
    }

    fn facts(&self, function: &Function) -> Result<FunctionProperties> {
        Ok(FunctionProperties { max_work_group_items: 512, parameters: Some(function.parameters) })
    }
}
