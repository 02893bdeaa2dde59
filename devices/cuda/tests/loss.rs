//! Test of a real device loss, caused by a kernel that writes to an invalid address. The test has its own
//! process, because a driver may be unusable after a loss.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{Command, Device, Error, KernelLanguage, Limits, QueueKind};
use support::*;

#[test]
fn a_stray_kernel_loses_the_device() {
    let backend = backend();
    let adapters = adapters(&backend);
    let Some((adapter, others)) = adapters.split_first() else { return };
    let others = others.iter().zip(1..).map(|(other, id)| open(&backend, other, id, &Limits::default()));
    let others: Vec<_> = others.map(Bench::new).collect();
    let anew = support::backend();
    let lost = goes_astray([&backend, &anew], adapter, (KernelLanguage::Ptx, STRAY_PTX), 0x7000_0000);
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
