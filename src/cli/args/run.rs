//! Arguments of the commands that run a model, and of their records.

use super::devices::DeviceArgs;
use super::model::ModelArgs;
use super::placement::{PlacementArgs, RequestArgs};
use super::{MAX_TOKENS, choice};
use crate::cli::progress::loading;
use crate::{EngineOptions, MAX_RECOVERIES};
use clap::{ArgAction, Args};
use ragtag_chat::Data;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag run -p \"Once upon a time\"
  ragtag run model.gguf -p \"The old woman\" -n 64 --temp 0 --cpu-devices 2
  ragtag run model.gguf --chat -p \"Why is the sky blue?\"
  ragtag run model.gguf --chat -p \"Name a city.\" --json-schema city.json
  ragtag run model.gguf -p \"<fim_prefix>a = <fim_suffix><fim_middle>\"
  ragtag run -p \"Hello\" --split 0-5=cpu:0,6-13=cpu:1 --cpu-devices 2 --json
  ragtag run -p \"Once\" --cpu-devices 2 --replan --compare --trace trace.json")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to continue.
    #[arg(short, long, value_name = "TEXT", default_value = "Once upon a time")]
    pub(crate) prompt: String,
    /// Read the prompt from a file ("-": standard input). One trailing line break is removed.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// Use the prompt as a message of the user, in the model's chat format. The prompt is not echoed.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Use the chat template in this file ("-": standard input) instead of the model's template.
    #[arg(long, alias = "chat-template-file", value_name = "FILE", requires = "chat")]
    pub(crate) template: Option<PathBuf>,
    /// System message of the chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// Write the control tokens that the prompt contains, such as <|im_start|>, as tokens and not as text. This is the
    /// default without --chat.
    #[arg(long, hide = true)]
    pub(crate) special: bool,
    /// Write the control tokens that the prompt contains as text. This is the default with --chat.
    #[arg(long, hide = true, conflicts_with = "special")]
    pub(crate) no_special: bool,
    /// Maximum number of tokens to generate.
    #[arg(
        short = 'n',
        long,
        alias = "n-predict",
        value_name = "N",
        default_value_t = 256,
        allow_negative_numbers = true
    )]
    pub(crate) tokens: u32,
    /// Compare predicted and measured times on standard error.
    #[arg(long, hide = true)]
    pub(crate) compare: bool,
    /// After loading, compare the first block of each stage with the CPU on random rows. If the results
    /// differ, exit with code 1. Loads a copy of these blocks.
    #[arg(long, hide = true)]
    pub(crate) canary: bool,
    /// Do not print the prompt before the generated text.
    #[arg(long)]
    pub(crate) no_echo: bool,
    /// Print only errors and warnings on standard error.
    #[arg(short, long, conflicts_with = "compare")]
    pub(crate) quiet: bool,
    /// Print one JSON object on standard output instead of the text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) comparison: CompareArgs,
}

/// Constraint of the text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct ConstraintArgs {
    /// Generate JSON that is valid for the schema in this file ("-": standard input).
    #[arg(long, value_name = "FILE")]
    pub(crate) json_schema: Option<PathBuf>,
    /// Generate text of the grammar in this file ("-": standard input), which is in GBNF or Lark.
    #[arg(long, value_name = "FILE", conflicts_with = "json_schema")]
    pub(crate) grammar: Option<PathBuf>,
}

/// Sampling of the next token.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token.
    #[arg(
        long,
        alias = "temperature",
        value_name = "T",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub(crate) temp: f32,
    /// Sample from the K most likely tokens; 0 disables the limit.
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub(crate) top_k: u32,
    /// Sample from the most likely tokens whose probabilities sum up to P; 1 disables the limit.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Sample only tokens at least P times as likely as the most likely token; 0 disables the limit.
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true, hide = true)]
    pub(crate) min_p: f32,
    /// Penalty on tokens that occur in the recent text; 1 disables it.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, hide = true)]
    pub(crate) repeat_penalty: f32,
    /// Seed of the sampler. Default: a random seed, which `run` and `chat --stats` print.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Stop before this text. Repeatable.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag chat                    # the bundled model, which continues tales
  ragtag chat model.gguf
  ragtag chat model.gguf --system \"Answer in one sentence.\" --device cuda:0,vulkan:1
  ragtag chat model.gguf --set enable_thinking=false
  ragtag chat model.gguf --load talk.json
  echo \"Why is the sky blue?\" | ragtag chat model.gguf --quiet

Commands in the chat: /help, /reset, /save FILE, /load FILE, /system TEXT, /exit. A line that ends with \\ continues on the \
next line. Ctrl-C stops an answer, and the conversation keeps what the model wrote. At the prompt, Ctrl-C clears the line. \
Ctrl-D, /exit or Ctrl-C twice leave with exit code 0.

If standard input is not a terminal, each line is a message or a command. The first one that fails ends the chat with the \
exit code of its error.")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Continue the conversation in this file, a JSON list of messages such as /save writes.
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    pub(crate) load: Option<PathBuf>,
    /// Write the control tokens that messages contain as tokens and not as text.
    #[arg(long, hide = true)]
    pub(crate) special: bool,
    /// Use the chat template in this file instead of the model's template.
    #[arg(long, alias = "chat-template-file", value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// Set a variable of the template to a JSON value. Repeatable.
    #[arg(long, value_name = "NAME=JSON", value_parser = crate::cli::template::assignment)]
    pub(crate) set: Vec<(String, Data)>,
    /// Whether to show the reasoning of models that think before they answer.
    #[arg(long, value_name = "CHOICE", default_value = "show", action = ArgAction::Set, value_parser = choice(&[("show", true), ("hide", false)]))]
    pub(crate) reasoning: bool,
    /// Maximum number of tokens of an answer. Default: 2048, and 80 with the bundled model.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TOKENS)), allow_negative_numbers = true)]
    pub(crate) tokens: Option<u32>,
    /// If the context is full: drop the oldest turns but keep the system message, or stop with exit code 2.
    #[arg(long = "context-full", value_name = "CHOICE", default_value = "drop", action = ArgAction::Set, value_parser = choice(&[("drop", true), ("stop", false)]))]
    pub(crate) drops_turns: bool,
    /// Print statistics after each answer: tokens, rates, time to the first token, use of the context, seed.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print only answers, errors, warnings and requested statistics.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ragtag logits model.gguf --ids 1,1798,717 -o out.npy --activations f32")]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Comma-separated token ids. The model needs no tokenizer.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true, allow_negative_numbers = true)]
    pub(crate) ids: Vec<u32>,
    /// Output file: a float32 array [positions, vocabulary].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ragtag perplexity model.gguf -f held.txt --ctx 256 --chunks 16")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text file to evaluate.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Number of pieces of --ctx tokens to evaluate, from the start of the text. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) chunks: Option<u32>,
    /// Print JSON instead of a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
}

/// Checks of the activations that pass between stages.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Transfers")]
pub(crate) struct TransferArgs {
    /// Verify the activations that a stage receives with checksums, before it computes. Wrong activations are
    /// sent again, over another route if the plan has one. Wrong keys and values of a prefill stage end the
    /// run. The end of the run shows the cost.
    #[arg(long, hide = true)]
    pub(crate) verify_transfers: bool,
    /// End the run if a copy takes longer than this, without the time in which it waits for a computation. 0
    /// disables the limit.
    #[arg(long, value_name = "SECONDS", default_value_t = ragtag_scheduler::STALL_TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(..=86400), allow_negative_numbers = true, hide = true)]
    pub(crate) stall_timeout: u64,
    /// End the run if a computation takes longer than this. 0 disables the limit. By default, the limit is 20 times
    /// the predicted time, at least the limit for copies, and at least 10 times that on a CPU or an emulated device.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86400), allow_negative_numbers = true, hide = true)]
    pub(crate) compute_timeout: Option<u64>,
}

impl TransferArgs {
    /// Returns engine options with these checks and a progress bar for loading. `trace` records a trace.
    pub(crate) fn options(self, trace: bool) -> EngineOptions {
        let mut options = EngineOptions::default();
        options.trace = trace;
        options.progress = Some(loading());
        options.verify_transfers = self.verify_transfers;
        options.stall_timeout = Some(Duration::from_secs(self.stall_timeout));
        options.compute_timeout = self.compute_timeout.map(Duration::from_secs);
        options
    }
}

/// Recovery from the failure of a device, and the log of events.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Recovery")]
pub(crate) struct RecoveryArgs {
    /// End the run if a device fails. By default, the other devices go on with all requests.
    #[arg(long, hide = true)]
    pub(crate) no_recover: bool,
    /// Maximum number of failures within an hour after which the other devices go on.
    #[arg(long, value_name = "N", default_value_t = MAX_RECOVERIES, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true, conflicts_with = "no_recover", hide = true)]
    pub(crate) max_recoveries: u32,
    /// Write a log of the events of the run for `ragtag replay`, with the prompts. It ends at 1 GiB.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) log_events: Option<PathBuf>,
}

impl RecoveryArgs {
    /// Sets the recovery of an engine.
    pub(crate) fn set(&self, mut options: EngineOptions) -> EngineOptions {
        options.max_recoveries = if self.no_recover { 0 } else { self.max_recoveries };
        options.log_events.clone_from(&self.log_events);
        options
    }
}

/// Output files that record a run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Records")]
pub(crate) struct RecordArgs {
    /// Write a trace for Perfetto or chrome://tracing, with a track per device queue and actor.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Write a receipt of the run: model digest, devices, drivers, plan, kernels, routes.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) receipt: Option<PathBuf>,
}

impl RecordArgs {
    /// Returns the paths of the trace and of the receipt that the user requested.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.trace.iter().chain(&self.receipt)
    }
}

/// Comparison of the plan's predictions with the run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Predicted against measured")]
pub(crate) struct CompareArgs {
    /// Write an HTML page that compares predicted and measured times.
    #[arg(long, value_name = "FILE", alias = "report", hide = true)]
    pub(crate) html: Option<PathBuf>,
    /// Plan again from the measurements of a first run, and use the new plan if it is predicted to be more
    /// than 3 % faster.
    #[arg(long, hide = true)]
    pub(crate) replan: bool,
}
