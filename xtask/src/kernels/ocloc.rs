//! Compiles kernels for Intel GPUs with ocloc, Intel's offline compiler.

use super::committed::SPIR_V;
use super::jobs;
use super::programs::{Program, in_language};
use super::write;
use ragtag_hal::KernelLanguage;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options that the OpenCL backend passes to the drivers of these devices.
const OPTIONS: &str = "-cl-std=CL3.0 -DRT_FP16 -DRT_SUBGROUPS -DRT_INTEGER_DOT";

/// Compiles the OpenCL C sources in `folder` and of the committed SPIR-V for `devices`.
pub(super) fn compile(
    root: &Path,
    programs: &[&Program],
    devices: &[String],
    folder: &Path,
) -> Result<(), String> {
    if let Some(why) = jobs::missing("ocloc") {
        println!("SKIPPED Intel's GPUs: ocloc does not start: {why}");
        return Ok(());
    }
    let sources = in_language(programs, KernelLanguage::OpenClC);
    let mut inputs: Vec<(PathBuf, [&str; 2])> =
        sources.iter().map(|program| (folder.join(program.file_name()), ["-options", OPTIONS])).collect();
    for (_, program, binary) in SPIR_V.read(root, programs)? {
        let path = folder.join("committed").join(format!("{}.spv", program.name));
        write(&path, &binary)?;
        inputs.push((path, ["-spirv_input", "-q"]));
    }
    let jobs: Vec<_> = inputs.iter().flat_map(|input| devices.iter().map(move |d| (input, d))).collect();
    let results = jobs::each("ocloc", &jobs, |((path, arguments), device)| {
        let mut command = Command::new("ocloc");
        command.arg("compile").arg("-file").arg(path).args(["-device", device]).args(arguments);
        jobs::run(command.arg("-out_dir").arg(folder.join(device)))
    });
    let failed = |(((path, _), device), result): (&(&(PathBuf, _), &String), Result<String, String>)| {
        Some((format!("{} for {device}", path.display()), result.err()?))
    };
    jobs::verdict("ocloc", jobs.len(), &jobs.iter().zip(results).filter_map(failed).collect::<Vec<_>>())
}
