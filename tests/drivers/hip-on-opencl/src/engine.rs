//! Implements HIP on OpenCL devices. Each device has its own context and memory.

use crate::program::{Kernel, Module, compile};
use crate::work::{Graph, Work};
use hip_shim::symbols::Handle;
use hip_shim::symbols::code::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, LAUNCH_FAILURE, NO_DEVICE,
    NOT_FOUND, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, UNKNOWN,
};
use hip_shim::{DeviceProperties, Engine, Result, Shape, Signature};
use opencl3::command_queue::{CL_QUEUE_PROFILING_ENABLE, CommandQueue};
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, CL_DEVICE_TYPE_ALL, Device};
use opencl3::error_codes::ClError;
use opencl3::event::{CL_COMPLETE, Event};
use opencl3::memory::{CL_MEM_READ_WRITE, svm_alloc, svm_free};
use opencl3::platform::get_platforms;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Alignment of HIP allocations, in bytes.
const ALIGNMENT: usize = 256;

/// OpenCL device with its context and memory.
pub(crate) struct OpenedDevice {
    pub(crate) device: Device,
    pub(crate) context: Context,
    /// Live allocations. Maps the caller's aligned address to the unaligned start address and the size in
    /// bytes.
    blocks: Mutex<HashMap<usize, (usize, usize)>>,
}

/// HIP engine over all OpenCL devices.
pub(crate) struct OpenCl {
    places: Vec<OpenedDevice>,
    facts: Vec<DeviceProperties>,
    /// Start and end of the pinned host memory.
    pinned: Mutex<HashMap<usize, usize>>,
}

/// OpenCL queue, and the work that the current capture has recorded.
pub(crate) struct Stream {
    pub(crate) queue: CommandQueue,
    capture: Mutex<Option<Vec<Work>>>,
}

/// Returns HIP's code for a failure that has no specific code.
pub(crate) fn unknown(_: ClError) -> i32 {
    UNKNOWN
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn places() -> Vec<OpenedDevice> {
    let devices = get_platforms().unwrap_or_default().into_iter();
    let devices = devices.flat_map(|platform| platform.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default());
    let place = |id| {
        let device = Device::new(id);
        let shared = device.svm_mem_capability() & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER != 0;
        let context = shared.then(|| Context::from_device(&device).ok())??;
        Some(OpenedDevice { device, context, blocks: Mutex::default() })
    };
    devices.filter_map(place).collect()
}

fn facts(device: &Device) -> std::result::Result<DeviceProperties, ClError> {
    let small = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    Ok(DeviceProperties {
        name: device.name()?.trim().into(),
        total_bytes: usize::try_from(device.global_mem_size()?).unwrap_or(usize::MAX),
        units: small(device.max_compute_units()? as usize),
        max_items: small(device.max_work_group_size()?),
        local_bytes: small(usize::try_from(device.local_mem_size()?).unwrap_or(usize::MAX)),
        ..DeviceProperties::default()
    })
}

impl OpenCl {
    fn new() -> Result<Self> {
        let (places, facts): (Vec<_>, Vec<_>) = places()
            .into_iter()
            .filter_map(|place| Some((facts(&place.device).ok()?, place)))
            .map(|(f, p)| (p, f))
            .unzip();
        if places.is_empty() { Err(NO_DEVICE) } else { Ok(Self { places, facts, pinned: Mutex::default() }) }
    }

    /// Enqueues `work` on the stream, or records it if a capture is in progress.
    fn give(&self, stream: &Stream, work: Work) -> Result<()> {
        if let Some(captured) = lock(&stream.capture).as_mut() {
            captured.push(work);
            return Ok(());
        }
        work.enqueue(&stream.queue)?;
        stream.queue.flush().map_err(unknown)
    }
}

impl Engine for OpenCl {
    type Stream = Stream;
    type Event = Mutex<Option<Event>>;
    type Module = Module;
    type Function = Kernel;
    type Graph = Graph;

    fn engine() -> Result<&'static Self> {
        static ENGINE: OnceLock<Result<OpenCl>> = OnceLock::new();
        ENGINE.get_or_init(OpenCl::new).as_ref().map_err(|code| *code)
    }

    fn devices(&self) -> &[DeviceProperties] {
        &self.facts
    }

    fn free_bytes(&self, device: usize) -> Result<usize> {
        let used = lock(&self.places[device].blocks).values().map(|(_, bytes)| bytes).sum();
        Ok(self.facts[device].total_bytes.saturating_sub(used))
    }

    fn allocate(&self, device: usize, bytes: usize) -> Result<Handle> {
        let place = &self.places[device];
        let largest = place.device.max_mem_alloc_size().map_err(unknown)?;
        let room = bytes.checked_add(ALIGNMENT).filter(|&room| bytes > 0 && room as u64 <= largest);
        let room = room.ok_or(OUT_OF_MEMORY)?;
        // SAFETY: the engine and its contexts live as long as the process.
        let start = unsafe { svm_alloc(place.context.get(), CL_MEM_READ_WRITE, room, 0) };
        let start = start.map_err(|_| OUT_OF_MEMORY)? as usize;
        let aligned = start.next_multiple_of(ALIGNMENT);
        lock(&place.blocks).insert(aligned, (start, bytes));
        Ok(aligned as Handle)
    }

    fn free(&self, device: usize, address: Handle) -> Result<()> {
        let place = &self.places[device];
        let (start, _) = lock(&place.blocks).remove(&(address as usize)).ok_or(INVALID_VALUE)?;
        // SAFETY: the block was allocated in this context, and the caller guarantees that nothing uses it.
        unsafe { svm_free(place.context.get(), start as *mut c_void) }.map_err(|_| UNKNOWN)
    }

    fn owner(&self, address: usize) -> Option<usize> {
        let within = |(start, bytes): (&usize, usize)| (*start..start + bytes).contains(&address);
        let owns = |place: &OpenedDevice| {
            lock(&place.blocks).iter().any(|(start, (_, bytes))| within((start, *bytes)))
        };
        self.places.iter().position(owns)
    }

    fn allocate_on(&self, _: &Stream, _: usize) -> Result<Handle> {
        Err(NOT_SUPPORTED)
    }

    fn free_on(&self, _: &Stream, _: Handle) -> Result<()> {
        Err(NOT_SUPPORTED)
    }

    /// Records the pages, because HIP refuses to pin a page twice. These devices work in host memory, so
    /// there is nothing else to do.
    fn pin(&self, _: usize, pointer: *mut c_void, bytes: usize) -> Result<()> {
        let start = pointer as usize;
        let mut pinned = lock(&self.pinned);
        let overlaps = |(&other, &end): (&usize, &usize)| start < end && other < start + bytes;
        if pinned.iter().any(overlaps) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        pinned.insert(start, start + bytes);
        Ok(())
    }

    fn pinned_address(&self, _: usize, pointer: *mut c_void) -> Result<Handle> {
        if lock(&self.pinned).contains_key(&(pointer as usize)) { Ok(pointer) } else { Err(INVALID_VALUE) }
    }

    fn unpin(&self, _: usize, pointer: *mut c_void) -> Result<()> {
        lock(&self.pinned).remove(&(pointer as usize)).map(drop).ok_or(HOST_MEMORY_NOT_REGISTERED)
    }

    fn stream(&self, device: usize) -> Result<Stream> {
        let OpenedDevice { device, context, .. } = &self.places[device];
        // SAFETY: the device belongs to the context and supports the properties.
        let queue = unsafe {
            CommandQueue::create_with_properties(context, device.id(), CL_QUEUE_PROFILING_ENABLE, 0)
        };
        Ok(Stream { queue: queue.map_err(unknown)?, capture: Mutex::default() })
    }

    fn finish(&self, stream: &Stream) -> Result<()> {
        stream.queue.finish().map_err(|_| LAUNCH_FAILURE)
    }

    fn event(&self, _: usize) -> Result<Self::Event> {
        Ok(Mutex::default())
    }

    fn record(&self, event: &Self::Event, stream: &Stream) -> Result<()> {
        // SAFETY: the wait list is empty.
        let marker = unsafe { stream.queue.enqueue_marker_with_wait_list(&[]) }.map_err(unknown)?;
        stream.queue.flush().map_err(unknown)?;
        *lock(event) = Some(marker);
        Ok(())
    }

    fn wait(&self, stream: &Stream, event: &Self::Event) -> Result<()> {
        // An event that was never recorded counts as passed.
        let event = lock(event);
        let Some(event) = event.as_ref() else { return Ok(()) };
        if event.context().map_err(unknown)? != stream.queue.context().map_err(unknown)? {
            // A queue cannot wait for an event of another device, so the host waits.
            return event.wait().map_err(unknown);
        }
        // SAFETY: the event is valid, and the driver retains it while it waits.
        unsafe { stream.queue.enqueue_barrier_with_wait_list(&[event.get()]) }.map(drop).map_err(unknown)
    }

    fn has_passed(&self, event: &Self::Event) -> Result<bool> {
        let event = lock(event);
        let Some(event) = event.as_ref() else { return Ok(true) };
        match event.command_execution_status().map_err(unknown)?.0 {
            failed if failed < 0 => Err(LAUNCH_FAILURE),
            code => Ok(code == CL_COMPLETE),
        }
    }

    fn synchronise(&self, event: &Self::Event) -> Result<()> {
        // Retain the event, because another thread may record a new event in the meantime.
        let waiting = lock(event).as_ref().map(kept).transpose()?;
        waiting.map_or(Ok(()), |event| event.wait().map_err(|_| LAUNCH_FAILURE))
    }

    fn elapsed_ms(&self, from: &Self::Event, to: &Self::Event) -> Result<f32> {
        let end_ns = |event: &Self::Event| {
            let event = lock(event);
            event.as_ref().ok_or(NOT_READY)?.profiling_command_end().map_err(|_| NOT_READY)
        };
        let (from, to) = (end_ns(from)?, end_ns(to)?);
        Ok((to as f64 - from as f64) as f32 / 1e6)
    }

    fn copy(&self, stream: &Stream, to: Handle, from: *const u8, bytes: usize, _: i32) -> Result<()> {
        self.give(stream, Work::Copy { from: from as usize, to: to as usize, bytes })
    }

    fn fill(&self, stream: &Stream, to: Handle, word: u32, words: usize) -> Result<()> {
        self.give(stream, Work::Fill { to: to as usize, word, bytes: words * 4 })
    }

    fn compile(
        &self,
        devices: &[usize],
        text: &str,
        options: &[String],
    ) -> std::result::Result<(Vec<Signature>, Vec<u8>), String> {
        compile(&self.places, devices, text, options)
    }

    fn load(&self, device: usize, signatures: Vec<Signature>, code: &[u8]) -> Result<Module> {
        Module::new(&self.places[device], device, signatures, code)
    }

    fn function(&self, module: &Module, name: &CStr) -> Result<Kernel> {
        module.kernel(name.to_str().map_err(|_| NOT_FOUND)?)
    }

    fn max_items(&self, function: &Kernel) -> Result<i32> {
        function.max_items()
    }

    fn launch(
        &self,
        stream: &Stream,
        function: &Kernel,
        shape: &Shape,
        arguments: *const Handle,
    ) -> Result<()> {
        // These kernels cannot use dynamic local memory in OpenCL.
        if shape.shared_bytes != 0 || shape.grid.contains(&0) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller guarantees one argument per parameter.
        let arguments = unsafe { function.arguments(arguments) };
        self.give(stream, Work::Launch { kernel: function.clone(), arguments, shape: *shape })
    }

    fn begin_capture(&self, stream: &Stream) -> Result<()> {
        let mut capture = lock(&stream.capture);
        if capture.is_some() {
            return Err(INVALID_VALUE);
        }
        *capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph> {
        lock(&stream.capture).take().map(Graph).ok_or(INVALID_VALUE)
    }

    fn play(&self, graph: &Graph, stream: &Stream) -> Result<()> {
        graph.0.iter().try_for_each(|work| work.enqueue(&stream.queue))?;
        stream.queue.flush().map_err(unknown)
    }
}

/// Increments the reference count of `event` and returns the new reference.
fn kept(event: &Event) -> Result<Event> {
    // SAFETY: the event is valid; dropping the returned value releases the reference.
    unsafe { opencl3::event::retain_event(event.get()) }.map_err(|_| UNKNOWN)?;
    Ok(Event::new(event.get()))
}
