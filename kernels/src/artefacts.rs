//! PTX built ahead of time from this crate's CUDA C++, so that a device needs only NVIDIA's driver.
//!
//! `cargo xtask kernels` writes the compressed PTX to `artefacts/cuda`. The key of a program is the digest of
//! its source text, so PTX built from another text is never used. This module does not call a compiler.

#[path = "../artefacts/cuda/index.rs"]
mod index;

use flate2::read::GzDecoder;
use ragtag_hal::{Feature, Features};
use std::io::Read;
use std::sync::Arc;

/// Virtual architectures for which PTX is built, oldest first. Each comes with the feature that marks devices
/// that accept it.
const ARCHITECTURES: [(&str, Option<Feature>); 6] = [
    ("61", None),
    ("70", Some(Feature::Sm70)),
    ("75", Some(Feature::Sm75)),
    ("80", Some(Feature::Sm80)),
    (OVERLAPPING, Some(Feature::Sm90)),
    ("90a", Some(Feature::Sm90a)),
];

/// Oldest architecture on which a launch may start before the previous launch ends.
const OVERLAPPING: &str = "90";

/// NVRTC's options besides the architecture. They select IEEE arithmetic without implicit fused multiply-add.
pub const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "-fmad=false"];

/// Size limit of a program's PTX, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// A program in PTX.
#[derive(Clone, Copy, Debug)]
pub struct Artefact {
    /// Target architecture, for example `61` or `90a`.
    pub architecture: &'static str,
    /// Name of the program.
    pub program: &'static str,
    /// The [`digest`] of its source text.
    pub digest: &'static str,
    compressed: &'static [u8],
}

/// A row of the index.
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
    /// Decompresses the PTX. Returns `None` if it is damaged.
    pub fn ptx(&self) -> Option<Arc<str>> {
        let mut text = String::new();
        GzDecoder::new(self.compressed).take(MAX_BYTES).read_to_string(&mut text).ok()?;
        Some(text.into())
    }
}

/// Returns all built programs.
pub fn artefacts() -> &'static [Artefact] {
    index::ALL
}

/// Returns the key of a text's PTX, in hexadecimal: half of the BLAKE3 hash of the compiler options and the
/// text.
pub fn digest(text: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for option in OPTIONS {
        hasher.update(option.as_bytes()).update(b"\n");
    }
    hasher.update(text.as_bytes()).finalize().to_hex()[..32].into()
}

/// Returns the architectures to build for a variant that requires these features. They are the oldest
/// architecture with these features, and the one from which launches overlap if it is newer.
pub fn architectures(requires: &[Feature]) -> impl Iterator<Item = &'static str> {
    let is_required = |(_, feature): &(_, Option<Feature>)| feature.is_some_and(|f| requires.contains(&f));
    let oldest = ARCHITECTURES.iter().rposition(is_required).unwrap_or(0);
    let is_built = move |(at, name): &(usize, &str)| *at == oldest || (*at > oldest && *name == OVERLAPPING);
    ARCHITECTURES.iter().map(|(name, _)| *name).enumerate().filter(is_built).map(|(_, name)| name)
}

/// Finds the best PTX of a text for a device with these features. The best PTX is for the newest architecture
/// that the device accepts.
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

    /// The host lets launches on this architecture overlap, so every kernel of a program must wait for
    /// earlier launches.
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
