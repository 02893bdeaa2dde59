//! Compiles OpenCL C to SPIR-V with clang and the translator from LLVM bitcode to SPIR-V.

use super::jobs;
use super::programs::Program;
use super::write;
use ragtag_hal::Feature;
use ragtag_kernels::artefacts::{CLANG_OPTIONS, TRANSLATOR_OPTIONS};
use std::fs;
use std::path::Path;
use std::process::Command;

const COMPILER: &str = "clang-15";
const TRANSLATOR: &str = "llvm-spirv-15";

/// Returns why SPIR-V cannot be built here, or `None` if it can.
pub(super) fn missing() -> Option<String> {
    let why = |program| jobs::missing(program).map(|error| format!("{program} does not start: {error}"));
    why(COMPILER).or_else(|| why(TRANSLATOR))
}

/// Compiles a program. Uses files in `folder`.
pub(super) fn compile(program: &Program, folder: &Path) -> Result<Vec<u8>, String> {
    let source = folder.join(program.file_name());
    let (bitcode, spir_v) = (source.with_extension("bc"), source.with_extension("spv"));
    write(&source, program.text.as_bytes())?;
    jobs::run(Command::new(COMPILER).args(CLANG_OPTIONS).arg(&source).arg("-o").arg(&bitcode))?;
    jobs::run(Command::new(TRANSLATOR).args(TRANSLATOR_OPTIONS).arg(&bitcode).arg("-o").arg(&spir_v))?;
    let binary = fs::read(&spir_v).map_err(|e| format!("{}: {e}", spir_v.display()))?;
    let is_f16 = program.requires().any(|requires| requires.contains(&Feature::Fp16));
    Ok(if is_f16 { declaring_f16(&binary) } else { binary })
}

/// Adds the capability for f16 arithmetic, which the translator leaves out, after the header.
fn declaring_f16(binary: &[u8]) -> Vec<u8> {
    // OpCapability has two words. Its operand is Float16.
    let capability = [2 << 16 | 17, 9_u32].map(u32::to_le_bytes).concat();
    let (header, rest) = binary.split_at(binary.len().min(20));
    [header, &capability, rest].concat()
}

/// Checks that the compilers' output equals the committed SPIR-V.
pub(super) fn compare(committed: &[u8], built: &[u8]) -> Result<(), String> {
    if committed == built {
        Ok(())
    } else {
        Err(format!("the committed SPIR-V differs from the output of {COMPILER} and {TRANSLATOR}"))
    }
}
