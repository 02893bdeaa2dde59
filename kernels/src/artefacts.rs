//! Programs that were built ahead of time: PTX from this crate's CUDA C++, and SPIR-V from its OpenCL C.
//! With PTX, a device needs only NVIDIA's driver. Level Zero accepts no source text at all.
//!
//! `cargo xtask kernels` writes the programs to one archive per form. The key of a program is the digest of its
//! source text, so a program of an older text is never used. This module never calls a compiler.
//!
//! An archive is a sequence of Zstandard frames. The first contains the index, and each of the others a block
//! of similar programs. In the index, the line `= BYTES` starts a block with its compressed size. A line
//! `ARCHITECTURE PROGRAM DIGEST BYTES` describes the next program in the block.

mod registers;

use ragtag_hal::{Feature, Features};
pub use registers::{restore, shorten};
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;
use std::sync::{Arc, LazyLock};

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

/// Options for clang, which compiles OpenCL C to LLVM bitcode for SPIR-V. Optimisation is left to the drivers,
/// as if they had compiled the text. The translator does not support all that clang's passes write, and
/// drivers recognise an integer dot product only in the form in which the sources spell it. OpenCL C 1.2 has
/// no generic pointers.
pub const CLANG_OPTIONS: [&str; 13] = [
    "-c",
    "-x",
    "cl",
    "-cl-std=CL1.2",
    "-target",
    "spir64",
    "-O2",
    "-Xclang",
    "-disable-llvm-passes",
    "-Xclang",
    "-finclude-default-header",
    "-emit-llvm",
    "-w",
];

/// Options for the translator from LLVM bitcode to SPIR-V. It writes version 1.0, which every driver accepts,
/// unless a kernel requires a sub-group size. Fused operations are written as `fma`.
pub const TRANSLATOR_OPTIONS: [&str; 2] = ["--spirv-max-version=1.1", "--spirv-fp-contract=off"];

/// The only architecture of SPIR-V, with 64-bit pointers.
pub const SPIR_V: &str = "spirv64";

/// Form of prebuilt programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// PTX from CUDA C++.
    Ptx,
    /// SPIR-V from OpenCL C.
    SpirV,
}

/// A compressed program for one architecture.
#[derive(Clone, Copy, Debug)]
pub struct Artefact {
    /// Target architecture, for example `61`, `90a` or [`SPIR_V`].
    pub architecture: &'static str,
    /// Name of the program.
    pub program: &'static str,
    /// The digest of the program's source text.
    pub digest: &'static str,
    form: Form,
    /// The compressed block that contains the program.
    block: &'static [u8],
    /// Position of the program in the block.
    start: usize,
    bytes: usize,
}

impl Artefact {
    /// Decompresses PTX. Returns `None` if the compressed data is damaged.
    pub fn ptx(&self) -> Option<Arc<str>> {
        String::from_utf8(self.bytes()?).ok().map(Arc::from)
    }

    /// Decompresses the program. Returns `None` if the compressed data is damaged.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let before = decompress(&mut &*self.block, self.start.checked_add(self.bytes)?)?;
        let bytes = before.get(self.start..)?.get(..self.bytes)?;
        match self.form {
            Form::Ptx => Some(restore(str::from_utf8(bytes).ok()?).into_bytes()),
            Form::SpirV => Some(bytes.to_vec()),
        }
    }
}

/// Decompresses the first `bytes` bytes of the frame at the start of `frames`. Removes the frame from there if it has no
/// more.
fn decompress(frames: &mut &[u8], bytes: usize) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    StreamingDecoder::new(frames).ok()?.take(bytes as u64).read_to_end(&mut content).ok()?;
    Some(content)
}

impl Form {
    /// Returns all programs of this form that were built ahead of time.
    pub fn artefacts(self) -> &'static [Artefact] {
        static PTX: LazyLock<Vec<Artefact>> =
            LazyLock::new(|| Form::Ptx.built_in(include_bytes!("../artefacts/cuda.zst")));
        static SPIR_V: LazyLock<Vec<Artefact>> =
            LazyLock::new(|| Form::SpirV.built_in(include_bytes!("../artefacts/opencl.zst")));
        match self {
            Form::Ptx => &PTX,
            Form::SpirV => &SPIR_V,
        }
    }

    fn built_in(self, archive: &'static [u8]) -> Vec<Artefact> {
        let artefacts = self.parse(archive);
        assert!(artefacts.is_some(), "the built-in archive of {self:?} is damaged ({} bytes)", archive.len());
        artefacts.unwrap_or_default()
    }

    /// Returns the programs in an archive. Returns `None` if the archive is damaged. Keeps the index in memory
    /// until the process ends.
    pub fn parse(self, mut archive: &'static [u8]) -> Option<Vec<Artefact>> {
        let index = String::from_utf8(decompress(&mut archive, usize::MAX)?).ok()?.leak();
        let (mut artefacts, mut block, mut start) = (Vec::new(), &[][..], 0);
        for line in index.lines() {
            if let Some(bytes) = line.strip_prefix("= ") {
                (block, archive) = archive.split_at_checked(bytes.parse().ok()?)?;
                start = 0;
                continue;
            }
            let mut words = line.split(' ');
            let [architecture, program, digest, bytes] = std::array::from_fn(|_| words.next().unwrap_or(""));
            let bytes = bytes.parse().ok()?;
            artefacts.push(Artefact { architecture, program, digest, form: self, block, start, bytes });
            start += bytes;
        }
        archive.is_empty().then_some(artefacts)
    }

    /// Returns the key of the program for source `text`: half of the BLAKE3 hash of the compiler options and
    /// the text, in hexadecimal.
    pub fn digest(self, text: &str) -> String {
        let options = match self {
            Form::Ptx => OPTIONS.to_vec(),
            Form::SpirV => [&CLANG_OPTIONS[..], &TRANSLATOR_OPTIONS].concat(),
        };
        let mut hasher = blake3::Hasher::new();
        for option in options {
            hasher.update(option.as_bytes()).update(b"\n");
        }
        hasher.update(text.as_bytes()).finalize().to_hex()[..32].into()
    }

    fn of_text(self, text: &str) -> impl Iterator<Item = &'static Artefact> {
        let digest = self.digest(text);
        self.artefacts().iter().filter(move |artefact| artefact.digest == digest)
    }
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
pub(crate) fn find_ptx(text: &str, features: &Features) -> Option<&'static Artefact> {
    let of_text: Vec<_> = Form::Ptx.of_text(text).collect();
    let takes = |(_, feature): &&(_, Option<Feature>)| feature.is_none_or(|f| features.contains(&f));
    let mut newest_first = ARCHITECTURES.iter().rev().filter(takes);
    newest_first.find_map(|(name, _)| of_text.iter().copied().find(|a| a.architecture == *name))
}

/// Returns the SPIR-V of source `text`.
pub(crate) fn find_spir_v(text: &str) -> Option<&'static Artefact> {
    Form::SpirV.of_text(text).next()
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
        for artefact in Form::Ptx.artefacts() {
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

    #[test]
    fn spir_v_needs_only_known_capabilities() {
        // Addresses, Linkage, Kernel, Float16Buffer, Int64, Int16 and Int8: all OpenCL devices have them.
        const CAPABILITIES: [u32; 7] = [4, 5, 6, 8, 11, 22, 39];
        // Vector16, Float16, Groups and SubgroupDispatch: devices with sub-groups of 16, or matrix units, have
        // them. Kernels in f16 require Float16, and Vector16 is for their conversions.
        const OF_SUB_GROUPS: [u32; 4] = [7, 9, 18, 58];
        assert!(!Form::SpirV.artefacts().is_empty());
        for artefact in Form::SpirV.artefacts() {
            let bytes = artefact.bytes().unwrap_or_else(|| panic!("{} is damaged", artefact.program));
            let (words, rest) = bytes.as_chunks::<4>();
            let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
            let sub_groups = ["-xmx", "-sub-groups"].iter().any(|part| artefact.program.contains(part));
            let version = if sub_groups { 0x0001_0100 } else { 0x0001_0000 };
            assert_eq!((words[0], words[1], rest), (0x0723_0203, version, &[][..]), "{}", artefact.program);
            // Capabilities come first. Each is an instruction of two words with opcode 17.
            let (pairs, _) = words[5..].as_chunks::<2>();
            let capabilities = pairs.iter().take_while(|pair| pair[0] == 2 << 16 | 17).map(|pair| pair[1]);
            let known = |c: &u32| CAPABILITIES.contains(c) || sub_groups && OF_SUB_GROUPS.contains(c);
            let others: Vec<u32> = capabilities.filter(|c| !known(c)).collect();
            assert_eq!(others, [0; 0], "{}", artefact.program);
        }
    }

    /// Checks that every kernel waits for earlier launches on architectures where the host lets launches
    /// overlap.
    #[test]
    fn kernels_whose_launches_overlap_wait() {
        let overlapping = || Form::Ptx.artefacts().iter().filter(|a| a.architecture.starts_with(OVERLAPPING));
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
