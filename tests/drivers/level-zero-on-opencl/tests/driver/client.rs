//! A small Level Zero client for the tests. It calls the genuine loader.

use crate::types::*;
use libloading::{Library, Symbol};
use std::ffi::{CString, c_void};
use std::ptr;

/// Time after which a wait counts as stuck, in nanoseconds.
pub const LONG_NS: u64 = 20_000_000_000;
/// Kernels of the tests.
pub const SPIRV: &[u8] = include_bytes!("../kernels.spv");

/// Stands for the type of one argument, which the compiler infers.
macro_rules! inferred {
    ($argument:expr) => {
        _
    };
}

/// Calls a function of the loader and returns its code.
macro_rules! ze {
    ($ze:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the tests pass arguments of the types that the specification lists.
        unsafe {
            type Function<F> = F;
            let function: libloading::Symbol<'_, Function<unsafe extern "C" fn($(inferred!($argument)),*) -> u32>> =
                $ze.library.get(stringify!($name)).expect(stringify!($name));
            function($($argument),*)
        }
    }};
}

/// Calls a function that must succeed.
macro_rules! ok {
    ($ze:expr, $name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(ze!($ze, $name($($argument),*)), 0, stringify!($name))
    };
}

/// Calls a function that must succeed and returns the value at its last parameter.
macro_rules! made {
    ($ze:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let mut made: Handle = std::ptr::null_mut();
        ok!($ze, $name($($argument,)* &raw mut made));
        made
    }};
}

pub(crate) use {inferred, made, ok, ze};

/// Returns the head of a structure of type `T`.
pub fn head<T: Described>() -> Head {
    Head { kind: *T::KINDS.last().unwrap(), next: ptr::null() }
}

/// Returns a structure with its type and otherwise zeros.
pub fn blank<T: Described>() -> T {
    // SAFETY: described structures allow every bit pattern and start with their head.
    unsafe {
        let mut value: T = std::mem::zeroed();
        (&raw mut value).cast::<Head>().write(head::<T>());
        value
    }
}

/// The loader after `zeInit`, with one context and all devices.
pub struct Client {
    pub library: Library,
    pub driver: Handle,
    pub devices: Vec<Handle>,
    pub context: Handle,
}

impl Client {
    pub fn new() -> Self {
        // SAFETY: the loader's initialisers do nothing before `zeInit`.
        let library = unsafe { Library::new("libze_loader.so.1") }.unwrap();
        let null = ptr::null_mut();
        let mut client = Self { library, driver: null, devices: Vec::new(), context: null };
        ok!(client, zeInit(0u32));
        let mut count = 1u32;
        ok!(client, zeDriverGet(&raw mut count, &raw mut client.driver));
        assert_eq!(count, 1);
        count = 0;
        ok!(client, zeDeviceGet(client.driver, &raw mut count, ptr::null_mut::<Handle>()));
        client.devices = vec![null; count as usize];
        ok!(client, zeDeviceGet(client.driver, &raw mut count, client.devices.as_mut_ptr()));
        let desc: ContextDesc = blank();
        client.context = made!(client, zeContextCreate(client.driver, &raw const desc));
        client
    }

    pub fn device_memory(&self, device: usize, bytes: usize) -> Handle {
        let desc: DeviceMemoryDesc = blank();
        made!(self, zeMemAllocDevice(self.context, &raw const desc, bytes, 64usize, self.devices[device]))
    }

    pub fn shared_memory(&self, device: usize, bytes: usize) -> Handle {
        let (on_device, on_host): (DeviceMemoryDesc, HostMemoryDesc) = (blank(), blank());
        let (on_device, on_host) = (&raw const on_device, &raw const on_host);
        made!(self, zeMemAllocShared(self.context, on_device, on_host, bytes, 64usize, self.devices[device]))
    }

    /// Creates a pool of events with timestamps, and its events.
    pub fn events<const N: usize>(&self) -> [Handle; N] {
        let desc = PoolDesc { flags: 5, count: N as u32, ..blank() };
        let pool = made!(self, zeEventPoolCreate(self.context, &raw const desc, 0u32, ptr::null::<Handle>()));
        std::array::from_fn(|index| {
            let desc = EventDesc { index: index as u32, signal: 4, wait: 4, ..blank() };
            made!(self, zeEventCreate(pool, &raw const desc))
        })
    }

    pub fn immediate(&self, device: usize, ordinal: u32) -> Handle {
        let desc = QueueDesc { ordinal, mode: 2, ..blank() };
        made!(self, zeCommandListCreateImmediate(self.context, self.devices[device], &raw const desc))
    }

    pub fn queue(&self, device: usize) -> Handle {
        let desc = QueueDesc { mode: 2, ..blank() };
        made!(self, zeCommandQueueCreate(self.context, self.devices[device], &raw const desc))
    }

    pub fn list(&self, device: usize) -> Handle {
        let desc: ListDesc = blank();
        made!(self, zeCommandListCreate(self.context, self.devices[device], &raw const desc))
    }

    /// Builds a module. Returns the code, the module and the log.
    pub fn build(&self, device: usize, format: u32, code: &[u8], flags: &str) -> (u32, Handle, String) {
        let flags = CString::new(flags).unwrap();
        let desc =
            ModuleDesc { format, bytes: code.len(), code: code.as_ptr(), flags: flags.as_ptr(), ..blank() };
        let (mut module, mut log): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        let (to, device) = (&raw mut module, self.devices[device]);
        let code = ze!(self, zeModuleCreate(self.context, device, &raw const desc, to, &raw mut log));
        let mut bytes = 0usize;
        ok!(self, zeModuleBuildLogGetString(log, &raw mut bytes, ptr::null_mut::<u8>()));
        let mut text = vec![0u8; bytes];
        ok!(self, zeModuleBuildLogGetString(log, &raw mut bytes, text.as_mut_ptr()));
        ok!(self, zeModuleBuildLogDestroy(log));
        (code, module, String::from_utf8_lossy(&text).trim_end_matches('\0').to_string())
    }

    pub fn module(&self, device: usize) -> Handle {
        let (code, module, log) = self.build(device, 0, SPIRV, "");
        assert_eq!(code, 0, "{log}");
        module
    }

    pub fn kernel(&self, module: Handle, name: &str) -> Handle {
        let name = CString::new(name).unwrap();
        let desc = KernelDesc { name: name.as_ptr(), ..blank() };
        made!(self, zeKernelCreate(module, &raw const desc))
    }

    /// Sets an argument to a value.
    pub fn set<T>(&self, kernel: Handle, at: u32, value: T) {
        let from = (&raw const value).cast::<c_void>();
        ok!(self, zeKernelSetArgumentValue(kernel, at, size_of::<T>(), from));
    }

    /// Creates a kernel that multiplies `count` values at `values` by `factor`, in groups of 32 work items.
    pub fn scale(&self, module: Handle, values: Handle, factor: f32, count: u32) -> Handle {
        let kernel = self.kernel(module, "scale");
        self.set(kernel, 0, values);
        self.set(kernel, 1, factor);
        self.set(kernel, 2, count);
        ok!(self, zeKernelSetGroupSize(kernel, 32u32, 1u32, 1u32));
        kernel
    }

    /// Waits for an event.
    pub fn wait(&self, event: Handle) {
        ok!(self, zeEventHostSynchronize(event, LONG_NS));
    }

    /// Appends a launch of one-dimensional groups.
    pub fn launch(&self, list: Handle, kernel: Handle, groups: u32, signal: Handle, waits: &[Handle]) -> u32 {
        let (groups, count) = ([groups, 1, 1], waits.len() as u32);
        let waits = if waits.is_empty() { ptr::null() } else { waits.as_ptr() };
        ze!(self, zeCommandListAppendLaunchKernel(list, kernel, &raw const groups, signal, count, waits))
    }

    /// Appends a copy.
    pub fn copy(
        &self,
        list: Handle,
        to: Handle,
        from: *const c_void,
        bytes: usize,
        signal: Handle,
        waits: &[Handle],
    ) {
        let count = waits.len() as u32;
        let waits = if waits.is_empty() { ptr::null() } else { waits.as_ptr() };
        ok!(self, zeCommandListAppendMemoryCopy(list, to, from, bytes, signal, count, waits));
    }

    /// Calls an exported function of the driver's faults.
    pub fn faults<F: Copy>(&self, name: &str) -> F {
        let path = std::env::var("ZE_ENABLE_ALT_DRIVERS").unwrap();
        // SAFETY: the loader has loaded the library, and the test states the function's type.
        unsafe {
            let library = Library::new(path).unwrap();
            let function: Symbol<'_, F> = library.get(name).unwrap();
            *function
        }
    }

    /// Asserts that no call was misuse.
    pub fn no_misuse(&self) {
        assert_eq!(self.faults::<extern "C" fn() -> u64>("faults_misuses")(), 0);
    }
}
