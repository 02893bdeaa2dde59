//! Conversion of Vulkan's result codes to errors.

use ash::vk;
use ragtag_hal::Error;

/// Returns the error for a Vulkan result code.
pub(crate) fn failure(call: &str, code: vk::Result) -> Error {
    let is_lost = code == vk::Result::ERROR_DEVICE_LOST;
    Error::of_call(call, code.as_raw().into(), Some(&format!("{code:?}")), is_lost)
}

/// Converts an error to [`Error::OutOfMemory`] if its code means that the device is out of memory. These
/// codes include those for an exhausted pool and for too many allocations.
pub(crate) fn allocation_failure(error: Error, wanted: u64) -> Error {
    const SHORTAGE: [vk::Result; 4] = [
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        vk::Result::ERROR_OUT_OF_POOL_MEMORY,
        vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        vk::Result::ERROR_TOO_MANY_OBJECTS,
    ];
    error.or_shortage(|code| SHORTAGE.iter().any(|shortage| i64::from(shortage.as_raw()) == code), wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        let error = failure("vkQueueSubmit", vk::Result::ERROR_OUT_OF_HOST_MEMORY);
        let Error::Api { call, code } = error else { panic!("not an API error") };
        assert_eq!((call.as_str(), code), ("vkQueueSubmit (ERROR_OUT_OF_HOST_MEMORY)", -1));
    }

    #[test]
    fn a_lost_device_is_lost_regardless_of_the_call() {
        let lost = failure("vkWaitSemaphores", vk::Result::ERROR_DEVICE_LOST);
        assert!(matches!(&lost, Error::Lost { cause } if cause.contains("-4")));
        assert_eq!(allocation_failure(lost.clone(), 100), lost);
    }

    #[test]
    fn shortages_are_distinguished_from_other_failures() {
        for code in [-1, -2, -10, -1_000_069_000] {
            let error = failure("vkAllocateMemory", vk::Result::from_raw(code));
            let short = allocation_failure(error, 100);
            assert_eq!(short, Error::OutOfMemory { wanted: 100, free: None });
        }
        let other = failure("vkAllocateMemory", vk::Result::ERROR_INITIALIZATION_FAILED);
        assert_eq!(allocation_failure(other.clone(), 100), other);
    }
}
