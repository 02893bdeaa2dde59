//! Developer tasks: `cargo xtask test` runs all tests, `cargo xtask tidy` holds the tree to the project's rules.
//!
//! Users never need this program; no crate of Ragtag may depend on it.

// A program for terminals: it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod aarch64;
mod checks;
mod kernels;
mod metadata;
mod mutants;
mod nightly;
mod packages;
mod run_tests;
mod schemas;
mod skips;
mod support;
mod tidy;
mod timing;

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
    /// All tests: formatting, lints, tidy, the workspace's tests, documentation.
    Test(run_tests::TestArgs),
    /// Hold the tree to the project's rules: who imports whom, where `unsafe` may stand, how long a file may be, …
    Tidy,
    /// Everything for each commit: the tests, features alone, cargo-deny, fuzz targets and AArch64, as far as tools are installed.
    Ci(run_tests::TestArgs),
    /// Package the published crates, and build and run the examples with the packages alone.
    Packages,
    /// What takes too long for each commit: all shares, fuzzing, mutants, a hundred thousand simulations, clean Debian systems.
    Nightly(nightly::Args),
    /// Try a seeded sample of an area's mutants; those that no test notices must be accepted in docs/mutants.md.
    Mutants(mutants::Args),
    /// Write the kernels' texts to files, build or check the PTX that is committed, and compile for GPUs that are not here.
    Kernels(kernels::Args),
    /// Write docs/support.md from the summaries in docs/reports.
    SupportTable {
        /// Put the summary of a report of `ragtag selftest` into docs/reports first.
        #[arg(long, value_name = "REPORT")]
        add: Option<PathBuf>,
        /// Only say whether the page is up to date.
        #[arg(long)]
        check: bool,
    },
    /// Write docs/schemas, the JSON Schemas of fleets and plans, from the types.
    Schemas,
    /// Write a GGUF file with random weights, in any shape and tensor type.
    SynthModel(ragtag_synth::Args),
}

/// The root of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test(args) => checks::test(&root(), &args),
        Task::Tidy => tidy::run(&root()),
        Task::Mutants(args) => mutants::run(&root(), &args),
        Task::Ci(args) => checks::ci(&root(), &args),
        Task::Packages => packages::run(&root(), &mut checks::Done::default()),
        Task::Nightly(args) => nightly::run(&root(), &args),
        Task::Kernels(args) => kernels::run(&root(), &args),
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
