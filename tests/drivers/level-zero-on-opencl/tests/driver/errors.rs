//! Codes of failed calls.

use crate::client::*;
use crate::types::code::*;
use crate::types::*;
use std::ptr;
use test_drivers::with_level_zero_on_opencl;

const NONE: Handle = ptr::null_mut();

#[test]
fn modules_and_kernels_report_their_errors() {
    with_level_zero_on_opencl("errors::modules_and_kernels_report_their_errors", &[], || {
        let ze = Client::new();
        let (code, _, log) = ze.build(0, 0, &SPIRV[..SPIRV.len() / 2], "");
        assert_eq!(code, MODULE_BUILD_FAILURE);
        assert!(!log.is_empty());
        let (code, _, log) = ze.build(0, 0, SPIRV, "-cl-no-such-option");
        assert_eq!(code, MODULE_BUILD_FAILURE);
        assert!(log.contains("no-such-option"), "{log}");
        assert_eq!(ze.build(0, 1, SPIRV, "").0, INVALID_NATIVE_BINARY);
        let (code, module, log) = ze.build(0, 0, SPIRV, "-ze-opt-disable");
        assert_eq!((code, &*log), (0, ""));

        let (desc, mut kernel) = (KernelDesc { name: c"unknown".as_ptr(), ..blank() }, NONE);
        let created = ze!(ze, zeKernelCreate(module, &raw const desc, &raw mut kernel));
        assert_eq!(created, INVALID_KERNEL_NAME);
        let [scale, sum, lanes] = ["scale", "sum", "lanes"].map(|name| ze.kernel(module, name));
        for [x, y, z] in [[0, 1, 1], [2048, 1, 1], [64, 64, 1], [u32::MAX, u32::MAX, 1]] {
            assert_eq!(ze!(ze, zeKernelSetGroupSize(scale, x, y, z)), INVALID_GROUP_SIZE_DIMENSION);
        }
        let set = ze!(ze, zeKernelSetGroupSize(lanes, 32u32, 1u32, 1u32));
        assert_eq!(set, INVALID_GROUP_SIZE_DIMENSION, "the kernel requires groups of 16");
        let word = 0u64;
        let from = (&raw const word).cast::<u8>();
        let cases = [
            (scale, 3, 4, INVALID_KERNEL_ARGUMENT_INDEX),
            (scale, 0, 4, INVALID_KERNEL_ARGUMENT_SIZE),
            (scale, 1, 8, INVALID_KERNEL_ARGUMENT_SIZE),
            (scale, 2, 4, 0),
            (sum, 2, 8, INVALID_ARGUMENT), // local memory has a size and no value
        ];
        for (kernel, at, bytes, expected) in cases {
            let set = ze!(ze, zeKernelSetArgumentValue(kernel, at as u32, bytes as usize, from));
            assert_eq!(set, expected, "argument {at} of {bytes} bytes");
        }
        // Null is a missing value, and not a value of zero, as in Intel's driver.
        assert_eq!(ze!(ze, zeKernelSetArgumentValue(scale, 0u32, 8usize, ptr::null::<u8>())), 0);
        ze.no_misuse();
    });
}

#[test]
fn misuse_is_reported() {
    with_level_zero_on_opencl("errors::misuse_is_reported", &[], || {
        let ze = Client::new();
        let misuses = ze.faults::<extern "C" fn() -> u64>("faults_misuses");
        let kernel = ze.kernel(ze.module(0), "scale");
        let ([event], immediate, copies) = (ze.events(), ze.immediate(0, 0), ze.immediate(0, 1));
        let (here, there) = (ze.device_memory(0, 64), ze.device_memory(1, 64));
        let host = [0u64; 8];
        let mut expected = 0;
        let mut is_misuse = |code: u32, wanted: u32| {
            expected += 1;
            assert_eq!((code, misuses()), (wanted, expected));
        };
        let set =
            |address: Handle| ze!(ze, zeKernelSetArgumentValue(kernel, 0u32, 8usize, &raw const address));
        is_misuse(set(host.as_ptr() as Handle), INVALID_ARGUMENT);
        is_misuse(set(NONE), INVALID_ARGUMENT);
        is_misuse(set(there), INVALID_ARGUMENT);
        assert_eq!(set(here), 0);
        is_misuse(ze.launch(immediate, kernel, 1, NONE, &[]), INVALID_ARGUMENT);
        ze.set(kernel, 1, 0f32);
        ze.set(kernel, 2, 0u32);
        is_misuse(ze.launch(immediate, kernel, 1, NONE, &[]), INVALID_ARGUMENT);
        ok!(ze, zeKernelSetGroupSize(kernel, 1u32, 1u32, 1u32));
        is_misuse(ze.launch(copies, kernel, 1, NONE, &[]), INVALID_COMMAND_LIST_TYPE);

        let (pattern, none) = ([0u8; 64], ptr::null::<Handle>());
        let fill = |list: Handle, to: Handle, pattern_bytes: usize, bytes: usize| {
            let from = pattern.as_ptr();
            ze!(ze, zeCommandListAppendMemoryFill(list, to, from, pattern_bytes, bytes, NONE, 0u32, none))
        };
        is_misuse(fill(copies, here, 32, 64), INVALID_SIZE);
        is_misuse(fill(immediate, here, 4, 66), INVALID_ARGUMENT);
        is_misuse(fill(immediate, there, 4, 64), INVALID_ARGUMENT);

        let (queue, list) = (ze.queue(0), ze.list(0));
        let execute = || ze!(ze, zeCommandQueueExecuteCommandLists(queue, 1u32, [list].as_mut_ptr(), NONE));
        is_misuse(execute(), INVALID_ARGUMENT);
        ok!(ze, zeCommandListClose(list));
        is_misuse(ze.launch(list, kernel, 1, NONE, &[]), INVALID_ARGUMENT);

        ok!(ze, zeEventDestroy(event));
        is_misuse(ze!(ze, zeEventQueryStatus(event)), INVALID_ARGUMENT);
        is_misuse(ze!(ze, zeMemFree(ze.context, host.as_ptr() as Handle)), INVALID_ARGUMENT);
        let ([waiting], [open]) = (ze.events(), ze.events());
        ok!(ze, zeCommandListAppendBarrier(immediate, waiting, 1u32, [open].as_mut_ptr()));
        is_misuse(ze!(ze, zeEventDestroy(waiting)), HANDLE_OBJECT_IN_USE);
        is_misuse(ze!(ze, zeCommandListDestroy(immediate)), HANDLE_OBJECT_IN_USE);
    });
}
