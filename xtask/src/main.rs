//! Developer tasks: `cargo xtask test` runs all tests, `cargo xtask tidy` checks the project's rules.
//!
//! Users never need this program. No crate of Ragtag may depend on it.

// This command-line program prints its results.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod checks;
mod clients;
mod dependencies;
mod hostile;
mod kernels;
mod metadata;
mod mutants;
mod nightly;
mod packages;
mod real_models;
mod run_tests;
mod schemas;
mod skips;
mod support;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Developer tasks of Ragtag.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the checks before a commit: formatting, lints, tidy, documentation and the workspace's tests.
    Test(run_tests::TestArgs),
    /// Check the project's rules, for example dependencies between crates, modules that may contain `unsafe`,
    /// and prose.
    Tidy,
    /// Run all checks of a commit: those of `test`, other features, cargo-deny, fuzz targets, packages and
    /// AArch64. Skips steps whose tools are not installed.
    Ci(run_tests::TestArgs),
    /// Package the published crates, then build and run the examples with these packages alone.
    Packages,
    /// Run parts of the checks that take too long for each commit, such as the complete tests, fuzzing, 100,000
    /// simulations and clean Debian systems.
    Nightly(nightly::Args),
    /// Try a seeded sample of an area's mutants. Surviving mutants must be accepted in docs/mutants.md.
    Mutants(mutants::Args),
    /// Write the kernel sources to files, build or check the committed PTX, and compile for GPUs that this
    /// machine does not have.
    Kernels(kernels::Args),
    /// Compare Ragtag with llama.cpp and `transformers` on released models, vocabularies and chat templates, which this
    /// task fetches with pip (410 MB).
    RealModels(real_models::Args),
    /// Write docs/support.md from the summaries in docs/reports.
    SupportTable {
        /// First add the summary of this report of `ragtag selftest` to docs/reports.
        #[arg(long, value_name = "REPORT")]
        add: Option<PathBuf>,
        /// Only check that the page is up to date.
        #[arg(long)]
        check: bool,
    },
    /// Write docs/schemas, the JSON Schemas of fleets and plans, from the Rust types.
    Schemas,
    /// Write a GGUF file with random weights, in any shape and tensor type.
    SynthModel(ragtag_synth::Args),
}

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test(args) => hostile::empty_caches(&root()).and_then(|()| checks::test(&root(), &args)),
        Task::Tidy => tidy::run(&root()),
        Task::Mutants(args) => mutants::run(&root(), &args),
        Task::Ci(args) => hostile::empty_caches(&root()).and_then(|()| checks::ci(&root(), &args)),
        Task::Packages => packages::run(&root(), packages::Depth::Run, &mut checks::Done::default()),
        Task::Nightly(args) => nightly::run(&root(), &args),
        Task::Kernels(args) => kernels::run(&root(), &args),
        Task::RealModels(args) => real_models::run(&root(), &args),
        Task::SupportTable { add, check } => add
            .map_or(Ok(()), |file| support::add(&root(), &file))
            .and_then(|()| support::run(&root(), check)),
        Task::Schemas => schemas::run(&root()),
        Task::SynthModel(args) => ragtag_synth::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
