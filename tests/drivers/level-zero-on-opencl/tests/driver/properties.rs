//! Properties of the driver and its devices.

use crate::client::*;
use crate::types::*;
use std::ffi::CStr;
use std::ptr;
use test_drivers::with_level_zero_on_opencl;

const NONE: Handle = ptr::null_mut();

#[test]
fn devices_look_like_arc_cards() {
    let variables =
        [("ZES_ENABLE_SYSMAN", "1"), ("RAGTAG_FAKE_MEMORY_BYTES", "1000000"), ("RAGTAG_FAKE_GPUS", "1")];
    with_level_zero_on_opencl("properties::devices_look_like_arc_cards", &variables, || {
        let ze = Client::new();
        let mut uuids = Vec::new();
        for &device in &ze.devices {
            let mut all: DeviceProperties = blank();
            ok!(ze, zeDeviceGetProperties(device, &raw mut all));
            assert_eq!((all.kind, all.vendor, all.device, all.flags), (1, 0x8086, 0x56a0, 0));
            assert_eq!((all.timer, all.kernel_timestamp_bits), (19_200_000, 32));
            uuids.push(all.uuid);

            let mut compute: ComputeProperties = blank();
            ok!(ze, zeDeviceGetComputeProperties(device, &raw mut compute));
            assert_eq!(compute.sub_groups[..compute.sub_group_count as usize], [8, 16, 32]);
            let mut features: ModuleFeatures = blank();
            ok!(ze, zeDeviceGetModuleProperties(device, &raw mut features));
            assert_eq!((features.spirv, features.flags & 3), (0x1_0002, 1), "fp16 and no fp64");

            let mut groups: [QueueGroup; 2] = [blank(); 2];
            let mut count = 2u32;
            let to = groups.as_mut_ptr();
            ok!(ze, zeDeviceGetCommandQueueGroupProperties(device, &raw mut count, to));
            assert_eq!((count, groups.map(|group| group.flags & 3)), (2, [3, 2]));

            let (mut count, mut memory) = (1u32, NONE);
            ok!(ze, zesDeviceEnumMemoryModules(device, &raw mut count, &raw mut memory));
            let mut state: SysmanMemoryState = blank();
            ok!(ze, zesMemoryGetState(memory, &raw mut state));
            assert_eq!((state.free, state.bytes), (1_000_000, 1_000_000));
            let (mut sensor, mut celsius) = (NONE, 0f64);
            ok!(ze, zesDeviceEnumTemperatureSensors(device, &raw mut count, &raw mut sensor));
            ok!(ze, zesTemperatureGetState(sensor, &raw mut celsius));
            assert!(celsius > 0.0);
            let (mut clock, mut frequency): (_, SysmanFrequency) = (NONE, blank());
            ok!(ze, zesDeviceEnumFrequencyDomains(device, &raw mut count, &raw mut clock));
            let mut properties: SysmanClock = blank();
            ok!(ze, zesFrequencyGetProperties(clock, &raw mut properties));
            assert_eq!((properties.domain, properties.max), (0, 2400.0));
            ok!(ze, zesFrequencyGetState(clock, &raw mut frequency));
            assert_eq!((frequency.actual, frequency.throttle_reasons), (2400.0, 0));

            let (mut host, mut ticks) = ([0u64; 2], [0u64; 2]);
            for at in 0..2 {
                ok!(ze, zeDeviceGetGlobalTimestamps(device, &raw mut host[at], &raw mut ticks[at]));
            }
            assert!(host[0] < host[1] && ticks[0] <= ticks[1]);
        }
        assert_ne!(uuids[0], uuids[1]);
        let mut pci: PciProperties = blank();
        ok!(ze, zeDevicePciGetPropertiesExt(ze.devices[1], &raw mut pci));
        assert_eq!(pci.address[1], 4);
        ze.no_misuse();
    });
}

#[test]
fn devices_are_cpus_and_one_is_integrated() {
    with_level_zero_on_opencl("properties::devices_are_cpus_and_one_is_integrated", &[], || {
        let ze = Client::new();
        for (device, flags) in ze.devices.iter().zip([0, 1]) {
            let mut all: DeviceProperties = blank();
            ok!(ze, zeDeviceGetProperties(*device, &raw mut all));
            assert_eq!((all.kind, all.flags), (2, flags));
        }
    });
}

#[test]
fn the_driver_lists_its_extensions() {
    with_level_zero_on_opencl("properties::the_driver_lists_its_extensions", &[], || {
        let ze = Client::new();
        let mut count = 0u32;
        let none = ptr::null_mut::<Extension>();
        ok!(ze, zeDriverGetExtensionProperties(ze.driver, &raw mut count, none));
        let mut all = vec![Extension { name: [0; 256], version: 0 }; count as usize];
        ok!(ze, zeDriverGetExtensionProperties(ze.driver, &raw mut count, all.as_mut_ptr()));
        let is_relaxed = |one: &Extension| {
            CStr::from_bytes_until_nul(&one.name).unwrap() == c"ZE_experimental_relaxed_allocation_limits"
        };
        assert!(all.iter().any(is_relaxed));
        ze.no_misuse();
    });
}

#[test]
fn the_affinity_mask_hides_devices() {
    let test = "properties::the_affinity_mask_hides_devices";
    with_level_zero_on_opencl(test, &[("ZE_AFFINITY_MASK", "1")], || {
        let ze = Client::new();
        assert_eq!(ze.devices.len(), 1);
        let mut pci: PciProperties = blank();
        ok!(ze, zeDevicePciGetPropertiesExt(ze.devices[0], &raw mut pci));
        assert_eq!(pci.address[1], 4);
    });
}

#[test]
fn a_card_has_tiles() {
    with_level_zero_on_opencl("properties::a_card_has_tiles", &[("RAGTAG_FAKE_TILES", "1")], || {
        let ze = Client::new();
        let &[card] = &ze.devices[..] else { panic!("{} devices", ze.devices.len()) };
        let (mut tiles, mut count) = ([NONE; 3], 3u32);
        ok!(ze, zeDeviceGetSubDevices(card, &raw mut count, tiles.as_mut_ptr()));
        assert_eq!(count, 2);
        for (device, identity) in [(card, (0, 0)), (tiles[0], (2, 0)), (tiles[1], (2, 1))] {
            let mut all: DeviceProperties = blank();
            ok!(ze, zeDeviceGetProperties(device, &raw mut all));
            assert_eq!((all.flags, all.subdevice), identity);
        }
        count = 0;
        ok!(ze, zeDeviceGetSubDevices(tiles[0], &raw mut count, ptr::null_mut::<Handle>()));
        assert_eq!(count, 0);
        ze.no_misuse();
    });
}
