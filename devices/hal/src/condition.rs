//! Condition of a device while it runs: its sensors, the limits of its clocks, and the health of its memory.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Reason for which a device limits its clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThrottleReason {
    /// The device or its memory is too hot.
    Temperature,
    /// The average power has reached its limit.
    Power,
    /// The power of short bursts has reached its limit.
    BurstPower,
    /// The current has reached its limit.
    Current,
    /// The power supply requests it.
    PowerSupply,
    /// The user or another program has limited the clocks.
    Settings,
    /// The hardware limits the clocks for another reason.
    Hardware,
}

impl fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Temperature => "temperature",
            Self::Power => "power",
            Self::BurstPower => "burst power",
            Self::Current => "current",
            Self::PowerSupply => "power supply",
            Self::Settings => "settings",
            Self::Hardware => "hardware",
        })
    }
}

/// Condition of a device. Fields that no interface reports are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Highest temperature of all sensors, in degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celsius: Option<i32>,
    /// Power draw in milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u64>,
    /// Power draw, in milliwatts, at which the device limits its clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u64>,
    /// Current clock of the compute units, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mhz: Option<u32>,
    /// Current clock of the memory, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Reasons for which the device limits its clocks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub throttled_by: BTreeSet<ThrottleReason>,
    /// State of memory that needs attention, such as `degraded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

impl Condition {
    /// Returns this condition with its unknown fields taken from `other`.
    pub fn or(self, other: &Self) -> Self {
        let throttled_by =
            if self.throttled_by.is_empty() { &other.throttled_by } else { &self.throttled_by };
        Self {
            celsius: self.celsius.or(other.celsius),
            power_mw: self.power_mw.or(other.power_mw),
            power_limit_mw: self.power_limit_mw.or(other.power_limit_mw),
            compute_mhz: self.compute_mhz.or(other.compute_mhz),
            memory_mhz: self.memory_mhz.or(other.memory_mhz),
            throttled_by: throttled_by.clone(),
            memory: self.memory.or_else(|| other.memory.clone()),
        }
    }

    /// Returns this condition, or `None` if all its fields are unknown.
    pub fn if_known(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// Returns the power draw and its limit, such as `310 W of 350 W`.
    fn power(&self) -> Option<String> {
        let watts = |mw: u64| format!("{:.0} W", mw as f64 / 1e3);
        let limit = self.power_limit_mw.map_or(String::new(), |mw| format!(" of {}", watts(mw)));
        self.power_mw.map(|mw| format!("{}{limit}", watts(mw)))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let celsius = self.celsius.map(|celsius| format!("{celsius} °C"));
        let clock = self.compute_mhz.map(|mhz| format!("{mhz} MHz"));
        let reasons: Vec<_> = self.throttled_by.iter().map(ToString::to_string).collect();
        let limited = (!reasons.is_empty()).then(|| format!("clocks limited by {}", reasons.join(" and ")));
        let memory = self.memory.as_ref().map(|state| format!("memory {state}"));
        let known = [celsius, self.power(), clock, limited, memory].into_iter().flatten();
        f.write_str(&known.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_list_what_is_known() {
        let hot = Condition {
            celsius: Some(99),
            power_mw: Some(309_600),
            power_limit_mw: Some(350_000),
            compute_mhz: Some(1410),
            memory_mhz: Some(1593),
            throttled_by: [ThrottleReason::Current, ThrottleReason::Temperature].into(),
            memory: Some("degraded".into()),
        };
        let text =
            "99 °C, 310 W of 350 W, 1410 MHz, clocks limited by temperature and current, memory degraded";
        assert_eq!(hot.to_string(), text);
        let warm = Condition { celsius: Some(45), ..Condition::default() };
        assert_eq!(warm.to_string(), "45 °C");
        assert_eq!(warm.clone().or(&hot), Condition { celsius: Some(45), ..hot.clone() });
        assert_eq!(hot.clone().or(&warm), hot);
        assert_eq!(Condition::default().if_known(), None);
    }
}
