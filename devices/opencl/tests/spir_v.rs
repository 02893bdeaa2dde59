//! Tests of SPIR-V kernels, on every device that accepts them.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{
    BinaryEntry, Device, Error, KernelLanguage, Limits, Module, ModuleId, ModuleSource, QueueKind,
};
use std::sync::Arc;
use support::*;

fn spir_v(binary: Arc<[u8]>) -> Module {
    let entries = vec![BinaryEntry { binary, function: function("scale") }];
    Module { name: "binary".into(), entries: vec![&SCALE], source: ModuleSource::SpirV { entries } }
}

#[test]
fn a_binary_runs_on_devices_that_accept_spir_v() {
    let backend = backend();
    let mut taken = 0;
    for adapter in adapters(&backend) {
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let created = bench.device.create_module(ModuleId(1), &spir_v(scale_binary(1)));
        if !adapter.caps.languages.contains(&KernelLanguage::SpirV) {
            test_support::skip!(
                "SPIR-V in OpenCL",
                "{} ({}) does not accept it",
                adapter.label(),
                adapter.driver
            );
            assert!(matches!(created, Err(Error::Unsupported { .. })), "{created:?}");
            continue;
        }
        assert_eq!(created, Ok(()), "{}", adapter.label());
        taken += 1;
        bench.fill_region(|at| at + 5);
        let ragtag_hal::Command::Dispatch(mut launch) =
            scale(buffer_range(0, 0, WORDS), buffer_range(1, 0, WORDS), 9)
        else {
            unreachable!()
        };
        launch.module = ModuleId(1);
        let commands = vec![upload(0), ragtag_hal::Command::Dispatch(launch)];
        let ran = bench.commands(QueueKind::Compute, commands, &[]);
        bench.wait(ran);
        let wanted: Vec<u32> = (0..WORDS as u32).map(|at| 9 * (at + 5) + 1).collect();
        same(&bench.words(1), &wanted, adapter.label());
        let broken = bench.device.create_module(ModuleId(2), &spir_v(scale_binary(1)[..64].into()));
        assert!(matches!(broken, Err(Error::Compile { .. })), "{}: {broken:?}", adapter.label());
    }
    println!("{taken} devices accept SPIR-V");
}
