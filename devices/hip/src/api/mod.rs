//! HIP's calls as results, and what it says about devices.
//!
//! The library is loaded and HIP initialised once in a process. This module must not know what adapters, streams or
//! programs are for; only the hardware layer's errors.

mod blas;
mod compiler;
mod library;
pub mod symbols;

pub(crate) use blas::{Blas, check as check_blas};
pub(crate) use compiler::{Code, Compiler};

use crate::error::failure;
use library::{Functions, Version};
use ragtag_hal::{Error, PciAddress, Result, Unavailable};
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use symbols::{PROPERTIES_R0000, PROPERTIES_R0600, Properties, code};

/// Room for what `hipGetDeviceProperties` writes, and for what a later version might: words, so that it is aligned.
const PROPERTIES_WORDS: usize = 1024;

/// HIP's runtime, initialised.
pub(crate) struct Api {
    pub(crate) functions: Functions,
    /// The name that the library was found by.
    pub(crate) library: String,
    pub(crate) version: Version,
    /// Devices that it shows.
    pub(crate) devices: i32,
    /// Whether it takes memory of other APIs.
    pub(crate) imports_memory: bool,
}

/// The runtime, loaded by whoever asks first.
///
/// # Errors
/// That there is no library, or no device.
pub(crate) fn api() -> std::result::Result<&'static Api, Unavailable> {
    static API: OnceLock<std::result::Result<Api, Unavailable>> = OnceLock::new();
    API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
}

/// The compiler beside the runtime, loaded by whoever asks first.
///
/// # Errors
/// The names that were tried.
pub(crate) fn compiler(api: &'static Api) -> std::result::Result<&'static Compiler, Vec<String>> {
    static COMPILER: OnceLock<std::result::Result<Compiler, Vec<String>>> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::beside(&api.library, api.version)).as_ref().map_err(Clone::clone)
}

/// The library of matrix products beside the runtime, loaded by whoever asks first; `None` if there is none.
pub(crate) fn blas(api: &'static Api) -> Option<&'static Blas> {
    static BLAS: OnceLock<Option<Blas>> = OnceLock::new();
    BLAS.get_or_init(|| Blas::find(api.version)).as_ref()
}

/// Calls a function of the runtime, and makes an error of what it returns.
macro_rules! call {
    ($functions:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let returned = ($functions.$function)($($argument),*);
        $crate::api::check(stringify!($function), returned)
    }};
}

/// The same for a function that some versions lack.
macro_rules! call_optional {
    ($functions:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        match $functions.$function {
            Some(function) => $crate::api::check(stringify!($function), function($($argument),*)),
            None => Err($crate::api::lacks(stringify!($function))),
        }
    }};
}
pub(crate) use {call, call_optional};

pub(crate) fn check(function: &str, returned: i32) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(failure(function, returned)) }
}

pub(crate) fn lacks(function: &str) -> Error {
    Error::Unsupported { what: format!("this version of HIP has no {function}") }
}

impl Api {
    fn load() -> std::result::Result<Self, Unavailable> {
        let loaded = library::runtime().map_err(|(tried, cause)| Unavailable { tried, cause })?;
        let library::Runtime { functions, imports_memory, name: library } = loaded;
        let unavailable = |cause: String| Unavailable { tried: vec![library.clone()], cause };
        let (mut number, mut devices) = (0, 0);
        // SAFETY: each is given what its declaration asks for; nothing was initialised before.
        let started = unsafe {
            call!(functions, hipRuntimeGetVersion(&raw mut number))
                .and_then(|()| call!(functions, hipGetDeviceCount(&raw mut devices)))
                .and_then(|()| call!(functions, hipInit(0)))
        };
        let version = Version::of(number);
        match started {
            Ok(()) if devices > 0 => Ok(Self { functions, library, version, devices, imports_memory }),
            Ok(()) => Err(unavailable(no_device(version, None))),
            Err(error) if says_no_device(&error) => Err(unavailable(no_device(version, Some(&error)))),
            Err(error) => Err(unavailable(format!("HIP does not start: {error}"))),
        }
    }

    /// Makes a device current on this thread.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn select(&self, device: i32) -> Result<()> {
        // SAFETY: any number may be asked for.
        unsafe { call!(self.functions, hipSetDevice(device)) }
    }

    /// # Errors
    /// If the driver refuses.
    pub(crate) fn name(&self, device: i32) -> Result<String> {
        text::<256>(|buffer, bytes| {
            // SAFETY: the buffer has these bytes.
            unsafe { call!(self.functions, hipDeviceGetName(buffer, bytes, device)) }
        })
    }

    /// # Errors
    /// If the driver refuses.
    pub(crate) fn total_bytes(&self, device: i32) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self.functions, hipDeviceTotalMem(&raw mut bytes, device)) }?;
        Ok(bytes as u64)
    }

    /// Bytes that are free, and all bytes, of the device that is current on this thread.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers.
        unsafe { call!(self.functions, hipMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok((free as u64, total as u64))
    }

    /// A number that the device is described by.
    ///
    /// # Errors
    /// If the driver refuses, or does not know it.
    pub(crate) fn attribute(&self, attribute: i32, device: i32) -> Result<u32> {
        let mut value = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self.functions, hipDeviceGetAttribute(&raw mut value, attribute, device)) }?;
        u32::try_from(value)
            .map_err(|_| Error::invalid(format!("attribute {attribute} of device {device} is {value}")))
    }

    /// Whether a device reaches another's memory, as far as the driver knows.
    pub(crate) fn reaches(&self, device: i32, peer: i32) -> bool {
        let mut can = 0;
        // SAFETY: it writes one number.
        let asked = unsafe { call!(self.functions, hipDeviceCanAccessPeer(&raw mut can, device, peer)) };
        asked.is_ok() && can != 0
    }

    /// The device's architecture with its settings, as in `gfx90a:sramecc+:xnack-`.
    ///
    /// # Errors
    /// If the driver refuses, or says something else.
    pub(crate) fn architecture(&self, device: i32) -> Result<String> {
        let mut words = [0u64; PROPERTIES_WORDS];
        let properties = words.as_mut_ptr().cast();
        // The functions have the same name in the headers, and write different structures.
        let layout = if self.functions.hipGetDevicePropertiesR0600.is_some() {
            // SAFETY: there is room for the structure.
            unsafe { call_optional!(self.functions, hipGetDevicePropertiesR0600(properties, device)) }?;
            PROPERTIES_R0600
        } else {
            // SAFETY: there is room for the structure.
            unsafe { call_optional!(self.functions, hipGetDeviceProperties(properties, device)) }?;
            PROPERTIES_R0000
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        architecture_in(&bytes, layout)
    }

    /// Where the device is on the bus, if the driver says so.
    pub(crate) fn pci(&self, device: i32) -> Option<PciAddress> {
        let said = text::<64>(|buffer, bytes| {
            // SAFETY: the buffer has these bytes.
            unsafe { call!(self.functions, hipDeviceGetPCIBusId(buffer, bytes, device)) }
        });
        said.ok()?.parse().ok()
    }

    /// The device's UUID, if the driver has one for it.
    pub(crate) fn uuid(&self, device: i32) -> Option<[u8; 16]> {
        let mut uuid = [0; 16];
        // SAFETY: it writes sixteen bytes.
        unsafe { call_optional!(self.functions, hipDeviceGetUuid(uuid.as_mut_ptr(), device)) }.ok()?;
        (uuid != [0; 16]).then_some(uuid)
    }
}

fn says_no_device(error: &Error) -> bool {
    matches!(error, Error::Api { code, .. } if [code::NO_DEVICE, code::INVALID_DEVICE].map(i64::from).contains(code))
}

fn no_device(version: Version, said: Option<&Error>) -> String {
    let said = said.map_or_else(|| "the count is 0".to_string(), ToString::to_string);
    format!("HIP {version} is installed and finds no AMD device ({said})")
}

/// A text that a function writes into a buffer of so many bytes.
fn text<const BYTES: usize>(write: impl FnOnce(*mut c_char, i32) -> Result<()>) -> Result<String> {
    let mut buffer = [0u8; BYTES];
    // The last byte stays zero.
    write(buffer.as_mut_ptr().cast(), BYTES as i32 - 1)?;
    Ok(until_zero(&buffer))
}

fn until_zero(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).trim().to_string()
}

/// The architecture in a structure of properties.
fn architecture_in(properties: &[u8], layout: Properties) -> Result<String> {
    let said = until_zero(properties.get(layout.architecture_at..layout.bytes).unwrap_or_default());
    if said.starts_with("gfx") && said.len() < 256 {
        Ok(said)
    } else {
        Err(Error::invalid(format!("an architecture named {said:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_read_where_each_version_has_it() {
        for layout in [PROPERTIES_R0000, PROPERTIES_R0600] {
            let mut properties = vec![0u8; 8 * PROPERTIES_WORDS];
            properties[layout.architecture_at..][..13].copy_from_slice(b"gfx90a:xnack-");
            assert_eq!(architecture_in(&properties, layout), Ok("gfx90a:xnack-".into()));
            properties[layout.architecture_at] = b'G';
            assert!(architecture_in(&properties, layout).is_err());
        }
    }

    #[test]
    fn no_device_is_told_from_other_failures() {
        for code in [code::NO_DEVICE, code::INVALID_DEVICE] {
            assert!(says_no_device(&failure("hipInit", code)));
        }
        assert!(!says_no_device(&failure("hipInit", code::UNKNOWN)));
    }
}
