//! Arguments of the commands that run no model: `plan`, `simulate`, `cards` and `inspect`.

use super::choice;
use super::devices::DeviceArgs;
use super::model::ModelArgs;
use super::placement::{ACTIVATIONS, GRANULARITIES, PlacementArgs, RequestArgs};
use clap::Args;
use ragtag_graph::Granularity;
use ragtag_kernels::{Activations, TensorType};
use ragtag_scheduler::sim::Lengths;
use std::path::{Path, PathBuf};

/// Options for models without weights.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DescribedArgs {
    /// Tensor type to assume for the matrices of a directory without weights: f16, q8_0, q4_k … Default: the
    /// type in config.json.
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    pub(crate) assume_type: Option<TensorType>,
}

/// Parses the name of a tensor type. Ignores case.
fn tensor_type(name: &str) -> Result<TensorType, String> {
    TensorType::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        format!("expected one of {}", TensorType::ALL.map(TensorType::name).join(", ").to_lowercase())
    })
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
  ragtag plan --api < requests.jsonl > answers.jsonl

Only the model's metadata is read: a .gguf file may end after its header, and a directory needs only config.json.")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Number of concurrent sequences that must fit at full context. Default: the number in the plan with
    /// --plan, otherwise 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// Print the plan as JSON, for --plan, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Read requests from standard input, one JSON object per line, and answer each with a line. Other options are
    /// the defaults of the requests.
    #[arg(long, conflicts_with_all = ["json", "plan", "split", "html", "svg", "dot"])]
    pub(crate) api: bool,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
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
  ragtag simulate model.gguf --cpu-devices 2 --requests 100 --rate 4
  ragtag simulate model.gguf --closed 8 --prompt-tokens 100-900 --new-tokens ~200 --json
  ragtag simulate model.gguf --plan plan.json --requests-file requests.csv --trace timeline.json
  ragtag simulate model.gguf --fleet 2x-arc-a770+rx7900xtx --closed 16

Lengths are 512 (fixed), 100-300 (uniform) or ~200 (geometric with that mean). A requests file is JSON Lines, or CSV with \
a header: arrival_s, prompt_tokens, output_tokens.")]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
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
    /// Part of the messages between hosts that the network loses, in percent. Each is sent again after 200 ms.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = loss, allow_negative_numbers = true)]
    pub(crate) network_loss: f64,
    /// Read the requests from a file.
    #[arg(long, value_name = "FILE", alias = "trace-file", conflicts_with_all = ["requests", "rate", "closed", "prompt_tokens", "new_tokens", "seed"])]
    pub(crate) requests_file: Option<PathBuf>,
    /// Number of concurrent sequences that must fit at full context. Default: the value of --closed, or 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// Write the timeline for Perfetto or chrome://tracing, with one track per device queue.
    #[arg(long, value_name = "FILE", alias = "chrome")]
    pub(crate) trace: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
}

/// Parses a share of lost messages in percent.
fn loss(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=50.0).contains(percent));
    percent.ok_or_else(|| "expected a number from 0 to 50".into())
}

#[derive(Debug, Args)]
pub(crate) struct CardsArgs {
    /// Print JSON with sources and the figures that plans use, instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag inspect model.gguf
  ragtag inspect model.gguf --granularity half
  ragtag inspect model.gguf --dot | dot -Tsvg > model.svg

The weights may be missing: a .gguf file may end after its header, and a directory needs only config.json.")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    /// List every tensor as well.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print the operator graph in Graphviz format instead.
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// Unit of a segment: a transformer block, or its attention and feed-forward halves.
    #[arg(long, value_name = "SIZE", default_value = "block", value_parser = choice(GRANULARITIES))]
    pub(crate) granularity: Granularity,
    /// Type of activations to lower the graph for.
    #[arg(long, value_name = "TYPE", default_value = "int8", value_parser = choice(ACTIVATIONS))]
    pub(crate) activations: Activations,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}
