//! Arguments of `bench`.

use super::devices::DeviceArgs;
use super::model::ModelArgs;
use super::placement::{PlacementArgs, RequestArgs};
use super::run::{CompareArgs, RecordArgs, TransferArgs};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  ragtag bench model.gguf
  ragtag bench model.gguf --cpu-devices 2 --threads 1 --parallel 16 -p 512 -n 32 -r 5 --json
  ragtag bench model.gguf --cpu-devices 2 --parallel 8 --replan --html report.html
  ragtag bench links --device gpu,cpu"
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths to measure (pp); 0 for none.
    #[arg(
        short = 'p',
        long = "pp",
        value_name = "N",
        value_delimiter = ',',
        default_value = "512",
        allow_negative_numbers = true
    )]
    pub(crate) pp: Vec<u32>,
    /// Generation lengths to measure (tg); 0 for none.
    #[arg(
        short = 'n',
        long = "tg",
        value_name = "N",
        value_delimiter = ',',
        default_value = "128",
        allow_negative_numbers = true
    )]
    pub(crate) tg: Vec<u32>,
    /// Number of concurrent sequences. Default: the number in the plan with --plan, otherwise 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// Repetitions of each measurement, after one warm-up.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) repetitions: u32,
    /// Sampling of the new tokens: the settings with which `run` samples by default, or always the most likely token.
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub(crate) sampling: BenchSampling,
    /// After loading, compare the first block of each stage with the CPU on random rows. If the results
    /// differ, exit with code 1. Loads a copy of these blocks.
    #[arg(long, hide = true)]
    pub(crate) canary: bool,
    /// Print only errors and warnings on standard error.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON with every sample instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) comparison: CompareArgs,
}

/// Sampling of the tokens of a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BenchSampling {
    #[default]
    Default,
    Greedy,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the links between devices: transfers of 4 KiB to 16 MiB, in one direction and in both at once,
    /// on idle devices and while both devices compute. Default devices: auto,cpu.
    Links(BenchLinksArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ragtag bench links --device gpu,cpu")]
pub(crate) struct BenchLinksArgs {
    /// Repetitions of each measurement, with up to 25 transfers each.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) repetitions: u32,
    /// Print only errors and warnings on standard error.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON with all figures instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}
