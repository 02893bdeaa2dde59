//! Conversion of CUDA's result codes to errors.

use cudarc::driver::sys::CUresult;
use ragtag_hal::{Error, Result};

/// Codes that mean that the device is gone, or that every later call in the context fails with the same code.
const STICKY: &[CUresult] = &[
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    CUresult::CUDA_ERROR_UNKNOWN,
];

/// `CUDA_ERROR_CONTAINED` (CUDA 12.8): the error affects only this process, which must exit.
const CONTAINED: u32 = 226;

/// Codes that mean that kernel code is invalid or was compiled for a different device.
const REFUSED_CODE: &[CUresult] = &[
    CUresult::CUDA_ERROR_INVALID_IMAGE,
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUresult::CUDA_ERROR_INVALID_PTX,
    CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
    CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED,
    CUresult::CUDA_ERROR_INVALID_SOURCE,
    CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
    CUresult::CUDA_ERROR_NOT_FOUND,
];

fn is(code: u32, list: &[CUresult]) -> bool {
    list.iter().any(|&known| known as u32 == code)
}

/// Returns the error for a result code. `name` is the driver's name for the code.
pub(crate) fn failure(call: &str, code: u32, name: Option<&str>) -> Error {
    Error::of_call(call, code.into(), name, code == CONTAINED || is(code, STICKY))
}

/// Converts an error to [`Error::OutOfMemory`] if its code means that the device is out of memory.
pub(crate) fn allocation_failure(error: Error, wanted: u64) -> Error {
    error.or_shortage(|code| code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as i64, wanted)
}

/// Returns the result of enabling peer access. Access that was enabled before is a success.
pub(crate) fn peer_access(enabled: Result<()>) -> Result<()> {
    match enabled {
        Err(Error::Api { code, .. }) if code == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as i64 => {
            Ok(())
        }
        other => other,
    }
}

/// Converts an error to [`Error::Compile`] with `log` if its code means that kernel code is invalid.
pub(crate) fn code_failure(error: Error, log: &str) -> Error {
    match error {
        Error::Api { ref call, code } if u32::try_from(code).is_ok_and(|code| is(code, REFUSED_CODE)) => {
            let log = if log.is_empty() { format!("{call}, with no log") } else { format!("{call}: {log}") };
            Error::Compile { log }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_names() {
        let Error::Api { call, code } = failure("cuX", 1, Some("CUDA_ERROR_INVALID_VALUE")) else {
            panic!("not an API error")
        };
        assert_eq!((call.as_str(), code), ("cuX (CUDA_ERROR_INVALID_VALUE)", 1));
        assert_eq!(failure("cuX", 4242, None), Error::Api { call: "cuX".into(), code: 4242 });
    }

    #[test]
    fn sticky_codes_mean_a_lost_device() {
        for code in [4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 911, 999] {
            let error = failure("cuX", code, None);
            assert!(matches!(&error, Error::Lost { cause } if cause.contains(&code.to_string())), "{error}");
        }
        // These errors leave the context usable, for example: too many resources for a launch, not ready, not
        // supported, and errors of stream capture.
        for code in [1, 2, 200, 218, 400, 500, 600, 701, 704, 801, 900, 901] {
            assert!(matches!(failure("cuX", code, None), Error::Api { .. }), "{code}");
        }
    }

    #[test]
    fn peer_access_is_enabled_once() {
        assert_eq!(peer_access(Err(failure("cuX", 704, None))), Ok(()));
        for code in [217, 711] {
            let error = failure("cuX", code, None);
            assert_eq!(peer_access(Err(error.clone())), Err(error));
        }
    }

    #[test]
    fn shortages_and_refused_code_are_distinguished_from_other_failures() {
        let short = failure("cuX", 2, None);
        assert_eq!(allocation_failure(short.clone(), 100), Error::OutOfMemory { wanted: 100, free: None });
        assert_eq!(code_failure(short.clone(), "log"), short);
        let refused = failure("cuX", 218, None);
        assert_eq!(allocation_failure(refused.clone(), 100), refused);
        for (log, wanted) in [("line 3", "cuX: line 3"), ("", "cuX, with no log")] {
            assert_eq!(code_failure(refused.clone(), log), Error::Compile { log: wanted.into() });
        }
        let lost = failure("cuX", 700, None);
        assert_eq!(allocation_failure(lost.clone(), 100), lost);
        assert_eq!(code_failure(lost.clone(), "log"), lost);
    }
}
