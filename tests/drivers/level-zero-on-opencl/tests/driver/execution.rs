//! Kernels, copies, fills, events, lists and queues.

use crate::client::*;
use crate::types::code::NOT_READY;
use crate::types::*;
use std::ptr;
use test_drivers::with_level_zero_on_opencl;

const COUNT: usize = 1000;
const BYTES: usize = COUNT * 4;
const NONE: Handle = ptr::null_mut();

fn values() -> Vec<f32> {
    (0..COUNT).map(|value| value as f32).collect()
}

/// Returns the values in shared memory, which the host may read once no command uses it.
fn shared<'a>(memory: Handle) -> &'a mut [f32] {
    // SAFETY: the tests allocate this many bytes and wait for all commands.
    unsafe { std::slice::from_raw_parts_mut(memory.cast(), COUNT) }
}

#[test]
fn kernels_compute_on_both_devices() {
    with_level_zero_on_opencl("execution::kernels_compute_on_both_devices", &[], || {
        let ze = Client::new();
        assert_eq!(ze.devices.len(), 2);
        for device in 0..2 {
            let memory = ze.device_memory(device, BYTES);
            let kernel = ze.scale(ze.module(device), memory, 3.0, COUNT as u32);
            let [up, run, down] = ze.events();
            let [compute, copy] = [0, 1].map(|ordinal| ze.immediate(device, ordinal));
            let (from, mut to) = (values(), vec![0f32; COUNT]);
            ze.copy(copy, memory, from.as_ptr().cast(), BYTES, up, &[]);
            assert_eq!(ze.launch(compute, kernel, 32, run, &[up]), 0);
            ze.copy(copy, to.as_mut_ptr().cast(), memory, BYTES, down, &[run]);
            ze.wait(down);
            let tripled: Vec<f32> = from.iter().map(|value| value * 3.0).collect();
            assert_eq!(to, tripled);
            let mut stamps = Stamps::default();
            ok!(ze, zeEventQueryKernelTimestamp(run, &raw mut stamps));
            assert!(stamps.global[0] < stamps.global[1]);
        }
        ze.no_misuse();
    });
}

#[test]
fn kernels_use_local_memory_and_sub_groups() {
    with_level_zero_on_opencl("execution::kernels_use_local_memory_and_sub_groups", &[], || {
        let ze = Client::new();
        let [values, sums, lanes] = [(); 3].map(|()| ze.shared_memory(0, BYTES));
        shared(values).fill(0.5);
        let module = ze.module(0);
        let [sum, lane] = ["sum", "lanes"].map(|name| ze.kernel(module, name));
        ze.set(sum, 0, values);
        ze.set(sum, 1, sums);
        ok!(ze, zeKernelSetArgumentValue(sum, 2u32, 64usize * 4, ptr::null::<u8>()));
        ok!(ze, zeKernelSetGroupSize(sum, 64u32, 1u32, 1u32));
        ze.set(lane, 0, lanes);
        let mut properties: KernelProperties = blank();
        ok!(ze, zeKernelGetProperties(lane, &raw mut properties));
        assert_eq!((properties.arguments, properties.group, properties.sub_group), (1, [16, 1, 1], 16));
        let mut group = [0u32; 3];
        let [x, y, z] = group.each_mut().map(|side| &raw mut *side);
        ok!(ze, zeKernelSuggestGroupSize(sum, 1000u32, 6u32, 1u32, x, y, z));
        assert_eq!(group, [250, 1, 1]);
        let ([summed, done], list) = (ze.events(), ze.immediate(0, 0));
        assert_eq!(ze.launch(list, sum, 4, summed, &[]), 0);
        assert_eq!(ze.launch(list, lane, 2, done, &[summed]), 0);
        ze.wait(done);
        assert_eq!(shared(sums)[..4], [32.0; 4]);
        // SAFETY: the kernel wrote 32 numbers.
        let lanes = unsafe { std::slice::from_raw_parts(lanes.cast::<u32>(), 32) };
        assert!(lanes.iter().zip((0..16).chain(0..16)).all(|(value, lane)| *value == lane + 1600));
        ze.no_misuse();
    });
}

#[test]
fn addresses_may_be_null() {
    with_level_zero_on_opencl("execution::addresses_may_be_null", &[], || {
        let ze = Client::new();
        let memory = ze.shared_memory(0, BYTES);
        let kernel = ze.scale(ze.module(0), memory, 1.0, 0);
        ok!(ze, zeKernelSetArgumentValue(kernel, 0u32, 8usize, ptr::null::<u8>()));
        let ([done], list) = (ze.events(), ze.immediate(0, 0));
        assert_eq!(ze.launch(list, kernel, 1, done, &[]), 0);
        ze.wait(done);
        ze.no_misuse();
    });
}

#[test]
fn arguments_are_those_at_the_launch() {
    with_level_zero_on_opencl("execution::arguments_are_those_at_the_launch", &[], || {
        let ze = Client::new();
        let memory = ze.shared_memory(0, BYTES);
        shared(memory).fill(1.0);
        let kernel = ze.scale(ze.module(0), memory, 2.0, COUNT as u32);
        let ([open, first, done], list) = (ze.events(), ze.immediate(0, 0));
        assert_eq!(ze.launch(list, kernel, 32, first, &[open]), 0);
        ze.set(kernel, 1, 7f32);
        ze.set(kernel, 2, 1u32);
        assert_eq!(ze.launch(list, kernel, 32, done, &[first]), 0);
        ok!(ze, zeEventHostSignal(open));
        ze.wait(done);
        assert_eq!(shared(memory)[..3], [14.0, 2.0, 2.0]);
        ze.no_misuse();
    });
}

#[test]
fn commands_wait_for_events_of_other_engines_and_the_host() {
    let test = "execution::commands_wait_for_events_of_other_engines_and_the_host";
    with_level_zero_on_opencl(test, &[], || {
        let ze = Client::new();
        let memory = ze.shared_memory(0, BYTES);
        shared(memory).fill(1.0);
        let kernel = ze.scale(ze.module(0), memory, 2.0, COUNT as u32);
        let [open, filled, run] = ze.events();
        let [compute, copy] = [0, 1].map(|ordinal| ze.immediate(0, ordinal));
        // The launch is submitted first and must run last.
        assert_eq!(ze.launch(compute, kernel, 32, run, &[filled]), 0);
        let (pattern, waits) = (4f32, [open]);
        let (from, waits) = ((&raw const pattern).cast::<u8>(), waits.as_ptr());
        ok!(ze, zeCommandListAppendMemoryFill(copy, memory, from, 4usize, BYTES, filled, 1u32, waits));
        assert_eq!(ze!(ze, zeEventHostSynchronize(run, 2_000_000u64)), NOT_READY);
        assert_eq!(ze!(ze, zeEventQueryStatus(filled)), NOT_READY);
        ok!(ze, zeEventHostSignal(open));
        ze.wait(run);
        assert!(shared(memory).iter().all(|value| *value == 8.0));
        ok!(ze, zeEventHostReset(run));
        assert_eq!(ze!(ze, zeEventQueryStatus(run)), NOT_READY);
        ze.no_misuse();
    });
}

#[test]
fn a_closed_list_runs_many_times() {
    with_level_zero_on_opencl("execution::a_closed_list_runs_many_times", &[], || {
        let ze = Client::new();
        let memory = ze.shared_memory(0, BYTES);
        shared(memory).fill(1.0);
        let kernel = ze.scale(ze.module(0), memory, 2.0, COUNT as u32);
        let [go, end, done] = ze.events();
        let (recorded, queue, immediate) = (ze.list(0), ze.queue(0), ze.immediate(0, 0));
        let none = ptr::null::<Handle>();
        ok!(ze, zeCommandListAppendWaitOnEvents(recorded, 1u32, [go].as_mut_ptr()));
        ok!(ze, zeCommandListAppendEventReset(recorded, go));
        assert_eq!(ze.launch(recorded, kernel, 32, NONE, &[]), 0);
        ok!(ze, zeCommandListAppendBarrier(recorded, NONE, 0u32, none));
        assert_eq!(ze.launch(recorded, kernel, 32, NONE, &[]), 0);
        ok!(ze, zeCommandListAppendBarrier(recorded, end, 0u32, none));
        ok!(ze, zeCommandListClose(recorded));
        for round in 1..=10 {
            ok!(ze, zeCommandListAppendBarrier(immediate, go, 0u32, none));
            ok!(ze, zeCommandQueueExecuteCommandLists(queue, 1u32, [recorded].as_mut_ptr(), NONE));
            ok!(ze, zeCommandListAppendBarrier(immediate, done, 1u32, [end].as_mut_ptr()));
            ze.wait(done);
            assert_eq!(shared(memory)[COUNT - 1], 4f32.powi(round));
            ok!(ze, zeEventHostReset(done));
            ok!(ze, zeEventHostReset(end));
        }
        ok!(ze, zeCommandListReset(recorded));
        ok!(ze, zeCommandListDestroy(recorded));
        ok!(ze, zeCommandListDestroy(immediate));
        ok!(ze, zeCommandQueueDestroy(queue));
        ze.no_misuse();
    });
}

#[test]
fn matrix_units_are_emulated() {
    let variables = [("RAGTAG_FAKE_MATRIX_UNITS", "1")];
    with_level_zero_on_opencl("execution::matrix_units_are_emulated", &variables, || {
        let ze = Client::new();
        let (mut units, mut features): (DotProducts, ModuleFeatures) = (blank(), blank());
        features.head.next = (&raw mut units).cast();
        ok!(ze, zeDeviceGetModuleProperties(ze.devices[0], &raw mut features));
        assert_eq!(units.flags & 2, 2);

        let (code, module, log) = ze.build(0, 0, include_bytes!("../matrix.spv"), "");
        assert_eq!(code, 0, "{log}");
        let [left, right, sums] = [(); 3].map(|()| ze.shared_memory(0, BYTES));
        // The left matrix is all 1. Every column of the right one has the values 1, 0, 2, 0, 3, 0, 4, in f16.
        let words = [0x3c00u32, 0x4000, 0x4200, 0x4400, 0, 0, 0, 0]; // 1, 2, 3, 4
        for (at, word) in words.repeat(8).into_iter().enumerate() {
            // SAFETY: each matrix has 64 words.
            unsafe {
                left.cast::<u32>().add(at).write(0x3c00_3c00);
                right.cast::<u32>().add(at).write(word);
            }
        }
        shared(sums).fill(0.5);
        let kernel = ze.kernel(module, "multiply");
        [left, right, sums].into_iter().zip(0..).for_each(|(matrix, at)| ze.set(kernel, at, matrix));
        let ([done], list) = (ze.events(), ze.immediate(0, 0));
        assert_eq!(ze.launch(list, kernel, 1, done, &[]), 0);
        ze.wait(done);
        assert!(shared(sums)[..64].iter().all(|sum| *sum == 10.5));
        ze.no_misuse();
    });
}

#[test]
fn a_missing_barrier_shows() {
    with_level_zero_on_opencl("execution::a_missing_barrier_shows", &[], || {
        let ze = Client::new();
        let (memory, none) = (ze.shared_memory(0, BYTES), ptr::null::<Handle>());
        let kernel = ze.scale(ze.module(0), memory, 2.0, COUNT as u32);
        for (with_barrier, expected) in [(true, 2.0), (false, 1.0)] {
            let ([done], list, queue) = (ze.events(), ze.list(0), ze.queue(0));
            let pattern = 1f32;
            let from = (&raw const pattern).cast::<u8>();
            ok!(ze, zeCommandListAppendMemoryFill(list, memory, from, 4usize, BYTES, NONE, 0u32, none));
            if with_barrier {
                ok!(ze, zeCommandListAppendBarrier(list, NONE, 0u32, none));
            }
            assert_eq!(ze.launch(list, kernel, 32, NONE, &[]), 0);
            ok!(ze, zeCommandListAppendBarrier(list, done, 0u32, none));
            ok!(ze, zeCommandListClose(list));
            ok!(ze, zeCommandQueueExecuteCommandLists(queue, 1u32, [list].as_mut_ptr(), NONE));
            ze.wait(done);
            assert!(shared(memory).iter().all(|value| *value == expected));
        }
        ze.no_misuse();
    });
}

#[test]
fn fences_and_queues_end_after_their_lists() {
    with_level_zero_on_opencl("execution::fences_and_queues_end_after_their_lists", &[], || {
        let ze = Client::new();
        let ([open], queue, list) = (ze.events(), ze.queue(1), ze.list(1));
        ok!(ze, zeCommandListAppendWaitOnEvents(list, 1u32, [open].as_mut_ptr()));
        ok!(ze, zeCommandListClose(list));
        let desc: FenceDesc = blank();
        let fence = made!(ze, zeFenceCreate(queue, &raw const desc));
        ok!(ze, zeCommandQueueExecuteCommandLists(queue, 1u32, [list].as_mut_ptr(), fence));
        assert_eq!(ze!(ze, zeFenceQueryStatus(fence)), NOT_READY);
        assert_eq!(ze!(ze, zeCommandQueueSynchronize(queue, 2_000_000u64)), NOT_READY);
        ok!(ze, zeEventHostSignal(open));
        ok!(ze, zeFenceHostSynchronize(fence, LONG_NS));
        ok!(ze, zeCommandQueueSynchronize(queue, LONG_NS));
        ok!(ze, zeFenceReset(fence));
        assert_eq!(ze!(ze, zeFenceQueryStatus(fence)), NOT_READY);
        ok!(ze, zeFenceDestroy(fence));
        ze.no_misuse();
    });
}

#[test]
fn the_devices_run_apart() {
    with_level_zero_on_opencl("execution::the_devices_run_apart", &[], || {
        let ze = Client::new();
        let [stuck, free, other, open] = ze.events();
        let [first, second] = [0, 1].map(|device| ze.immediate(device, 0));
        let none = ptr::null::<Handle>();
        // The engine of the first device waits, and so does later work of all its lists.
        ok!(ze, zeCommandListAppendBarrier(first, stuck, 1u32, [open].as_mut_ptr()));
        ok!(ze, zeCommandListAppendBarrier(ze.immediate(0, 0), free, 0u32, none));
        ok!(ze, zeCommandListAppendBarrier(second, other, 0u32, none));
        ze.wait(other);
        assert_eq!(ze!(ze, zeEventHostSynchronize(free, 2_000_000u64)), NOT_READY);
        ok!(ze, zeEventHostSignal(open));
        ze.wait(free);
        assert_eq!(ze!(ze, zeEventQueryStatus(stuck)), 0);
        ze.no_misuse();
    });
}

#[test]
fn native_binaries_replace_spirv() {
    with_level_zero_on_opencl("execution::native_binaries_replace_spirv", &[], || {
        let ze = Client::new();
        let module = ze.module(0);
        let mut bytes = 0usize;
        ok!(ze, zeModuleGetNativeBinary(module, &raw mut bytes, ptr::null_mut::<u8>()));
        let mut binary = vec![0u8; bytes];
        ok!(ze, zeModuleGetNativeBinary(module, &raw mut bytes, binary.as_mut_ptr()));
        let (code, module, log) = ze.build(1, 1, &binary, "");
        assert_eq!(code, 0, "{log}");
        let memory = ze.shared_memory(1, BYTES);
        shared(memory).fill(1.0);
        let kernel = ze.scale(module, memory, 5.0, COUNT as u32);
        let ([done], list) = (ze.events(), ze.immediate(1, 0));
        assert_eq!(ze.launch(list, kernel, 32, done, &[]), 0);
        ze.wait(done);
        assert_eq!(shared(memory)[COUNT - 1], 5.0);
        ze.no_misuse();
    });
}
