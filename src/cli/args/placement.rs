//! Arguments that describe a placement: its limits, its types, and the request to plan for.

use super::{MAX_TOKENS, choice, switch};
use crate::cli::kv::KvArgs;
use clap::{Args, ValueEnum};
use ragtag_graph::{Granularity, RopeScaling};
use ragtag_kernels::Activations;
use ragtag_planner::Objective;
use std::path::PathBuf;

/// Values of `--activations` and of `--granularity`.
pub(super) const ACTIVATIONS: &[(&str, Activations)] =
    &[("f32", Activations::F32), ("int8", Activations::Int8)];
pub(super) const GRANULARITIES: &[(&str, Granularity)] =
    &[("block", Granularity::Block), ("half|half-block", Granularity::HalfBlock)];

/// Default of `--max-load`.
const USUAL_MAX_LOAD_PERCENT: u8 = 10;

/// Placement of the model on the devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Smallest unit of placement: a transformer block, or its attention and feed-forward halves. Default:
    /// the granularity of the plan with --plan, otherwise block; for a mixture of experts that does not fit one
    /// device, the better one.
    #[arg(long, value_name = "SIZE", value_parser = choice(GRANULARITIES), hide = true)]
    pub(crate) granularity: Option<Granularity>,
    /// Place the segments yourself, first to last: 0-5=cpu:0,6-13=cpu:1. `ragtag inspect` lists the segment
    /// numbers.
    #[arg(long, value_name = "SPLIT", conflicts_with = "plan")]
    pub(crate) split: Option<String>,
    /// Also use these workers: HOST:PORT#KEY,…
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "WORKERS", value_delimiter = ',')]
    pub(crate) worker: Vec<crate::WorkerAddress>,
    /// Use a plan of `ragtag plan --json` ("-": stdin).
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Place segments on a device, in the syntax of --split. For example, 0=cpu:0 places the embedding.
    /// experts=cpu:0 places the experts of all blocks, and 20-31.experts=cpu:0 those of blocks 20 to 31.
    /// Repeatable.
    #[arg(long, value_name = "SEGMENTS=DEVICE", hide = true, conflicts_with_all = ["split", "plan"])]
    pub(crate) pin: Vec<String>,
    /// Place the tensors whose names match regular expressions on a device, as in llama.cpp: exps=CPU, or
    /// blk\.(2[0-9])\.ffn_.*_exps=CUDA1. The experts of a block stay together. Repeatable.
    #[arg(long, value_name = "REGEX=DEVICE,…", hide = true, conflicts_with_all = ["split", "plan"])]
    pub(crate) override_tensor: Vec<String>,
    /// Place the experts of all blocks on the CPU.
    #[arg(long, hide = true, conflicts_with_all = ["split", "plan", "n_cpu_moe"])]
    pub(crate) cpu_moe: bool,
    /// Place the experts of the first N blocks on the CPU.
    #[arg(long, value_name = "N", hide = true, conflicts_with_all = ["split", "plan"], value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) n_cpu_moe: Option<u32>,
    /// Leave a device out of the plan. Repeatable.
    #[arg(long, value_name = "DEVICE", hide = true, conflicts_with_all = ["split", "plan"])]
    pub(crate) exclude: Vec<String>,
    /// Maximum number of stages.
    #[arg(long, value_name = "N", hide = true, conflicts_with_all = ["split", "plan"], value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) max_stages: Option<u32>,
    /// Longest sequence that must fit, in tokens. Default: the longest sequence that fits, up to the model's
    /// context.
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16777216), allow_negative_numbers = true)]
    pub(crate) ctx: Option<u32>,
    /// RoPE scaling in place of the model's own, for contexts beyond the trained length: yarn:FACTOR or
    /// linear:FACTOR. The model's context becomes its original context times the factor.
    #[arg(long, value_name = "SCALING", hide = true)]
    pub(crate) rope_scaling: Option<RopeScaling>,
    /// Maximum number of prompt tokens in one prefill micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true, hide = true)]
    pub(crate) chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    /// Type of activations in matmuls with quantized weights: f32 is exact, int8 is fast. Default: the type
    /// in the plan with --plan, otherwise int8.
    #[arg(long, value_name = "TYPE", value_parser = choice(ACTIVATIONS))]
    pub(crate) activations: Option<Activations>,
    /// Wire type of activations between stages. f16 halves the bytes, but is not allowed with --activations
    /// f32. Default: the type in the plan with --plan, otherwise the type that is predicted to be faster.
    #[arg(long, alias = "boundary", value_name = "TYPE", hide = true)]
    pub(crate) wire: Option<WireArg>,
    /// Do not calibrate devices, and do not probe links. Use datasheet, reported or assumed speeds instead, and
    /// host memory between devices without a cached probe. Calibration takes at
    /// most 3 seconds and 0.3 per pair of devices, plus the time to compile kernels. Its result is cached.
    #[arg(long, env = "RAGTAG_NO_CALIBRATION", value_parser = switch("RAGTAG_NO_CALIBRATION"), hide = true)]
    pub(crate) no_calibration: bool,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Do not test kernels at the first use of a device. The test takes about a second per device and driver.
    /// It leaves out devices that compute wrong values. Its result is cached.
    #[arg(long, env = "RAGTAG_NO_SELF_TEST", value_parser = switch("RAGTAG_NO_SELF_TEST"), hide = true)]
    pub(crate) no_self_test: bool,
}

/// Load by other processes that calibration accepts.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LoadArgs {
    /// Cache calibrated speeds only if other processes took at most this percentage of the CPU time from each
    /// measurement. Otherwise, the last cached speeds are used, or the new ones for this run only.
    #[arg(long, value_name = "PERCENT", env = "RAGTAG_MAX_LOAD", default_value_t = USUAL_MAX_LOAD_PERCENT, value_parser = percent, allow_negative_numbers = true, hide = true)]
    pub(crate) max_load: u8,
}

/// Parses a percentage. Returns the default for an empty value, because an empty environment variable counts as unset.
fn percent(text: &str) -> Result<u8, String> {
    let known = if text.is_empty() { Some(USUAL_MAX_LOAD_PERCENT) } else { text.parse().ok() };
    known.filter(|percent| *percent <= 100).ok_or("expected a whole number from 0 to 100".into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WireArg {
    Auto,
    F32,
    F16,
}

/// Request and objective to plan for.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestArgs {
    /// Goal: latency (of one sequence), throughput, first-token, or a mix such as mix:latency=1,throughput=2.
    /// Default: the goal of the plan with --plan, otherwise throughput.
    #[arg(long, value_name = "OBJECTIVE")]
    pub(crate) objective: Option<Objective>,
    /// Prompt tokens of the request to plan for. Default: the number in the plan with --plan, otherwise the
    /// length of the prompt (`run`), the longest -p (`bench`), or 512 (`plan`).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_TOKENS)), allow_negative_numbers = true, hide = true)]
    pub(crate) prompt_tokens: Option<u32>,
    /// Generated tokens of the request to plan for. Default: the number in the plan with --plan, otherwise -n
    /// (`run`), the longest -n (`bench`), or 128 (`plan`).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_TOKENS)), allow_negative_numbers = true, hide = true)]
    pub(crate) new_tokens: Option<u32>,
}
