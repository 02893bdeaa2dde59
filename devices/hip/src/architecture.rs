//! Features of AMD's GPU architectures, by name.
//!
//! The sources are LLVM's list of AMD GPU processors (`AMDGPUUsage`) and AMD's ISA documents.

use ragtag_hal::{Feature, Features};

/// Oldest supported architecture. The compilers of HIP 5 and newer do not support older architectures.
const OLDEST: u32 = 0x900;

/// An AMD GPU architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    /// Compilation target: the architecture's name and settings, such as `gfx90a:sramecc+:xnack-`.
    pub(crate) target: String,
    /// Major version, followed by one hexadecimal digit for the minor version and one for the stepping, such
    /// as 0x90a.
    number: u32,
}

impl Architecture {
    /// Parses an architecture name.
    ///
    /// # Errors
    /// Returns a message that explains why kernels cannot be compiled for the architecture.
    pub(crate) fn of(target: &str) -> Result<Self, String> {
        let name = target.split(':').next().unwrap_or_default();
        let number = name
            .strip_prefix("gfx")
            .and_then(number)
            .ok_or_else(|| format!("its architecture {name:?} has no valid AMD name (gfx900 …)"))?;
        if number < OLDEST {
            return Err(format!(
                "its architecture {name} is older than gfx900, the oldest that is supported"
            ));
        }
        Ok(Self { target: target.into(), number })
    }

    /// Returns the features that select kernel variants. `wave_items` is the wavefront size that the driver
    /// reports.
    pub(crate) fn features(&self, wave_items: u32) -> Features {
        [
            (true, Feature::Fp16),
            (true, Feature::SubGroups),
            (self.integer_dot(), Feature::IntegerDot),
            (wave_items == 64, Feature::Wave64),
            (self.wmma(), Feature::Wmma),
            (self.mfma(), Feature::Mfma),
        ]
        .into_iter()
        .filter_map(|(has, feature)| has.then_some(feature))
        .collect()
    }

    /// Returns the name without settings, such as `gfx90a`.
    pub(crate) fn name(&self) -> &str {
        self.target.split(':').next().unwrap_or_default()
    }

    fn major(&self) -> u32 {
        self.number >> 8
    }

    /// Returns true if the architecture has an instruction for dot products of four signed bytes. Vega 20
    /// introduced this instruction. The first RDNA GPUs and some integrated GPUs lack it.
    fn integer_dot(&self) -> bool {
        match self.major() {
            0x9 => matches!(self.number, 0x906 | 0x908 | 0x90a) || self.number >= 0x940,
            0x10 => matches!(self.number, 0x1011 | 0x1012) || self.number >= 0x1030,
            _ => true,
        }
    }

    /// Returns true if the architecture has the matrix instructions of RDNA 3 and 4. gfx125x is excluded,
    /// because its instructions have different shapes.
    fn wmma(&self) -> bool {
        matches!(self.number, 0x1100..=0x124f)
    }

    /// Returns true if the architecture has the matrix instructions of CDNA.
    fn mfma(&self) -> bool {
        matches!(self.number, 0x908 | 0x90a | 0x940..=0x9ff)
    }
}

/// Parses `90a` to 0x90a and `1100` to 0x1100. The input is a decimal major version, followed by one digit
/// for the minor version and one for the stepping.
fn number(digits: &str) -> Option<u32> {
    let major = digits.get(..digits.len().checked_sub(2)?)?;
    let plain = !major.is_empty() && digits.len() <= 4 && major.bytes().all(|digit| digit.is_ascii_digit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(target: &str, feature: Feature) -> bool {
        Architecture::of(target).unwrap().features(32).contains(&feature)
    }

    fn those<'a>(feature: Feature, targets: &[&'a str]) -> Vec<&'a str> {
        targets.iter().copied().filter(|target| has(target, feature)).collect()
    }

    const ALL: &[&str] = &[
        "gfx900", "gfx902", "gfx906", "gfx908", "gfx90a", "gfx90c", "gfx942", "gfx950", "gfx1010", "gfx1011",
        "gfx1030", "gfx1036", "gfx1100", "gfx1151", "gfx1201", "gfx1250",
    ];

    #[test]
    fn matrix_instructions_match_the_documents() {
        assert_eq!(those(Feature::Mfma, ALL), ["gfx908", "gfx90a", "gfx942", "gfx950"]);
        assert_eq!(those(Feature::Wmma, ALL), ["gfx1100", "gfx1151", "gfx1201"]);
    }

    #[test]
    fn dot_products_match_the_documents() {
        let without: Vec<_> = ALL.iter().filter(|target| !has(target, Feature::IntegerDot)).collect();
        assert_eq!(without, [&"gfx900", &"gfx902", &"gfx90c", &"gfx1010"]);
    }

    #[test]
    fn the_driver_reports_the_wave_size() {
        let architecture = Architecture::of("gfx90a:sramecc+:xnack-").unwrap();
        assert_eq!(architecture.target, "gfx90a:sramecc+:xnack-");
        assert!(architecture.features(64).contains(&Feature::Wave64));
        assert!(!architecture.features(32).contains(&Feature::Wave64));
    }

    #[test]
    fn old_architectures_are_named() {
        for name in ["gfx803", "gfx810", "gfx701"] {
            assert!(Architecture::of(name).is_err_and(|why| why.contains(name) && why.contains("older")));
        }
        for name in ["", "gfx", "gfx9", "sm_90", "gfxabc", "gfx-90", "gfx12345", "gfxx00"] {
            assert!(Architecture::of(name).is_err_and(|why| why.contains("no valid AMD name")), "{name}");
        }
    }
}
