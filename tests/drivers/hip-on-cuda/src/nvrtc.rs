//! Compiles HIP C++ with NVRTC. The same source is valid CUDA C++.

use crate::cuda::{Nvrtc, nvrtc};
use hip_shim::symbols::Handle;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::OnceLock;

/// Compiler options. They make NVRTC emit a fused multiply-add only where the source requests one, as HIP's
/// compiler does.
const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "-fmad=false"];

fn compiler() -> Result<&'static Nvrtc, String> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    NVRTC.get_or_init(nvrtc).as_ref().map_err(Clone::clone)
}

/// NVRTC program that is destroyed on drop.
struct Program {
    nvrtc: &'static Nvrtc,
    handle: Handle,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created and is not used after this call.
        unsafe { (self.nvrtc.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

/// Reads one output of `program`, such as its log. Queries the size of the output first.
///
/// # Safety
/// `size` and `get` must be the size function and the read function of the same output.
unsafe fn bytes(
    program: &Program,
    size: unsafe extern "C" fn(Handle, *mut usize) -> i32,
    get: unsafe extern "C" fn(Handle, *mut c_char) -> i32,
) -> Result<Vec<u8>, String> {
    let mut length = 0;
    // SAFETY: the call writes one number.
    let sized = unsafe { size(program.handle, &raw mut length) };
    let mut bytes = vec![0u8; length];
    // SAFETY: the buffer has the size that NVRTC reported.
    let got = unsafe { get(program.handle, bytes.as_mut_ptr().cast()) };
    if (sized, got) == (0, 0) {
        Ok(bytes)
    } else {
        Err(format!("cannot read NVRTC's output (codes {sized}, {got})"))
    }
}

/// Compiles the source `text` for a compute capability, such as 90.
///
/// # Errors
/// Returns the compiler's log if the source does not compile.
pub(crate) fn compile(text: &str, capability: i32) -> Result<Vec<u8>, String> {
    let nvrtc = compiler()?;
    let c_text = CString::new(text).map_err(|error| error.to_string())?;
    let options =
        OPTIONS.map(String::from).into_iter().chain([format!("--gpu-architecture=sm_{capability}")]);
    let options: Vec<CString> =
        options.map(CString::new).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = Program { nvrtc, handle: ptr::null_mut() };
    // SAFETY: the texts are zero-terminated, and there are no headers.
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
    // SAFETY: the program is valid, and the count is the length of the options.
    let compiled =
        unsafe { (nvrtc.nvrtcCompileProgram)(program.handle, options.len() as i32, options.as_ptr()) };
    if compiled == 0 {
        // SAFETY: both functions belong to the CUBIN.
        return unsafe { bytes(&program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) };
    }
    // SAFETY: both functions belong to the log.
    let log = unsafe { bytes(&program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog) }?;
    Err(String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).into())
}
