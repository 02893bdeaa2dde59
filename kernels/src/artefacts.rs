//! PTX that was built ahead of time from this crate's CUDA C++, so that a device needs only NVIDIA's driver.
//!
//! `cargo xtask kernels` writes the compressed PTX to `artefacts/cuda`. The key of a program is the digest of
//! its source text, so PTX of an older text is never used. This module never calls a compiler.

#[path = "../artefacts/cuda/index.rs"]
mod index;

use flate2::read::GzDecoder;
use ragtag_hal::{Feature, Features};
use std::io::Read;
use std::sync::Arc;

/// Virtual architectures for which PTX is built, oldest first. Each is paired with the feature that a device
/// must have to accept it.
const ARCHITECTURES: [(&str, Option<Feature>); 6] = [
    ("61", None),
    ("70", Some(Feature::Sm70)),
    ("75", Some(Feature::Sm75)),
    ("80", Some(Feature::Sm80)),
    (OVERLAPPING, Some(Feature::Sm90)),
    ("90a", Some(Feature::Sm90a)),
];

/// Oldest architecture with programmatic dependent launch: a launch may start before the previous launch
/// ends.
const OVERLAPPING: &str = "90";

/// Options for NVRTC in addition to the architecture. They select IEEE arithmetic without implicit fused
/// multiply-add.
pub const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "-fmad=false"];

/// Maximum size of a program's PTX, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The compressed PTX of a program for one architecture.
#[derive(Clone, Copy, Debug)]
pub struct Artefact {
    /// Target architecture, for example `61` or `90a`.
    pub architecture: &'static str,
    /// Name of the program.
    pub program: &'static str,
    /// The [`digest`] of the program's source text.
    pub digest: &'static str,
    compressed: &'static [u8],
}

/// Defines a row of the index, and includes the compressed PTX that the row describes.
macro_rules! ptx {
    ($architecture:literal, $program:literal, $digest:literal) => {
        $crate::artefacts::Artefact {
            architecture: $architecture,
            program: $program,
            digest: $digest,
            compressed: include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/artefacts/cuda/",
                $architecture,
                "/",
                $program,
                ".ptx.gz"
            )),
        }
    };
}
use ptx;

impl Artefact {
    /// Decompresses the PTX. Returns `None` if the compressed data is damaged.
    pub fn ptx(&self) -> Option<Arc<str>> {
        let mut text = String::new();
        GzDecoder::new(self.compressed).take(MAX_BYTES).read_to_string(&mut text).ok()?;
        Some(text.into())
    }
}

/// Returns the PTX of all programs that were built ahead of time.
pub fn artefacts() -> &'static [Artefact] {
    index::ALL
}

/// Returns the key of the PTX for source `text`: half of the BLAKE3 hash of the compiler options and the
/// text, in hexadecimal.
pub fn digest(text: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for option in OPTIONS {
        hasher.update(option.as_bytes()).update(b"\n");
    }
    hasher.update(text.as_bytes()).finalize().to_hex()[..32].into()
}

/// Returns the architectures for which the PTX of a variant is built. The first is the oldest architecture
/// that has all features in `requires`. If launches cannot overlap on it, the second is the oldest
/// architecture on which they can.
pub fn architectures(requires: &[Feature]) -> impl Iterator<Item = &'static str> {
    let is_required = |(_, feature): &(_, Option<Feature>)| feature.is_some_and(|f| requires.contains(&f));
    let oldest = ARCHITECTURES.iter().rposition(is_required).unwrap_or(0);
    let is_built = move |(at, name): &(usize, &str)| *at == oldest || (*at > oldest && *name == OVERLAPPING);
    ARCHITECTURES.iter().map(|(name, _)| *name).enumerate().filter(is_built).map(|(_, name)| name)
}

/// Returns the PTX of source `text` for the newest architecture that a device with `features` accepts.
pub(crate) fn find(text: &str, features: &Features) -> Option<&'static Artefact> {
    let digest = digest(text);
    let of_text = || artefacts().iter().filter(|artefact| artefact.digest == digest);
    let takes = |(_, feature): &&(_, Option<Feature>)| feature.is_none_or(|f| features.contains(&f));
    let newest_first = ARCHITECTURES.iter().rev().filter(takes);
    newest_first.filter_map(|(name, _)| of_text().find(|artefact| artefact.architecture == *name)).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_built_for_the_oldest_sufficient_architecture() {
        let built = |requires: &[Feature]| architectures(requires).collect::<Vec<_>>();
        assert_eq!(built(&[]), ["61", "90"]);
        assert_eq!(built(&[Feature::Fp16]), ["61", "90"]);
        assert_eq!(built(&[Feature::Sm80]), ["80", "90"]);
        assert_eq!(built(&[Feature::Sm70, Feature::Sm75]), ["75", "90"]);
        assert_eq!(built(&[Feature::Sm90]), ["90"]);
        assert_eq!(built(&[Feature::Sm90a, Feature::Sm90]), ["90a"]);
    }

    #[test]
    fn all_built_programs_are_intact() {
        for artefact in artefacts() {
            let name = format!("{} for {}", artefact.program, artefact.architecture);
            let ptx = artefact.ptx().unwrap_or_else(|| panic!("{name} is damaged"));
            assert!(ptx.contains(&format!("\n.target sm_{}\n", artefact.architecture)), "{name}");
            // Driver 535 accepts ISA 8.2.
            let version = ptx.lines().find_map(|line| line.strip_prefix(".version "));
            assert!(version.is_some_and(|v| v <= "8.2"), "{name}: ISA {version:?}");
            assert!(
                !ptx.contains(".visible .func") && !ptx.contains(".extern .func"),
                "{name} calls a function that it does not define"
            );
        }
    }

    /// Checks that every kernel waits for earlier launches on architectures where the host lets launches
    /// overlap.
    #[test]
    fn kernels_whose_launches_overlap_wait() {
        let overlapping = || artefacts().iter().filter(|a| a.architecture.starts_with(OVERLAPPING));
        assert!(overlapping().count() > 0);
        for artefact in overlapping() {
            let ptx = artefact.ptx().unwrap_or_default();
            for entry in ptx.split(".entry ").skip(1) {
                let waits = entry.contains("griddepcontrol.wait;");
                assert!(waits, "{}: {}", artefact.program, entry.lines().next().unwrap_or_default());
            }
        }
    }
}
