//! Conversion of OpenCL's status codes to errors.

use opencl3::error_codes::{
    CL_DEVICE_NOT_AVAILABLE, CL_INVALID_BUFFER_SIZE, CL_INVALID_COMMAND_QUEUE,
    CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, cl_int, error_text,
};
use ragtag_hal::Error;

/// NVIDIA's code for an invalid memory access by a kernel, after which the context is unusable.
const NV_ILLEGAL_ACCESS: cl_int = -9999;

/// Returns the error for a status code. The code comes from a call or from the event of a failed command.
pub(crate) fn failure(call: &str, code: cl_int) -> Error {
    let name = match error_text(code) {
        "UNKNOWN_ERROR" => None,
        name => Some(name),
    };
    // Ragtag's queues are valid while they are in use. If a driver reports an invalid queue, an earlier
    // failure has broken the queue.
    let lost = matches!(code, CL_DEVICE_NOT_AVAILABLE | CL_INVALID_COMMAND_QUEUE | NV_ILLEGAL_ACCESS);
    Error::of_call(call, code.into(), name, lost)
}

/// Converts an error to [`Error::OutOfMemory`] if its code means that the device is out of memory.
pub(crate) fn allocation_failure(error: Error, wanted: u64) -> Error {
    const SHORTAGE: [cl_int; 4] = [
        CL_MEM_OBJECT_ALLOCATION_FAILURE,
        CL_OUT_OF_RESOURCES,
        CL_OUT_OF_HOST_MEMORY,
        CL_INVALID_BUFFER_SIZE,
    ];
    error.or_shortage(|code| SHORTAGE.map(i64::from).contains(&code), wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_names() {
        let Error::Api { call, code } = failure("clFlush", -30) else { panic!("not an API error") };
        assert_eq!((call.as_str(), code), ("clFlush (CL_INVALID_VALUE)", -30));
        assert_eq!(failure("clX", -4242), Error::Api { call: "clX".into(), code: -4242 });
    }

    #[test]
    fn some_codes_mean_a_lost_device() {
        for code in [-2, -36, -9999] {
            assert!(
                matches!(failure("clX", code), Error::Lost { cause } if cause.contains(&code.to_string()))
            );
        }
    }

    #[test]
    fn shortages_are_distinguished_from_other_failures() {
        for code in [-4, -5, -6, -61] {
            let error = allocation_failure(failure("clX", code), 100);
            assert_eq!(error, Error::OutOfMemory { wanted: 100, free: None });
        }
        assert_eq!(allocation_failure(failure("clX", -30), 100), failure("clX", -30));
        assert_eq!(allocation_failure(failure("clX", -36), 100), failure("clX", -36));
    }
}
