//! Compiles kernels for AMD GPUs with clang, the compiler inside hiprtc. Needs neither ROCm nor a GPU. Calls
//! into ROCm's device library stay unresolved. This step therefore proves that the sources compile, but not
//! that the code links.

use super::jobs;
use super::programs::{Program, in_language};
use ragtag_hal::{Feature, KernelLanguage};
use std::path::Path;
use std::process::Command;

const CLANG: &str = "clang-19";

/// One GPU architecture per family, with its kernel features. The families are Vega, CDNA 1 to 3 with their
/// different matrix instructions, and RDNA 2 to 4.
const GPUS: [(&str, &[Feature]); 7] = [
    ("gfx906", &[Feature::Wave64]),
    ("gfx908", &[Feature::Wave64, Feature::Mfma]),
    ("gfx90a", &[Feature::Wave64, Feature::Mfma]),
    ("gfx942", &[Feature::Wave64, Feature::Mfma]),
    ("gfx1030", &[]),
    ("gfx1100", &[Feature::Wmma]),
    ("gfx1201", &[Feature::Wmma]),
];

/// Compiler options of the HIP backend, except those for headers and libraries.
const OPTIONS: &[&str] = &[
    "-xhip",
    "--offload-device-only",
    "--no-gpu-bundle-output",
    "-nogpuinc",
    "-nogpulib",
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-Werror",
    "-S",
    "-o",
    if cfg!(windows) { "NUL" } else { "/dev/null" },
];

/// Compiles the HIP C++ sources in `folder`, each for all GPUs in [`GPUS`] that can run it.
pub(super) fn compile(programs: &[&Program], folder: &Path) -> Result<(), String> {
    if let Some(why) = jobs::missing(CLANG) {
        println!("SKIPPED AMD's GPUs: {CLANG} does not start: {why}");
        return Ok(());
    }
    let programs = in_language(programs, KernelLanguage::HipC);
    let all = programs.iter().flat_map(|program| GPUS.map(|(gpu, features)| (program, gpu, features)));
    let jobs = all.filter(|(program, _, features)| program.runs_with(features));
    let jobs: Vec<_> = jobs.map(|(program, gpu, _)| (program, gpu)).collect();
    let results = jobs::each("AMD", &jobs, |(program, gpu)| {
        let mut command = Command::new(CLANG);
        command.arg(format!("--offload-arch={gpu}")).args(OPTIONS);
        jobs::run(command.arg(folder.join(program.file_name())))
    });
    let failed = |((program, gpu), result): (&(&&Program, &str), Result<String, String>)| {
        Some((format!("{} for {gpu}", program.name), result.err()?))
    };
    jobs::verdict("AMD", jobs.len(), &jobs.iter().zip(results).filter_map(failed).collect::<Vec<_>>())
}
