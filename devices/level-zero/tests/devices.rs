//! Tests on every Level Zero device: kernels, programs, memory, leases and errors.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{
    AdapterKind, BufferId, Device, Error, Feature, KernelLanguage, Limits, ModuleId, ProgramId, QueueKind,
    UnifiedAllocation,
};
use ragtag_level_zero::{LevelZeroBackend, LevelZeroConfig};
use std::ffi::CStr;
use support::*;
use test_drivers::level_zero_faults;

device_bench::device_tests!(subject());
device_bench::suite_tests!(subject(), devices: imported_pages_only_take_copies);

#[test]
fn adapters_describe_the_devices() {
    let subject = subject_with(&[("ZE_AFFINITY_MASK", "0,1")]);
    for adapter in subject.adapters() {
        println!("{adapter:?}");
        assert_eq!(adapter.caps.languages, [KernelLanguage::SpirV].into());
        let features = &adapter.caps.features;
        assert!(
            features.contains(&Feature::SubGroups) && features.contains(&Feature::IntegerDot),
            "{features:?}"
        );
        assert!(!features.contains(&Feature::Xmx), "{features:?}");
        assert!(adapter.identity.uuid.is_some(), "{:?}", adapter.identity);
        assert!(adapter.driver.name.starts_with("Level Zero 1."), "{}", adapter.driver);
        assert_eq!(adapter.driver.hidden_by.as_deref(), Some("ZE_AFFINITY_MASK=0,1"));
        assert_eq!(adapter.condition, None, "Sysman is not enabled");
        use UnifiedAllocation::{UsmDevice, UsmHost, UsmShared, UsmSharedCrossDevice};
        let kinds = [UsmHost, UsmDevice, UsmShared, UsmSharedCrossDevice].into();
        assert_eq!(adapter.caps.sharing.unified, kinds, "it cannot use any host memory");
    }
}

/// Runs the shared tests of memory with and without memory that host and device share.
#[test]
fn all_kinds_of_memory_give_the_same_result() {
    let subject = subject();
    for shared_below_bytes in [0, 64 << 10, u64::MAX] {
        let backend = LevelZeroBackend::new(LevelZeroConfig { shared_below_bytes, ..config() });
        for adapter in subject.adapters() {
            let mut bench = Bench::new(open(&backend, &adapter, 0, &Limits::default()));
            bench.works_repeatedly(&shared_below_bytes.to_string());
        }
    }
}

#[test]
fn peers_share_buffers() {
    let subject = subject_with(&[("RAGTAG_FAKE_PEERS", "1")]);
    let adapters = subject.adapters();
    let [first, second] = &adapters[..] else { return };
    assert!(first.imports_from(second) && second.imports_from(first));
    for [owner, user] in [[first, second], [second, first]] {
        let [mut owner, mut user] = open_both(&subject.backend, [owner, user]);
        assert_eq!(
            shares(&mut owner, &mut user),
            [true; 2],
            "the devices wait for each other without the host"
        );
    }
    assert_eq!(level_zero_faults().misuses(), 0);
}

#[test]
fn devices_that_are_no_peers_share_nothing() {
    let subject = subject();
    let adapters = subject.adapters();
    let [first, second] = &adapters[..] else { return };
    assert!(!first.imports_from(second) && first.imports_from(first));
    let mut owner = Bench::new(open(&subject.backend, first, 0, &Limits::default()));
    let mut user = Bench::new(open(&subject.backend, second, 1, &Limits::default()));
    owner.device.create_shared_buffer(BufferId(9), 64).unwrap();
    let memory = owner.device.export_buffer(BufferId(9)).unwrap();
    let refused = user.device.import_buffer(BufferId(9), &memory).unwrap_err();
    assert!(refused.to_string().contains("no peer"), "{refused}");
    let anew = support::backend();
    let mut stranger = Bench::new(open(&anew, first, 2, &Limits::default()));
    let refused = stranger.device.import_buffer(BufferId(9), &memory).unwrap_err();
    assert!(refused.to_string().contains("another Level Zero driver"), "{refused}");
}

#[test]
fn functions_are_checked_against_their_abi() {
    static SHORT: ragtag_hal::EntryAbi = ragtag_hal::EntryAbi { constants: 1, ..SCALE };
    each(&subject(), |mut bench| {
        let code = scale_code(KernelLanguage::SpirV).unwrap();
        let module = module_of_codes(KernelLanguage::SpirV, vec![(code, function("scale"))]);
        let module = ragtag_hal::Module { entries: vec![&SHORT], ..module };
        let arity = bench.device.create_module(ModuleId(1), &module);
        assert!(matches!(&arity, Err(Error::Invalid { what }) if what.contains("4 parameters")), "{arity:?}");
    });
}

/// Functions that a submission may call. Waits, queries and resets after its end do not count.
const SUBMITS: [&CStr; 14] = [
    c"zeCommandListAppendBarrier",
    c"zeCommandListAppendMemoryCopy",
    c"zeCommandListAppendMemoryFill",
    c"zeCommandListAppendLaunchKernel",
    c"zeCommandListAppendWaitOnEvents",
    c"zeCommandListAppendEventReset",
    c"zeCommandListClose",
    c"zeCommandListCreate",
    c"zeCommandQueueExecuteCommandLists",
    c"zeEventCreate",
    c"zeEventPoolCreate",
    c"zeEventHostSignal",
    c"zeKernelSetArgumentValue",
    c"zeKernelSetGroupSize",
];

#[test]
fn a_recorded_program_is_submitted_with_three_calls() {
    let subject = subject();
    for adapter in subject.adapters() {
        let faults = level_zero_faults();
        let calls = || SUBMITS.iter().map(|name| faults.calls(name)).sum::<u64>();
        let mut bench = Bench::new(open(&subject.backend, &adapter, 0, &Limits::default()));
        let commands = (0..50).map(|turn| scale(all(turn % 2), all((turn + 1) % 2), 3));
        bench.device.record(ProgramId(0), commands.collect()).unwrap();
        let step = |bench: &mut Bench| {
            let up = bench.commands(QueueKind::Upload, vec![upload(0), upload(2)], &[]);
            let before = calls();
            let ran = bench.program(0, &[up]);
            let made = calls() - before;
            bench.wait(ran);
            made
        };
        // The first steps create events.
        let first = [step(&mut bench), step(&mut bench)];
        let later: Vec<u64> = (0..5).map(|_| step(&mut bench)).collect();
        println!("{}: {first:?}, then {later:?} calls", adapter.label());
        assert!(later.iter().all(|&made| made == 3), "{}: {later:?}", adapter.label());
    }
}

#[test]
fn modules_and_kernels_are_created_once() {
    let subject = subject();
    if let Some(adapter) = subject.adapters().first() {
        let faults = level_zero_faults();
        let created = || [c"zeModuleCreate", c"zeKernelCreate"].map(|name| faults.calls(name));
        let mut bench = Bench::new(open(&subject.backend, adapter, 0, &Limits::default()));
        let once = created();
        let code = scale_code(KernelLanguage::SpirV).unwrap();
        let twice = vec![(code.clone(), function("scale")), (code, function("scale"))];
        for id in [1, 2] {
            let module = module_of_codes(KernelLanguage::SpirV, twice.clone());
            bench.device.create_module(ModuleId(id), &module).unwrap();
        }
        let mut again = Bench::new(open(&subject.backend, adapter, 1, &Limits::default()));
        again.works();
        bench.works();
        assert_eq!(created(), once, "modules and kernels");
        assert_eq!(once, [1, 1]);
    }
}

/// Checks that devices are called software devices or GPUs as the driver says.
#[test]
fn kinds_follow_the_driver() {
    let subject = subject();
    let kinds: Vec<_> = subject.adapters().iter().map(|adapter| adapter.kind).collect();
    assert!(kinds.iter().all(|kind| *kind == AdapterKind::Software), "{kinds:?}");
}

#[test]
fn matrix_units_are_a_feature() {
    for adapter in subject_with(&[("RAGTAG_FAKE_MATRIX_UNITS", "1")]).adapters() {
        assert!(adapter.caps.features.contains(&Feature::Xmx), "{:?}", adapter.caps.features);
    }
}

#[test]
fn arc_cards_are_discrete_gpus() {
    let subject = subject_with(&[("RAGTAG_FAKE_GPUS", "1")]);
    let kinds: Vec<_> = subject.adapters().iter().map(|adapter| adapter.kind).collect();
    assert!(kinds.iter().all(|kind| *kind == AdapterKind::Discrete), "{kinds:?}");
}

#[test]
fn sysman_reports_the_condition_of_devices() {
    let subject = subject_with(&[
        ("ZES_ENABLE_SYSMAN", "1"),
        ("RAGTAG_FAKE_CELSIUS", "97"),
        ("RAGTAG_FAKE_THROTTLE_REASONS", "9"),
        ("RAGTAG_FAKE_MEMORY_HEALTH", "2"),
    ]);
    for adapter in subject.adapters() {
        let condition = adapter.condition.as_ref().unwrap().to_string();
        assert_eq!(
            condition,
            "97 °C, 2400 MHz, clocks limited by temperature and power, memory degraded",
            "{}",
            adapter.label()
        );
        assert!(adapter.memory[0].free_bytes.is_some());
    }
}

#[test]
fn a_card_with_tiles_is_one_device() {
    let subject = subject_with(&[("RAGTAG_FAKE_TILES", "1")]);
    let adapters = subject.adapters();
    let Some(card) = adapters.first() else { return };
    assert!(adapters.len() == 1 && card.driver.name.ends_with(", 2 tiles"), "{adapters:?}");
    Bench::new(open(&subject.backend, card, 0, &Limits::default())).works();
}

#[test]
fn tiles_are_devices_if_the_user_wants_them() {
    let flat = [("RAGTAG_FAKE_TILES", "1"), ("ZE_FLAT_DEVICE_HIERARCHY", "FLAT"), ("ZES_ENABLE_SYSMAN", "1")];
    let subject = subject_with(&flat);
    let adapters = subject.adapters();
    let [first, second] = &adapters[..] else { return assert!(adapters.is_empty(), "{adapters:?}") };
    for (at, tile) in adapters.iter().enumerate() {
        assert!(tile.driver.name.ends_with(&format!(", tile {at}")), "{}", tile.driver);
        assert_eq!(tile.driver.hidden_by.as_deref(), Some("ZE_FLAT_DEVICE_HIERARCHY=FLAT"));
        // Sysman's figures are those of the card.
        assert_eq!((tile.memory[0].free_bytes, &tile.condition), (None, &None));
    }
    assert_ne!(first.identity.uuid, second.identity.uuid);
    assert!(first.imports_from(second) && second.imports_from(first));
    let [mut owner, mut user] = open_both(&subject.backend, [first, second]);
    assert_eq!(shares(&mut owner, &mut user), [true; 2]);
}
