//! Memory and thermal state.

use crate::calls::entries;
use crate::calls::lock;
use crate::device::Device;
use crate::faults::setting;
use crate::handles::{describe, described, find, give, list, put};
use crate::types::*;
use std::sync::{Arc, Mutex};

/// Temperature of all devices, in degrees Celsius.
const CELSIUS: u64 = 45;
/// Clock of all devices, in MHz.
const MHZ: f64 = 2400.0;

/// The memory of a device.
struct Memory(Arc<Device>);
/// The temperature sensor of a device.
struct Sensor;
/// The clock of a device.
struct Clock;

/// Handles of a device's memory, sensor and clock.
static PARTS: Mutex<Vec<(usize, [usize; 3])>> = Mutex::new(Vec::new());

/// Returns the handles of a device's memory, sensor and clock. The first call creates them.
fn parts(device: &Arc<Device>) -> [usize; 3] {
    let mut all = lock(&PARTS);
    if let Some((_, parts)) = all.iter().find(|(number, _)| *number == device.number) {
        return *parts;
    }
    let parts = [give(Memory(Arc::clone(device))), give(Sensor), give(Clock)].map(|part| part as usize);
    all.push((device.number, parts));
    parts
}

entries! {
    fn zesDeviceEnumMemoryModules(device: Handle, count: *mut u32, to: *mut Handle) {
        let [memory, ..] = parts(&find::<Device>(device)?);
        list(count, to, &[memory], |to, one| put(to, one as Handle))
    }
    fn zesMemoryGetProperties(memory: Handle, to: *mut SysmanMemory) {
        let bytes = find::<Memory>(memory)?.0.total_bytes();
        describe(to, SysmanMemory {
            head: described(to)?.head,
            kind: 4, // GDDR6
            on_subdevice: 0,
            subdevice: 0,
            location: 1, // on the device
            bytes,
            bus_width: 256,
            channels: -1,
        })
    }
    fn zesMemoryGetState(memory: Handle, to: *mut SysmanMemoryState) {
        let memory = find::<Memory>(memory)?;
        let bytes = memory.0.total_bytes();
        let free = bytes.saturating_sub(memory.0.held_bytes());
        let health = setting("RAGTAG_FAKE_MEMORY_HEALTH").unwrap_or(1) as u32;
        describe(to, SysmanMemoryState { head: described(to)?.head, health, free, bytes })
    }
    fn zesDeviceEnumTemperatureSensors(device: Handle, count: *mut u32, to: *mut Handle) {
        let [_, sensor, _] = parts(&find::<Device>(device)?);
        list(count, to, &[sensor], |to, one| put(to, one as Handle))
    }
    fn zesTemperatureGetProperties(sensor: Handle, to: *mut SysmanTemperature) {
        find::<Sensor>(sensor)?;
        describe(to, SysmanTemperature {
            head: described(to)?.head,
            kind: 0, // the whole device
            on_subdevice: 0,
            subdevice: 0,
            max: 105.0,
            critical: 0,
            threshold_1: 0,
            threshold_2: 0,
        })
    }
    fn zesTemperatureGetState(sensor: Handle, celsius: *mut f64) {
        find::<Sensor>(sensor)?;
        put(celsius, setting("RAGTAG_FAKE_CELSIUS").unwrap_or(CELSIUS) as f64)
    }
    fn zesDeviceEnumFrequencyDomains(device: Handle, count: *mut u32, to: *mut Handle) {
        let [.., clock] = parts(&find::<Device>(device)?);
        list(count, to, &[clock], |to, one| put(to, one as Handle))
    }
    fn zesFrequencyGetProperties(clock: Handle, to: *mut SysmanClock) {
        find::<Clock>(clock)?;
        describe(to, SysmanClock {
            head: described(to)?.head,
            domain: 0, // the compute units
            on_subdevice: 0,
            subdevice: 0,
            can_control: 0,
            reports_throttling: 0,
            min: MHZ,
            max: MHZ,
        })
    }
    fn zesFrequencyGetState(clock: Handle, to: *mut SysmanFrequency) {
        find::<Clock>(clock)?;
        let throttle_reasons = setting("RAGTAG_FAKE_THROTTLE_REASONS").unwrap_or(0) as u32;
        let (head, unknown) = (described(to)?.head, -1.0);
        describe(to, SysmanFrequency {
            head,
            volts: unknown,
            request: MHZ,
            tdp: MHZ,
            efficient: unknown,
            actual: MHZ,
            throttle_reasons,
        })
    }
}
