//! Implements the exported functions for any engine. Converts handles to objects, and results to error codes.

#![allow(non_snake_case)] // HIP's names
#![allow(clippy::missing_safety_doc)] // the requirements are those of HIP's documentation
#![allow(clippy::too_many_arguments)] // HIP's parameters

use crate::blas::{Blas, Product};
use crate::code;
use crate::settings::{aborts, architecture, has_peers, refuses_peers, visible, wave_items};
use crate::symbols::code::{
    INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_READY, NOT_SUPPORTED,
    PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_UNSUPPORTED,
};
use crate::symbols::{
    ExternalBufferDesc, ExternalMemoryDesc, FUNCTION_MAX_THREADS, Handle, OPAQUE_FD, PROPERTIES_R0000,
    PROPERTIES_R0600, Properties, attribute,
};
use crate::{DeviceProperties, Engine, Result, Shape};
use memmap2::{MmapOptions, MmapRaw};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::{Arc, Mutex};

/// HIP version that the stand-ins report, in HIP's encoding.
const VERSION: i32 = 60_000_000;
/// Error code that hiprtc returns for a failed compilation.
const COMPILATION: i32 = 6;

/// Pairs of a device and a peer whose memory the device may access.
static ENABLED: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

/// Addresses of buffers in files, which stand for dma-bufs.
static MAPPED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

thread_local! {
    /// Index of the calling thread's current device in the list of visible devices.
    static CURRENT: Cell<i32> = const { Cell::new(0) };
}

/// Converts `device`, an index in the list of visible devices, to the engine's index of the device.
fn physical<E: Engine>(engine: &E, device: i32) -> Result<usize> {
    let shown = visible(engine.devices().len());
    usize::try_from(device).ok().and_then(|device| shown.get(device).copied()).ok_or(INVALID_DEVICE)
}

fn facts<E: Engine>(device: i32) -> Result<&'static DeviceProperties> {
    let engine = E::engine()?;
    engine.devices().get(physical(engine, device)?).ok_or(INVALID_DEVICE)
}

/// Returns the engine, and the engine's index of the current device.
fn current<E: Engine>() -> Result<(&'static E, usize)> {
    let engine = E::engine()?;
    Ok((engine, physical(engine, CURRENT.get())?))
}

/// Converts an object to a handle.
fn give<T>(object: T) -> Handle {
    Box::into_raw(Box::new(object)).cast()
}

/// # Safety
/// The handle must come from [`give`] for this type, and must not have been passed to [`take`].
unsafe fn borrow<'a, T>(handle: Handle) -> Result<&'a T> {
    // SAFETY: the caller guarantees the handle.
    unsafe { handle.cast::<T>().as_ref() }.ok_or(INVALID_HANDLE)
}

/// # Safety
/// As for [`borrow`]. The handle must not be used afterwards.
unsafe fn take<T>(handle: Handle) -> Result<Box<T>> {
    if handle.is_null() {
        return Err(INVALID_HANDLE);
    }
    // SAFETY: the caller guarantees the handle.
    Ok(unsafe { Box::from_raw(handle.cast()) })
}

/// # Safety
/// The pointer must be null, or valid for writing a value.
unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller guarantees the pointer.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// # Safety
/// The pointer must be valid for writing `bytes` bytes.
unsafe fn put_text(to: *mut c_char, bytes: usize, text: &str) -> Result<()> {
    let length = text.len().min(bytes.checked_sub(1).ok_or(INVALID_VALUE)?);
    // SAFETY: the caller guarantees `bytes` writable bytes; the terminating zero fits as well.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, length);
        to.add(length).write(0);
    }
    Ok(())
}

/// # Safety
/// The pointer must be null, or point to a zero-terminated string.
unsafe fn text_at<'a>(text: *const c_char) -> Result<&'a CStr> {
    if text.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller guarantees the text.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// # Safety
/// The pointer must be valid for writing the structure.
unsafe fn put_properties<E: Engine>(to: *mut u8, device: i32, layout: Properties) -> Result<()> {
    facts::<E>(device)?;
    // SAFETY: the caller guarantees the pointer.
    unsafe {
        to.write_bytes(0, layout.bytes);
        put_text(to.add(layout.architecture_at).cast(), 256, &architecture())
    }
}

fn value_of(facts: &DeviceProperties, wanted: i32) -> Result<i32> {
    Ok(match wanted {
        attribute::INTEGRATED => 0,
        attribute::MAX_THREADS_PER_BLOCK => facts.max_items,
        attribute::MULTIPROCESSOR_COUNT => facts.units,
        attribute::MAX_SHARED_MEMORY_PER_BLOCK => facts.local_bytes,
        attribute::WARP_SIZE => wave_items(),
        attribute::MEMORY_POOLS_SUPPORTED => i32::from(facts.pools),
        _ => return Err(INVALID_VALUE),
    })
}

/// Loaded module with the functions that callers have looked up in it. Drops the functions before the module.
struct Loaded<E: Engine> {
    functions: Mutex<Vec<Box<E::Function>>>,
    module: E::Module,
}

/// HIP C++ source of a hiprtc program, with the log and the code of its compilation.
struct Program {
    text: String,
    log: String,
    code: Vec<u8>,
}

/// Defines exported functions. Each function converts the result of its body to an error code.
macro_rules! entries {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub unsafe fn $name<E: Engine>($($argument: $type),*) -> i32 {
                #[allow(unused_unsafe)] // some bodies have no unsafe call
                // SAFETY: the caller meets HIP's requirements for this function.
                unsafe {
                    let body = || -> Result<()> { $body };
                    body().err().unwrap_or(0)
                }
            }
        )*
    };
}

entries! {
    fn hipInit(_flags: u32) {
        let devices = E::engine()?.devices().len();
        if visible(devices).is_empty() { Err(NO_DEVICE) } else { Ok(()) }
    }
    fn hipRuntimeGetVersion(version: *mut i32) {
        put(version, VERSION)
    }
    fn hipGetDeviceCount(count: *mut i32) {
        put(count, visible(E::engine()?.devices().len()).len() as i32)
    }
    fn hipSetDevice(device: i32) {
        facts::<E>(device)?;
        CURRENT.set(device);
        Ok(())
    }
    fn hipDeviceGetName(name: *mut c_char, bytes: i32, device: i32) {
        put_text(name, bytes as usize, &facts::<E>(device)?.name)
    }
    fn hipDeviceGetPCIBusId(text: *mut c_char, bytes: i32, device: i32) {
        put_text(text, bytes as usize, facts::<E>(device)?.pci.as_ref().ok_or(NOT_SUPPORTED)?)
    }
    fn hipDeviceTotalMem(bytes: *mut usize, device: i32) {
        put(bytes, facts::<E>(device)?.total_bytes)
    }
    fn hipDeviceGetAttribute(value: *mut i32, wanted: i32, device: i32) {
        put(value, value_of(facts::<E>(device)?, wanted)?)
    }
    fn hipDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) {
        facts::<E>(device)?;
        facts::<E>(peer)?;
        put(can, i32::from(has_peers() && device != peer))
    }
    fn hipDeviceEnablePeerAccess(peer: i32, _flags: u32) {
        let (engine, device) = current::<E>()?;
        let peer = physical(engine, peer)?;
        if !has_peers() || refuses_peers() || peer == device {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let mut enabled = ENABLED.lock().map_err(|_| INVALID_VALUE)?;
        if enabled.insert((device, peer)) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) {
        let (engine, device) = current::<E>()?;
        put(free, engine.free_bytes(device)?)?;
        put(total, engine.devices()[device].total_bytes)
    }
    fn hipMalloc(address: *mut Handle, bytes: usize) {
        let (engine, device) = current::<E>()?;
        put(address, engine.allocate(device, bytes)?)
    }
    fn hipFree(address: Handle) {
        let (engine, device) = current::<E>()?;
        if MAPPED.lock().map_err(|_| INVALID_VALUE)?.remove(&(address as usize)) {
            return engine.unpin(device, address);
        }
        engine.free(device, address)
    }
    fn hipHostRegister(pointer: Handle, bytes: usize, _flags: u32) {
        let (engine, device) = current::<E>()?;
        engine.pin(device, pointer, bytes)
    }
    fn hipHostUnregister(pointer: Handle) {
        let (engine, device) = current::<E>()?;
        engine.unpin(device, pointer)
    }
    fn hipHostGetDevicePointer(address: *mut Handle, pointer: Handle, _flags: u32) {
        let (engine, device) = current::<E>()?;
        put(address, engine.pinned_address(device, pointer)?)
    }
    fn hipMemcpyAsync(to: Handle, from: *const u8, bytes: usize, kind: i32, stream: Handle) {
        let (engine, device) = current::<E>()?;
        for owner in [to as usize, from as usize].into_iter().filter_map(|address| engine.owner(address)) {
            let enabled = ENABLED.lock().map_err(|_| INVALID_VALUE)?;
            if owner != device && !enabled.contains(&(device, owner)) {
                return Err(INVALID_VALUE);
            }
        }
        engine.copy(borrow(stream)?, to, from, bytes, kind)
    }
    fn hipMemsetD32Async(to: Handle, word: i32, words: usize, stream: Handle) {
        E::engine()?.fill(borrow(stream)?, to, word.cast_unsigned(), words)
    }
    fn hipStreamCreateWithFlags(stream: *mut Handle, _flags: u32) {
        let (engine, device) = current::<E>()?;
        put(stream, give(engine.stream(device)?))
    }
    fn hipStreamDestroy(stream: Handle) {
        take::<E::Stream>(stream).map(drop)
    }
    fn hipStreamSynchronize(stream: Handle) {
        E::engine()?.finish(borrow(stream)?)
    }
    fn hipStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) {
        E::engine()?.wait(borrow(stream)?, borrow(event)?)
    }
    fn hipEventCreateWithFlags(event: *mut Handle, _flags: u32) {
        let (engine, device) = current::<E>()?;
        put(event, give(engine.event(device)?))
    }
    fn hipEventDestroy(event: Handle) {
        take::<E::Event>(event).map(drop)
    }
    fn hipEventRecord(event: Handle, stream: Handle) {
        E::engine()?.record(borrow(event)?, borrow(stream)?)
    }
    fn hipEventQuery(event: Handle) {
        if E::engine()?.has_passed(borrow(event)?)? { Ok(()) } else { Err(NOT_READY) }
    }
    fn hipEventSynchronize(event: Handle) {
        E::engine()?.synchronise(borrow(event)?)
    }
    fn hipEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle) {
        put(milliseconds, E::engine()?.elapsed_ms(borrow(from)?, borrow(to)?)?)
    }
    fn hipModuleLoadData(module: *mut Handle, image: *const u8) {
        let (engine, device) = current::<E>()?;
        let (signatures, code) = code::decoded(code::whole(image)?)?;
        let loaded = engine.load(device, signatures, code)?;
        put(module, give(Loaded::<E> { functions: Mutex::default(), module: loaded }))
    }
    fn hipModuleUnload(module: Handle) {
        take::<Loaded<E>>(module).map(drop)
    }
    fn hipModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        let loaded = borrow::<Loaded<E>>(module)?;
        let found = Box::new(E::engine()?.function(&loaded.module, text_at(name)?)?);
        put(function, std::ptr::from_ref(found.as_ref()).cast_mut().cast())?;
        loaded.functions.lock().map_err(|_| INVALID_VALUE)?.push(found);
        Ok(())
    }
    fn hipFuncGetAttribute(value: *mut i32, wanted: i32, function: Handle) {
        match wanted {
            FUNCTION_MAX_THREADS => put(value, E::engine()?.max_items(borrow(function)?)?),
            _ => Err(INVALID_VALUE),
        }
    }
    fn hipModuleLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        arguments: *mut Handle,
        extra: *mut Handle,
    ) {
        if !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared_bytes };
        E::engine()?.launch(borrow(stream)?, borrow(function)?, &shape, arguments)
    }
    fn hipGetDevicePropertiesR0600(properties: *mut u8, device: i32) {
        put_properties::<E>(properties, device, PROPERTIES_R0600)
    }
    fn hipGetDeviceProperties(properties: *mut u8, device: i32) {
        put_properties::<E>(properties, device, PROPERTIES_R0000)
    }
    fn hipDeviceGetUuid(uuid: *mut u8, device: i32) {
        put(uuid.cast(), facts::<E>(device)?.uuid.ok_or(NOT_SUPPORTED)?)
    }
    fn hipMallocAsync(address: *mut Handle, bytes: usize, stream: Handle) {
        put(address, E::engine()?.allocate_on(borrow(stream)?, bytes)?)
    }
    fn hipFreeAsync(address: Handle, stream: Handle) {
        E::engine()?.free_on(borrow(stream)?, address)
    }
    fn hipImportExternalMemory(memory: *mut Handle, desc: *const ExternalMemoryDesc) {
        let desc = desc.as_ref().filter(|desc| desc.kind == OPAQUE_FD && desc.fd >= 0).ok_or(INVALID_VALUE)?;
        // The file is closed only if the import succeeds.
        let file = ManuallyDrop::new(File::from_raw_fd(desc.fd));
        let bytes = file.metadata().map_err(|_| INVALID_VALUE)?.len();
        if bytes < desc.bytes {
            return Err(INVALID_VALUE);
        }
        let map = MmapOptions::new().len(desc.bytes as usize).map_raw(&*file).map_err(|_| INVALID_VALUE)?;
        put(memory, give(map))?;
        drop(ManuallyDrop::into_inner(file));
        Ok(())
    }
    fn hipExternalMemoryGetMappedBuffer(
        address: *mut Handle,
        memory: Handle,
        desc: *const ExternalBufferDesc,
    ) {
        let (engine, device) = current::<E>()?;
        let (map, desc) = (borrow::<MmapRaw>(memory)?, desc.as_ref().ok_or(INVALID_VALUE)?);
        if desc.offset != 0 || desc.bytes > map.len() as u64 {
            return Err(INVALID_VALUE);
        }
        let pointer: Handle = map.as_mut_ptr().cast();
        engine.pin(device, pointer, map.len())?;
        MAPPED.lock().map_err(|_| INVALID_VALUE)?.insert(pointer as usize);
        put(address, engine.pinned_address(device, pointer)?)
    }
    fn hipDestroyExternalMemory(memory: Handle) {
        take::<MmapRaw>(memory).map(drop)
    }
    fn hipStreamBeginCapture(stream: Handle, _mode: i32) {
        E::engine()?.begin_capture(borrow(stream)?)
    }
    fn hipStreamEndCapture(stream: Handle, graph: *mut Handle) {
        put(graph, give(Arc::new(E::engine()?.end_capture(borrow(stream)?)?)))
    }
    fn hipGraphInstantiate(
        executable: *mut Handle,
        graph: Handle,
        _error_node: *mut Handle,
        _log: *mut c_char,
        _log_bytes: usize,
    ) {
        put(executable, give(Arc::clone(borrow::<Arc<E::Graph>>(graph)?)))
    }
    fn hipGraphLaunch(executable: Handle, stream: Handle) {
        E::engine()?.play(borrow::<Arc<E::Graph>>(executable)?, borrow(stream)?)
    }
    fn hipGraphDestroy(graph: Handle) {
        take::<Arc<E::Graph>>(graph).map(drop)
    }
    fn hipGraphExecDestroy(executable: Handle) {
        take::<Arc<E::Graph>>(executable).map(drop)
    }
    fn hiprtcVersion(major: *mut i32, minor: *mut i32) {
        put(major, 9)?;
        put(minor, 0)
    }
    fn hiprtcCreateProgram(
        program: *mut Handle,
        text: *const c_char,
        _name: *const c_char,
        _headers: i32,
        _header_texts: *const *const c_char,
        _header_names: *const *const c_char,
    ) {
        let text = text_at(text)?.to_str().map_err(|_| INVALID_VALUE)?.to_string();
        put(program, give(Mutex::new(Program { text, log: String::new(), code: Vec::new() })))
    }
    fn hiprtcDestroyProgram(program: *mut Handle) {
        take::<Mutex<Program>>(*program).map(drop)
    }
    fn hiprtcCompileProgram(program: Handle, options: i32, texts: *const *const c_char) {
        if aborts() {
            std::process::abort();
        }
        let option = |at: i32| Ok(text_at(*texts.add(at as usize))?.to_string_lossy().into_owned());
        let options = (0..options).map(option).collect::<Result<Vec<_>>>()?;
        let mut program = borrow::<Mutex<Program>>(program)?.lock().map_err(|_| INVALID_VALUE)?;
        let engine = E::engine()?;
        match engine.compile(&visible(engine.devices().len()), &program.text, &options) {
            Ok((signatures, code)) => program.code = code::encoded(&signatures, &code),
            Err(log) => {
                program.log = log;
                return Err(COMPILATION);
            }
        }
        Ok(())
    }
    fn hiprtcGetProgramLogSize(program: Handle, bytes: *mut usize) {
        let program = borrow::<Mutex<Program>>(program)?.lock().map_err(|_| INVALID_VALUE)?;
        put(bytes, program.log.len() + 1)
    }
    fn hiprtcGetProgramLog(program: Handle, log: *mut c_char) {
        let program = borrow::<Mutex<Program>>(program)?.lock().map_err(|_| INVALID_VALUE)?;
        put_text(log, program.log.len() + 1, &program.log)
    }
    fn hiprtcGetCodeSize(program: Handle, bytes: *mut usize) {
        let program = borrow::<Mutex<Program>>(program)?.lock().map_err(|_| INVALID_VALUE)?;
        put(bytes, program.code.len())
    }
    fn hiprtcGetCode(program: Handle, code: *mut c_char) {
        let program = borrow::<Mutex<Program>>(program)?.lock().map_err(|_| INVALID_VALUE)?;
        std::ptr::copy_nonoverlapping(program.code.as_ptr().cast(), code, program.code.len());
        Ok(())
    }
    fn rocblas_get_version_string(text: *mut c_char, bytes: usize) {
        put_text(text, bytes, "0.0.0")
    }
    fn rocblas_create_handle(handle: *mut Handle) {
        let (engine, device) = current::<E>()?;
        put(handle, give(Blas::new(engine, device)?))
    }
    fn rocblas_destroy_handle(handle: Handle) {
        take::<Blas<E>>(handle).map(drop)
    }
    fn rocblas_set_stream(handle: Handle, stream: Handle) {
        borrow::<Blas<E>>(handle)?.set_stream(stream)
    }
    fn rocblas_set_workspace(handle: Handle, _address: Handle, _bytes: usize) {
        borrow::<Blas<E>>(handle).map(drop)
    }
    fn rocblas_gemm_ex(
        handle: Handle,
        transpose_a: i32,
        transpose_b: i32,
        m: i32,
        n: i32,
        k: i32,
        alpha: *const f32,
        a: Handle,
        a_type: i32,
        lda: i32,
        b: Handle,
        b_type: i32,
        ldb: i32,
        beta: *const f32,
        c: Handle,
        c_type: i32,
        ldc: i32,
        d: Handle,
        d_type: i32,
        ldd: i32,
        compute_type: i32,
        algorithm: i32,
        _solution: i32,
        _flags: u32,
    ) {
        if alpha.is_null() || beta.is_null() {
            return Err(INVALID_VALUE);
        }
        let product = Product {
            kinds: [transpose_a, transpose_b, a_type, b_type, c_type, d_type, compute_type, algorithm],
            sizes: [m, n, k],
            pitches: [lda, ldb, ldc, ldd],
            factors: [*alpha, *beta],
            matrices: [a, b, c, d],
        };
        borrow::<Blas<E>>(handle)?.product(E::engine()?, &product)
    }
}
