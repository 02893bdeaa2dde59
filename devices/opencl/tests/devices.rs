//! Tests on every OpenCL device of the machine: kernels, programs, memory, leases and errors.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{
    Backend, BufferId, Checked, Command, Device, DeviceId, Error, Limits, ModuleId, QueueKind,
    UnifiedAllocation,
};
use ragtag_opencl::{OpenClBackend, OpenClConfig, TransferMode};
use support::*;

device_bench::device_tests!(subject());
device_bench::suite_tests!(subject(), devices: imported_pages_only_take_copies);

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
            let mut bench = match backend.open(&[(adapter.clone(), DeviceId(0))], &Limits::default()) {
                Ok(mut devices) => {
                    let mut device = Checked::new(devices.swap_remove(0));
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
            bench.works_repeatedly(&format!("{transfer:?}"));
        }
    }
}

#[test]
fn adapters_list_the_kinds_of_unified_memory() {
    for adapter in adapters(&backend()) {
        let unified = &adapter.caps.sharing.unified;
        println!("{} ({}): {unified:?}", adapter.name, adapter.driver);
        let must_have = |part: &str, kind| !adapter.driver.name.contains(part) || unified.contains(&kind);
        assert!(must_have("Portable Computing Language", UnifiedAllocation::SvmCoarseBuffer), "{unified:?}");
        assert!(must_have("Intel(R) OpenCL", UnifiedAllocation::UsmHost), "{unified:?}");
    }
}

#[test]
fn devices_of_one_context_share_buffers() {
    for transfer in [None, Some(TransferMode::Explicit)] {
        let backend = OpenClBackend::new(OpenClConfig { transfer, ..config() });
        let all = adapters(&backend);
        let after = |at: usize| all[at + 1..].iter();
        let pairs = all.iter().enumerate().flat_map(|(at, from)| after(at).map(move |to| (from, to)));
        let pairs: Vec<_> = pairs.filter(|(from, to)| to.imports_from(from)).collect();
        if pairs.is_empty() && !all.is_empty() {
            test_support::skip!("two devices of one driver", "OpenCL devices that use host memory");
        }
        for (from, to) in pairs {
            println!("{} to {}", from.label(), to.label());
            let [mut owner, mut user] = open_both(&backend, [from, to]);
            shares(&mut owner, &mut user);
            shares(&mut user, &mut owner);
            drop((owner, user));

            let mut owner = Bench::new(open(&backend, from, 0, &Limits::default()));
            let mut user = Bench::new(open(&backend, to, 1, &Limits::default()));
            owner.device.create_shared_buffer(BufferId(9), 64).unwrap();
            let memory = owner.device.export_buffer(BufferId(9)).unwrap();
            let refused = user.device.import_buffer(BufferId(9), &memory).unwrap_err();
            assert!(refused.to_string().contains("another OpenCL context"), "{refused}");
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
