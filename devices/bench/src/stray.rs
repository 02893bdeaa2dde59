//! A real device loss, caused by a kernel that writes to an invalid address.

use crate::{Bench, all, function, in_time, open, same, upload};
use ragtag_hal::{
    Access, Adapter, Backend, Binding, BufferId, Checked, Command, Device, DeviceId, Dispatch, EntryAbi,
    Error, KernelLanguage, Limits, Module, ModuleId, QueueKind,
};

/// A kernel that violates its ABI: it writes a word far outside its binding.
pub static STRAY: EntryAbi = EntryAbi {
    name: "stray",
    bindings: &[Access::Write],
    constants: 1,
    extents: |_, extents| extents[0] = 4,
};

/// The kernel `stray` for CUDA.
pub const STRAY_PTX: &str = "
.version 8.0
.target sm_61
.address_size 64
.visible .entry stray(.param .u64 out, .param .u32 far)
{
	.reg .b32 %r<2>;
	.reg .b64 %a<3>;
	ld.param.u64 %a1, [out];
	ld.param.u32 %r1, [far];
	cvt.u64.u32 %a2, %r1;
	shl.b64 %a2, %a2, 20;
	add.u64 %a1, %a1, %a2;
	st.u32 [%a1], %r1;
	ret;
}
";

/// Causes a device loss with the kernel `stray`, which writes a word at the distance `far` from its binding.
/// Returns the first error and the error that reports the loss. Returns `None` if the device confines kernels
/// to their bindings. After the loss, tries to open the device again through the backend `again`.
#[track_caller]
pub fn goes_astray(
    [backend, again]: [&dyn Backend; 2],
    adapter: &Adapter,
    (language, text): (KernelLanguage, &str),
    far: u32,
) -> Option<[Error; 2]> {
    let label = adapter.label();
    let mut bench = Bench::new(open(backend, adapter, 0, &Limits::default()));
    let module = crate::module_of(language, text.into(), function("stray"));
    bench.device.create_module(ModuleId(1), &Module { entries: vec![&STRAY], ..module }).unwrap();
    let bindings = vec![Binding { range: all(0), access: Access::Write }];
    let stray = Dispatch { module: ModuleId(1), entry: 0, bindings, constants: vec![far], grid: [1, 1, 1] };
    let first = bench.failure(QueueKind::Compute, vec![Command::Dispatch(stray)]);
    println!("{label}: {first:?}");
    let first = first?;
    // One of the next ten submissions must report the loss, even if the first error did not.
    let said = (0..10).find_map(|_| {
        let said = bench.failure(QueueKind::Upload, vec![upload(0)])?;
        matches!(said.root(), Error::Lost { .. }).then_some(said)
    });
    println!("{label}: {said:?}");
    let Some(said) = said else { panic!("{label} does not report its loss") };
    let refused = bench.device.create_buffer(BufferId(50), 4096);
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    in_time("closing a lost device", move || drop(bench));

    // Some drivers are unusable for the rest of the process after a loss. Such a driver must report the loss
    // again.
    match again.open(&[(adapter.clone(), DeviceId(0))], &Limits::default()) {
        Ok(mut devices) => {
            let mut bench = Bench::new(Checked::new(devices.swap_remove(0)));
            let fill = Command::Fill { to: all(0), word: 4 };
            let filled = bench.commands(QueueKind::Compute, vec![fill], &[]);
            bench.wait(filled);
            same(&bench.words(0), &vec![4; crate::WORDS], "a device opened again");
        }
        Err(error) => {
            println!("{label}: not opened again: {error}");
            assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        }
    }
    Some([first, said])
}
