//! Memory caps: parses them, and checks them against the selected devices.
//!
//! ```text
//! caps = cap { "," cap }
//! cap  = ( "host" | backend | backend ":" index ) "=" size
//! ```
//!
//! `size` has the syntax of the filter `min-memory`. A backend's name caps each of its devices. It may be another
//! name of the backend, such as `ocl`.

use crate::names::canonical;
use crate::selection::{is_word, list, size_bytes};
use ragtag_hal::Label;
use std::fmt;
use std::str::FromStr;

/// Name of host memory in a list of caps.
const HOST: &str = "host";

/// Units of sizes, largest first, with their binary logarithms.
const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Invalid memory caps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryCapError {
    /// An item of the list is not a cap.
    #[error(
        "{item:?} is not a memory cap: expected BACKEND:INDEX=SIZE, BACKEND=SIZE or host=SIZE with a size \
         like 512MiB or 11.5GiB (B, KiB, MiB, GiB or TiB)"
    )]
    Syntax {
        /// Item that is not a cap.
        item: String,
    },
    /// The list caps the same memory twice.
    #[error("duplicate memory cap {cap}: {earlier} already caps this memory")]
    Twice {
        /// Later of the two caps.
        cap: String,
        /// Earlier cap.
        earlier: String,
    },
    /// A cap names a device that is not selected.
    #[error("memory cap {cap}: {device} is not among the selected devices ({})", list(selected))]
    NotSelected {
        /// Cap that names the device.
        cap: String,
        /// Device or backend.
        device: String,
        /// Labels of the selected devices.
        selected: Vec<String>,
    },
}

/// Memory that a cap limits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Host,
    Backend(String),
    Device(Label),
}

impl Target {
    /// Returns whether this target is the device `label`, or its backend.
    fn covers(&self, label: &Label) -> bool {
        match self {
            Target::Host => false,
            Target::Backend(name) => *name == label.backend,
            Target::Device(device) => device == label,
        }
    }

    fn overlaps(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Device(label), target) | (target, Target::Device(label)) => target.covers(label),
            _ => self == other,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Host => f.write_str(HOST),
            Target::Backend(name) => f.write_str(name),
            Target::Device(label) => label.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cap {
    target: Target,
    bytes: u64,
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, bytes } = self;
        match UNITS.iter().find(|(_, bits)| *bytes > 0 && bytes.trailing_zeros() >= *bits) {
            Some((unit, bits)) => write!(f, "{target}={}{unit}", bytes >> bits),
            None => write!(f, "{target}={bytes}B"),
        }
    }
}

impl FromStr for Cap {
    type Err = MemoryCapError;

    fn from_str(item: &str) -> Result<Self, MemoryCapError> {
        let cap = || {
            let (name, size) = item.split_once('=')?;
            let target = match canonical(name) {
                name if name == HOST => Target::Host,
                name if is_word(&name) => Target::Backend(name),
                name => Target::Device(name.parse().ok()?),
            };
            Some(Self { target, bytes: size_bytes(size)? })
        };
        cap().ok_or_else(|| MemoryCapError::Syntax { item: item.into() })
    }
}

/// Maximum amounts of memory that plans may use on devices and of host memory. The default has no caps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryCaps {
    caps: Vec<Cap>,
}

impl FromStr for MemoryCaps {
    type Err = MemoryCapError;

    /// Parses a list such as `cuda:0=12GiB,host=24GiB`.
    fn from_str(text: &str) -> Result<Self, MemoryCapError> {
        let mut caps: Vec<Cap> = Vec::new();
        for item in text.split(',').map(str::trim) {
            let cap: Cap = item.parse()?;
            if let Some(earlier) = caps.iter().find(|earlier| earlier.target.overlaps(&cap.target)) {
                let (cap, earlier) = (cap.to_string(), earlier.to_string());
                return Err(MemoryCapError::Twice { cap, earlier });
            }
            caps.push(cap);
        }
        Ok(Self { caps })
    }
}

impl MemoryCaps {
    /// Checks that every cap of a device or backend applies to one of the devices in `selected`.
    ///
    /// # Errors
    /// Returns [`MemoryCapError::NotSelected`] for the first cap that applies to none.
    pub fn check(&self, selected: &[Label]) -> Result<(), MemoryCapError> {
        let is_missing =
            |cap: &&Cap| cap.target != Target::Host && !selected.iter().any(|label| cap.target.covers(label));
        self.caps.iter().find(is_missing).map_or(Ok(()), |cap| {
            let (device, selected) = (cap.target.to_string(), selected.iter().map(Label::to_string));
            Err(MemoryCapError::NotSelected { cap: cap.to_string(), device, selected: selected.collect() })
        })
    }

    /// Returns whether there are no caps.
    pub fn is_empty(&self) -> bool {
        self.caps.is_empty()
    }

    /// Returns the cap of a device in bytes, or `None` if it has none.
    pub fn device_bytes(&self, device: &Label) -> Option<u64> {
        self.caps.iter().find(|cap| cap.target.covers(device)).map(|cap| cap.bytes)
    }

    /// Returns the cap of host memory in bytes, or `None` if it has none.
    pub fn host_bytes(&self) -> Option<u64> {
        self.caps.iter().find(|cap| cap.target == Target::Host).map(|cap| cap.bytes)
    }

    /// Returns the caps as text, each in the form `cuda:0=12GiB`.
    pub fn to_strings(&self) -> Vec<String> {
        self.caps.iter().map(Cap::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(text: &str) -> Result<MemoryCaps, String> {
        text.parse::<MemoryCaps>().map_err(|error| error.to_string())
    }

    fn label(text: &str) -> Label {
        text.parse().unwrap()
    }

    #[test]
    fn caps_apply_to_devices_backends_and_the_host() {
        let caps = caps("CUDA:0=12GiB, cpu=512MiB,host=1536KiB").unwrap();
        let of = |text: &str| caps.device_bytes(&label(text));
        assert_eq!(of("cuda:0"), Some(12 << 30));
        assert_eq!([of("cpu:0"), of("cpu:7")], [Some(512 << 20); 2]);
        assert_eq!([of("cuda:1"), of("vulkan:0")], [None; 2]);
        assert_eq!(caps.host_bytes(), Some(1536 << 10));
        assert_eq!(caps.to_strings(), ["cuda:0=12GiB", "cpu=512MiB", "host=1536KiB"]);
        assert!(!caps.is_empty() && MemoryCaps::default().is_empty());
        assert_eq!(MemoryCaps::default().host_bytes(), None);
    }

    #[test]
    fn sizes_keep_their_largest_exact_unit() {
        for (text, shown) in
            [("cpu:0=2048GiB", "2TiB"), ("cpu:0=1025", "1025B"), ("cpu:0=0", "0B"), ("cpu:0=4096B", "4KiB")]
        {
            assert_eq!(caps(text).unwrap().to_strings(), [format!("cpu:0={shown}")]);
        }
    }

    #[test]
    fn sizes_have_decimals() {
        for (text, bytes) in [
            ("11.5GiB", 23 << 29),
            ("0.25KiB", 256),
            ("1.0625TiB", 17 << 36),
            ("0.3KiB", 307),
            ("0.000000000001TiB", 1),
            ("00.50MiB", 1 << 19),
        ] {
            let cap = caps(&format!("cuda:0={text},host={text}")).unwrap();
            assert_eq!([cap.device_bytes(&label("cuda:0")), cap.host_bytes()], [Some(bytes); 2], "{text}");
        }
        assert_eq!(caps("cuda:0=11.5GiB").unwrap().to_strings(), ["cuda:0=11776MiB"]);
        for wrong in [
            "1.5",
            "1.5B",
            "1.GiB",
            ".5GiB",
            "1.5.5GiB",
            "1,5GiB",
            "1.5 GiB",
            "1.5GB",
            "-1.5GiB",
            "1e3GiB",
            "0.0000000000001TiB",
            "16777215.9999999999999TiB",
            "16777216.0TiB",
        ] {
            let error = caps(&format!("cuda:0={wrong}")).unwrap_err();
            assert!(error.contains("is not a memory cap: expected") && error.contains("11.5GiB"), "{error}");
        }
        assert_eq!(
            caps("cpu:0=16777215.5TiB").unwrap().device_bytes(&label("cpu:0")),
            Some(u64::MAX - (1 << 39) + 1)
        );
    }

    #[test]
    fn errors_name_the_item() {
        for item in [
            "",
            "cuda",
            "cuda:0",
            "=1GiB",
            "cuda:0=",
            "cuda:0=12GB",
            "cuda:0=-1GiB",
            "cuda:=1",
            "a b=1",
            "host:0=x",
        ] {
            let error = caps(&format!("cpu:0=1GiB,{item}")).unwrap_err();
            assert!(error.starts_with(&format!("{item:?} is not a memory cap: ")), "{error}");
        }
        assert!(caps("cuda:0=99999999999TiB").unwrap_err().contains("a size like"));
    }

    #[test]
    fn memory_is_capped_only_once() {
        for (text, cap, earlier) in [
            ("cpu:0=1GiB,cpu:0=2GiB", "cpu:0=2GiB", "cpu:0=1GiB"),
            ("cpu=1GiB,host=1GiB,cpu:1=2GiB", "cpu:1=2GiB", "cpu=1GiB"),
            ("cpu:1=1GiB,cpu=2GiB", "cpu=2GiB", "cpu:1=1GiB"),
            ("cpu=1GiB,cpu=2GiB", "cpu=2GiB", "cpu=1GiB"),
            ("host=1GiB,host=1GiB", "host=1GiB", "host=1GiB"),
        ] {
            let said = format!("duplicate memory cap {cap}: {earlier} already caps this memory");
            assert_eq!(caps(text), Err(said));
        }
        assert!(caps("cpu:0=1GiB,cpu:1=1GiB,cuda=1GiB,host=1GiB").is_ok());
    }

    #[test]
    fn caps_need_selected_devices() {
        let selected = ["cuda:0", "cpu:1"].map(label);
        let check = |text: &str| caps(text).unwrap().check(&selected).map_err(|error| error.to_string());
        assert_eq!(check("cuda=1GiB,cpu:1=1GiB,host=1GiB"), Ok(()));
        let not = |cap: &str, device: &str| {
            let said =
                format!("memory cap {cap}: {device} is not among the selected devices (cuda:0, cpu:1)");
            assert_eq!(check(&format!("cuda:0=1GiB,{cap}")), Err(said));
        };
        not("cpu:0=2GiB", "cpu:0");
        not("vulkan=2GiB", "vulkan");
    }
}
