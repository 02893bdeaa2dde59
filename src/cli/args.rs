//! Command-line arguments and their help texts. The sibling modules implement the commands.

use super::kv::KvArgs;
use crate::engine::EngineOptions;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ragtag_chat::{Data, Moment};
use ragtag_devices::ThrottleSpec;
use ragtag_graph::RopeScaling;
use ragtag_hal::GemmChoice;
use ragtag_kernels::TensorType;
use ragtag_planner::Objective;
use ragtag_scheduler::sim::Lengths;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
  ragtag run -p \"Once upon a time\" --cpu-devices 2    generate text on a pipeline of two CPU devices
  ragtag devices                                      list the devices of this machine
  ragtag plan model.gguf --ctx 4096                   show which device would run which layers, and why
  ragtag bench model.gguf --parallel 8                measure prompt and generation speed

Exit codes: 0 done, 1 internal error, device failure or failed self-test, 2 usage, 3 model file or chat template, 4 plan or \
split, \
5 device selection, 6 does not fit in memory, 7 cannot read or write a file or standard output, 8 refused by --strict."
)]
pub(crate) struct Cli {
    /// Show all columns of tables, even beyond the terminal width.
    #[arg(long, global = true)]
    pub(crate) wide: bool,
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
    /// Measure prompt processing (pp) and generation (tg) speed.
    Bench(BenchArgs),
    /// Show the contents of a model file: hyperparameters, segments, tensors, costs.
    Inspect(InspectArgs),
    /// Write the logits for a list of token ids, one row per position, to a NumPy file.
    Logits(LogitsArgs),
    /// Measure the perplexity of a text.
    Perplexity(PerplexityArgs),
    /// Render a conversation with a model's chat template and print the prompt.
    Template(TemplateArgs),
    /// Check that the devices compute correctly.
    Selftest(SelftestArgs),
    /// Simulate a plan under a load of requests, without running the model.
    Simulate(SimulateArgs),
    /// Probe one backend and print its adapters for the parent process.
    #[command(hide = true)]
    Probe {
        /// Name of the backend.
        backend: String,
    },
    /// Compile a HIP kernel source for the parent process, over standard input and output.
    #[cfg(feature = "hip")]
    #[command(hide = true)]
    CompileForHip,
    /// Print a shell completion script.
    #[command(
        after_help = "Example:\n  ragtag completions bash > ~/.local/share/bash-completion/completions/ragtag"
    )]
    Completions {
        /// Shell to complete for.
        shell: clap_complete::Shell,
    },
}

/// Device selection.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(crate) struct DeviceArgs {
    /// Comma-separated list of auto, gpu, cpu, devices (cuda:0,cpu:1), APIs (cuda selects all CUDA devices)
    /// and filters (min-memory=8GiB). Default: RAGTAG_DEVICES, or auto, which selects all GPUs, and the CPU if
    /// there is no GPU or if the weights exceed the GPUs' memory.
    #[arg(long, value_name = "LIST")]
    pub(crate) device: Option<String>,
    /// Cap the memory that plans use on devices (cuda:0=12GiB), on all devices of an API (cuda=8GiB) and in
    /// host memory (host=24.5GiB). Comma-separated and repeatable. Default: RAGTAG_MEMORY.
    #[arg(long, value_name = "CAPS")]
    pub(crate) memory: Vec<String>,
    /// Split the CPU's cores into N devices cpu:0 … cpu:N-1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) cpu_devices: u32,
    /// Threads of each CPU device. Default: the hardware threads, divided evenly. If other devices are
    /// selected as well, a few threads (at most one eighth) stay free.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: Option<u32>,
    /// Timeout in seconds for probing a driver in a child process.
    #[arg(long, value_name = "SECONDS", env = "RAGTAG_PROBE_LIMIT", default_value_t = ragtag_devices::ProbeChild::LIMIT.as_secs(), value_parser = probe_limit, allow_negative_numbers = true)]
    pub(crate) probe_limit: u64,
    /// Throttle a device or a link, for tests: cpu:0=threads:1, cuda:0=sms:64, cpu:1=duty:50%,
    /// link:cpu:0->cpu:1=1GB/s. Repeatable.
    #[arg(long, alias = "handicap", value_name = "THROTTLE", hide_short_help = true)]
    pub(crate) throttle: Vec<ThrottleSpec>,
    /// Kernels for prefill matmuls of 512 rows and more: own (Ragtag's kernels), library (cuBLASLt or
    /// rocBLAS, if available), or auto. With auto, Ragtag uses its own kernels if they use the device's
    /// matrix units, and otherwise the library.
    #[arg(long, value_name = "KERNELS", default_value = "auto")]
    pub(crate) gemm: GemmChoice,
    /// Refuse software devices in place of GPUs, fallbacks, throttles, routes that `devices --links` has not
    /// verified, and suspicious weights, with exit code 8. Routes through host memory need no probe.
    #[arg(long, env = "RAGTAG_STRICT", value_parser = switch("RAGTAG_STRICT"))]
    pub(crate) strict: bool,
}

/// Parses a probe limit, in seconds. Returns the default for an empty value, because an empty environment
/// variable counts as unset.
fn probe_limit(text: &str) -> Result<u64, String> {
    let known =
        if text.is_empty() { Some(ragtag_devices::ProbeChild::LIMIT.as_secs()) } else { text.parse().ok() };
    known
        .filter(|seconds| (1..=3600).contains(seconds))
        .ok_or("expected a whole number of seconds from 1 to 3600".into())
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

/// Placement of the model on the devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Smallest unit of placement: a transformer block, or its attention and feed-forward halves. Default:
    /// the granularity of the plan with --plan, otherwise block.
    #[arg(long, value_name = "SIZE")]
    pub(crate) granularity: Option<GranularityArg>,
    /// Place the segments yourself, first to last: 0-5=cpu:0,6-13=cpu:1. `ragtag inspect` lists the segment
    /// numbers.
    #[arg(long, value_name = "SPLIT", conflicts_with = "plan")]
    pub(crate) split: Option<String>,
    /// Use a plan written by `ragtag plan --json` ("-": standard input).
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Place segments on a device, in the syntax of --split. For example, 0=cpu:0 places the embedding.
    /// Repeatable.
    #[arg(long, value_name = "SEGMENTS=DEVICE", conflicts_with_all = ["split", "plan"])]
    pub(crate) pin: Vec<String>,
    /// Leave a device out of the plan. Repeatable.
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["split", "plan"])]
    pub(crate) exclude: Vec<String>,
    /// Maximum number of stages.
    #[arg(long, value_name = "N", conflicts_with_all = ["split", "plan"], value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) max_stages: Option<u32>,
    /// Longest sequence that must fit, in tokens. Default: the longest sequence that fits, up to the model's
    /// context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16777216), allow_negative_numbers = true)]
    pub(crate) ctx: Option<u32>,
    /// RoPE scaling in place of the model's own, for contexts beyond the trained length: yarn:FACTOR or
    /// linear:FACTOR. The model's context becomes its original context times the factor.
    #[arg(long, value_name = "SCALING")]
    pub(crate) rope_scaling: Option<RopeScaling>,
    /// Maximum number of prompt tokens in one prefill micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    /// Type of activations in matmuls with quantized weights: f32 is exact, int8 is fast. Default: the type
    /// in the plan with --plan, otherwise int8.
    #[arg(long, value_name = "TYPE")]
    pub(crate) activations: Option<ActivationsArg>,
    /// Wire type of activations between stages. f16 halves the bytes, but is not allowed with --activations
    /// f32. Default: the type in the plan with --plan, otherwise the type that is predicted to be faster.
    #[arg(long, alias = "boundary", value_name = "TYPE")]
    pub(crate) wire: Option<WireArg>,
    /// Do not calibrate devices without a cached profile. Use datasheet, reported or assumed speeds instead.
    /// Calibration takes at most 3 seconds, and its result is cached.
    #[arg(long, env = "RAGTAG_NO_CALIBRATION", value_parser = switch("RAGTAG_NO_CALIBRATION"))]
    pub(crate) no_calibration: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsArg {
    F32,
    Int8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WireArg {
    Auto,
    F32,
    F16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GranularityArg {
    Block,
    #[value(alias = "half-block")]
    Half,
}

/// Request and objective to plan for.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestArgs {
    /// Optimization goal: latency (of one sequence), throughput, first-token, or a mix such as
    /// mix:latency=1,throughput=2. Default: the goal of the plan with --plan, otherwise throughput.
    #[arg(long, value_name = "OBJECTIVE")]
    pub(crate) objective: Option<Objective>,
    /// Prompt tokens of the request to plan for. Default: the number in the plan with --plan, otherwise the
    /// length of the prompt (`run`), the longest -p (`bench`), or 512 (`plan`).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_TOKENS)), allow_negative_numbers = true)]
    pub(crate) prompt_tokens: Option<u32>,
    /// Generated tokens of the request to plan for. Default: the number in the plan with --plan, otherwise -n
    /// (`run`), the longest -n (`bench`), or 128 (`plan`).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_TOKENS)), allow_negative_numbers = true)]
    pub(crate) new_tokens: Option<u32>,
}

/// Checks of the activations that pass between stages.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Transfers")]
pub(crate) struct TransferArgs {
    /// Verify the activations that a stage receives with checksums, before it computes. Wrong activations are
    /// sent again, over another route if the plan has one. Wrong keys and values of a prefill stage end the
    /// run. The end of the run shows the cost.
    #[arg(long)]
    pub(crate) verify_transfers: bool,
    /// End the run if a copy takes longer than this, without the time in which it waits for a computation. 0
    /// disables the limit.
    #[arg(long, value_name = "SECONDS", default_value_t = ragtag_scheduler::STALL_TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(..=86400), allow_negative_numbers = true)]
    pub(crate) stall_timeout: u64,
}

impl TransferArgs {
    /// Returns `options` with these checks.
    pub(crate) fn over(self, mut options: EngineOptions) -> EngineOptions {
        options.verify_transfers = self.verify_transfers;
        options.stall_timeout = Some(Duration::from_secs(self.stall_timeout));
        options
    }
}

/// Output files that record a run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Records")]
pub(crate) struct RecordArgs {
    /// Write a trace for Perfetto or chrome://tracing, with one track per device queue.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Write a receipt of the run: model digest, devices, drivers, plan, kernels, routes.
    #[arg(long, value_name = "FILE")]
    pub(crate) receipt: Option<PathBuf>,
}

impl RecordArgs {
    /// Returns the paths of the trace and of the receipt that the user requested.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.trace.iter().chain(&self.receipt)
    }
}

/// Options for models without weights.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DescribedArgs {
    /// Tensor type to assume for the matrices of a directory without weights: f16, q8_0, q4_k … Default: the
    /// type in config.json.
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    pub(crate) assume_type: Option<TensorType>,
}

/// Devices described by figures alone.
#[derive(Clone, Debug, Args)]
pub(crate) struct FleetArgs {
    /// Plan for hardware that need not be present: cards (2x-arc-a770+rx7900xtx; see `ragtag cards`) or a
    /// .json file.
    #[arg(long, value_name = "CARDS|FILE", conflicts_with_all = ["device", "memory", "cpu_devices", "threads", "throttle", "gemm"])]
    pub(crate) fleet: Option<String>,
}

impl FleetArgs {
    /// Returns the path of the fleet file, if the value of `--fleet` is a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.fleet.as_deref().filter(|fleet| fleet.ends_with(".json")).map(Path::new)
    }
}

/// Parses the name of a tensor type. Ignores case.
fn tensor_type(name: &str) -> Result<TensorType, String> {
    TensorType::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        format!("expected one of {}", TensorType::ALL.map(TensorType::name).join(", ").to_lowercase())
    })
}

#[derive(Debug, Args)]
pub(crate) struct CardsArgs {
    /// Print JSON with sources and the figures that plans use, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Comparison of the plan's predictions with the run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Predicted against measured")]
pub(crate) struct CompareArgs {
    /// Write an HTML page that compares predicted and measured times.
    #[arg(long, value_name = "FILE", alias = "report")]
    pub(crate) html: Option<PathBuf>,
    /// Plan again from the measurements of a first run, and use the new plan if it is predicted to be more
    /// than 3 % faster.
    #[arg(long)]
    pub(crate) replan: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag devices
  ragtag devices --doctor
  ragtag devices --cpu-devices 2 --json
  ragtag devices --links --device gpu,cpu --svg links.svg")]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Explain why a GPU is missing: check build, libraries, drivers and permissions for each API, and
    /// suggest fixes.
    #[arg(long, conflicts_with = "links")]
    pub(crate) doctor: bool,
    /// Probe the links between the devices: check that each route keeps data intact, and show the fastest
    /// verified route with its latency and rates. Default devices: auto,cpu. The result is cached, and plans
    /// use it.
    #[arg(long)]
    pub(crate) links: bool,
    /// Ignore cached results of --links and probe again.
    #[arg(long, requires = "links")]
    pub(crate) reprobe: bool,
    /// Draw the devices and the links of --links as an SVG file ("-": standard output).
    #[arg(long, value_name = "FILE", requires = "links")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag calibrate model.gguf
  ragtag calibrate model.gguf --every-api
  ragtag calibrate model.gguf --device cuda:0,cpu --parallel 8 --seconds 5 --force")]
pub(crate) struct CalibrateArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Maximum number of sequences that decode together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: u32,
    /// Maximum number of prompt tokens in one prefill micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    /// Type of activations in matmuls with quantized weights: f32 is exact, int8 is fast.
    #[arg(long, value_name = "TYPE", default_value = "int8")]
    pub(crate) activations: ActivationsArg,
    /// Approximate timing budget for each device, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Ignore cached profiles and time everything again.
    #[arg(long)]
    pub(crate) force: bool,
    /// Also time the selected devices through their other APIs. Later runs use the fastest API of each GPU.
    #[arg(long)]
    pub(crate) every_api: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a timing budget in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0 to 3600".into()),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag plan model.gguf --cpu-devices 2
  ragtag plan model.gguf --device auto,cpu --memory cuda:0=12GiB,host=24GiB
  ragtag plan model.gguf --ctx 8192 --parallel 4 --json > plan.json
  ragtag run model.gguf --plan plan.json
  ragtag plan model.gguf --html plan.html --dot - | dot -Tsvg > graph.svg
  ragtag plan model.gguf --fleet 2x-arc-a770+rx7900xtx --objective latency
  ragtag plan directory --assume-type q4_k --fleet fleet.json

Only the model's metadata is read: a .gguf file may end after its header, and a directory needs only config.json.")]
pub(crate) struct PlanArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Number of concurrent sequences that must fit at full context. Default: the number in the plan with
    /// --plan, otherwise 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// Print the plan as JSON, for --plan, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
}

/// Output files with pictures of a plan.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Pictures")]
pub(crate) struct PictureArgs {
    /// Write a self-contained HTML page with stages, links, memory, timeline and alternatives. If the file of
    /// --html, --svg or --dot is "-", the picture goes to standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the charts as one SVG file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write devices, stages and edges as a Graphviz graph.
    #[arg(long, value_name = "FILE")]
    pub(crate) dot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag run -p \"Once upon a time\"
  ragtag run model.gguf -p \"The old woman\" -n 64 --temp 0 --cpu-devices 2
  ragtag run model.gguf --chat -p \"Why is the sky blue?\"
  ragtag run model.gguf -p \"Hello\" --split 0-5=cpu:0,6-13=cpu:1 --cpu-devices 2 --json
  ragtag run -p \"Once upon a time\" --cpu-devices 2 --trace trace.json
  ragtag run -p \"Once upon a time\" --cpu-devices 2 --replan --compare")]
pub(crate) struct RunArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// Text to continue.
    #[arg(short, long, value_name = "TEXT", default_value = "Once upon a time")]
    pub(crate) prompt: String,
    /// Read the prompt from a file ("-": standard input). One trailing line break is removed.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// Use the prompt as a message of the user, in the model's chat format. The prompt is not echoed.
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message of the chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// Maximum number of tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, allow_negative_numbers = true)]
    pub(crate) tokens: u32,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
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
    /// Compare predicted and measured times on standard error.
    #[arg(long, help_heading = "Predicted against measured")]
    pub(crate) compare: bool,
    /// After loading, compare the first block of each stage with the CPU on random rows. If the results
    /// differ, exit with code 1. Loads a copy of these blocks.
    #[arg(long)]
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
}

/// Sampling of the next token.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Sample from the K most likely tokens; 0 disables the limit.
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub(crate) top_k: u32,
    /// Sample from the most likely tokens whose probabilities sum up to P; 1 disables the limit.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Sample only tokens at least P times as likely as the most likely token; 0 disables the limit.
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Penalty on tokens that occur in the recent text; 1 disables it.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Seed of the sampler. Default: a random seed, which is printed.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Stop before this text. Repeatable.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag chat model.gguf
  ragtag chat model.gguf --system \"Answer in one sentence.\" --device cuda:0,vulkan:1
  ragtag chat model.gguf --set enable_thinking=false
  ragtag chat model.gguf --load talk.json

Commands in the chat: /help, /reset, /save FILE, /load FILE, /system TEXT, /exit. A line that ends with \\ continues on the \
next line. Ctrl-C stops an answer.")]
pub(crate) struct ChatArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Continue the conversation in this file, a JSON list of messages such as /save writes.
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    pub(crate) load: Option<PathBuf>,
    /// Use the chat template in this file instead of the model's template.
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// Set a variable of the template to a JSON value. Repeatable.
    #[arg(long, value_name = "NAME=JSON", value_parser = super::template::assignment)]
    pub(crate) set: Vec<(String, Data)>,
    /// Whether to show the reasoning of models that think before they answer.
    #[arg(long, value_name = "CHOICE", default_value = "show")]
    pub(crate) reasoning: ReasoningArg,
    /// Maximum number of tokens of an answer. Default: as many as the context holds.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TOKENS)), allow_negative_numbers = true)]
    pub(crate) tokens: Option<u32>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    /// Print only answers, errors and warnings.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningArg {
    Show,
    Hide,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag bench model.gguf
  ragtag bench model.gguf --cpu-devices 2 --threads 1 --parallel 16 -p 512 -n 32 -r 5 --json
  ragtag bench model.gguf --defaults
  ragtag bench --links --device gpu,cpu
  ragtag bench model.gguf --cpu-devices 2 --parallel 8 --replan --html report.html")]
pub(crate) struct BenchArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
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
    /// Compare the default settings with the best of up to 12 alternatives, for prompts of 512, 2,048 and
    /// 8,192 tokens and for 1, 8 and 64 generating sequences.
    #[arg(long, conflicts_with_all = ["pp", "tg", "prompt_tokens", "new_tokens", "parallel", "plan", "split", "chunk", "html", "replan", "trace", "receipt", "verify_transfers", "stall_timeout"])]
    pub(crate) defaults: bool,
    /// Measure the links between the devices instead of a model: transfers of 4 KiB to 16 MiB, in one
    /// direction and in both at once, on idle devices and while both devices compute. Default devices:
    /// auto,cpu.
    #[arg(long, conflicts_with_all = ["model", "defaults", "pp", "tg", "prompt_tokens", "new_tokens", "objective", "parallel", "plan", "split", "pin", "exclude", "chunk", "html", "replan", "trace", "receipt", "verify_transfers", "stall_timeout"])]
    pub(crate) links: bool,
    /// Repetitions of each measurement, after one warm-up. With --links, up to 25 transfers each.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) repetitions: u32,
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
    /// After loading, compare the first block of each stage with the CPU on random rows. If the results
    /// differ, exit with code 1. Loads a copy of these blocks.
    #[arg(long, conflicts_with_all = ["links", "defaults"])]
    pub(crate) canary: bool,
    /// Print only errors and warnings on standard error.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON with every sample instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag inspect model.gguf
  ragtag inspect model.gguf --granularity half
  ragtag inspect model.gguf --dot | dot -Tsvg > model.svg")]
pub(crate) struct InspectArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    /// The weights may be missing: a file may end after its header, and a directory may hold only
    /// config.json.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    /// List every tensor as well.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print the operator graph in Graphviz format instead.
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// Unit of a segment: a transformer block, or its attention and feed-forward halves.
    #[arg(long, value_name = "SIZE", default_value = "block")]
    pub(crate) granularity: GranularityArg,
    /// Type of activations to lower the graph for.
    #[arg(long, value_name = "TYPE", default_value = "int8")]
    pub(crate) activations: ActivationsArg,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ragtag logits model.gguf --ids 1,1798,717 -o out.npy --activations f32")]
pub(crate) struct LogitsArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
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
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// Text file to evaluate.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Number of pieces of --ctx tokens to evaluate, from the start of the text. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) chunks: Option<u32>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    /// Print JSON instead of a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag template model.gguf --messages chat.json
  ragtag template models/qwen3 --messages chat.json --tools tools.json --set enable_thinking=false
  ragtag template --template chat_template.jinja --messages - --bos '<s>' --eos '</s>' < chat.json

A file of messages is a JSON list such as [{\"role\": \"user\", \"content\": \"Hello!\"}]. The prompt is printed without an \
additional line break. Exit code 3 if the template rejects the messages.")]
pub(crate) struct TemplateArgs {
    /// A .gguf file (any part of a split model), or a directory with config.json. The weights may be missing.
    /// Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// Render the template in this file ("-": standard input) instead of a model's template.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "name"])]
    pub(crate) template: Option<PathBuf>,
    /// JSON list of messages, oldest first ("-": standard input).
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: PathBuf,
    /// JSON list of the tools that the model may call.
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// JSON list of documents that the model may cite.
    #[arg(long, value_name = "FILE")]
    pub(crate) documents: Option<PathBuf>,
    /// End the prompt after the last message. By default, it ends with the start of the assistant's message.
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
    /// Use the model's template with this name. Default: tool_use with --tools if the model has it, otherwise
    /// the model's default template.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Text of the token that begins a text. Default: the model's token.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) bos: Option<String>,
    /// Text of the token that ends a text. Default: the model's token.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) eos: Option<String>,
    /// Time for templates that print the date, such as 2025-03-09T08:05:07. Default: the current time in UTC.
    #[arg(long, value_name = "TIME", value_parser = super::template::moment)]
    pub(crate) now: Option<Moment>,
    /// Set a variable of the template to a JSON value. Repeatable.
    #[arg(long, value_name = "NAME=JSON", value_parser = super::template::assignment)]
    pub(crate) set: Vec<(String, Data)>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag selftest
  ragtag selftest --device cpu --only 'kernel/matmul*avx2'
  ragtag selftest --only 'kernel/gemm' --shapes 200 --seed 7
  ragtag selftest --report selftest.json

Without --device or RAGTAG_DEVICES, every device is tested, including software devices.
Exit code 1 if a test fails.")]
pub(crate) struct SelftestArgs {
    /// Run only tests whose name contains PATTERN; * matches any text: 'matmul*avx2'.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Option<String>,
    /// Test each kernel with N random shapes in addition to the fixed shapes. A full run uses 200 random
    /// shapes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=1_000_000), allow_negative_numbers = true)]
    pub(crate) shapes: u32,
    /// Seed of the first random shape; each later shape uses the next seed.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Write a JSON report: versions, devices, and every test with its time.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print the JSON report instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag simulate model.gguf --cpu-devices 2 --requests 100 --rate 4
  ragtag simulate model.gguf --closed 8 --prompt-tokens 100-900 --new-tokens ~200 --json
  ragtag simulate model.gguf --plan plan.json --requests-file requests.csv --trace timeline.json
  ragtag simulate model.gguf --fleet 2x-arc-a770+rx7900xtx --closed 16

Lengths are 512 (fixed), 100-300 (uniform) or ~200 (geometric with that mean). A requests file is JSON Lines, or CSV with \
a header: arrival_s, prompt_tokens, output_tokens.")]
pub(crate) struct SimulateArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Number of requests.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1048576), allow_negative_numbers = true)]
    pub(crate) requests: u32,
    /// Poisson arrivals at R requests per second. Default: all requests arrive at the start.
    #[arg(long, value_name = "R", conflicts_with = "closed", allow_negative_numbers = true)]
    pub(crate) rate: Option<f64>,
    /// Closed loop: N requests are in progress. A new request arrives when a request ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) closed: Option<u32>,
    /// Prompt tokens of each request.
    #[arg(long, value_name = "LENGTHS", default_value = "128")]
    pub(crate) prompt_tokens: Lengths,
    /// Generated tokens of each request.
    #[arg(long, value_name = "LENGTHS", default_value = "64")]
    pub(crate) new_tokens: Lengths,
    /// Seed of the random arrivals and lengths.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Read the requests from a file.
    #[arg(long, value_name = "FILE", alias = "trace-file", conflicts_with_all = ["requests", "rate", "closed", "prompt_tokens", "new_tokens", "seed"])]
    pub(crate) requests_file: Option<PathBuf>,
    /// Number of concurrent sequences that must fit at full context. Default: the value of --closed, or 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Write the timeline for Perfetto or chrome://tracing, with one track per device queue.
    #[arg(long, value_name = "FILE", alias = "chrome")]
    pub(crate) trace: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}
