//! The command line as data. Help texts live here; what they promise is done in the modules beside this one.

use clap::{Args, Parser, Subcommand, ValueEnum};
use ragtag_devices::Handicap;
use ragtag_hal::GemmChoice;
use ragtag_kernels::TensorType;
use ragtag_planner::Objective;
use ragtag_scheduler::sim::Lengths;
use std::path::{Path, PathBuf};

/// Most tokens of a prompt, or of what is generated, in a request to plan for.
pub(crate) const MOST_TOKENS: u32 = 1 << 24;

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

Exit codes: 0 done, 1 internal or device failure or a failed self-test, 2 usage, 3 model file, 4 plan or split, \
5 devices, 6 does not fit, 7 file or standard output cannot be read or written, 8 refused by --strict."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices of this machine, API by API.
    Devices(DevicesArgs),
    /// Time the devices with a model's own layers, and the ways between them; the result is kept for plans.
    Calibrate(CalibrateArgs),
    /// Show which device would run which segments, and why, without running.
    Plan(PlanArgs),
    /// List the cards that `plan --fleet` knows.
    #[command(
        after_help = "Examples:\n  ragtag cards\n  ragtag plan model.gguf --fleet 2x-arc-a770+rx7900xtx"
    )]
    Cards(CardsArgs),
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
    /// Show what a load of requests would get of a plan, without running.
    Simulate(SimulateArgs),
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
    /// auto, gpu, cpu, devices (cuda:0,cpu:1), all devices of an API (cuda) and filters (min-memory=8GiB), separated by commas.
    /// Default: RAGTAG_DEVICES, else auto: all GPUs, or the CPU where there is none.
    #[arg(long, value_name = "LIST")]
    pub(crate) device: Option<String>,
    /// Split the processor's cores into N devices cpu:0 … cpu:N-1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) cpu_devices: u32,
    /// Threads of each CPU device. Default: all threads, less a few (an eighth at most) where other devices are selected as
    /// well, divided evenly.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: Option<u32>,
    /// Seconds that a driver may take to say which devices it has, where it is asked in a process of its own.
    #[arg(long, value_name = "SECONDS", env = "RAGTAG_PROBE_LIMIT", default_value_t = ragtag_devices::ProbeChild::LIMIT.as_secs(), value_parser = probe_limit, allow_negative_numbers = true)]
    pub(crate) probe_limit: u64,
    /// Slow a device or a link on purpose, for tests: cpu:0=threads:1, cuda:0=sms:64, cpu:1=duty:50%,
    /// link:cpu:0->cpu:1=1GB/s. May be given several times.
    #[arg(long, value_name = "HANDICAP", hide_short_help = true)]
    pub(crate) handicap: Vec<Handicap>,
    /// Who computes products of 512 rows and more in prefill, where the GPU's API has a library for that (cuBLASLt, rocBLAS):
    /// own kernels, the library, or auto, which is own kernels for matrix units and the library where there are none.
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub(crate) gemm: GemmChoice,
    /// Refuse software devices where a GPU was asked for, fallbacks, handicaps and suspicious weights, with exit code 8.
    #[arg(long, env = "RAGTAG_STRICT", value_parser = switch("RAGTAG_STRICT"))]
    pub(crate) strict: bool,
}

/// A number of seconds. A variable that is empty counts as one that is not set.
fn probe_limit(text: &str) -> Result<u64, String> {
    let known =
        if text.is_empty() { Some(ragtag_devices::ProbeChild::LIMIT.as_secs()) } else { text.parse().ok() };
    known
        .filter(|seconds| (1..=3600).contains(seconds))
        .ok_or("a number of seconds from 1 to 3600 is needed".into())
}

/// A parser for the environment variable of a flag; the flag itself takes no value. An empty variable counts as unset.
fn switch(variable: &'static str) -> impl Fn(&str) -> Result<bool, String> + Clone {
    move |value| match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{variable} takes 1 or 0, true or false, yes or no, on or off")),
    }
}

/// How the model is laid out over them.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// What is placed as a whole: transformer blocks, or their attention and feed-forward halves, for finer cuts. Default:
    /// block, or as the plan of --plan has it.
    #[arg(long, value_name = "SIZE")]
    pub(crate) granularity: Option<GranularityArg>,
    /// Segments by hand, first to last: 0-5=cpu:0,6-13=cpu:1. `ragtag inspect` numbers the segments.
    #[arg(long, value_name = "SPLIT", conflicts_with = "plan")]
    pub(crate) split: Option<String>,
    /// Use a plan written by `ragtag plan --json` ("-": standard input).
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Segments that must be on a device, as --split writes them: 0=cpu:0 is the embedding. May be given again.
    #[arg(long, value_name = "SEGMENTS=DEVICE", conflicts_with_all = ["split", "plan"])]
    pub(crate) pin: Vec<String>,
    /// A device that the plan must not use. May be given again.
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["split", "plan"])]
    pub(crate) exclude: Vec<String>,
    /// Most stages that the plan may have.
    #[arg(long, value_name = "N", conflicts_with_all = ["split", "plan"], value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) max_stages: Option<u32>,
    /// Longest sequence that must fit, in tokens. Default: what fits, up to the model's context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16777216), allow_negative_numbers = true)]
    pub(crate) ctx: Option<u32>,
    /// Most tokens that go through the pipeline together in prefill.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) chunk: Option<u32>,
    /// Type of the key-value cache. Default: f32 with --activations f32, else f16.
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv: Option<Kv>,
    /// Form of the activations in products with quantised weights: f32 is exact, int8 is fast. Default: int8, or as the plan of
    /// --plan has it.
    #[arg(long, value_name = "FORM")]
    pub(crate) activations: Option<ActivationsArg>,
    /// Form in which activations cross between stages: f16 is half the bytes, and not for --activations f32. Default: what is
    /// predicted to be faster, or as the plan of --plan has it.
    #[arg(long, value_name = "FORM")]
    pub(crate) boundary: Option<BoundaryArg>,
    /// Do not time devices of unknown speed first; assume what is usual of their kind. They are timed where there are
    /// several to choose from, about a second each, once.
    #[arg(long, env = "RAGTAG_NO_CALIBRATION", value_parser = switch("RAGTAG_NO_CALIBRATION"))]
    pub(crate) no_calibration: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BoundaryArg {
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

/// What to plan for.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestArgs {
    /// What to minimise: latency (of one sequence), throughput, first-token, or mix:latency=1,throughput=2. Default:
    /// throughput, or as the plan of --plan has it.
    #[arg(long, value_name = "OBJECTIVE")]
    pub(crate) objective: Option<Objective>,
    /// Prompt tokens of the request to plan for. Default: as the plan of --plan has it; else `run` takes its prompt's, `bench`
    /// its longest -p, and `plan` 512.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_TOKENS)), allow_negative_numbers = true)]
    pub(crate) prompt_tokens: Option<u32>,
    /// Tokens that the request generates. Default: as the plan of --plan has it; else `run` takes -n, `bench` its longest -n,
    /// and `plan` 128.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_TOKENS)), allow_negative_numbers = true)]
    pub(crate) new_tokens: Option<u32>,
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

impl RecordArgs {
    /// The files that are asked for.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.trace.iter().chain(&self.receipt)
    }
}

/// How a model is completed that is described alone.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DescribedArgs {
    /// Type of the matrices of a directory without weights: f16, q8_0, q4_k … Default: what its config.json says.
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    pub(crate) assume_type: Option<TensorType>,
}

/// Devices of which only the figures are needed.
#[derive(Clone, Debug, Args)]
pub(crate) struct FleetArgs {
    /// Devices that need not be here: cards (2x-arc-a770+rx7900xtx; `ragtag cards` lists them) or a .json file.
    #[arg(long, value_name = "CARDS|FILE", conflicts_with_all = ["device", "cpu_devices", "threads", "handicap", "gemm"])]
    pub(crate) fleet: Option<String>,
}

impl FleetArgs {
    /// The file that they are read from, if they are.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.fleet.as_deref().filter(|fleet| fleet.ends_with(".json")).map(Path::new)
    }
}

/// The tensor type of this name, in upper or lower case.
fn tensor_type(name: &str) -> Result<TensorType, String> {
    TensorType::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        format!("known are {}", TensorType::ALL.map(TensorType::name).join(", ").to_lowercase())
    })
}

#[derive(Debug, Args)]
pub(crate) struct CardsArgs {
    /// JSON, with sources and with what plans reckon with, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a run says of its plan.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Predicted against measured")]
pub(crate) struct CompareArgs {
    /// Write an HTML page with what the plan predicted beside what was measured.
    #[arg(long, value_name = "FILE", alias = "report")]
    pub(crate) html: Option<PathBuf>,
    /// Plan again from what a first run measures, and go on with that plan if it is predicted to be better by more than 3 %.
    #[arg(long)]
    pub(crate) replan: bool,
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
  ragtag calibrate model.gguf
  ragtag calibrate model.gguf --device cuda:0,cpu --parallel 8 --seconds 5 --force")]
pub(crate) struct CalibrateArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Most sequences that decode together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) parallel: u32,
    /// Most tokens that go through the pipeline together in prefill.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) chunk: Option<u32>,
    /// Type of the key-value cache. Default: f32 with --activations f32, else f16.
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv: Option<Kv>,
    /// Form of the activations in products with quantised weights.
    #[arg(long, value_name = "FORM", default_value = "int8")]
    pub(crate) activations: ActivationsArg,
    /// Seconds of timing for each device, about.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Time everything again, whatever was kept.
    #[arg(long)]
    pub(crate) force: bool,
    /// JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of seconds that somebody may want to wait.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0 to 3600 is needed".into()),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag plan model.gguf --cpu-devices 2
  ragtag plan model.gguf --ctx 8192 --parallel 4 --json > plan.json
  ragtag run model.gguf --plan plan.json
  ragtag plan model.gguf --html plan.html --dot - | dot -Tsvg > graph.svg
  ragtag plan model.gguf --fleet 2x-arc-a770+rx7900xtx --objective latency
  ragtag plan directory --assume-type q4_k --fleet fleet.json

Only what describes the model is read: a .gguf file may end after its header, a directory may hold nothing but config.json.")]
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
    /// Sequences that must fit at the full context at the same time. Default: 1, or as the plan of --plan has it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// The plan as JSON, for --plan, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
}

/// Pictures of a plan.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Pictures")]
pub(crate) struct PictureArgs {
    /// Write the plan as a page that needs nothing else: stages, links, memory, a timeline, alternatives. For this and the
    /// two below, "-" is standard output, which then has nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the charts as one drawing.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write devices, stages and edges in Graphviz's language.
    #[arg(long, value_name = "FILE")]
    pub(crate) dot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag run -p \"Once upon a time\"
  ragtag run model.gguf -p \"The old woman\" -n 64 --temp 0 --cpu-devices 2
  ragtag run model.gguf -p \"Hello\" --split 0-5=cpu:0,6-13=cpu:1 --cpu-devices 2 --json
  ragtag run -p \"Once upon a time\" --cpu-devices 2 --trace trace.json
  ragtag run -p \"Once upon a time\" --cpu-devices 2 --replan --compare")]
pub(crate) struct RunArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    /// The text to go on from.
    #[arg(short, long, value_name = "TEXT", default_value = "Once upon a time")]
    pub(crate) prompt: String,
    /// Read the prompt from a file ("-": standard input) instead. One line break at its end is dropped.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// Most tokens to generate.
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
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) comparison: CompareArgs,
    /// Show what the plan predicted beside what was measured, on standard error.
    #[arg(long, help_heading = "Predicted against measured")]
    pub(crate) compare: bool,
    /// Do not print the prompt before the text.
    #[arg(long)]
    pub(crate) no_echo: bool,
    /// Only errors and warnings on standard error.
    #[arg(short, long, conflicts_with = "compare")]
    pub(crate) quiet: bool,
    /// One JSON object on standard output instead of the text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the next token is chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Only the K likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub(crate) top_k: u32,
    /// Only the likeliest tokens that make up this probability; 1 for all.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Only tokens at least this likely against the likeliest; 0 for all.
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Makes tokens of the recent text less likely; 1 for no change.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Seed of the choice. Default: drawn, and printed.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Stop before this text. May be given several times.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag bench model.gguf
  ragtag bench model.gguf --cpu-devices 2 --threads 1 --parallel 16 -p 512 -n 32 -r 5 --json
  ragtag bench model.gguf --defaults
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
    /// Numbers of generated tokens to measure (tg); 0 for none.
    #[arg(
        short = 'n',
        long = "tg",
        value_name = "N",
        value_delimiter = ',',
        default_value = "128",
        allow_negative_numbers = true
    )]
    pub(crate) tg: Vec<u32>,
    /// Sequences at the same time. Default: 1, or as the plan of --plan has it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// Compare the speed without flags with what the best of up to 12 named alternatives gives, for prompts of 512, 2,048 and
    /// 8,192 tokens and for 1, 8 and 64 generating sequences.
    #[arg(long, conflicts_with_all = ["pp", "tg", "prompt_tokens", "new_tokens", "parallel", "plan", "split", "chunk", "html", "replan", "trace", "receipt"])]
    pub(crate) defaults: bool,
    /// Repetitions of each measurement, after one that does not count.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) repetitions: u32,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) comparison: CompareArgs,
    /// Only errors and warnings on standard error.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// JSON, with every sample, instead of a table.
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
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model. What describes
    /// it will do: a file that ends after its header, a directory with nothing but config.json.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    /// Every tensor, too.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// The operator graph in Graphviz's language instead.
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// What is a segment: a transformer block, or each of its halves.
    #[arg(long, value_name = "SIZE", default_value = "block")]
    pub(crate) granularity: GranularityArg,
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
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true, allow_negative_numbers = true)]
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
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
    /// Try each kernel with N random shapes, beside the listed ones. A full run has 200.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=1_000_000), allow_negative_numbers = true)]
    pub(crate) shapes: u32,
    /// The seed of the first random shape; each of the others has the next.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag simulate model.gguf --cpu-devices 2 --requests 100 --rate 4
  ragtag simulate model.gguf --closed 8 --prompt-tokens 100-900 --new-tokens ~200 --json
  ragtag simulate model.gguf --plan plan.json --requests-file requests.csv --trace timeline.json
  ragtag simulate model.gguf --fleet 2x-arc-a770+rx7900xtx --closed 16

Lengths are 512 (fixed), 100-300 (uniform) or ~200 (geometric, by its mean). A file of requests has lines of JSON, or a \
table with commas and a first line of names: arrival_s, prompt_tokens, output_tokens.")]
pub(crate) struct SimulateArgs {
    /// A .gguf file (any part of a split model), or a directory with safetensors. Default: the bundled model.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// How many requests.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1048576), allow_negative_numbers = true)]
    pub(crate) requests: u32,
    /// They come at random, R a second on average (Poisson). Default: all at the start.
    #[arg(long, value_name = "R", conflicts_with = "closed", allow_negative_numbers = true)]
    pub(crate) rate: Option<f64>,
    /// N come at the start, and another whenever one has ended.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) closed: Option<u32>,
    /// Tokens of their prompts.
    #[arg(long, value_name = "LENGTHS", default_value = "128")]
    pub(crate) prompt_tokens: Lengths,
    /// Tokens that they generate.
    #[arg(long, value_name = "LENGTHS", default_value = "64")]
    pub(crate) new_tokens: Lengths,
    /// Seed of all that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Requests from a file instead.
    #[arg(long, value_name = "FILE", alias = "trace-file", conflicts_with_all = ["requests", "rate", "closed", "prompt_tokens", "new_tokens", "seed"])]
    pub(crate) requests_file: Option<PathBuf>,
    /// Sequences that must fit at the full context at the same time. Default: as --closed says, else 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Write the timeline for Perfetto or chrome://tracing: one lane for each device queue.
    #[arg(long, value_name = "FILE", alias = "chrome")]
    pub(crate) trace: Option<PathBuf>,
    /// JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}
