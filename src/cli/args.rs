//! The command line as data. Help texts live here; what they promise is done in the modules beside this one.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Runs one language model as a pipeline across whatever GPUs and CPUs this machine has.
#[derive(Debug, Parser)]
#[command(
    name = "ragtag",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  ragtag run -p \"Once upon a time\" --cpu-devices 2    a tale over a pipeline of two CPU devices
  ragtag devices                                      what this machine has
  ragtag plan model.gguf --ctx 4096                   which device would run which layers, and why
  ragtag bench model.gguf --parallel 8                prompt and generation speed

Exit codes: 0 done, 1 internal or device failure or a failed self-test, 2 usage, 3 model file, 4 plan or split, 5 devices,
6 does not fit, 7 file cannot be read or written, 8 refused by --strict."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices of this machine, API by API.
    Devices(DevicesArgs),
    /// Show which device would run which segments, and why, without running.
    Plan(PlanArgs),
    /// Generate text.
    Run(RunArgs),
    /// Measure prompt processing (pp) and generation (tg) speed.
    Bench(BenchArgs),
    /// Show what a model file holds: hyperparameters, segments, tensors, costs.
    Inspect(InspectArgs),
    /// Write the logits of every position of a list of token ids as a NumPy file.
    Logits(LogitsArgs),
    /// Measure perplexity on a text.
    Perplexity(PerplexityArgs),
    /// Try out whether the devices do what Ragtag relies on.
    Selftest(SelftestArgs),
    /// Ask one backend for its adapters and print them for the process that wants to know.
    #[command(hide = true)]
    Probe {
        /// Its name.
        backend: String,
    },
    /// Compile a text for HIP: read it from the process that started this one, and give it the code.
    #[cfg(feature = "hip")]
    #[command(hide = true)]
    CompileForHip,
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  ragtag completions bash > ~/.local/share/bash-completion/completions/ragtag"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Which devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(crate) struct DeviceArgs {
    /// auto, gpu, cpu, names (cpu:0,cpu:1) and filters (min-memory=8GiB), separated by commas. Default: RAGTAG_DEVICES,
    /// else auto: all GPUs, or the CPU where there is none.
    #[arg(long, value_name = "LIST")]
    pub(crate) device: Option<String>,
    /// Split the processor's cores into N devices cpu:0 … cpu:N-1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpu_devices: u32,
    /// Threads of each CPU device. Default: the cores, divided evenly.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Seconds that a driver may take to say which devices it has, where it is asked in a process of its own.
    #[arg(long, value_name = "SECONDS", env = "RAGTAG_PROBE_LIMIT", default_value_t = ragtag_devices::ProbeChild::LIMIT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) probe_limit: u64,
    /// Refuse software devices where a GPU was asked for, fallbacks and suspicious weights, with exit code 8.
    #[arg(long, env = "RAGTAG_STRICT", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) strict: bool,
}

/// How the model is laid out over them.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Segments by hand, first to last: 0-5=cpu:0,6-13=cpu:1. `ragtag inspect` numbers the segments.
    #[arg(long, value_name = "SPLIT", conflicts_with = "plan")]
    pub(crate) split: Option<String>,
    /// Use a plan written by `ragtag plan --json`.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Longest sequence that must fit, in tokens. Default: what fits, up to the model's context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16777216))]
    pub(crate) ctx: Option<u32>,
    /// Most tokens that go through the pipeline together in prefill.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) chunk: Option<u32>,
    /// Type of the key-value cache. Default: f32 with --activations f32, else f16.
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv: Option<Kv>,
    /// Form of the activations in products with quantised weights: f32 is exact, int8 is fast.
    #[arg(long, value_name = "FORM", default_value = "int8")]
    pub(crate) activations: ActivationsArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    F32,
    F16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsArg {
    F32,
    Int8,
}

/// What a run leaves behind.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Records")]
pub(crate) struct RecordArgs {
    /// Write a trace for Perfetto or chrome://tracing: one lane for each device queue.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Write what really ran: model digest, devices, drivers, plan, kernels, routes.
    #[arg(long, value_name = "FILE")]
    pub(crate) receipt: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ragtag devices\n  ragtag devices --doctor\n  ragtag devices --cpu-devices 2 --json"
)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Why a GPU is not found: for each API what is in this build, what the machine has, what is missing, what helps.
    #[arg(long)]
    pub(crate) doctor: bool,
    /// JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag plan model.gguf --cpu-devices 2
  ragtag plan model.gguf --ctx 8192 --parallel 4 --json > plan.json && ragtag run model.gguf --plan plan.json")]
pub(crate) struct PlanArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Sequences that must fit at the full context at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// The plan as JSON, for --plan, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag run -p \"Once upon a time\"
  ragtag run model.gguf -p \"The old woman\" -n 64 --temp 0 --cpu-devices 2
  ragtag run model.gguf -p \"Hello\" --split 0-5=cpu:0,6-13=cpu:1 --cpu-devices 2 --json
  ragtag run -p \"Once upon a time\" --cpu-devices 2 --trace trace.json")]
pub(crate) struct RunArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// The text to go on from.
    #[arg(short, long, value_name = "TEXT", default_value = "Once upon a time")]
    pub(crate) prompt: String,
    /// Read the prompt from a file ("-": standard input) instead.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// Most tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256)]
    pub(crate) tokens: u32,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    /// One JSON object on standard output instead of the text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the next token is chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub(crate) temp: f32,
    /// Only the K likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub(crate) top_k: u32,
    /// Only the likeliest tokens that make up this probability; 1 for all.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub(crate) top_p: f32,
    /// Only tokens at least this likely against the likeliest; 0 for all.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub(crate) min_p: f32,
    /// Makes tokens of the recent text less likely; 1 for no change.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// Seed of the choice. Default: drawn, and printed.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Stop before this text. May be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag bench model.gguf
  ragtag bench model.gguf --cpu-devices 2 --threads 1 --parallel 16 -p 512 -n 32 -r 5 --json")]
pub(crate) struct BenchArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// Prompt lengths to measure (pp); 0 for none.
    #[arg(short = 'p', long = "pp", value_name = "N", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Numbers of generated tokens to measure (tg); 0 for none.
    #[arg(short = 'n', long = "tg", value_name = "N", value_delimiter = ',', default_value = "128")]
    pub(crate) new_tokens: Vec<u32>,
    /// Sequences at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// Repetitions of each measurement, after one that does not count.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    /// JSON, with every sample, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag inspect model.gguf
  ragtag inspect model.gguf --dot | dot -Tsvg > model.svg")]
pub(crate) struct InspectArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// Every tensor, too.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// The operator graph in Graphviz's language instead.
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// Form of the activations that the graph is lowered for.
    #[arg(long, value_name = "FORM", default_value = "int8")]
    pub(crate) activations: ActivationsArg,
    /// JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ragtag logits model.gguf --ids 1,1798,717 -o out.npy --activations f32")]
pub(crate) struct LogitsArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// Token ids, separated by commas. Needs no tokenizer.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub(crate) ids: Vec<u32>,
    /// The file: float32 [positions, vocabulary].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ragtag perplexity model.gguf -f held.txt --ctx 256 --chunks 16")]
pub(crate) struct PerplexityArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// The text.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// How many pieces of --ctx tokens to take from the start of the text. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunks: Option<u32>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    /// JSON instead of a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag selftest
  ragtag selftest --device cpu --only 'kernel/matmul*avx2'
  ragtag selftest --only 'kernel/gemm' --shapes 200 --seed 7
  ragtag selftest --report selftest.json

Without --device and RAGTAG_DEVICES every device is tested, also those that the processor imitates.
Exit code 1 if a test fails.")]
pub(crate) struct SelftestArgs {
    /// Only tests with this in their names; * stands for anything: 'matmul*avx2'.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Option<String>,
    /// Try each operator with N random shapes, beside the listed ones.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub(crate) shapes: u32,
    /// The seed of the first random shape; each of the others has the next.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write versions, devices and every test with its time as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// The same on standard output instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}
