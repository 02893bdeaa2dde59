//! Developer tasks: `cargo xtask --help`.

mod synth;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developer tasks of Ragtag.
#[derive(Parser)]
#[command(name = "xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write a GGUF file with random weights, in any shape and tensor type
    SynthModel(synth::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::SynthModel(args) => synth::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            #[allow(clippy::print_stderr)] // where errors of a command belong
            {
                eprintln!("xtask: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}
