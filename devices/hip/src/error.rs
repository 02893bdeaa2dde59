//! Conversion of HIP's return codes to errors.

use crate::api::symbols::code;
use ragtag_hal::Error;

/// Codes after which a device or its context is unusable, so that all later calls fail.
const LOST: [i32; 7] = [
    // The runtime is shutting down.
    4,
    // An uncorrectable memory error occurred.
    214,
    code::ILLEGAL_ADDRESS,
    // A kernel timed out, the context was destroyed, or a kernel trapped.
    702,
    709,
    710,
    code::LAUNCH_FAILURE,
];

/// Returns the error for a HIP return code.
pub(crate) fn failure(call: &str, returned: i32) -> Error {
    Error::of_call(call, returned.into(), name(returned), LOST.contains(&returned))
}

/// Converts an error to [`Error::OutOfMemory`] if its code means that the device is out of memory.
pub(crate) fn allocation_failure(error: Error, wanted: u64) -> Error {
    error.or_shortage(|code| code == code::OUT_OF_MEMORY.into(), wanted)
}

/// Returns the name of a common code of `hipError_t`.
fn name(returned: i32) -> Option<&'static str> {
    Some(match returned {
        1 => "hipErrorInvalidValue",
        2 => "hipErrorOutOfMemory",
        3 => "hipErrorNotInitialized",
        4 => "hipErrorDeinitialized",
        9 => "hipErrorInvalidConfiguration",
        17 => "hipErrorInvalidDevicePointer",
        35 => "hipErrorInsufficientDriver",
        98 => "hipErrorInvalidDeviceFunction",
        100 => "hipErrorNoDevice",
        101 => "hipErrorInvalidDevice",
        200 => "hipErrorInvalidImage",
        201 => "hipErrorInvalidContext",
        209 => "hipErrorNoBinaryForGpu",
        214 => "hipErrorECCNotCorrectable",
        218 => "hipErrorInvalidKernelFile",
        302 => "hipErrorSharedObjectSymbolNotFound",
        303 => "hipErrorSharedObjectInitFailed",
        304 => "hipErrorOperatingSystem",
        400 => "hipErrorInvalidHandle",
        401 => "hipErrorIllegalState",
        500 => "hipErrorNotFound",
        600 => "hipErrorNotReady",
        700 => "hipErrorIllegalAddress",
        701 => "hipErrorLaunchOutOfResources",
        702 => "hipErrorLaunchTimeOut",
        709 => "hipErrorContextIsDestroyed",
        710 => "hipErrorAssert",
        712 => "hipErrorHostMemoryAlreadyRegistered",
        713 => "hipErrorHostMemoryNotRegistered",
        719 => "hipErrorLaunchFailure",
        801 => "hipErrorNotSupported",
        900 => "hipErrorStreamCaptureUnsupported",
        901 => "hipErrorStreamCaptureInvalidated",
        999 => "hipErrorUnknown",
        1052 => "hipErrorRuntimeMemory",
        1053 => "hipErrorRuntimeOther",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_names() {
        let call = "hipMalloc (hipErrorInvalidValue)".to_string();
        assert_eq!(failure("hipMalloc", 1), Error::Api { call, code: 1 });
        assert_eq!(failure("hipX", 4242), Error::Api { call: "hipX".into(), code: 4242 });
    }

    #[test]
    fn some_codes_mean_a_lost_device() {
        for code in LOST {
            let error = failure("hipX", code);
            assert!(
                matches!(&error, Error::Lost { cause } if cause.contains("hipX (hipError") && cause.contains(&code.to_string())),
                "{error}"
            );
        }
    }

    #[test]
    fn shortages_are_distinguished_from_other_failures() {
        let shortage = allocation_failure(failure("hipMalloc", 2), 100);
        assert_eq!(shortage, Error::OutOfMemory { wanted: 100, free: None });
        assert_eq!(allocation_failure(failure("hipMalloc", 1), 100), failure("hipMalloc", 1));
    }
}
