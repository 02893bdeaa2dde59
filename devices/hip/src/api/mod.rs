//! Wrappers that turn the return codes of HIP calls into results, and queries for device properties.
//!
//! The process loads the library and initialises HIP only once. This module does not depend on adapters,
//! streams or programs.

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

/// Size of the buffer for `hipGetDeviceProperties` in 64-bit words. It leaves room for the larger structures
/// of later versions. Because it consists of 64-bit words, the buffer has the required alignment.
const PROPERTIES_WORDS: usize = 1024;

/// The loaded and initialised HIP runtime.
pub(crate) struct Api {
    pub(crate) functions: Functions,
    /// Name under which the library was loaded.
    pub(crate) library: String,
    pub(crate) version: Version,
    /// Number of visible devices.
    pub(crate) devices: i32,
}

/// Returns the HIP runtime, loaded on first use.
///
/// # Errors
/// Returns [`Unavailable`] if there is no library or no device.
pub(crate) fn api() -> std::result::Result<&'static Api, Unavailable> {
    static API: OnceLock<std::result::Result<Api, Unavailable>> = OnceLock::new();
    API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
}

/// Returns the compiler that belongs to this runtime, loaded on first use.
///
/// # Errors
/// Returns the library names that were tried.
pub(crate) fn compiler(api: &'static Api) -> std::result::Result<&'static Compiler, Vec<String>> {
    static COMPILER: OnceLock<std::result::Result<Compiler, Vec<String>>> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::beside(&api.library, api.version)).as_ref().map_err(Clone::clone)
}

/// Returns the rocBLAS library that belongs to this runtime, loaded on first use. Returns `None` if it is not
/// installed.
pub(crate) fn blas(api: &'static Api) -> Option<&'static Blas> {
    static BLAS: OnceLock<Option<Blas>> = OnceLock::new();
    BLAS.get_or_init(|| Blas::find(api.version)).as_ref()
}

/// Calls a function of the runtime and converts its return code to a result.
macro_rules! call {
    ($functions:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let returned = ($functions.$function)($($argument),*);
        $crate::api::check(stringify!($function), returned)
    }};
}

/// Works like `call!`, for a function that some HIP versions lack.
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
        let library::Runtime { functions, name: library } = loaded;
        let unavailable = |cause: String| Unavailable { tried: vec![library.clone()], cause };
        let (mut number, mut devices) = (0, 0);
        // SAFETY: the arguments match the declarations. HIP has not been initialised before.
        let started = unsafe {
            call!(functions, hipRuntimeGetVersion(&raw mut number))
                .and_then(|()| call!(functions, hipGetDeviceCount(&raw mut devices)))
                .and_then(|()| call!(functions, hipInit(0)))
        };
        let version = Version::of(number);
        match started {
            Ok(()) if devices > 0 => Ok(Self { functions, library, version, devices }),
            Ok(()) => Err(unavailable(no_device(version, None))),
            Err(error) if says_no_device(&error) => Err(unavailable(no_device(version, Some(&error)))),
            Err(error) => Err(unavailable(format!("cannot initialise HIP: {error}"))),
        }
    }

    /// Makes a device current on the calling thread.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn select(&self, device: i32) -> Result<()> {
        // SAFETY: any number is valid.
        unsafe { call!(self.functions, hipSetDevice(device)) }
    }

    /// Returns the device's name.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn name(&self, device: i32) -> Result<String> {
        text::<256>(|buffer, bytes| {
            // SAFETY: the buffer has room for this many bytes.
            unsafe { call!(self.functions, hipDeviceGetName(buffer, bytes, device)) }
        })
    }

    /// Returns the total memory of the device in bytes.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn total_bytes(&self, device: i32) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self.functions, hipDeviceTotalMem(&raw mut bytes, device)) }?;
        Ok(bytes as u64)
    }

    /// Returns the free and total memory of the current device in bytes.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two numbers.
        unsafe { call!(self.functions, hipMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok((free as u64, total as u64))
    }

    /// Returns the value of a numeric attribute.
    ///
    /// # Errors
    /// Returns the driver's error, for example for an unknown attribute.
    pub(crate) fn attribute(&self, attribute: i32, device: i32) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the call writes one number.
        unsafe { call!(self.functions, hipDeviceGetAttribute(&raw mut value, attribute, device)) }?;
        u32::try_from(value)
            .map_err(|_| Error::invalid(format!("attribute {attribute} of device {device} is {value}")))
    }

    /// Returns true if, according to the driver, a device can access the memory of a peer.
    pub(crate) fn reaches(&self, device: i32, peer: i32) -> bool {
        let mut can = 0;
        // SAFETY: the call writes one number.
        let asked = unsafe { call!(self.functions, hipDeviceCanAccessPeer(&raw mut can, device, peer)) };
        asked.is_ok() && can != 0
    }

    /// Gives the current device access to the memory of a peer.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn reach(&self, peer: i32) -> Result<()> {
        // SAFETY: any number is valid, and the flags are zero, as the function requires.
        match unsafe { call!(self.functions, hipDeviceEnablePeerAccess(peer, 0)) } {
            Err(Error::Api { code, .. }) if code == i64::from(code::PEER_ACCESS_ALREADY_ENABLED) => Ok(()),
            other => other,
        }
    }

    /// Returns the architecture of the device and its settings, such as `gfx90a:sramecc+:xnack-`.
    ///
    /// # Errors
    /// Returns an error if the driver call fails or the value is invalid.
    pub(crate) fn architecture(&self, device: i32) -> Result<String> {
        let mut words = [0u64; PROPERTIES_WORDS];
        let properties = words.as_mut_ptr().cast();
        // In the headers, both functions have the same name, but each function fills a different structure.
        let layout = if self.functions.hipGetDevicePropertiesR0600.is_some() {
            // SAFETY: the buffer has room for the structure.
            unsafe { call_optional!(self.functions, hipGetDevicePropertiesR0600(properties, device)) }?;
            PROPERTIES_R0600
        } else {
            // SAFETY: the buffer has room for the structure.
            unsafe { call_optional!(self.functions, hipGetDeviceProperties(properties, device)) }?;
            PROPERTIES_R0000
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        architecture_in(&bytes, layout)
    }

    /// Returns the device's PCI address, if the driver reports it.
    pub(crate) fn pci(&self, device: i32) -> Option<PciAddress> {
        let said = text::<64>(|buffer, bytes| {
            // SAFETY: the buffer has room for this many bytes.
            unsafe { call!(self.functions, hipDeviceGetPCIBusId(buffer, bytes, device)) }
        });
        said.ok()?.parse().ok()
    }

    /// Returns the device's UUID, if the driver reports one.
    pub(crate) fn uuid(&self, device: i32) -> Option<[u8; 16]> {
        let mut uuid = [0; 16];
        // SAFETY: the call writes sixteen bytes.
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

/// Returns the string that `write` stores in a buffer of `BYTES` bytes.
fn text<const BYTES: usize>(write: impl FnOnce(*mut c_char, i32) -> Result<()>) -> Result<String> {
    let mut buffer = [0u8; BYTES];
    // The last byte of the buffer stays zero.
    write(buffer.as_mut_ptr().cast(), BYTES as i32 - 1)?;
    Ok(until_zero(&buffer))
}

fn until_zero(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).trim().to_string()
}

/// Reads the architecture from a structure of device properties.
fn architecture_in(properties: &[u8], layout: Properties) -> Result<String> {
    let said = until_zero(properties.get(layout.architecture_at..layout.bytes).unwrap_or_default());
    if said.starts_with("gfx") && said.len() < 256 {
        Ok(said)
    } else {
        Err(Error::invalid(format!("invalid architecture name {said:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_read_from_both_layouts() {
        for layout in [PROPERTIES_R0000, PROPERTIES_R0600] {
            let mut properties = vec![0u8; 8 * PROPERTIES_WORDS];
            properties[layout.architecture_at..][..13].copy_from_slice(b"gfx90a:xnack-");
            assert_eq!(architecture_in(&properties, layout), Ok("gfx90a:xnack-".into()));
            properties[layout.architecture_at] = b'G';
            assert!(architecture_in(&properties, layout).is_err());
        }
    }

    #[test]
    fn no_device_is_distinguished_from_other_failures() {
        for code in [code::NO_DEVICE, code::INVALID_DEVICE] {
            assert!(says_no_device(&failure("hipInit", code)));
        }
        assert!(!says_no_device(&failure("hipInit", code::UNKNOWN)));
    }
}
