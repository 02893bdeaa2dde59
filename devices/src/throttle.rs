//! Throttles of devices and links. They let a machine with identical devices behave like a machine with
//! different ones.
//!
//! ```text
//! throttle = device "=threads:" number | device "=sms:" number | device "=duty:" number "%"
//!          | "link:" device "->" device "=" rate
//! rate     = number ( "B/s" | "kB/s" | "MB/s" | "GB/s" )
//! ```
//!
//! This module parses throttles and checks them against the selected devices. It does not know how throttles
//! are implemented.

use crate::names::canonical;
use ragtag_hal::Label;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One throttle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThrottleSpec {
    /// Number of threads of one CPU device. The setting does not affect other CPU devices.
    Threads {
        /// Label of the device.
        device: Label,
        /// Number of threads, at least 1.
        threads: u32,
    },
    /// Number of multiprocessors that a CUDA device uses.
    Multiprocessors {
        /// Label of the device.
        device: Label,
        /// Number of multiprocessors, at least 1.
        count: u32,
    },
    /// Duty cycle: the device computes for this share of the time and idles for the rest.
    Duty {
        /// Label of the device.
        device: Label,
        /// Share of the time in percent, 1 to 100.
        percent: u32,
    },
    /// Maximum rate of activation transfers from one device to another.
    LinkRate {
        /// Label of the sending device.
        from: Label,
        /// Label of the receiving device.
        to: Label,
        /// Bytes per second, at least 1.
        bytes_per_s: u64,
    },
}

/// An invalid throttle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThrottleError {
    /// The text is not a valid throttle.
    #[error(
        "invalid throttle {text:?}: {cause} (expected cpu:0=threads:1, cuda:0=sms:64, cpu:0=duty:50% or link:cpu:0->cpu:1=1GB/s)"
    )]
    Syntax {
        /// Text as the user wrote it.
        text: String,
        /// Cause of the error.
        cause: String,
    },
    /// The device is not selected.
    #[error("throttle {throttle}: {device} is not among the selected devices ({})", selected.join(", "))]
    NotSelected {
        /// Throttle that names the device.
        throttle: ThrottleSpec,
        /// Label of the device.
        device: String,
        /// Labels of the selected devices.
        selected: Vec<String>,
    },
    /// The device does not support the throttle.
    #[error("throttle {throttle}: only {only} devices support it")]
    NotSlowable {
        /// Throttle that the device does not support.
        throttle: ThrottleSpec,
        /// Devices that support it.
        only: &'static str,
    },
    /// Another throttle already limits the same setting.
    #[error("duplicate throttle {throttle}: this setting is already throttled")]
    Twice {
        /// The later of the two throttles.
        throttle: ThrottleSpec,
    },
}

impl fmt::Display for ThrottleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThrottleSpec::Threads { device, threads } => write!(f, "{device}=threads:{threads}"),
            ThrottleSpec::Multiprocessors { device, count } => write!(f, "{device}=sms:{count}"),
            ThrottleSpec::Duty { device, percent } => write!(f, "{device}=duty:{percent}%"),
            ThrottleSpec::LinkRate { from, to, bytes_per_s } => {
                write!(f, "link:{from}->{to}={}", rate(*bytes_per_s))
            }
        }
    }
}

impl FromStr for ThrottleSpec {
    type Err = ThrottleError;

    fn from_str(text: &str) -> Result<Self, ThrottleError> {
        let wrong = |cause: &str| ThrottleError::Syntax { text: text.into(), cause: cause.into() };
        let label = |text: &str| canonical(text.trim()).parse::<Label>().map_err(wrong);
        let (what, how) = text.trim().split_once('=').ok_or_else(|| wrong("missing \"=\""))?;
        if let Some(link) = what.strip_prefix("link:") {
            let (from, to) =
                link.split_once("->").ok_or_else(|| wrong("a link has the form link:FROM->TO"))?;
            let (from, to) = (label(from)?, label(to)?);
            if from == to {
                return Err(wrong("a link connects two different devices"));
            }
            let bytes_per_s = bytes_per_s(how).ok_or_else(|| {
                wrong("the rate must be at least 1B/s with a unit: B/s, kB/s, MB/s or GB/s")
            })?;
            return Ok(ThrottleSpec::LinkRate { from, to, bytes_per_s });
        }
        let device = label(what)?;
        let within = |text: &str, most: u32, cause: &str| {
            number(text).filter(|number| (1..=most).contains(number)).ok_or_else(|| wrong(cause))
        };
        match how.split_once(':') {
            Some(("threads", text)) => Ok(ThrottleSpec::Threads {
                device,
                threads: within(text, 1024, "the number of threads must be 1 to 1024")?,
            }),
            Some(("sms", text)) => {
                let count = within(text, 1024, "the number of multiprocessors must be 1 to 1024")?;
                Ok(ThrottleSpec::Multiprocessors { device, count })
            }
            Some(("duty", text)) => {
                let percent =
                    within(text.strip_suffix('%').unwrap_or(""), 100, "the duty cycle must be 1% to 100%")?;
                Ok(ThrottleSpec::Duty { device, percent })
            }
            _ => Err(wrong("a device has threads:N, sms:N or duty:N%")),
        }
    }
}

impl ThrottleSpec {
    /// Checks throttles against the labels of the selected devices.
    ///
    /// # Errors
    /// Returns an error that names the first invalid throttle: it repeats a setting, the device does not
    /// support it, or the device is not selected.
    pub fn check(throttles: &[ThrottleSpec], selected: &[String]) -> Result<(), ThrottleError> {
        for (at, throttle) in throttles.iter().enumerate() {
            if throttles[..at].iter().any(|other| other.is_about_the_same(throttle)) {
                return Err(ThrottleError::Twice { throttle: throttle.clone() });
            }
            if let Some(only) = throttle.only() {
                return Err(ThrottleError::NotSlowable { throttle: throttle.clone(), only });
            }
            let mut labels = throttle.devices().into_iter().map(Label::to_string);
            if let Some(device) = labels.find(|device| !selected.contains(device)) {
                let throttle = throttle.clone();
                return Err(ThrottleError::NotSelected { throttle, device, selected: selected.to_vec() });
            }
        }
        Ok(())
    }

    /// Returns the only type of device that supports this throttle. Returns `None` if the throttled device is
    /// of that type, or if every device supports the throttle.
    fn only(&self) -> Option<&'static str> {
        match self {
            ThrottleSpec::Threads { device, .. } if device.backend != "cpu" => Some("CPU"),
            ThrottleSpec::Multiprocessors { device, .. } if device.backend != "cuda" => Some("CUDA"),
            _ => None,
        }
    }

    fn devices(&self) -> Vec<&Label> {
        match self {
            ThrottleSpec::Threads { device, .. }
            | ThrottleSpec::Multiprocessors { device, .. }
            | ThrottleSpec::Duty { device, .. } => vec![device],
            ThrottleSpec::LinkRate { from, to, .. } => vec![from, to],
        }
    }

    fn is_about_the_same(&self, other: &ThrottleSpec) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.devices() == other.devices()
    }
}

/// Parses a number without a sign. `u32::from_str` alone would accept a leading `+`.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

const UNITS: [(&str, u64); 4] = [("GB/s", 1_000_000_000), ("MB/s", 1_000_000), ("kB/s", 1_000), ("B/s", 1)];

fn bytes_per_s(text: &str) -> Option<u64> {
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let rate = number.parse::<f64>().ok().filter(|_| plain)? * unit as f64;
    // No link is faster than 1e15 bytes per second. Besides, an `f64` above 2^53 cannot represent every
    // integer.
    (1.0..=1e15).contains(&rate).then_some(rate as u64)
}

fn rate(bytes_per_s: u64) -> String {
    let whole = UNITS.iter().find(|(_, unit)| bytes_per_s.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes_per_s}B/s"), |(name, unit)| format!("{}{name}", bytes_per_s / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttles_round_trip() {
        for text in [
            "cpu:0=threads:1",
            "cpu:12=duty:50%",
            "vulkan:0=duty:5%",
            "cuda:1=sms:64",
            "link:cpu:0->cpu:1=1GB/s",
            "link:cuda:0->level-zero:1=250MB/s",
            "link:cpu:1->cpu:0=1234B/s",
        ] {
            assert_eq!(text.parse::<ThrottleSpec>().unwrap().to_string(), text);
        }
        let half: ThrottleSpec = " link:CPU:0->ocl:1=0.5GB/s".parse().unwrap();
        assert_eq!(half.to_string(), "link:cpu:0->opencl:1=500MB/s");
    }

    #[test]
    fn syntax_errors_name_their_cause() {
        let expected = [
            ("", "missing \"=\""),
            ("cpu:0", "missing \"=\""),
            ("cpu=duty:50%", "BACKEND:INDEX"),
            ("cpu:0=duty:50", "1% to 100%"),
            ("cpu:0=duty:0%", "1% to 100%"),
            ("cpu:0=duty:101%", "1% to 100%"),
            ("cpu:0=duty:-5%", "1% to 100%"),
            ("cpu:0=threads:0", "1 to 1024"),
            ("cpu:0=threads:+2", "1 to 1024"),
            ("cpu:0=speed:2", "threads:N, sms:N or duty:N%"),
            ("cuda:0=sms:0", "1 to 1024"),
            ("cpu:0=", "threads:N, sms:N or duty:N%"),
            ("link:cpu:0=1GB/s", "FROM->TO"),
            ("link:cpu:0->cpu=1GB/s", "BACKEND:INDEX"),
            ("link:cpu:0->cpu:0=1GB/s", "two different devices"),
            ("link:cpu:0->cpu:1=1", "a unit"),
            ("link:cpu:0->cpu:1=GB/s", "a unit"),
            ("link:cpu:0->cpu:1=0GB/s", "at least 1B/s"),
            ("link:cpu:0->cpu:1=nanGB/s", "at least 1B/s"),
            ("link:cpu:0->cpu:1=1e3GB/s", "at least 1B/s"),
            ("link:cpu:0->cpu:1=-1GB/s", "at least 1B/s"),
        ];
        for (text, cause) in expected {
            let error = text.parse::<ThrottleSpec>().unwrap_err().to_string();
            assert!(error.contains(cause) && error.contains(&format!("{text:?}")), "{text}: {error}");
        }
    }

    #[test]
    fn throttles_need_selected_devices() {
        let selected = ["cpu:0".to_string(), "cpu:1".into(), "cuda:0".into()];
        let check = |texts: &[&str]| {
            let throttles: Vec<_> = texts.iter().map(|text| text.parse().unwrap()).collect();
            ThrottleSpec::check(&throttles, &selected).map_err(|error| error.to_string())
        };
        let all = [
            "cpu:0=threads:1",
            "cpu:0=duty:50%",
            "cuda:0=duty:50%",
            "cuda:0=sms:8",
            "link:cuda:0->cpu:1=1GB/s",
        ];
        assert_eq!(check(&all), Ok(()));
        let wrong =
            |texts: &[&str], cause: &str| assert!(check(texts).unwrap_err().contains(cause), "{texts:?}");
        wrong(&["cpu:2=duty:50%"], "cpu:2 is not among the selected devices (cpu:0, cpu:1, cuda:0)");
        wrong(&["link:cpu:0->cuda:1=1GB/s"], "cuda:1 is not among");
        wrong(&["cuda:0=threads:2"], "only CPU devices");
        wrong(&["cpu:0=sms:8"], "only CUDA devices");
        wrong(&["cpu:0=duty:50%", "cpu:0=duty:20%"], "duplicate throttle cpu:0=duty:20%");
    }
}
