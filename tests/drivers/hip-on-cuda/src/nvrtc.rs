//! HIP C++ as CUDA C++: the same text, compiled by NVRTC.

use crate::cuda::{Nvrtc, nvrtc};
use hip_shim::symbols::Handle;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::OnceLock;

/// What texts are compiled with, as HIP is told not to fuse what is not written as fused.
const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "-fmad=false"];

fn compiler() -> Result<&'static Nvrtc, String> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    NVRTC.get_or_init(nvrtc).as_ref().map_err(Clone::clone)
}

/// A program that goes when it is dropped.
struct Program {
    nvrtc: &'static Nvrtc,
    handle: Handle,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created and is not used any more.
        unsafe { (self.nvrtc.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

/// What a program has of some kind: its size, then its bytes.
///
/// # Safety
/// The functions are the two of one kind.
unsafe fn bytes(
    program: &Program,
    size: unsafe extern "C" fn(Handle, *mut usize) -> i32,
    get: unsafe extern "C" fn(Handle, *mut c_char) -> i32,
) -> Result<Vec<u8>, String> {
    let mut length = 0;
    // SAFETY: it writes one number.
    let sized = unsafe { size(program.handle, &raw mut length) };
    let mut bytes = vec![0u8; length];
    // SAFETY: there is room for as many bytes as it said.
    let got = unsafe { get(program.handle, bytes.as_mut_ptr().cast()) };
    if (sized, got) == (0, 0) { Ok(bytes) } else { Err(format!("NVRTC gives nothing ({sized}, {got})")) }
}

/// Compiles for a compute capability, as in 90.
///
/// # Errors
/// The log.
pub(crate) fn compile(text: &str, capability: i32) -> Result<Vec<u8>, String> {
    let nvrtc = compiler()?;
    let c_text = CString::new(text).map_err(|error| error.to_string())?;
    let options =
        OPTIONS.map(String::from).into_iter().chain([format!("--gpu-architecture=sm_{capability}")]);
    let options: Vec<CString> =
        options.map(CString::new).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = Program { nvrtc, handle: ptr::null_mut() };
    // SAFETY: texts that end with a zero, and no headers.
    let created = unsafe {
        (nvrtc.nvrtcCreateProgram)(
            &raw mut program.handle,
            c_text.as_ptr(),
            c"ragtag.hip".as_ptr(),
            0,
            ptr::null(),
            ptr::null(),
        )
    };
    if created != 0 {
        return Err(format!("nvrtcCreateProgram failed with code {created}"));
    }
    // SAFETY: a program, and as many options as it is told.
    let compiled =
        unsafe { (nvrtc.nvrtcCompileProgram)(program.handle, options.len() as i32, options.as_ptr()) };
    if compiled == 0 {
        // SAFETY: two of a kind.
        return unsafe { bytes(&program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) };
    }
    // SAFETY: two of a kind.
    let log = unsafe { bytes(&program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog) }?;
    Err(String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).into())
}
