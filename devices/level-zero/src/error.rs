//! Conversion of Level Zero's return codes to errors.

use ragtag_hal::Error;

/// A value of `ze_result_t`.
pub(crate) type Code = u32;

/// The call succeeded.
pub(crate) const SUCCESS: Code = 0;
/// An event has not been signalled yet.
pub(crate) const NOT_READY: Code = 1;
/// The device hung, was reset or was removed.
pub(crate) const DEVICE_LOST: Code = 0x7000_0001;
/// The host has too little memory.
const OUT_OF_HOST_MEMORY: Code = 0x7000_0002;
/// The device has too little memory.
const OUT_OF_DEVICE_MEMORY: Code = 0x7000_0003;
/// The driver's compiler rejected a module.
pub(crate) const MODULE_BUILD_FAILURE: Code = 0x7000_0004;
/// The device works again only after a reset.
const DEVICE_REQUIRES_RESET: Code = 0x7000_0006;
/// The user may not access the device.
const INSUFFICIENT_PERMISSIONS: Code = 0x7001_0000;
/// A library that the driver needs is missing.
const DEPENDENCY_UNAVAILABLE: Code = 0x7002_0000;
/// The loader found no driver, or no driver found a device.
pub(crate) const UNINITIALIZED: Code = 0x7800_0001;
/// The size is larger than the device supports.
const UNSUPPORTED_SIZE: Code = 0x7800_0009;

/// Names of codes in messages.
const NAMES: [(Code, &str); 20] = [
    (NOT_READY, "NOT_READY"),
    (DEVICE_LOST, "DEVICE_LOST"),
    (OUT_OF_HOST_MEMORY, "OUT_OF_HOST_MEMORY"),
    (OUT_OF_DEVICE_MEMORY, "OUT_OF_DEVICE_MEMORY"),
    (MODULE_BUILD_FAILURE, "MODULE_BUILD_FAILURE"),
    (DEVICE_REQUIRES_RESET, "DEVICE_REQUIRES_RESET"),
    (INSUFFICIENT_PERMISSIONS, "INSUFFICIENT_PERMISSIONS"),
    (DEPENDENCY_UNAVAILABLE, "DEPENDENCY_UNAVAILABLE"),
    (UNINITIALIZED, "UNINITIALIZED"),
    (0x7800_0002, "UNSUPPORTED_VERSION"),
    (0x7800_0003, "UNSUPPORTED_FEATURE"),
    (0x7800_0004, "INVALID_ARGUMENT"),
    (0x7800_0008, "INVALID_SIZE"),
    (UNSUPPORTED_SIZE, "UNSUPPORTED_SIZE"),
    (0x7800_000f, "INVALID_NATIVE_BINARY"),
    (0x7800_0011, "INVALID_KERNEL_NAME"),
    (0x7800_0013, "INVALID_GROUP_SIZE_DIMENSION"),
    (0x7800_0015, "INVALID_KERNEL_ARGUMENT_INDEX"),
    (0x7800_0016, "INVALID_KERNEL_ARGUMENT_SIZE"),
    (0x7fff_fffe, "UNKNOWN"),
];

/// Returns the error for the code that `call` returned.
pub(crate) fn failure(call: &str, code: Code) -> Error {
    let name = NAMES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name);
    Error::of_call(call, code.into(), name, matches!(code, DEVICE_LOST | DEVICE_REQUIRES_RESET))
}

/// Converts an error to [`Error::OutOfMemory`] if its code means that memory is exhausted.
pub(crate) fn allocation_failure(error: Error, wanted: u64) -> Error {
    const SHORTAGE: [Code; 3] = [OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, UNSUPPORTED_SIZE];
    error.or_shortage(|code| SHORTAGE.map(i64::from).contains(&code), wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_names() {
        let Error::Api { call, code } = failure("zeX", 0x7800_0004) else { panic!("not an API error") };
        assert_eq!((call.as_str(), code), ("zeX (INVALID_ARGUMENT)", 0x7800_0004));
        assert_eq!(failure("zeX", 77), Error::Api { call: "zeX".into(), code: 77 });
    }

    #[test]
    fn some_codes_mean_a_lost_device() {
        for code in [DEVICE_LOST, DEVICE_REQUIRES_RESET] {
            assert!(matches!(failure("zeX", code), Error::Lost { cause } if cause.contains("zeX")));
        }
    }

    #[test]
    fn shortages_are_distinguished_from_other_failures() {
        for code in [OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, UNSUPPORTED_SIZE] {
            let error = allocation_failure(failure("zeX", code), 100);
            assert_eq!(error, Error::OutOfMemory { wanted: 100, free: None });
        }
        for code in [UNINITIALIZED, DEVICE_LOST] {
            assert_eq!(allocation_failure(failure("zeX", code), 100), failure("zeX", code));
        }
    }
}
