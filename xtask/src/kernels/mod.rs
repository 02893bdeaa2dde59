//! Implements `cargo xtask kernels`. It writes the kernel sources to files, builds or checks the committed
//! PTX and SPIR-V, and compiles kernels for GPUs that this machine does not have.
//!
//! Runs no kernels; the conformance suite checks their results. Downloads no compilers: each must be
//! installed, or an argument must name its folder.

mod amd;
mod archive;
mod clang;
mod committed;
mod jobs;
mod nvrtc;
mod ocloc;
mod pipelines;
mod programs;
mod ptx;
mod ptxas;
mod spirv;

use clap::Args as ClapArgs;
use committed::{PTX, SPIR_V};
use programs::Program;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `cargo xtask kernels`.
#[derive(ClapArgs)]
pub struct Args {
    /// Output folder for sources and compiled code.
    #[arg(long, default_value = "target/kernels")]
    out: PathBuf,
    /// Process only the programs with this text in their names.
    #[arg(long, default_value = "")]
    only: String,
    /// Build PTX with the NVRTC in this folder, and write it to kernels/artefacts/cuda.zst.
    #[arg(long, value_name = "DIR", env = "RAGTAG_NVRTC")]
    nvrtc: Option<PathBuf>,
    /// Build SPIR-V with clang-15 and llvm-spirv-15, if they are installed, and write it to
    /// kernels/artefacts/opencl.zst.
    #[arg(long)]
    spir_v: bool,
    /// Remove PTX and SPIR-V of other sources from both archives. Needs no compiler.
    #[arg(long, conflicts_with_all = ["nvrtc", "spir_v", "check"])]
    prune: bool,
    /// Write no PTX and SPIR-V; fail if the committed programs were built from other sources. With --nvrtc, also
    /// fail if NVRTC's output differs in its launch interface. With --spir-v, also fail if the compilers'
    /// output differs.
    #[arg(long)]
    check: bool,
    /// Assemble the PTX with the ptxas in this folder, and write a table of registers, spills and shared memory.
    #[arg(long, value_name = "DIR")]
    ptxas: Option<PathBuf>,
    /// Compile HIP C++ for AMD's GPUs with clang-19, if it is installed.
    #[arg(long)]
    amd: bool,
    /// Compile OpenCL C and the committed SPIR-V for Intel's GPUs with ocloc, if it is installed.
    #[arg(long)]
    ocloc: bool,
    /// Translate WGSL to SPIR-V for Vulkan devices and validate it with spirv-val, if it is installed.
    #[arg(long)]
    spirv_val: bool,
    /// Compile all WGSL pipelines for every device that Vulkan's loader lists. With RADV_FORCE_FAMILY=navi24
    /// or another name, Mesa also compiles for an absent AMD GPU.
    #[arg(long)]
    vulkan_pipelines: bool,
    /// Devices to compile for, by their ocloc names.
    #[arg(long, value_delimiter = ',', default_value = "acm-g10,acm-g11")]
    devices: Vec<String>,
}

/// Runs the steps that `args` requests. Reports all failures after the last step.
pub fn run(root: &Path, args: &Args) -> Result<(), String> {
    let programs = programs::all();
    let chosen: Vec<&Program> = programs.iter().filter(|p| p.name.contains(&args.only)).collect();
    for program in &chosen {
        write(&args.out.join(program.file_name()), program.text.as_bytes())?;
    }
    println!("{} programs written to {}", chosen.len(), args.out.display());
    let mut failures = Vec::new();
    let mut note = |result: Result<(), String>| failures.extend(result.err());
    let nvrtc = args.nvrtc.as_deref().map(nvrtc::Nvrtc::load).transpose()?;
    match &nvrtc {
        None => println!("SKIPPED building PTX: --nvrtc names no folder with NVRTC"),
        Some(nvrtc) if args.check => {
            note(PTX.compare(root, &chosen, |p, a| ptx::compile(nvrtc, p, a), ptx::compare));
        }
        Some(nvrtc) => {
            PTX.build(root, &programs, &args.only, &args.out, |p, a| ptx::compile(nvrtc, p, a))?;
        }
    }
    let spir_v = |program: &Program, _: &str| clang::compile(program, &args.out.join("spir-v"));
    match clang::missing() {
        _ if !args.spir_v => {}
        Some(why) => println!("SKIPPED building SPIR-V: {why}"),
        None if args.check => note(SPIR_V.compare(root, &chosen, spir_v, clang::compare)),
        None => SPIR_V.build(root, &programs, &args.only, &args.out, spir_v)?,
    }
    if args.prune {
        note(PTX.prune(root, &programs, &args.out));
        note(SPIR_V.prune(root, &programs, &args.out));
    }
    if args.check {
        note(PTX.check(root, &programs));
        note(SPIR_V.check(root, &programs));
    }
    if let Some(folder) = &args.ptxas {
        note(ptxas::assemble(root, &chosen, folder, &args.out));
    }
    if args.amd {
        note(amd::compile(&chosen, &args.out));
    }
    if args.ocloc {
        note(ocloc::compile(root, &chosen, &args.devices, &args.out));
    }
    if args.spirv_val {
        note(spirv::validate(&chosen, &args.out));
    }
    if args.vulkan_pipelines {
        note(pipelines::compile(&args.only));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\nerror: ")) }
}

/// Writes a file. Creates its parent folders if necessary.
fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    fs::write(path, content).map_err(|e| format!("{}: {e}", path.display()))
}
