//! OpenCL's return codes as the errors that callers act upon.
//!
//! This module must not know who called what.

use opencl3::error_codes::{
    CL_DEVICE_NOT_AVAILABLE, CL_INVALID_BUFFER_SIZE, CL_INVALID_COMMAND_QUEUE,
    CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, cl_int, error_text,
};
use ragtag_hal::Error;

/// NVIDIA's code for a kernel that read or wrote where it must not; the context is gone after that.
const NV_ILLEGAL_ACCESS: cl_int = -9999;

/// The error of a call that returned this code, or of a command whose event ended with it.
pub(crate) fn failure(call: &str, code: cl_int) -> Error {
    let name = match error_text(code) {
        "UNKNOWN_ERROR" => None,
        name => Some(name),
    };
    // The queues of this crate are valid as long as it uses them: a driver says otherwise once a failure has broken them.
    let lost = matches!(code, CL_DEVICE_NOT_AVAILABLE | CL_INVALID_COMMAND_QUEUE | NV_ILLEGAL_ACCESS);
    Error::of_call(call, code.into(), name, lost)
}

/// The same for calls that allocate: codes that mean too little memory then.
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
    fn codes_have_names_where_they_are_known() {
        let Error::Api { call, code } = failure("clFlush", -30) else { panic!("not an API error") };
        assert_eq!((call.as_str(), code), ("clFlush (CL_INVALID_VALUE)", -30));
        assert_eq!(failure("clX", -4242), Error::Api { call: "clX".into(), code: -4242 });
    }

    #[test]
    fn some_codes_mean_that_the_device_is_lost() {
        for code in [-2, -36, -9999] {
            assert!(
                matches!(failure("clX", code), Error::Lost { cause } if cause.contains(&code.to_string()))
            );
        }
    }

    #[test]
    fn shortages_are_told_from_other_failures() {
        for code in [-4, -5, -6, -61] {
            let error = allocation_failure(failure("clX", code), 100);
            assert_eq!(error, Error::OutOfMemory { wanted: 100, free: None });
        }
        assert_eq!(allocation_failure(failure("clX", -30), 100), failure("clX", -30));
        assert_eq!(allocation_failure(failure("clX", -36), 100), failure("clX", -36));
    }
}
