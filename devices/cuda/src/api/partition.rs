//! Partitions of a device's multiprocessors, based on green contexts.
//!
//! A green context is used only to create streams. The primary context stays current, because a green context
//! can be current on only one thread at a time.
//!
//! CUDA 12.4 introduced most of these functions. CUDA 12.5 introduced `cuGreenCtxStreamCreate`. Layouts and
//! signatures follow `cuda.h` of CUDA 12.9 and are the same in CUDA 13.

use super::functions::Functions;
use cudarc::driver::sys::{CUdevice, CUstream};
use ragtag_hal::{Error, Result};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: c_uint = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which `cuGreenCtxCreate` requires.
const DEFAULT_STREAM: c_uint = 1;

/// `CUdevResource`, with the fields for multiprocessors.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_uint,
    internal: [u8; 92],
    multiprocessors: c_uint,
    rest: [u8; 44],
}

impl Resource {
    const NONE: Self = Self { kind: 0, internal: [0; 92], multiprocessors: 0, rest: [0; 44] };
}

type GetResource = unsafe extern "C" fn(CUdevice, *mut Resource, c_uint) -> c_uint;
type Split = unsafe extern "C" fn(
    *mut Resource,
    *mut c_uint,
    *const Resource,
    *mut Resource,
    c_uint,
    c_uint,
) -> c_uint;
type Describe = unsafe extern "C" fn(*mut *mut c_void, *mut Resource, c_uint) -> c_uint;
type Create = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, CUdevice, c_uint) -> c_uint;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_uint;
type CreateStream = unsafe extern "C" fn(*mut CUstream, *mut c_void, c_uint, c_int) -> c_uint;

/// Looks up a function that not every supported driver has.
///
/// # Safety
/// The driver's header declares a function of this name with type `T`.
unsafe fn newer<T: Copy>(functions: &Functions, name: &str) -> Result<T> {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { functions.library().symbol(name) };
    found.ok_or_else(|| Error::Unsupported {
        what: format!("limiting multiprocessors: the driver lacks {name}"),
    })
}

/// A set of a device's multiprocessors.
pub(super) struct Partition {
    functions: Arc<Functions>,
    /// The green context. Only one thread at a time may use it.
    raw: Mutex<*mut c_void>,
    destroy: Destroy,
    create_stream: CreateStream,
}

// SAFETY: the handle is used only under the lock.
unsafe impl Send for Partition {}
// SAFETY: as above.
unsafe impl Sync for Partition {}

impl Partition {
    /// Creates a partition of exactly `count` multiprocessors. The caller must have retained the device's
    /// primary context.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the driver does not support green contexts, or if it rounds `count`
    /// up. On current devices, the driver rounds up to a multiple of eight.
    pub(super) fn new(functions: &Arc<Functions>, device: CUdevice, count: u32) -> Result<Self> {
        type Calls = (GetResource, Split, Describe, Create, Destroy, CreateStream);
        // SAFETY: the types are those of `cuda.h`.
        let (get, split, describe, create, destroy, create_stream): Calls = unsafe {
            (
                newer(functions, "cuDeviceGetDevResource")?,
                newer(functions, "cuDevSmResourceSplitByCount")?,
                newer(functions, "cuDevResourceGenerateDesc")?,
                newer(functions, "cuGreenCtxCreate")?,
                newer(functions, "cuGreenCtxDestroy")?,
                newer(functions, "cuGreenCtxStreamCreate")?,
            )
        };
        let check = |call: &str, code: c_uint| functions.check(call, code);
        let (mut whole, mut part, mut rest) = (Resource::NONE, Resource::NONE, Resource::NONE);
        // SAFETY: the call writes one resource.
        check("cuDeviceGetDevResource", unsafe { get(device, &mut whole, MULTIPROCESSORS) })?;
        let mut groups = 1;
        // SAFETY: the call reads one resource. It writes `groups` resources and the rest.
        let code = unsafe { split(&mut part, &mut groups, &whole, &mut rest, 0, count) };
        check("cuDevSmResourceSplitByCount", code)?;
        if groups != 1 || part.multiprocessors != count {
            let (given, all) = (part.multiprocessors, whole.multiprocessors);
            let what = format!("{count} of {all} multiprocessors: the driver provides {given}");
            return Err(Error::Unsupported { what });
        }
        let (mut description, mut raw) = (null_mut(), null_mut());
        // SAFETY: the call reads one resource and writes one handle.
        check("cuDevResourceGenerateDesc", unsafe { describe(&mut description, &mut part, 1) })?;
        // SAFETY: the description was created for this device. The call writes one handle.
        check("cuGreenCtxCreate", unsafe { create(&mut raw, description, device, DEFAULT_STREAM) })?;
        Ok(Self { functions: Arc::clone(functions), raw: Mutex::new(raw), destroy, create_stream })
    }

    /// Creates a stream whose kernels run on the multiprocessors of this partition.
    pub(super) fn stream(&self, flags: c_uint) -> Result<CUstream> {
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = null_mut();
        // SAFETY: the green context is alive. The call writes one handle.
        let code = unsafe { (self.create_stream)(&mut stream, *raw, flags, 0) };
        self.functions.check("cuGreenCtxStreamCreate", code).map(|()| stream)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let raw = *self.raw.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the green context was created in `new`, and nothing else owns it. Streams keep the primary
        // context alive, which contains the partition.
        report(self.functions.check("cuGreenCtxDestroy", unsafe { (self.destroy)(raw) }));
    }
}

/// Logs the error of a failed release. The program continues.
pub(super) fn report(result: Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "cannot release an object of the driver");
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    /// C source of a stand-in driver for a device with 132 multiprocessors in groups of eight. Its structures
    /// have the same layout as in `cuda.h`.
    const GREEN: &str = r"
        struct resource { unsigned type; unsigned char padding[92]; unsigned count; unsigned char rest[44]; };
        int cuDeviceGetDevResource(int device, struct resource *whole, unsigned type) {
            whole->type = type; whole->count = 132; return type == 1 ? 0 : 1;
        }
        int cuDevSmResourceSplitByCount(struct resource *part, unsigned *groups, const struct resource *whole,
                                        struct resource *rest, unsigned flags, unsigned least) {
            if (*groups != 1 || whole->type != 1 || whole->count != 132 || flags || least > 132) return 1;
            part->type = 1; part->count = (least + 7) / 8 * 8; rest->count = 132 - part->count; return 0;
        }
        int cuDevResourceGenerateDesc(void **description, struct resource *parts, unsigned count) {
            *description = (void *)(unsigned long)parts->count; return count == 1 ? 0 : 1;
        }
        int cuGreenCtxCreate(void **green, void *description, int device, unsigned flags) {
            *green = description; return flags == 1 ? 0 : 1;
        }
        int cuGreenCtxDestroy(void *green) { return green ? 0 : 1; }
        int cuGreenCtxStreamCreate(void **stream, void *green, unsigned flags, int priority) {
            *stream = green; return flags == 1 && priority == 0 ? 0 : 1;
        }";

    /// Builds a stand-in driver library with all required functions and the C code `more`.
    fn driver(folder: &std::path::Path, more: &str) -> Arc<Functions> {
        let plain: String = crate::api::functions::Table::NAMES
            .iter()
            .map(|name| format!("int {name}() {{ return 0; }}\n"))
            .collect();
        let version = "int cuDriverGetVersion(int *version) { *version = 12090; return 0; }\n";
        let (source, library) = (folder.join("driver.c"), folder.join("libdriver.so"));
        std::fs::write(&source, plain + version + more).unwrap();
        let mut compiler = std::process::Command::new("cc");
        let built = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
        assert!(built.success());
        Arc::new(
            Functions::load_one_of(&[library.to_str().unwrap()]).unwrap_or_else(|error| panic!("{error}")),
        )
    }

    #[test]
    fn resources_have_the_layout_of_the_header() {
        assert_eq!((size_of::<Resource>(), align_of::<Resource>()), (144, 8));
        assert_eq!(std::mem::offset_of!(Resource, multiprocessors), 96);
    }

    #[test]
    fn a_partition_has_exactly_the_requested_multiprocessors() {
        if !cfg!(unix) || std::process::Command::new("cc").arg("--version").output().is_err() {
            test_support::skip!("C compiler", "cc does not start");
            return;
        }
        let (new, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let functions = driver(new.path(), GREEN);
        let part = Partition::new(&functions, 0, 64).unwrap();
        assert_eq!(part.stream(1).unwrap() as usize, 64, "a stream of the partition");
        let refused = |functions, count| Partition::new(functions, 0, count).err().unwrap();
        assert!(
            matches!(refused(&functions, 65), Error::Unsupported { what } if what.contains("provides 72"))
        );
        assert!(matches!(refused(&functions, 200), Error::Api { .. }));
        let older = driver(old.path(), "");
        let why = refused(&older, 64);
        assert!(
            matches!(&why, Error::Unsupported { what } if what.contains("cuDeviceGetDevResource")),
            "{why}"
        );
    }
}
