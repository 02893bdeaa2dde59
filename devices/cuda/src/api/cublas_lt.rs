//! cuBLASLt, NVIDIA's matrix product library.
//!
//! The declarations follow `cublasLt.h`, and are the same in CUDA 12.0 to 13.0.
//!
//! The library is column-major, so it reads each of Ragtag's row-major matrices as its transpose. It
//! therefore computes y = x · Wᵀ as yᵀ = (Wᵀ)ᵀ · xᵀ. This layout is the fastest for the library.

use super::objects::{Context, Stream};
use super::toolkit_places;
use ragtag_hal::{Error, Gemm, Result};
use ragtag_stream::{Library, functions};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the file names of the libraries to try with a driver for CUDA `driver_version`, newest first. Each
/// name contains a major version of CUDA. A driver also supports libraries for earlier CUDA versions.
fn names(driver_version: i32) -> &'static [&'static str] {
    match driver_version / 1000 {
        13.. if cfg!(windows) => &["cublasLt64_13.dll", "cublasLt64_12.dll"],
        13.. => &["libcublasLt.so.13", "libcublasLt.so.12"],
        12 if cfg!(windows) => &["cublasLt64_12.dll"],
        12 => &["libcublasLt.so.12"],
        _ => &[],
    }
}

/// Values of the library's enumerations, with their original names.
mod value {
    use std::ffi::c_int;

    pub(super) const CUBLAS_COMPUTE_32F: c_int = 68;
    pub(super) const CUDA_R_32F: c_int = 0;
    pub(super) const CUDA_R_16F: c_int = 2;
    pub(super) const CUBLAS_OP_T: c_int = 1;
    pub(super) const CUBLASLT_MATMUL_DESC_TRANSA: c_int = 3;
    pub(super) const CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: c_int = 1;
    pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: c_int = 5;
    pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: c_int = 6;
    pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: c_int = 7;
    pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: c_int = 8;
    pub(super) const CUBLAS_STATUS_NOT_SUPPORTED: c_int = 15;
}

/// `cublasLtMatmulAlgo_t`, an opaque structure.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Handle of a library object.
type Handle = *mut c_void;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;

functions! {
    /// Functions of the library.
    Functions {
        cublasLtGetVersion() -> usize;
        cublasLtGetStatusName(c_int) -> *const c_char;
        cublasLtCreate(*mut Handle) -> c_int;
        cublasLtDestroy(Handle) -> c_int;
        cublasLtMatmulDescCreate(*mut Handle, c_int, c_int) -> c_int;
        cublasLtMatmulDescDestroy(Handle) -> c_int;
        cublasLtMatmulDescSetAttribute(Handle, c_int, *const c_void, usize) -> c_int;
        cublasLtMatrixLayoutCreate(*mut Handle, c_int, u64, u64, i64) -> c_int;
        cublasLtMatrixLayoutDestroy(Handle) -> c_int;
        cublasLtMatmulPreferenceCreate(*mut Handle) -> c_int;
        cublasLtMatmulPreferenceDestroy(Handle) -> c_int;
        cublasLtMatmulPreferenceSetAttribute(Handle, c_int, *const c_void, usize) -> c_int;
        cublasLtMatmulAlgoGetHeuristic(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Heuristic, *mut c_int
        ) -> c_int;
        cublasLtMatmul(
            Handle, Handle, *const f32, *const c_void, Handle, *const c_void, Handle, *const f32, *const c_void, Handle,
            *mut c_void, Handle, *const Algorithm, *mut c_void, usize, *mut c_void
        ) -> c_int;
    }
}

/// Calls a function of the library and converts its status to a result.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $library.check(stringify!($function), ($library.functions.$function)($($argument),*))
    };
}

/// The loaded library.
pub(crate) struct CublasLt {
    functions: Functions,
}

impl CublasLt {
    /// Loads the newest library that a driver for CUDA `driver_version` supports.
    pub(crate) fn find(driver_version: i32) -> Option<Self> {
        toolkit_places(names(driver_version)).into_iter().find_map(|name| {
            // SAFETY: this is NVIDIA's library. Loading it runs only its own initialisers.
            let library = unsafe { Library::load(&name) }.ok()?;
            let functions = Functions::of(library).ok()?;
            tracing::debug!(library = %name.display(), "found cuBLASLt");
            Some(Self { functions })
        })
    }

    /// Returns the version as text, such as `12.4.5`.
    pub(crate) fn version(&self) -> String {
        // SAFETY: the function has no parameters and returns a number.
        let number = unsafe { (self.functions.cublasLtGetVersion)() };
        format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts any code and returns a static string or null.
        let name = unsafe { (self.functions.cublasLtGetStatusName)(code) };
        // SAFETY: a non-null name is a static string that ends with a zero.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        let call = name.map_or_else(|| call.to_string(), |name| format!("{call} ({name})"));
        Err(Error::Api { call, code: code.into() })
    }

    /// Creates the library's description of a column-major matrix.
    fn layout(&self, value_type: c_int, rows: u32, columns: u32, pitch: u32) -> Result<Object> {
        let (rows, columns, pitch) = (rows.into(), columns.into(), pitch.into());
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { call!(self, cublasLtMatrixLayoutCreate(&mut raw, value_type, rows, columns, pitch)) }?;
        Ok(Object { raw, destroy: self.functions.cublasLtMatrixLayoutDestroy })
    }

    /// Creates the library's description of the product: the first factor is transposed, and the product
    /// accumulates in f32.
    fn operation(&self) -> Result<Object> {
        let (sums, scale) = (value::CUBLAS_COMPUTE_32F, value::CUDA_R_32F);
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { call!(self, cublasLtMatmulDescCreate(&mut raw, sums, scale)) }?;
        let operation = Object { raw, destroy: self.functions.cublasLtMatmulDescDestroy };
        let transposed: i32 = value::CUBLAS_OP_T;
        // SAFETY: the call reads exactly the bytes of the attribute.
        unsafe {
            call!(
                self,
                cublasLtMatmulDescSetAttribute(
                    operation.raw,
                    value::CUBLASLT_MATMUL_DESC_TRANSA,
                    (&raw const transposed).cast(),
                    size_of_val(&transposed)
                )
            )
        }?;
        Ok(operation)
    }

    /// Creates the library's description of the constraints on an algorithm: the workspace size and the
    /// alignment of the matrices.
    fn preference(&self, workspace_bytes: usize, y_alignment: u32) -> Result<Object> {
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { call!(self, cublasLtMatmulPreferenceCreate(&mut raw)) }?;
        let preference = Object { raw, destroy: self.functions.cublasLtMatmulPreferenceDestroy };
        let set = |attribute: c_int, from: *const c_void, bytes: usize| {
            // SAFETY: the call reads exactly the bytes of the attribute.
            unsafe {
                call!(self, cublasLtMatmulPreferenceSetAttribute(preference.raw, attribute, from, bytes))
            }
        };
        let bytes = workspace_bytes as u64;
        set(value::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const bytes).cast(), size_of_val(&bytes))?;
        for (attribute, alignment) in [
            (value::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16),
            (value::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16),
            (value::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment),
            (value::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment),
        ] {
            let alignment: u32 = alignment;
            set(attribute, (&raw const alignment).cast(), size_of_val(&alignment))?;
        }
        Ok(preference)
    }
}

/// A library object that is destroyed on drop.
struct Object {
    raw: Handle,
    destroy: Destroy,
}

// SAFETY: descriptions are plain data of the library and are immutable after creation.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the library created the object, and nothing else owns it.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// Descriptions of a product's matrices, and the selected algorithm.
struct Plan {
    operation: Object,
    weights: Object,
    x: Object,
    y: Object,
    algorithm: Algorithm,
}

/// Workspace memory on the device.
#[derive(Clone, Copy)]
pub(crate) struct Workspace {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// cuBLASLt on one device. It selects an algorithm once per product and caches it as a [`Plan`].
pub(crate) struct Products {
    // The order of the fields matters: plans and the handle must be dropped before the library.
    plans: Mutex<HashMap<(Gemm, u32), Plan>>,
    handle: Object,
    workspace: Workspace,
    context: Arc<Context>,
    library: Arc<CublasLt>,
}

/// Returns the largest power of two, up to 16, that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(4)
}

impl Products {
    /// Creates a handle. `workspace` must stay allocated until the returned value is dropped.
    pub(crate) fn new(library: &Arc<CublasLt>, context: &Arc<Context>, workspace: Workspace) -> Result<Self> {
        // `cublasLtCreate` uses the current context.
        context.enter()?;
        let functions = &library.functions;
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        unsafe { call!(library, cublasLtCreate(&mut raw)) }?;
        let handle = Object { raw, destroy: functions.cublasLtDestroy };
        let (library, context) = (Arc::clone(library), Arc::clone(context));
        Ok(Self { plans: Mutex::default(), handle, workspace, context, library })
    }

    /// Enqueues a product.
    ///
    /// # Safety
    /// The matrices start at the given addresses and stay valid until the product has ended. The addresses of
    /// x and W are multiples of 16. All products run on the same stream.
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &Stream,
        product: &Gemm,
        [x, weights, y]: [u64; 3],
    ) -> Result<()> {
        self.context.enter()?;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = match plans.entry((*product, alignment(y))) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(self.plan(product, alignment(y))?),
        };
        let Plan { operation, weights: w, x: x_layout, y: y_layout, algorithm } = &*plan;
        let (alpha, beta) = (1f32, if product.accumulate { 1f32 } else { 0f32 });
        let Workspace { address, bytes } = self.workspace;
        // SAFETY: the caller guarantees that the matrices match the layouts and are valid. The call reads the
        // factors before it returns. The workspace is allocated.
        unsafe {
            call!(
                self.library,
                cublasLtMatmul(
                    self.handle.raw,
                    operation.raw,
                    &alpha,
                    weights as *const c_void,
                    w.raw,
                    x as *const c_void,
                    x_layout.raw,
                    &beta,
                    y as *const c_void,
                    y_layout.raw,
                    y as *mut c_void,
                    y_layout.raw,
                    algorithm,
                    address as *mut c_void,
                    bytes,
                    stream.raw().cast()
                )
            )
        }
    }

    fn plan(&self, product: &Gemm, y_alignment: u32) -> Result<Plan> {
        let Gemm { rows, columns, depth, x_pitch, weights_pitch, y_pitch, .. } = *product;
        let library = &self.library;
        let operation = library.operation()?;
        let weights = library.layout(value::CUDA_R_16F, depth, columns, weights_pitch)?;
        let x = library.layout(value::CUDA_R_16F, depth, rows, x_pitch)?;
        let y = library.layout(value::CUDA_R_32F, columns, rows, y_pitch)?;
        let preference = library.preference(self.workspace.bytes, y_alignment)?;
        let (mut found, mut count) = (Heuristic::default(), 0);
        // SAFETY: all handles are alive. The call writes one result and one number.
        let code = unsafe {
            (self.library.functions.cublasLtMatmulAlgoGetHeuristic)(
                self.handle.raw,
                operation.raw,
                weights.raw,
                x.raw,
                y.raw,
                y.raw,
                preference.raw,
                1,
                &mut found,
                &mut count,
            )
        };
        self.library.check("cublasLtMatmulAlgoGetHeuristic", code)?;
        let state = if count < 1 { value::CUBLAS_STATUS_NOT_SUPPORTED } else { found.state };
        self.library.check("cublasLtMatmulAlgoGetHeuristic", state)?;
        let (bytes, waves) = (found.workspace_bytes, found.waves);
        tracing::debug!(?product, bytes, waves, "cuBLASLt selected an algorithm");
        Ok(Plan { operation, weights, x, y, algorithm: found.algorithm })
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // The handle's resources belong to this context.
        if let Err(error) = self.context.enter() {
            tracing::debug!(%error, "destroying cuBLASLt without its context");
        }
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<Algorithm>(), size_of::<Heuristic>()), (64, 96));
        assert_eq!(std::mem::offset_of!(Heuristic, state), 72);
    }

    #[test]
    fn libraries_are_not_newer_than_the_driver() {
        assert!(names(12_020).iter().all(|name| name.contains("12")));
        assert!(names(13_000)[0].contains("13"));
        assert!(names(11_080).is_empty());
    }

    #[test]
    fn alignments_of_addresses_are_limited() {
        assert_eq!([256, 16, 24, 20, 2].map(alignment), [16, 16, 8, 4, 2]);
    }

    /// Checks that an installed library accepts the attributes and layouts. It would reject an attribute that
    /// is unknown or has the wrong size. This test needs no device.
    #[test]
    fn an_installed_library_accepts_the_descriptions() {
        let Some(library) = CublasLt::find(13_000) else {
            return test_support::skip!("cuBLASLt", "not installed");
        };
        let version = library.version();
        println!("cuBLASLt {version}");
        assert!(["12.", "13."].iter().any(|major| version.starts_with(major)), "{version}");
        library.operation().unwrap();
        library.preference(32 << 20, 4).unwrap();
        library.layout(value::CUDA_R_16F, 4096, 17, 4096).unwrap();
        let refused = library.layout(-1, 4096, 17, 4096).err().or_else(|| library.check("call", 7).err());
        assert!(matches!(refused, Some(Error::Api { call, .. }) if call.contains("CUBLAS_STATUS")));
    }
}
