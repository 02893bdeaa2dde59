//! A device that is really lost: by a kernel that writes where nothing is. In a process of its own, because some drivers are
//! good for nothing in it afterwards.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{
    Access, Backend, Binding, BufferId, Checked, Command, Device, DeviceId, Dispatch, EntryAbi, Error,
    KernelLanguage, Limits, Module, ModuleId, QueueKind, Work,
};
use support::*;

/// Writes a word far outside its binding, whatever the ABI says.
static STRAY: EntryAbi = EntryAbi {
    name: "stray",
    bindings: &[Access::Write],
    constants: 1,
    extents: |_, extents| extents[0] = 4,
};

const TEXT: &str = "
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

#[test]
fn a_kernel_that_goes_astray_loses_the_device() {
    let backend = backend();
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let module = module_of(KernelLanguage::Ptx, TEXT.into(), function("stray"));
        bench.device.create_module(ModuleId(1), &Module { entries: vec![&STRAY], ..module }).unwrap();
        let bindings = vec![Binding { range: all(0), access: Access::Write }];
        let stray = Dispatch {
            module: ModuleId(1),
            entry: 0,
            bindings,
            constants: vec![0x7000_0000],
            grid: [1, 1, 1],
        };
        let point = bench.commands(QueueKind::Compute, vec![Command::Dispatch(stray)], &[]);
        let first = bench.outcome(point);
        println!("{}: {first:?}", adapter.label());
        let Some(Error::Lost { cause }) = first.as_ref().map(Error::root) else { panic!("{first:?}") };
        assert!(cause.contains("cu") && cause.contains("700"), "the call and its code: {cause}");
        let said = match bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload(0)]), &[]) {
            Ok(point) => bench.outcome(point),
            Err(error) => Some(error),
        };
        assert_eq!(said.as_ref().map(Error::root), first.as_ref().map(Error::root), "it is said once");
        let refused = bench.device.create_buffer(BufferId(50), 4096);
        assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
        in_time("closing a lost device", move || drop(bench));

        // Some drivers are good for nothing in this process from now on, and say so.
        match support::backend().open(&[(adapter.clone(), DeviceId(0))], &Limits::default()) {
            Ok(mut devices) => {
                let mut bench = Bench::new(Checked::new(devices.swap_remove(0)));
                let fill = vec![Command::Fill { to: all(0), word: 4 }];
                let filled = bench.commands(QueueKind::Compute, fill, &[]);
                bench.wait(filled);
                assert_eq!(bench.words(0), vec![4; WORDS], "a device opened anew");
            }
            Err(error) => {
                println!("{}: not opened anew: {error}", adapter.label());
                assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            }
        }
    }
}
