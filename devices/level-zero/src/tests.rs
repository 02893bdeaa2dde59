//! Tests that use internals of the crate: a lost device, and the return codes of Intel's own driver. In the
//! latter test, the driver captures commands for an A770 instead of executing them.

#![allow(clippy::print_stdout)] // a skip is visible

use crate::api::types::value;
use crate::api::{Argument, Kernel, Module, UsmMemory, api};
use crate::probe::probe;
use crate::{LevelZeroBackend, LevelZeroConfig};
use device_bench::{Bench, SCALE, all, function, module_of_codes, open, scale, scale_binary, suite, upload};
use ragtag_hal::{Backend, Command, Device, DeviceId, Error, KernelLanguage, Limits, ModuleId, QueueKind};
use std::sync::Arc;
use test_drivers::with_level_zero_on_opencl;
use test_support::Child;

/// Variables that make Intel's driver capture commands for an A770.
const CAPTURE: [(&str, &str); 6] = [
    ("NEOReadDebugKeys", "1"),
    ("SetCommandStreamReceiver", "1"),
    ("ProductFamilyOverride", "dg2"),
    ("HardwareInfoOverride", "8x4x16"),
    ("ForceDeviceId", "0x56a0"),
    ("AUBDumpCaptureFileName", "/dev/null"),
];

fn backend() -> LevelZeroBackend {
    LevelZeroBackend::new(LevelZeroConfig { cache_folder: None, ..LevelZeroConfig::default() })
}

/// Runs `body` in a separate process with Intel's driver. Skips the test if the driver is not installed.
#[track_caller]
fn captured(test: &str, body: impl FnOnce()) {
    if Child::inside(test) {
        return match backend().probe() {
            Ok(_) => body(),
            Err(unavailable) => test_support::skip!("Intel's Level Zero driver", "{unavailable}"),
        };
    }
    let child = test_support::child(test).envs(CAPTURE).env_remove("ZE_ENABLE_ALT_DRIVERS");
    child.env("ZE_ENABLE_VALIDATION_LAYER", "1").env("ZE_ENABLE_PARAMETER_VALIDATION", "1").passes();
}

#[test]
fn a_lost_device_reports_its_loss_and_closes() {
    with_level_zero_on_opencl("tests::a_lost_device_reports_its_loss_and_closes", &[], || {
        let backend = backend();
        for adapter in backend.probe().unwrap() {
            let device = backend.open_one(DeviceId(0), &adapter).unwrap();
            suite::a_lost_device_reports_its_loss_and_closes(device, suite::unplug);
        }
    });
}

#[test]
fn intels_driver_accepts_the_calls_of_all_commands() {
    captured("tests::intels_driver_accepts_the_calls_of_all_commands", || {
        let backend = backend();
        let adapter = backend.probe().unwrap().swap_remove(0);
        println!("{adapter:?}");
        assert!(adapter.name.contains("0x56a0"), "{}", adapter.name);
        let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
        let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
        let commands = vec![
            scale(all(0), all(1), 3),
            Command::Fill { to: all(2), word: 7 },
            Command::Copy { from: all(1), to: all(3) },
            device_bench::download(1),
        ];
        let ran = bench.commands(QueueKind::Compute, commands.clone(), &[up]);
        bench.wait(ran);
        bench.device.record(ragtag_hal::ProgramId(0), commands).unwrap();
        for _ in 0..3 {
            let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
            let ran = bench.program(0, &[up]);
            let down = bench.commands(QueueKind::Download, vec![device_bench::download(3)], &[ran]);
            bench.wait(down);
        }
        let missing = module_of_codes(
            KernelLanguage::SpirV,
            vec![(device_bench::scale_code(KernelLanguage::SpirV).unwrap(), function("no_such_kernel"))],
        );
        let refused = bench.device.create_module(ModuleId(1), &missing);
        let named = |log: &str| log.contains("no_such_kernel") && log.contains("INVALID_KERNEL_NAME");
        assert!(matches!(&refused, Err(Error::Compile { log }) if named(log)), "{refused:?}");
    });
}

#[test]
fn intels_driver_returns_the_expected_codes() {
    captured("tests::intels_driver_returns_the_expected_codes", || {
        let found = probe("level-zero").unwrap().swap_remove(0);
        let context = found.driver.context().unwrap();
        let module =
            |code: &[u8]| Module::new(&context, found.device, value::SPIR_V, code, found.build_flags);
        let module = Arc::new(module(&scale_binary(1)).unwrap());
        assert!(module.native().is_some_and(|native| native.len() > 100));
        let mut kernel = Kernel::new(&module, SCALE.name).unwrap();
        assert_eq!(kernel.properties().unwrap().arguments, 4);
        let code = |error: Option<Error>| match error {
            Some(Error::Api { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(Kernel::new(&module, "no_such_kernel").err()), 0x7800_0011);
        assert_eq!(code(kernel.set_group([1 << 20, 1, 1]).err()), 0x7800_0013);
        let stray = kernel.bind(&[Argument::Address(0x1000)]).err();
        assert_eq!(code(stray), 0x7800_0004, "an address without memory");
        let memory = UsmMemory::device(&context, found.device, 4096, found.relaxed).unwrap();
        let address = Argument::Address(memory.pointer() as u64);
        let fine = [address, address, Argument::Word(1), Argument::Word(2)];
        kernel.bind(&fine).unwrap();
        let more = kernel.bind(&[&fine[..], &[Argument::Word(3)]].concat()).err();
        assert_eq!(code(more), 0x7800_0004, "an argument too many");
        assert!(api().unwrap().drivers().unwrap().len() == 1);
    });
}
