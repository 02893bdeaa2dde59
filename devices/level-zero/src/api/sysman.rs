//! Figures of Sysman, Level Zero's interface for system management: free memory, temperatures and limited
//! clocks.
//!
//! Sysman answers only if the user has set `ZES_ENABLE_SYSMAN=1`, and then only users who may read the
//! figures. A device handle is also a Sysman handle if the variable was set when the process started.

use super::types::*;
use super::{Device, call_optional, check, lacks};
use crate::error::Code;
use ragtag_hal::{Condition, Error, Result, ThrottleReason};

/// Environment variable that enables Sysman.
const ENABLES: &str = "ZES_ENABLE_SYSMAN";
/// Maximum number of parts of one kind whose figures are read.
const MAX_PARTS: usize = 64;

/// Signature of the functions that list the parts of a device.
type Enumerate = unsafe extern "C" fn(Handle, *mut u32, *mut Handle) -> Code;

/// Reasons for a limited clock, as bits of `zes_freq_throttle_reason_flags_t`.
const REASONS: [ThrottleReason; 7] = [
    ThrottleReason::Power,
    ThrottleReason::BurstPower,
    ThrottleReason::Current,
    ThrottleReason::Temperature,
    ThrottleReason::PowerSupply,
    ThrottleReason::Settings,
    ThrottleReason::Hardware,
];
/// Names of the values of `zes_mem_health_t` that need attention, from 2.
const HEALTH: [&str; 3] = ["degraded", "critical", "to be replaced"];

impl Device {
    /// Returns the handles of the parts of one kind.
    ///
    /// # Errors
    /// Returns an error if Sysman does not answer, or for a tile, because Sysman's figures are those of the
    /// whole card.
    fn parts(self, name: &str, enumerate: Option<Enumerate>) -> Result<Vec<Handle>> {
        let unknown = |why: &str| Err(Error::Unsupported { what: format!("figures of Sysman {why}") });
        if std::env::var_os(ENABLES).is_none_or(|value| value != "1") {
            return unknown("without ZES_ENABLE_SYSMAN=1");
        }
        if self.properties()?.flags & value::SUBDEVICE != 0 {
            return unknown("for a tile");
        }
        let enumerate = enumerate.ok_or_else(|| lacks(name))?;
        let mut parts = [Handle::NULL; MAX_PARTS];
        let mut count = parts.len() as u32;
        // SAFETY: the list has room for this many handles.
        check(name, unsafe { enumerate(self.handle, &raw mut count, parts.as_mut_ptr()) })?;
        Ok(parts.into_iter().take(count as usize).collect())
    }

    /// Returns the state of each memory module.
    fn memory_states(self) -> Result<Vec<MemoryState>> {
        let enumerate = self.api.functions.zesDeviceEnumMemoryModules;
        let state = |module| {
            let mut state = MemoryState::default();
            // SAFETY: the call fills the structure.
            unsafe { call_optional!(self.api, zesMemoryGetState(module, &raw mut state)) }.map(|()| state)
        };
        self.parts("zesDeviceEnumMemoryModules", enumerate)?.into_iter().map(state).collect()
    }

    /// Returns the free bytes of all memory modules.
    ///
    /// # Errors
    /// Returns an error if Sysman does not answer.
    pub(crate) fn free_bytes(self) -> Result<u64> {
        let states = self.memory_states()?;
        let sum = |sum: u64, state: &MemoryState| sum.saturating_add(state.free_bytes);
        match states.is_empty() {
            true => Err(Error::Unsupported { what: "figures of Sysman for this device's memory".into() }),
            false => Ok(states.iter().fold(0, sum)),
        }
    }

    /// Returns the highest temperature of all sensors, in degrees Celsius.
    fn celsius(self) -> Option<i32> {
        let enumerate = self.api.functions.zesDeviceEnumTemperatureSensors;
        let sensors = self.parts("zesDeviceEnumTemperatureSensors", enumerate).ok()?;
        let read = |sensor| {
            let mut celsius = 0.0;
            // SAFETY: the call writes one number.
            unsafe { call_optional!(self.api, zesTemperatureGetState(sensor, &raw mut celsius)) }.ok()?;
            Some(celsius.round() as i32)
        };
        sensors.into_iter().filter_map(read).max()
    }

    /// Returns the domain, if it is known, and the state of each clock.
    fn clocks(self) -> Result<Vec<(Option<u32>, FrequencyState)>> {
        let enumerate = self.api.functions.zesDeviceEnumFrequencyDomains;
        let read = |clock| {
            let (mut properties, mut state) = (FrequencyProperties::default(), FrequencyState::default());
            // SAFETY: the call fills the structure.
            let described =
                unsafe { call_optional!(self.api, zesFrequencyGetProperties(clock, &raw mut properties)) };
            // SAFETY: the call fills the structure.
            unsafe { call_optional!(self.api, zesFrequencyGetState(clock, &raw mut state)) }?;
            Ok((described.ok().map(|()| properties.domain), state))
        };
        self.parts("zesDeviceEnumFrequencyDomains", enumerate)?.into_iter().map(read).collect()
    }

    /// Returns the temperature, the clocks, the limits of the clocks and the health of the memory, or
    /// `None` if Sysman reports none of them.
    pub(crate) fn condition(self) -> Option<Condition> {
        let clocks = self.clocks().unwrap_or_default();
        let reasons = clocks.iter().fold(0, |all, (_, clock)| all | clock.throttle_reasons);
        // An unknown clock is negative.
        let mhz = |domain| {
            let state =
                clocks.iter().find(|(of, _)| *of == Some(domain)).map(|(_, clock)| clock.actual_mhz.round());
            state.filter(|&mhz| mhz > 0.0).map(|mhz| mhz as u32)
        };
        let throttled_by = (0..).zip(REASONS).filter(|(at, _)| reasons >> at & 1 != 0);
        let worst = self.memory_states().unwrap_or_default().iter().map(|state| state.health).max();
        let health = worst.and_then(|health| HEALTH.get((health as usize).checked_sub(2)?));
        let condition = Condition {
            celsius: self.celsius(),
            compute_mhz: mhz(value::GPU_CLOCK),
            memory_mhz: mhz(value::MEMORY_CLOCK),
            throttled_by: throttled_by.map(|(_, reason)| reason).collect(),
            memory: health.map(|health| health.to_string()),
            ..Condition::default()
        };
        condition.if_known()
    }
}
