//! OpenCL objects as owned values, and OpenCL calls that return results.
//!
//! Calls go to the library that was found at run time. A call to a function that the library lacks returns an
//! error. Objects are released on drop, and failed releases are only logged.
//!
//! This module uses only the error types of the hardware layer.

mod commands;
mod extensions;
mod objects;

pub(crate) use commands::{BufferPart, Ends, Queue, Range3, raw};
pub(crate) use extensions::{CommandBuffer, CommandBuffers, SpirVLoader, UnifiedMemory};
pub(crate) use objects::{Context, Event, Kernel, Mem, Program, SharedBlock};

use crate::error::failure;
use cl3::OpenClRuntime;
use opencl3::error_codes::CL_SUCCESS;
use opencl3::types::cl_int;
use ragtag_hal::{Error, Result};

/// Returns the loaded OpenCL library.
///
/// # Errors
/// Returns an error if no library was found.
///
/// # Safety
/// The bindings declare the functions as safe, although some arguments cause undefined behaviour. Callers
/// must follow OpenCL's rules for each function.
unsafe fn library() -> Result<&'static OpenClRuntime> {
    let library = cl3::load_library().as_ref();
    library.map_err(|error| Error::Unsupported { what: format!("OpenCL (cannot load the library: {error})") })
}

fn missing(function: &str) -> Error {
    Error::Unsupported { what: format!("the OpenCL library has no {function}") }
}

fn check(function: &str, code: cl_int) -> Result<()> {
    if code == CL_SUCCESS { Ok(()) } else { Err(failure(function, code)) }
}

/// Calls a function that returns a status code.
macro_rules! status {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let code = $crate::api::library()?.$function($($argument),*);
        code.ok_or_else(|| $crate::api::missing(stringify!($function)))
            .and_then(|code| $crate::api::check(stringify!($function), code))
    }};
}

/// Calls a function that returns an object. The macro appends the last argument, which receives the status
/// code.
macro_rules! create {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let mut code = opencl3::error_codes::CL_INVALID_VALUE;
        let object = $crate::api::library()?.$function($($argument,)* &raw mut code);
        object
            .ok_or_else(|| $crate::api::missing(stringify!($function)))
            .and_then(|object| $crate::api::check(stringify!($function), code).map(|()| object))
    }};
}

use {create, status};
