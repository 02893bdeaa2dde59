//! Test of a real device loss, caused by a kernel that writes to an invalid address. The test has its own
//! process, because a driver may be unusable after a loss.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{Command, Device, Error, KernelLanguage, Limits, QueueKind};
use support::*;

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
fn a_stray_kernel_loses_the_device() {
    let backend = backend();
    let adapters = adapters(&backend);
    let Some((adapter, others)) = adapters.split_first() else { return };
    let others = others.iter().zip(1..).map(|(other, id)| open(&backend, other, id, &Limits::default()));
    let others: Vec<_> = others.map(Bench::new).collect();
    let anew = support::backend();
    let lost = goes_astray([&backend, &anew], adapter, (KernelLanguage::Ptx, TEXT), 0x7000_0000);
    let [first, later] = lost.unwrap_or_else(|| panic!("{} is not lost", adapter.label()));
    let Error::Lost { cause } = first.root() else { panic!("{first:?}") };
    assert!(cause.contains("cu") && cause.contains("700"), "the call and its code: {cause}");
    assert_eq!(later.root(), first.root(), "the first cause is kept");
    // CUDA does not specify the effect on the process's other devices: they keep working, or they are lost
    // too.
    for mut other in others {
        let label = other.device.adapter().label();
        let error = other.failure(QueueKind::Compute, vec![Command::Fill { to: all(0), word: 4 }]);
        println!("{label}, opened before: {error:?}");
        match error {
            None => other.works(),
            Some(error) => assert!(matches!(error.root(), Error::Lost { .. }), "{error:?}"),
        }
    }
}
