//! The functions of HIP, hiprtc and rocBLAS that Ragtag calls, in one list. Macros generate the backend's
//! function tables and the tests' stand-in libraries from this list.
//!
//! Signatures follow `hip/hip_runtime_api.h` and `hip/hiprtc.h` of HIP 5.0 to 7.0, and the matching
//! `rocblas/rocblas.h`. They are the same in all of these versions. Each function returns a code, which is 0
//! on success. Enumerations are passed as `i32`, and a `hipDevice_t` is the device's ordinal.

use std::ffi::c_void;

/// A handle of a driver object, or a device address.
pub type Handle = *mut c_void;

/// `hipExternalMemoryHandleTypeOpaqueFd`. On Linux, the file descriptor is a dma-buf.
pub const OPAQUE_FD: i32 = 1;

/// `hipExternalMemoryHandleDesc` for a file descriptor.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExternalMemoryDesc {
    /// Type of the handle.
    pub kind: i32,
    /// Unused bytes before the union of handles.
    pub padding: u32,
    /// The file descriptor.
    pub fd: i32,
    /// Unused bytes of the union of handles.
    pub rest: [u32; 3],
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// Flags.
    pub flags: u32,
    /// Reserved since HIP 6.
    pub reserved: [u32; 16],
}

/// `hipExternalMemoryBufferDesc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ExternalBufferDesc {
    /// Offset of the buffer in the memory, in bytes.
    pub offset: u64,
    /// Size of the buffer in bytes.
    pub bytes: u64,
    /// Flags.
    pub flags: u32,
    /// Reserved since HIP 6.
    pub reserved: [u32; 16],
}

/// Passes the list of functions to a macro. The list has four parts: the required functions of HIP, the
/// optional functions of HIP, the functions of hiprtc, and those of rocBLAS. rocBLAS may be missing entirely.
/// The expansion needs `Handle` and `c_char` in scope.
#[doc(hidden)]
#[macro_export]
macro_rules! hip_functions {
    ($then:ident) => {
        $then! {
            hip {
                fn hipInit(flags: u32);
                fn hipRuntimeGetVersion(version: *mut i32);
                fn hipGetDeviceCount(count: *mut i32);
                fn hipSetDevice(device: i32);
                fn hipDeviceGetName(name: *mut c_char, bytes: i32, device: i32);
                fn hipDeviceGetPCIBusId(text: *mut c_char, bytes: i32, device: i32);
                fn hipDeviceTotalMem(bytes: *mut usize, device: i32);
                fn hipDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
                fn hipDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
                fn hipDeviceEnablePeerAccess(peer: i32, flags: u32);
                fn hipMemGetInfo(free: *mut usize, total: *mut usize);
                fn hipMalloc(address: *mut Handle, bytes: usize);
                fn hipFree(address: Handle);
                fn hipHostRegister(pointer: Handle, bytes: usize, flags: u32);
                fn hipHostUnregister(pointer: Handle);
                fn hipHostGetDevicePointer(address: *mut Handle, pointer: Handle, flags: u32);
                fn hipMemcpyAsync(to: Handle, from: *const u8, bytes: usize, kind: i32, stream: Handle);
                fn hipMemsetD32Async(to: Handle, word: i32, words: usize, stream: Handle);
                fn hipStreamCreateWithFlags(stream: *mut Handle, flags: u32);
                fn hipStreamDestroy(stream: Handle);
                fn hipStreamSynchronize(stream: Handle);
                fn hipStreamWaitEvent(stream: Handle, event: Handle, flags: u32);
                fn hipEventCreateWithFlags(event: *mut Handle, flags: u32);
                fn hipEventDestroy(event: Handle);
                fn hipEventRecord(event: Handle, stream: Handle);
                fn hipEventQuery(event: Handle);
                fn hipEventSynchronize(event: Handle);
                fn hipEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle);
                fn hipModuleLoadData(module: *mut Handle, image: *const u8);
                fn hipModuleUnload(module: Handle);
                fn hipModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
                fn hipFuncGetAttribute(value: *mut i32, attribute: i32, function: Handle);
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
                    extra: *mut Handle
                );
            }
            hip_optional {
                fn hipGetDevicePropertiesR0600(properties: *mut u8, device: i32);
                fn hipGetDeviceProperties(properties: *mut u8, device: i32);
                fn hipDeviceGetUuid(uuid: *mut u8, device: i32);
                fn hipMallocAsync(address: *mut Handle, bytes: usize, stream: Handle);
                fn hipFreeAsync(address: Handle, stream: Handle);
                fn hipStreamBeginCapture(stream: Handle, mode: i32);
                fn hipStreamEndCapture(stream: Handle, graph: *mut Handle);
                fn hipGraphInstantiate(
                    executable: *mut Handle,
                    graph: Handle,
                    error_node: *mut Handle,
                    log: *mut c_char,
                    log_bytes: usize
                );
                fn hipGraphLaunch(executable: Handle, stream: Handle);
                fn hipGraphDestroy(graph: Handle);
                fn hipGraphExecDestroy(executable: Handle);
                fn hipImportExternalMemory(
                    memory: *mut Handle,
                    desc: *const $crate::symbols::ExternalMemoryDesc
                );
                fn hipExternalMemoryGetMappedBuffer(
                    address: *mut Handle,
                    memory: Handle,
                    desc: *const $crate::symbols::ExternalBufferDesc
                );
                fn hipDestroyExternalMemory(memory: Handle);
            }
            hiprtc {
                fn hiprtcVersion(major: *mut i32, minor: *mut i32);
                fn hiprtcCreateProgram(
                    program: *mut Handle,
                    text: *const c_char,
                    name: *const c_char,
                    headers: i32,
                    header_texts: *const *const c_char,
                    header_names: *const *const c_char
                );
                fn hiprtcDestroyProgram(program: *mut Handle);
                fn hiprtcCompileProgram(program: Handle, options: i32, texts: *const *const c_char);
                fn hiprtcGetProgramLogSize(program: Handle, bytes: *mut usize);
                fn hiprtcGetProgramLog(program: Handle, log: *mut c_char);
                fn hiprtcGetCodeSize(program: Handle, bytes: *mut usize);
                fn hiprtcGetCode(program: Handle, code: *mut c_char);
            }
            rocblas {
                fn rocblas_get_version_string(text: *mut c_char, bytes: usize);
                fn rocblas_create_handle(handle: *mut Handle);
                fn rocblas_destroy_handle(handle: Handle);
                fn rocblas_set_stream(handle: Handle, stream: Handle);
                fn rocblas_set_workspace(handle: Handle, address: Handle, bytes: usize);
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
                    solution: i32,
                    flags: u32
                );
            }
        }
    };
}

/// Codes of `hipError_t` that Ragtag interprets.
pub mod code {
    /// A parameter is out of range.
    pub const INVALID_VALUE: i32 = 1;
    /// The device is out of memory.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `hipInit` was not called or has failed.
    pub const NOT_INITIALIZED: i32 = 3;
    /// The machine has no device.
    pub const NO_DEVICE: i32 = 100;
    /// The ordinal is invalid. `hipInit` also returns this code if the machine has no device.
    pub const INVALID_DEVICE: i32 = 101;
    /// The code object was compiled for a different device.
    pub const INVALID_IMAGE: i32 = 200;
    /// The device cannot access the memory of this peer.
    pub const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    /// The handle is invalid.
    pub const INVALID_HANDLE: i32 = 400;
    /// The name was not found.
    pub const NOT_FOUND: i32 = 500;
    /// The work has not finished.
    pub const NOT_READY: i32 = 600;
    /// A kernel accessed invalid memory.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// The device already has access to the memory of this peer.
    pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    /// The host memory is already pinned.
    pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    /// The host memory is not pinned.
    pub const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    /// A kernel ended with an exception.
    pub const LAUNCH_FAILURE: i32 = 719;
    /// This version of HIP does not support the function.
    pub const NOT_SUPPORTED: i32 = 801;
    /// Unknown error.
    pub const UNKNOWN: i32 = 999;
}

/// Values of `hipDeviceAttribute_t`.
pub mod attribute {
    /// Clock rate of the compute units, in kHz.
    pub const CLOCK_RATE: i32 = 5;
    /// Whether the device shares memory with the host.
    pub const INTEGRATED: i32 = 16;
    /// Maximum number of work items in a group.
    pub const MAX_THREADS_PER_BLOCK: i32 = 56;
    /// Number of compute units. HIP may count two RDNA compute units as one.
    pub const MULTIPROCESSOR_COUNT: i32 = 63;
    /// Maximum local memory of a group, in bytes.
    pub const MAX_SHARED_MEMORY_PER_BLOCK: i32 = 74;
    /// Number of work items in a wavefront.
    pub const WARP_SIZE: i32 = 87;
    /// Whether stream-ordered allocation is supported.
    pub const MEMORY_POOLS_SUPPORTED: i32 = 88;
}

/// `hipFuncAttributeMaxThreadsPerBlock`, a value of `hipFunction_attribute`.
pub const FUNCTION_MAX_THREADS: i32 = 0;

/// Values of `hipMemcpyKind`.
pub mod copy_kind {
    /// Copy from the host to the device.
    pub const UPLOAD: i32 = 1;
    /// Copy from the device to the host.
    pub const DOWNLOAD: i32 = 2;
    /// Copy within the device.
    pub const DEVICE: i32 = 3;
}

/// Values of the enumerations in rocBLAS.
pub mod blas {
    /// `rocblas_operation_none`: the matrix is not transposed.
    pub const NONE: i32 = 111;
    /// `rocblas_operation_transpose`.
    pub const TRANSPOSE: i32 = 112;
    /// `rocblas_datatype_f16_r`.
    pub const F16: i32 = 150;
    /// `rocblas_datatype_f32_r`.
    pub const F32: i32 = 151;
    /// `rocblas_gemm_algo_standard`: rocBLAS selects the algorithm.
    pub const STANDARD: i32 = 0;
    /// `rocblas_status_not_implemented`.
    pub const NOT_IMPLEMENTED: i32 = 2;
}

/// Layout of `hipDeviceProp_t`, with only the fields that Ragtag reads. No other call reports the
/// architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Size of the structure in bytes.
    pub bytes: usize,
    /// Offset of `gcnArchName`, a string of up to 256 bytes that ends with a zero.
    pub architecture_at: usize,
}

/// Layout that `hipGetDeviceProperties` writes: the structure of HIP 5.
pub const PROPERTIES_R0000: Properties = Properties { bytes: 792, architecture_at: 396 };
/// Layout that `hipGetDevicePropertiesR0600` writes: the structure of HIP 6 and 7.
pub const PROPERTIES_R0600: Properties = Properties { bytes: 1472, architecture_at: 1160 };
