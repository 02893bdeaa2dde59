//! Tests on every OpenCL device of the machine: kernels, programs, memory, leases and errors.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{Backend, BufferId, Command, Device, Error, Limits, ModuleId, QueueKind};
use ragtag_opencl::{OpenClBackend, OpenClConfig, TransferMode};
use support::*;

device_bench::device_tests!(subject());

#[test]
fn programs_replay_as_command_buffers_and_as_loops() {
    for command_buffers in [true, false] {
        let backend = OpenClBackend::new(OpenClConfig { command_buffers, ..config() });
        suite::devices::programs_replay(&Tested(backend));
    }
}

#[test]
fn all_transfer_modes_give_the_same_result() {
    for transfer in [TransferMode::Explicit, TransferMode::SharedVirtual, TransferMode::Unified] {
        let backend = OpenClBackend::new(OpenClConfig { transfer: Some(transfer), ..config() });
        for adapter in adapters(&backend) {
            let mut bench =
                match backend.open(&[(adapter.clone(), ragtag_hal::DeviceId(0))], &Limits::default()) {
                    Ok(mut devices) => {
                        let mut device = ragtag_hal::Checked::new(devices.swap_remove(0));
                        if let Err(error) = device.create_buffer(BufferId(9), 64) {
                            test_support::skip!(
                                "shared memory of OpenCL",
                                "{}: {transfer:?}: {error}",
                                adapter.label()
                            );
                            continue;
                        }
                        Bench::new(device)
                    }
                    Err(error) => panic!("{} does not open: {error}", adapter.label()),
                };
            for round in 1..20u32 {
                bench.fill_region(|at| at * round);
                let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
                let (from, to) = (buffer_range(0, 0, WORDS), buffer_range(1, 0, WORDS));
                let computed = bench.commands(QueueKind::Compute, vec![scale(from, to, 3)], &[up]);
                bench.wait(computed);
                same(
                    &bench.words(1),
                    &expected(|at| 3 * at * round + 1),
                    format!("{} {transfer:?}", adapter.label()),
                );
            }
        }
    }
}

#[test]
fn functions_are_checked_against_their_abi() {
    each(&subject(), |mut bench| {
        let short = "__kernel void scale(__global const uint *in, __global uint *out) { out[0] = in[0]; }";
        let arity = bench.device.create_module(ModuleId(1), &module(short.into()));
        assert!(matches!(&arity, Err(Error::Invalid { what }) if what.contains("2 parameters")), "{arity:?}");
    });
}

#[test]
fn overcommitted_memory_is_detected() {
    let backend = backend();
    for adapter in adapters(&backend) {
        // If the free memory is known, the backend itself rejects the allocation.
        if adapter.memory[0].free_bytes.is_some() {
            test_support::skip!("driver that hides its free memory", "{} reports it", adapter.label());
            continue;
        }
        let mut device = open(&backend, &adapter, 0, &Limits::default());
        let block = adapter.caps.max_allocation_bytes / 2;
        let blocks = adapter.memory[0].total_bytes / block + 2;
        let refused =
            (0..blocks as u32).find_map(|id| Some((id, device.create_buffer(BufferId(id), block).err()?)));
        let Some((id, Error::OutOfMemory { wanted, .. })) = refused else { panic!("{refused:?}") };
        assert!(wanted == block && id > 0, "{id} of {blocks}");
        device.destroy_buffer(BufferId(0)).unwrap();
        let mut bench_memory = || device.create_buffer(BufferId(id), block);
        assert_eq!(bench_memory(), Ok(()), "freed memory can be allocated again");
        for id in 1..=id {
            device.destroy_buffer(BufferId(id)).unwrap();
        }
        let mut bench = Bench::new(device);
        let fill = Command::Fill { to: buffer_range(0, 0, WORDS), word: 3 };
        let filled = bench.commands(QueueKind::Compute, vec![fill], &[]);
        bench.wait(filled);
        same(&bench.words(0), &vec![3; WORDS], bench.label());
    }
}
