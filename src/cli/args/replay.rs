//! Arguments of `ragtag replay`.

use super::devices::DeviceArgs;
use super::placement::PlacementArgs;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag replay run.events                                # written by run --log-events run.events
  ragtag replay run.events --trace trace.json
  ragtag replay run.events --execute model.gguf --device cpu

The replay needs neither the model nor its devices. --execute does. With --activations f32, its tokens are those of the log, except \
for near ties. docs/devices.md describes the log.")]
pub(crate) struct ReplayArgs {
    /// Log that `--log-events` has written.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Also run the requests with this model, and compare their tokens with those of the log. Activations, keys and
    /// values have the types of the log.
    #[arg(long, value_name = "MODEL")]
    pub(crate) execute: Option<PathBuf>,
    /// Write a trace for Perfetto or chrome://tracing, with the micro-batches of each credit.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print JSON instead of a summary.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
}
