//! A device that is really lost: by a kernel that writes where nothing is. On a processor that would be the end of the
//! process, so it is tried on devices with memory of their own, and in a process of its own. Some devices keep every kernel
//! inside of its bindings: they cannot be lost this way.

#![allow(clippy::print_stdout)] // a skip is visible

#[path = "vulkan/support.rs"]
mod support;

use ragtag_hal::{
    Access, AdapterKind, Backend, Binding, BufferId, Checked, Command, Device, DeviceId, Dispatch, EntryAbi,
    Error, Limits, Module, ModuleId, QueueKind, TextEntry, Work,
};
use support::*;

/// Writes a word far outside its binding, whatever the ABI says.
static STRAY: EntryAbi = EntryAbi {
    name: "stray",
    bindings: &[Access::Write],
    constants: 1,
    extents: |_, extents| extents[0] = 4,
};

#[test]
fn a_kernel_that_goes_astray_loses_the_device() {
    let backend = backend();
    let own_memory = |kind| kind == AdapterKind::Discrete;
    let adapters: Vec<_> =
        adapters(&backend).into_iter().filter(|adapter| own_memory(adapter.kind)).collect();
    if adapters.is_empty() {
        println!("skipped: a device with memory of its own");
    }
    for adapter in adapters {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let text = "struct Constants { first_group: vec3<u32>, far: u32 }
            var<immediate> constants: Constants;
            @group(0) @binding(0) var<storage, read_write> result: array<u32>;
            @compute @workgroup_size(64)
            fn stray(@builtin(local_invocation_index) item: u32) {
                result[constants.far + (item << 20)] = 1u;
            }";
        let source = support::text(vec![TextEntry { text: text.into(), function: function("stray") }]);
        let module = Module { name: "stray".into(), entries: vec![&STRAY], source };
        bench.device.create_module(ModuleId(1), &module).unwrap();
        let bindings = vec![Binding { range: buffer_range(0, 0, WORDS), access: Access::Write }];
        let stray = Dispatch {
            module: ModuleId(1),
            entry: 0,
            bindings,
            constants: vec![0x3000_0000],
            grid: [1, 1, 1],
        };
        let point = bench.commands(QueueKind::Compute, vec![Command::Dispatch(stray)], &[]);
        let first = bench.outcome(point);
        println!("{}: {first:?}", adapter.label());
        if first.is_none() {
            println!("skipped: {} keeps kernels inside of their bindings", adapter.label());
            continue;
        }
        // The next calls find out that it is for good, if the first did not say so.
        let mut said = None;
        for _ in 0..10 {
            said = match bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload(0)]), &[]) {
                Ok(point) => bench.outcome(point),
                Err(error) => Some(error),
            };
            if matches!(said, Some(Error::Lost { .. })) {
                break;
            }
        }
        println!("{}: {said:?}", adapter.label());
        let lost = matches!(said.as_ref().map(Error::root), Some(Error::Lost { .. }));
        assert!(lost, "{}: {said:?}", adapter.label());
        let refused = bench.device.create_buffer(BufferId(50), 4096);
        assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
        in_time("closing a lost device", move || drop(bench));

        // Some drivers are good for nothing in this process from now on, and say so.
        let anew = support::backend().open(&[(adapter.clone(), DeviceId(0))], &Limits::default());
        match anew {
            Ok(mut devices) => {
                let mut bench = Bench::new(Checked::new(devices.swap_remove(0)));
                let fill = Command::Fill { to: buffer_range(0, 0, WORDS), word: 4 };
                let filled = bench.commands(QueueKind::Compute, vec![fill], &[]);
                bench.wait(filled);
                same(&bench.words(0), &vec![4; WORDS], "a device opened anew");
            }
            Err(error) => {
                println!("{}: not opened anew: {error}", adapter.label());
                assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            }
        }
    }
}
