//! `cargo xtask kernels`: writes the kernels' OpenCL C to files, and with `--ocloc` has Intel's offline compiler compile them
//! for GPUs that this machine need not have.
//!
//! It compiles and runs nothing: what a kernel computes is the conformance suite's to judge.

use clap::Args as ClapArgs;
use ragtag_kernels::{Code, variants};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Arguments.
#[derive(ClapArgs)]
pub struct Args {
    /// Where the sources are written.
    #[arg(long, default_value = "target/kernels")]
    out: PathBuf,
    /// Compile them with ocloc, if it is installed.
    #[arg(long)]
    ocloc: bool,
    /// Devices to compile for, by ocloc's names.
    #[arg(long, value_delimiter = ',', default_value = "acm-g10,acm-g11")]
    devices: Vec<String>,
    /// Only programs whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// What the driver of such a device is told, as the backend tells it.
const OPTIONS: &str = "-cl-std=CL3.0 -DRT_FP16 -DRT_SUBGROUPS -DRT_INTEGER_DOT";

/// Writes, and compiles.
pub fn run(args: &Args) -> Result<(), String> {
    let written = write(args)?;
    println!("{} programs written to {}", written.len(), args.out.display());
    if !args.ocloc {
        return Ok(());
    }
    if let Err(why) = Command::new("ocloc").arg("--help").output() {
        println!("skipped: no program compiled, for ocloc does not start: {why}");
        return Ok(());
    }
    let mut failed = 0;
    println!("| program | device | | seconds |\n| --- | --- | --- | --- |");
    for path in &written {
        for device in &args.devices {
            let start = Instant::now();
            let log = compile(path, device, &args.out)?;
            let name = path.file_stem().unwrap_or_default().display();
            let verdict = if log.is_some() { "FAILED" } else { "compiles" };
            println!("| {name} | {device} | {verdict} | {:.1} |", start.elapsed().as_secs_f64());
            if let Some(log) = log {
                failed += 1;
                eprintln!("{log}");
            }
        }
    }
    if failed == 0 {
        Ok(())
    } else {
        Err(format!("{failed} of {} do not compile", written.len() * args.devices.len()))
    }
}

/// Each text once, named after the first variant that it is for.
fn write(args: &Args) -> Result<Vec<PathBuf>, String> {
    let mut programs: BTreeMap<Arc<str>, String> = BTreeMap::new();
    for variant in variants() {
        if let Code::Text(text) = variant.code {
            let name = format!("{}-{}", variant.kernel, variant.name).replace('/', "-");
            let ext = match text.language {
                ragtag_hal::KernelLanguage::CudaC => "cu",
                ragtag_hal::KernelLanguage::HipC => "hip",
                _ => "cl",
            };
            programs.entry(text.text()).or_insert(format!("{name}.{ext}"));
        }
    }
    fs::create_dir_all(&args.out).map_err(|e| format!("{}: {e}", args.out.display()))?;
    let mut written = Vec::new();
    for (text, name) in programs.iter().filter(|(_, name)| name.contains(&args.only)) {
        let path = args.out.join(name);
        fs::write(&path, &**text).map_err(|e| format!("{}: {e}", path.display()))?;
        written.push(path);
    }
    written.sort();
    Ok(written)
}

/// The log, if the program does not compile.
fn compile(path: &Path, device: &str, out: &Path) -> Result<Option<String>, String> {
    let mut command = Command::new("ocloc");
    command.arg("compile").arg("-file").arg(path).args(["-device", device, "-options", OPTIONS]);
    let output = command.arg("-out_dir").arg(out.join(device)).output().map_err(|e| format!("ocloc: {e}"))?;
    let log =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((!output.status.success()).then_some(log))
}
