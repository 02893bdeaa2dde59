//! Level Zero objects as owned values, and Level Zero calls that return results.
//!
//! The process loads the loader and calls `zeInit` only once. If `zeInit` fails, no further call follows,
//! because some drivers crash then. Objects are destroyed on drop, and failed destructions are only logged.
//!
//! This module uses only the error types of the hardware layer.

mod commands;
mod device;
mod objects;
mod symbols;
mod sysman;
pub(crate) mod types;

pub(crate) use commands::{Between, CommandList, CommandQueue};
pub(crate) use device::{Device, Driver, Importer};
pub(crate) use objects::{Argument, Context, Event, EventPool, Kernel, Module, UsmMemory};

use crate::error::{Code, NOT_READY, SUCCESS, UNINITIALIZED, failure};
use ragtag_hal::{Error, Result, Unavailable};
use std::error::Error as _;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use symbols::Functions;
use types::Handle;

/// Names of the loader.
const LIBRARIES: &[&str] =
    if cfg!(windows) { &["ze_loader.dll"] } else { &["libze_loader.so.1", "libze_loader.so"] };

/// Intel's driver.
const INTEL_DRIVER: &str = if cfg!(windows) { "ze_intel_gpu64.dll" } else { "libze_intel_gpu.so.1" };
/// Environment variable that replaces the loader's list of drivers.
const OTHER_DRIVERS: &str = "ZE_ENABLE_ALT_DRIVERS";

/// The initialised loader.
pub(crate) struct Api {
    pub(crate) functions: Functions,
    /// Name under which the loader was loaded.
    pub(crate) library: &'static str,
}

/// Calls a function and converts its code to a result.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::api::check(stringify!($function), ($api.functions.$function)($($argument),*))
    };
}

/// Works like `call!`, for a function that some loaders lack.
macro_rules! call_optional {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.functions.$function {
            Some(function) => $crate::api::check(stringify!($function), function($($argument),*)),
            None => Err($crate::api::lacks(stringify!($function))),
        }
    };
}

/// Returns a list that a function writes: first its length, then its elements.
macro_rules! list {
    ($api:expr, $function:ident($of:expr), $element:expr) => {{
        let mut count = 0;
        // SAFETY: with a null pointer, the call only writes the length.
        let counted = unsafe { call!($api, $function($of, &raw mut count, std::ptr::null_mut())) };
        counted.and_then(|()| {
            let mut list = vec![$element; (count as usize).min($crate::api::MAX_ENTRIES)];
            count = list.len() as u32;
            if count > 0 {
                // SAFETY: the list has room for this many elements, which have their types.
                unsafe { call!($api, $function($of, &raw mut count, list.as_mut_ptr())) }?;
            }
            list.truncate(count as usize);
            Ok::<_, ragtag_hal::Error>(list)
        })
    }};
}
use {call, call_optional, list};

/// Maximum length of a list that a driver returns. Longer lists are truncated.
const MAX_ENTRIES: usize = 4096;

fn check(function: &str, code: Code) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(failure(function, code)) }
}

/// Converts the code of a wait: false means that its time is over.
fn ready(function: &str, code: Code) -> Result<bool> {
    match code {
        SUCCESS => Ok(true),
        NOT_READY => Ok(false),
        code => Err(failure(function, code)),
    }
}

fn lacks(function: &str) -> Error {
    Error::Unsupported { what: format!("this version of Level Zero's loader has no {function}") }
}

/// Returns the loader, which is loaded and initialised on first use.
///
/// # Errors
/// Returns [`Unavailable`] if there is no loader, or if `zeInit` fails.
pub(crate) fn api() -> std::result::Result<&'static Api, Unavailable> {
    static API: OnceLock<std::result::Result<Api, Unavailable>> = OnceLock::new();
    API.get_or_init(|| Api::load(LIBRARIES)).as_ref().map_err(Clone::clone)
}

impl Api {
    /// Loads and initialises the first library in `names` that the system finds.
    fn load(names: &[&'static str]) -> std::result::Result<Self, Unavailable> {
        let (mut tried, mut broken) = (Vec::new(), None);
        for &name in names {
            tried.push(name.to_string());
            // SAFETY: the initialisers of the loader run in every program that uses Level Zero.
            match unsafe { libloading::Library::new(name) } {
                // The loader is never unloaded, because the threads of its drivers may outlive their last use.
                Ok(library) => return Self::initialised(Box::leak(Box::new(library)), name),
                // The error's source is the system's message, which names the file.
                Err(error) => broken = broken.or_else(|| Some(error.source().unwrap_or(&error).to_string())),
            }
        }
        let cause = broken.unwrap_or_else(|| "no library".into());
        Err(Unavailable { tried, cause })
    }

    fn initialised(
        library: &'static libloading::Library,
        name: &'static str,
    ) -> std::result::Result<Self, Unavailable> {
        let unavailable = |cause: String| Unavailable { tried: vec![name.into()], cause };
        let functions = Functions::of(library)
            .map_err(|missing| unavailable(format!("the loader has no {missing}; it is too old")))?;
        // SAFETY: no flags are set. This is the first and only call of the function in this process.
        let code = unsafe { (functions.zeInit)(0) };
        match code {
            SUCCESS => Ok(Self { functions, library: name }),
            UNINITIALIZED => Err(unavailable(format!("{}: zeInit failed with UNINITIALIZED", no_device()))),
            code => Err(unavailable(failure("zeInit", code).to_string())),
        }
    }

    /// Returns all drivers.
    ///
    /// # Errors
    /// Returns the loader's error.
    pub(crate) fn drivers(&'static self) -> Result<Vec<Driver>> {
        let mut count = 0;
        // SAFETY: with a null pointer, the call only writes the length.
        unsafe { call!(self, zeDriverGet(&raw mut count, std::ptr::null_mut())) }?;
        let mut handles = vec![Handle::NULL; (count as usize).min(MAX_ENTRIES)];
        count = handles.len() as u32;
        if count > 0 {
            // SAFETY: the list has room for this many handles.
            unsafe { call!(self, zeDriverGet(&raw mut count, handles.as_mut_ptr())) }?;
        }
        handles.truncate(count as usize);
        Ok(handles.into_iter().map(|handle| Driver { api: self, handle }).collect())
    }
}

/// Returns the reason why the loader finds no driver with a device.
fn no_device() -> String {
    if let Some(drivers) = std::env::var_os(OTHER_DRIVERS) {
        return format!("no driver in {OTHER_DRIVERS}={} has a device", drivers.display());
    }
    // SAFETY: the loader has just tried to load the same library.
    match unsafe { libloading::Library::new(INTEL_DRIVER) } {
        Ok(driver) => {
            // The driver stays loaded, because its threads may outlive its last use.
            let _kept = ManuallyDrop::new(driver);
            format!("Intel's driver {INTEL_DRIVER} is installed and finds no device")
        }
        Err(_) => format!("the loader finds no driver; Intel's is {INTEL_DRIVER}"),
    }
}

/// Returns the text before the first zero byte.
pub(crate) fn until_zero(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_string()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn an_absent_loader_is_named() {
        let absent = Api::load(&["libze_nowhere.so.1", "libze_nowhere.so"]).err().unwrap();
        assert_eq!(absent.tried, ["libze_nowhere.so.1", "libze_nowhere.so"]);
        assert!(absent.cause.contains("libze_nowhere.so.1: cannot open"), "{}", absent.cause);
    }
}
