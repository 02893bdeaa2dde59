//! Command-line arguments and their help texts. The sibling modules of this folder implement the commands.

mod bench;
mod devices;
#[cfg(feature = "server")]
mod load;
mod model;
mod placement;
mod plans;
mod replay;
mod run;
#[cfg(feature = "server")]
mod serve;
mod template;
mod tokenize;
#[cfg(feature = "remote")]
mod worker;

pub(crate) use bench::{BenchArgs, BenchCommand, BenchLinksArgs, BenchSampling};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Parser, Subcommand};
pub(crate) use devices::{CalibrateArgs, DeviceArgs, DevicesArgs, SelftestArgs};
pub(crate) use model::ModelArgs;
pub(crate) use placement::{PlacementArgs, RequestArgs, WireArg};
pub(crate) use plans::{
    CardsArgs, DescribedArgs, FleetArgs, InspectArgs, PictureArgs, PlanArgs, SimulateArgs,
};
pub(crate) use replay::ReplayArgs;
pub(crate) use run::{
    ChatArgs, CompareArgs, ConstraintArgs, LogitsArgs, PerplexityArgs, RecordArgs, RunArgs, SamplingArgs,
};
pub(crate) use template::TemplateArgs;
pub(crate) use tokenize::TokenizeArgs;
#[cfg(feature = "remote")]
pub(crate) use worker::WorkerArgs;
#[cfg(feature = "server")]
pub(crate) use {load::LoadArgs, serve::ServeArgs};

/// Maximum value of `--prompt-tokens` and of `--new-tokens`.
pub(crate) const MAX_TOKENS: u32 = 1 << 24;

/// Runs one language model as a pipeline across the GPUs and CPUs of this machine.
#[derive(Debug, Parser)]
#[command(
    name = "ragtag",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  ragtag run --cpu-devices 2 --split 0-6=cpu:0,7-13=cpu:1    run a pipeline of two CPU devices
  ragtag devices                                             list the devices of this machine
  ragtag plan model.gguf --ctx 4096                          show the best placement, and why
  ragtag bench model.gguf --parallel 8                       measure prompt and generation speed

Exit codes: 0 done, 1 internal error, device failure or failed self-test, 2 usage, 3 model file or chat template, 4 plan or \
split, \
5 device selection, 6 does not fit in memory, 7 cannot read or write a file or standard output, also a damaged log, or cannot listen, 8 refused by --strict."
)]
pub(crate) struct Cli {
    /// Show all columns of tables, even beyond the terminal width.
    #[arg(long, global = true)]
    pub(crate) wide: bool,
    /// Print help with all options.
    #[arg(long, global = true, action = ArgAction::HelpLong)]
    pub(crate) help_all: Option<bool>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices of this machine and the APIs that expose them.
    Devices(DevicesArgs),
    /// Time a model's layers on each device, and the links between devices. Plans use the cached result.
    Calibrate(CalibrateArgs),
    /// Show which device would run which segments, and why, without running the model.
    Plan(PlanArgs),
    /// List the GPUs that `plan --fleet` knows.
    #[command(
        after_help = "Examples:\n  ragtag cards\n  ragtag plan model.gguf --fleet 2x-arc-a770+rx7900xtx"
    )]
    Cards(CardsArgs),
    /// Generate text.
    Run(RunArgs),
    /// Chat with a model in the terminal.
    Chat(ChatArgs),
    /// Serve a model over HTTP, with the APIs of OpenAI and Anthropic.
    #[cfg(feature = "server")]
    Serve(ServeArgs),
    /// Measure the answers of a server under a load of requests.
    #[cfg(feature = "server")]
    Load(LoadArgs),
    /// Offer the devices of this machine to `--worker` of another one.
    #[cfg(feature = "remote")]
    Worker(WorkerArgs),
    /// Measure prompt processing (pp) and generation (tg) speed.
    Bench(BenchArgs),
    /// Show the contents of a model file: hyperparameters, segments, tensors, costs.
    Inspect(InspectArgs),
    /// Write the logits for a list of token ids, one row per position, to a NumPy file.
    Logits(LogitsArgs),
    /// Measure the perplexity of a text.
    Perplexity(PerplexityArgs),
    /// Show the tokens of a text.
    Tokenize(TokenizeArgs),
    /// Render a conversation with a model's chat template and print the prompt.
    Template(TemplateArgs),
    /// Check that the devices compute correctly.
    Selftest(SelftestArgs),
    /// Simulate a plan under a load of requests, without running the model.
    Simulate(SimulateArgs),
    /// Check that the log of a run's events leads to the same decisions again.
    Replay(ReplayArgs),
    /// Print a shell completion script.
    #[command(
        after_help = "Example:\n  ragtag completions bash > ~/.local/share/bash-completion/completions/ragtag"
    )]
    Completions {
        /// Shell to complete for.
        shell: clap_complete::Shell,
    },
}

/// Returns a parser for the value of `variable`, the environment variable of a flag. The flag itself takes no
/// value. An empty variable counts as unset.
fn switch(variable: &'static str) -> impl Fn(&str) -> Result<bool, String> + Clone {
    move |value| match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{variable} must be 1 or 0, true or false, yes or no, on or off")),
    }
}

/// Returns a parser of the names in `choices`. A name is followed by its aliases, if any, after bars.
pub(super) fn choice<T: Copy + Send + Sync + 'static>(
    choices: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let shown = |(names, _): &(&'static str, T)| {
        let mut names = names.split('|');
        PossibleValue::new(names.next().unwrap_or_default()).aliases(names)
    };
    PossibleValuesParser::new(choices.iter().map(shown)).try_map(|given| {
        let found = choices.iter().find(|(names, _)| names.split('|').any(|name| name == given));
        found.map(|(_, value)| *value).ok_or(given)
    })
}
