//! Loads NVRTC, NVIDIA's library that compiles CUDA C++ to PTX. It needs neither a driver nor a GPU.
//!
//! Knows nothing about kernels or the committed PTX.

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

/// NVRTC release to build the committed PTX with. It emits PTX ISA 8.2, the newest ISA that the oldest driver
/// supported by the CUDA backend accepts.
const RELEASE: (c_int, c_int) = (12, 2);

/// Loaded NVRTC library.
pub(super) struct Nvrtc {
    library: Library,
}

type Handle = *mut c_void;
type Query = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Read = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

impl Nvrtc {
    /// Loads NVRTC from a folder.
    pub fn load(folder: &Path) -> Result<Self, String> {
        let path = folder.join(if cfg!(windows) { "nvrtc64_120_0.dll" } else { "libnvrtc.so.12" });
        // SAFETY: the initialisers of NVIDIA's library have no effect that would harm this program.
        let library = unsafe { Library::new(&path) }.map_err(|e| format!("{}: {e}", path.display()))?;
        let nvrtc = Self { library };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function has this type in every release; both pointers are valid for writes.
        let code = unsafe {
            let version =
                nvrtc.function::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>("nvrtcVersion")?;
            version(&raw mut major, &raw mut minor)
        };
        if code != 0 || (major, minor) != RELEASE {
            let (wanted, release) = (RELEASE.0, RELEASE.1);
            return Err(format!(
                "{}: NVRTC {major}.{minor} is unsupported; PTX must be built with {wanted}.{release}",
                path.display()
            ));
        }
        Ok(nvrtc)
    }

    /// # Safety
    /// The function must have type `T`.
    unsafe fn function<T>(&self, name: &str) -> Result<Symbol<'_, T>, String> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.library.get(name.as_bytes()) }.map_err(|e| format!("{name}: {e}"))
    }

    /// Compiles the source `text` to PTX. The output is not deterministic, because NVRTC sometimes numbers or
    /// orders items by their memory address.
    ///
    /// # Errors
    /// Returns the compiler's log if the source does not compile.
    pub fn compile(&self, name: &str, text: &str, options: &[&str]) -> Result<String, String> {
        let c_string = |text: &str| CString::new(text).map_err(|e| format!("{name}: {e}"));
        let options = options.iter().copied().map(c_string).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = Program::new(self, &c_string(text)?, &c_string(name)?)?;
        type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
        // SAFETY: the type is NVRTC's; the program and the options outlive the call, and the count is the
        // length of the options.
        let code = unsafe {
            let compile = self.function::<Compile>("nvrtcCompileProgram")?;
            compile(program.handle, options.len() as c_int, options.as_ptr())
        };
        if code == 0 {
            program.text("nvrtcGetPTXSize", "nvrtcGetPTX")
        } else {
            Err(program.text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?)
        }
    }
}

/// NVRTC program that is destroyed on drop.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, text: &CString, name: &CString) -> Result<Self, String> {
        type Create = unsafe extern "C" fn(
            *mut Handle,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        let mut handle = ptr::null_mut();
        // SAFETY: the type is NVRTC's; both strings end in a zero, and there are no headers.
        let code = unsafe {
            let create = nvrtc.function::<Create>("nvrtcCreateProgram")?;
            create(&raw mut handle, text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
        };
        if code == 0 { Ok(Self { nvrtc, handle }) } else { Err(format!("nvrtcCreateProgram: {code}")) }
    }

    /// Returns an output of the program as text. `size` and `read` name the NVRTC functions that return the
    /// size and the bytes of this output.
    fn text(&self, size: &str, read: &str) -> Result<String, String> {
        let mut bytes = 0;
        // SAFETY: both types are NVRTC's; the program is alive, and the buffer has the size that NVRTC
        // reported.
        let text = unsafe {
            let code = self.nvrtc.function::<Query>(size)?(self.handle, &raw mut bytes);
            let mut text = vec![0_u8; if code == 0 { bytes } else { 0 }];
            let code = if code == 0 {
                self.nvrtc.function::<Read>(read)?(self.handle, text.as_mut_ptr().cast())
            } else {
                code
            };
            if code == 0 { Ok(text) } else { Err(format!("{read}: {code}")) }
        }?;
        let text = String::from_utf8(text).map_err(|e| e.to_string())?;
        Ok(text.trim_end_matches('\0').into())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the type is NVRTC's; the program is not used after this call.
        unsafe {
            if let Ok(destroy) =
                self.nvrtc.function::<unsafe extern "C" fn(*mut Handle) -> c_int>("nvrtcDestroyProgram")
            {
                destroy(&raw mut self.handle);
            }
        }
    }
}
