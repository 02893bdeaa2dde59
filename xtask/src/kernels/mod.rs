//! `cargo xtask kernels`: writes the kernels' texts to files, builds the PTX that is committed and checks it, and has the
//! compilers of GPUs that this machine need not have compile everything.
//!
//! It runs no kernel: what a kernel computes is the conformance suite's to judge. It downloads nothing: compilers are found
//! where they are said to be.

mod amd;
mod jobs;
mod nvrtc;
mod ocloc;
mod pipelines;
mod programs;
mod ptx;
mod ptxas;
mod spirv;

use clap::Args as ClapArgs;
use jobs::Share;
use programs::Program;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Arguments.
#[derive(ClapArgs)]
pub struct Args {
    /// Where the sources are written, and what is made of them.
    #[arg(long, default_value = "target/kernels")]
    out: PathBuf,
    /// Only programs whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Build PTX with the NVRTC in this folder, and write it to kernels/artefacts/cuda.
    #[arg(long, value_name = "DIR", env = "RAGTAG_NVRTC")]
    nvrtc: Option<PathBuf>,
    /// Write no PTX, but fail if what is committed was built from other texts; with --nvrtc also if NVRTC makes
    /// programs of them that are launched in another way.
    #[arg(long)]
    check: bool,
    /// Assemble the PTX with the ptxas in this folder, and write a table of registers, spills and shared memory.
    #[arg(long, value_name = "DIR")]
    ptxas: Option<PathBuf>,
    /// Compile HIP C++ for AMD's GPUs with clang-19, if it is installed.
    #[arg(long)]
    amd: bool,
    /// Compile OpenCL C for Intel's GPUs with ocloc, if it is installed.
    #[arg(long)]
    ocloc: bool,
    /// Translate WGSL for Vulkan devices, and have spirv-val judge the result, if it is installed.
    #[arg(long)]
    spirv_val: bool,
    /// Make the pipelines of all WGSL for every device that Vulkan's loader shows, also where nothing runs: Mesa compiles for
    /// AMD's GPUs with RADV_FORCE_FAMILY=navi24, or another name, and no such GPU.
    #[arg(long)]
    vulkan_pipelines: bool,
    /// Compile one in so many of the programs for NVIDIA's and AMD's GPUs, each for its architectures by turns.
    #[arg(long, default_value = "1", value_name = "N")]
    one_in: NonZeroUsize,
    /// Which ones: N seeds in a row have all of them.
    #[arg(long, default_value = "0", value_name = "S")]
    seed: usize,
    /// Devices to compile for, by ocloc's names.
    #[arg(long, value_delimiter = ',', default_value = "acm-g10,acm-g11")]
    devices: Vec<String>,
}

/// Writes, builds, checks and compiles, as far as it was asked for. What failed is told after all has been tried.
pub fn run(root: &Path, args: &Args) -> Result<(), String> {
    let programs = programs::all();
    let chosen: Vec<&Program> = programs.iter().filter(|p| p.name.contains(&args.only)).collect();
    for program in &chosen {
        write(&args.out.join(program.file_name()), program.text.as_bytes())?;
    }
    println!("{} programs written to {}", chosen.len(), args.out.display());
    let share = Share { one_in: args.one_in, seed: args.seed };
    let mut failures = Vec::new();
    let mut note = |result: Result<(), String>| failures.extend(result.err());
    let nvrtc = args.nvrtc.as_deref().map(nvrtc::Nvrtc::load).transpose()?;
    match &nvrtc {
        None => println!("SKIPPED building PTX: --nvrtc names no folder with NVRTC"),
        Some(nvrtc) if args.check => note(ptx::compare(&chosen, nvrtc, share)),
        Some(nvrtc) => ptx::build(root, &programs, &args.only, nvrtc)?,
    }
    if args.check {
        note(ptx::check(root, &programs));
    }
    if let Some(folder) = &args.ptxas {
        note(ptxas::assemble(root, &chosen, share, folder, &args.out));
    }
    if args.amd {
        note(amd::compile(&chosen, share, &args.out));
    }
    if args.ocloc {
        note(ocloc::compile(&chosen, &args.devices, &args.out));
    }
    if args.spirv_val {
        note(spirv::validate(&chosen, &args.out));
    }
    if args.vulkan_pipelines {
        note(pipelines::compile(&args.only));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\nerror: ")) }
}

/// Writes a file, with the folders that it is in.
fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    fs::write(path, content).map_err(|e| format!("{}: {e}", path.display()))
}
