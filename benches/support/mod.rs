//! Helpers for the benchmarks: opening models, running bursts and computing medians.
#![allow(clippy::print_stderr)] // progress

use ragtag::compare::Burst;
use ragtag::{BurstTimes, Engine, Model};
use ragtag_synth::{Preset, Shape};
use std::time::Instant;

/// Opens a GGUF file, or makes a model with random weights in memory. `name` is the path of the file, or
/// PRESET:TYPE, such as `7b:q4_0`. `layers` replaces the preset's number of layers.
pub fn model(name: &str, layers: Option<u32>) -> ragtag::Result<Model> {
    let Some((preset, tensor_type)) = name.split_once(':') else { return Model::open(name) };
    let start = Instant::now();
    let usage = |why: String| ragtag::Error::Usage(format!("{name}: {why}"));
    let preset = <Preset as clap::ValueEnum>::from_str(preset, true).map_err(usage)?;
    let tensor_type = ragtag_synth::tensor_type(tensor_type).map_err(usage)?;
    let shape = Shape { tensor_type, ..preset.shape() };
    let shape = Shape { layers: layers.unwrap_or(shape.layers), ..shape };
    let bytes = ragtag_synth::in_memory(&shape, 1).map_err(usage)?;
    eprintln!("{name}: {} MB made in {:.1} s", bytes.len() / 1_000_000, start.elapsed().as_secs_f64());
    Model::from_bytes(name, bytes)
}

/// Runs a burst of sequences on an engine and blocks until all have ended.
pub fn burst(engine: &Engine, burst: &Burst) -> ragtag::Result<BurstTimes> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|e| ragtag::Error::Usage(format!("cannot start the async runtime: {e}")))?;
    runtime.block_on(engine.session().burst(burst))
}

/// Returns the median of the samples, or NaN if there are none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
