//! Arguments that select devices, and those of the commands about devices.

use super::model::ModelArgs;
use super::placement::{ACTIVATIONS, LoadArgs};
use super::{choice, switch};
use crate::cli::kv::KvArgs;
use clap::Args;
use ragtag_devices::ThrottleSpec;
use ragtag_hal::GemmChoice;
use ragtag_kernels::Activations;
use std::path::PathBuf;

/// Device selection.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(crate) struct DeviceArgs {
    /// Comma-separated list of auto, gpu, cpu, discrete, integrated, software, devices (cuda:0), APIs (cuda: all
    /// CUDA devices) and filters (min-memory=8GiB, units=32). Default: RAGTAG_DEVICES, or auto: all GPUs, and the
    /// CPU if there is no GPU or if the weights exceed the GPUs' memory.
    #[arg(long, value_name = "LIST")]
    pub(crate) device: Option<String>,
    /// Cap the memory that plans use: of a device (cuda:0=12GiB), of all devices of an API (cuda=8GiB), and of the
    /// host (host=24.5GiB). Repeatable. Default: RAGTAG_MEMORY.
    #[arg(long, value_name = "CAPS")]
    pub(crate) memory: Vec<String>,
    /// Split the CPU's cores into N devices cpu:0 … cpu:N-1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) cpu_devices: u32,
    /// Threads of each CPU device. Default: the hardware threads, divided evenly. With other devices, a few
    /// threads (at most one eighth) stay free.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: Option<u32>,
    /// Timeout in seconds for probing a driver in a child process.
    #[arg(long, value_name = "SECONDS", env = "RAGTAG_PROBE_LIMIT", default_value_t = ragtag_devices::ProbeChild::LIMIT.as_secs(), value_parser = probe_limit, allow_negative_numbers = true, hide = true)]
    pub(crate) probe_limit: u64,
    /// Throttle a device or a link, for tests: cpu:0=threads:1, cuda:0=sms:64, cpu:1=duty:50%,
    /// link:cpu:0->cpu:1=1GB/s. Repeatable.
    #[arg(long, alias = "handicap", value_name = "THROTTLE", hide = true)]
    pub(crate) throttle: Vec<ThrottleSpec>,
    /// Kernels for prefill matmuls of 512 rows and more: own (Ragtag's kernels), library (cuBLASLt or
    /// rocBLAS, if available), or auto. With auto, Ragtag uses its own kernels if they use the device's
    /// matrix units, and otherwise the library.
    #[arg(long, value_name = "KERNELS", default_value = "auto", hide = true)]
    pub(crate) gemm: GemmChoice,
    /// Refuse software devices in place of GPUs, fallbacks, throttles, links without a verified route, and
    /// suspicious weights, with exit code 8.
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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag devices
  ragtag devices --doctor
  ragtag devices --cpu-devices 2 --json
  ragtag devices --links --device gpu,cpu --svg links.svg")]
pub(crate) struct DevicesArgs {
    /// Explain why a GPU is missing: list problems with their fixes, and a line for each API. With --wide, list all
    /// checks of builds, libraries, drivers and permissions.
    #[arg(long, conflicts_with = "links")]
    pub(crate) doctor: bool,
    /// Probe the links between the devices: check that each route keeps data intact, and show the fastest
    /// verified route with its latency and rates. Default devices: auto,cpu. The result is cached, and replaces
    /// the quick probe that plans make.
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
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag calibrate model.gguf
  ragtag calibrate model.gguf --every-api
  ragtag calibrate model.gguf --export machine.json
  ragtag calibrate model.gguf --device cuda:0,cpu --parallel 8 --seconds 5 --force")]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Maximum number of sequences that decode together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: u32,
    /// Maximum number of prompt tokens in one prefill micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    /// Type of activations in matmuls with quantized weights: f32 is exact, int8 is fast.
    #[arg(long, value_name = "TYPE", default_value = "int8", value_parser = choice(ACTIVATIONS))]
    pub(crate) activations: Activations,
    /// Approximate timing budget for each device, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Ignore cached profiles and time everything again.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    /// Also time the selected devices through their other APIs. Later runs use the fastest API of each GPU,
    /// unless --device names an API.
    #[arg(long)]
    pub(crate) every_api: bool,
    /// Write this machine as a fleet: devices with their profiles, links, and free memory. With it, `plan --fleet` and
    /// `simulate --fleet` work on any machine as on this one ("-": standard output instead of the tables).
    #[arg(long, value_name = "FILE", conflicts_with = "every_api")]
    pub(crate) export: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
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
