//! Compiles kernels for Intel GPUs with ocloc, Intel's offline compiler.

use super::jobs;
use super::programs::{Program, in_language};
use ragtag_hal::KernelLanguage;
use std::path::Path;
use std::process::Command;

/// Options that the OpenCL backend passes to the drivers of these devices.
const OPTIONS: &str = "-cl-std=CL3.0 -DRT_FP16 -DRT_SUBGROUPS -DRT_INTEGER_DOT";

/// Compiles the OpenCL C sources in `folder` for the devices in `devices`.
pub(super) fn compile(programs: &[&Program], devices: &[String], folder: &Path) -> Result<(), String> {
    if let Some(why) = jobs::missing("ocloc") {
        println!("SKIPPED Intel's GPUs: ocloc does not start: {why}");
        return Ok(());
    }
    let programs = in_language(programs, KernelLanguage::OpenClC);
    let jobs: Vec<_> =
        programs.iter().flat_map(|program| devices.iter().map(move |device| (program, device))).collect();
    let results = jobs::each("ocloc", &jobs, |(program, device)| {
        let mut command = Command::new("ocloc");
        command.arg("compile").arg("-file").arg(folder.join(program.file_name()));
        command.args(["-device", device, "-options", OPTIONS]);
        jobs::run(command.arg("-out_dir").arg(folder.join(device)))
    });
    let failed = |((program, device), result): (&(&&Program, &String), Result<String, String>)| {
        Some((format!("{} for {device}", program.name), result.err()?))
    };
    jobs::verdict("ocloc", jobs.len(), &jobs.iter().zip(results).filter_map(failed).collect::<Vec<_>>())
}
