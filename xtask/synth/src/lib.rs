//! Creates GGUF model files with random weights for benchmarks and tests, in any model shape and tensor type.
//! `cargo xtask synth-model` writes files, and benchmarks create models in memory.
//!
//! The weights are scaled so that activations stay finite through any number of layers. The vocabulary can
//! tokenise text. The same arguments always produce the same bytes. Memory use is bounded for any model size.

mod fill;
mod shape;
mod vocabulary;

#[cfg(test)]
mod tests;

use fill::{Fill, Random};
use ragtag_graph::gguf::Writer;
use ragtag_kernels::TensorType;
use shape::Tensor;
pub use shape::{Architecture, Preset, Shape};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Approximate number of bytes to generate and write at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Options of `xtask synth-model`. Defaults come from the preset.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Preset shape that the other options change
    #[arg(long, value_enum, default_value = "tiny")]
    preset: Preset,
    /// Tensor type of the matrices, such as q4_k (ternary models have an f16 embedding)
    #[arg(long = "type", value_parser = tensor_type, default_value = "q8_0")]
    tensor_type: TensorType,
    /// Architecture; bitnet has sub-norms and ties the output matrix to the embedding [default: that of the preset]
    #[arg(long, value_enum)]
    arch: Option<Architecture>,
    /// Number of transformer blocks
    #[arg(long)]
    layers: Option<u32>,
    /// Width of the residual stream
    #[arg(long)]
    width: Option<u32>,
    /// Number of query heads
    #[arg(long)]
    heads: Option<u32>,
    /// Number of key and value heads (KV heads)
    #[arg(long)]
    kv_heads: Option<u32>,
    /// Width of the feed-forward layers, or of each expert
    #[arg(long)]
    ffn: Option<u32>,
    /// Number of experts
    #[arg(long)]
    experts: Option<u32>,
    /// Number of experts that each token uses
    #[arg(long)]
    used_experts: Option<u32>,
    /// Vocabulary size in tokens
    #[arg(long)]
    vocab: Option<u32>,
    /// Maximum context length in the file
    #[arg(long)]
    context: Option<u32>,
    /// Seed of the random weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Parses the name of a tensor type. The case of letters does not matter.
///
/// # Errors
/// Returns an error with a list of all known names if the name is unknown.
pub fn tensor_type(name: &str) -> Result<TensorType, String> {
    TensorType::in_gguf().find(|t| t.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        format!(
            "unknown tensor type {name}; use one of {}",
            TensorType::in_gguf().map(TensorType::name).collect::<Vec<_>>().join(", ").to_lowercase()
        )
    })
}

impl Args {
    fn shape(&self) -> Shape {
        let preset = self.preset.shape();
        let (width, heads) = (self.width.unwrap_or(preset.width), self.heads.unwrap_or(preset.heads));
        let is_preset = (width, heads) == (preset.width, preset.heads);
        let head_width = if is_preset { preset.head_width } else { width.checked_div(heads).unwrap_or(0) };
        Shape {
            architecture: self.arch.unwrap_or(preset.architecture),
            tensor_type: self.tensor_type,
            layers: self.layers.unwrap_or(preset.layers),
            width,
            heads,
            head_width,
            kv_heads: self.kv_heads.unwrap_or(preset.kv_heads),
            ffn: self.ffn.unwrap_or(preset.ffn),
            experts: self.experts.unwrap_or(preset.experts),
            used_experts: self.used_experts.unwrap_or(preset.used_experts),
            vocabulary: self.vocab.unwrap_or(preset.vocabulary),
            context: self.context.unwrap_or(preset.context),
        }
    }
}

/// Writes the model file and prints a summary.
///
/// # Errors
/// Returns an error if the shape is invalid or the file cannot be written.
pub fn run(args: &Args) -> Result<(), String> {
    let start = Instant::now();
    let shape = args.shape();
    let tensors = shape.tensors()?;
    let cannot = |error: std::io::Error| format!("cannot write {}: {error}", args.output.display());
    let mut file = File::create(&args.output).map_err(cannot)?;
    let bytes = write(&mut file, &shape, &tensors, args.seed).map_err(cannot)?;
    let seconds = start.elapsed().as_secs_f64();
    report(&args.output, &tensors, bytes, seconds).map_err(|e| e.to_string())
}

fn report(path: &Path, tensors: &[Tensor], bytes: u64, seconds: f64) -> std::io::Result<()> {
    let weights: u64 = tensors.iter().map(Tensor::values).sum();
    let mb = bytes as f64 / 1e6;
    writeln!(
        std::io::stdout(),
        "{}: {:.1} M weights, {mb:.1} MB, {seconds:.1} s, {:.0} MB/s",
        path.display(),
        weights as f64 / 1e6,
        mb / seconds
    )
}

/// Returns the bytes of a whole model file.
///
/// # Errors
/// Returns an error that describes an impossible shape.
pub fn in_memory(shape: &Shape, seed: u64) -> Result<Vec<u8>, String> {
    let tensors = shape.tensors()?;
    let bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
    // The header is small compared to the weights.
    let mut out = Vec::with_capacity(usize::try_from(bytes + bytes / 16).map_err(|e| e.to_string())?);
    write(&mut out, shape, &tensors, seed).map_err(|e| e.to_string())?;
    Ok(out)
}

/// Returns the header of a model file: all bytes before the weights.
///
/// # Errors
/// Returns an error that describes an impossible shape.
pub fn header(shape: &Shape) -> Result<Vec<u8>, String> {
    Ok(describe(shape, &shape.tensors()?).header())
}

/// Returns a writer with the metadata and the tensor infos of a model file.
fn describe(shape: &Shape, tensors: &[Tensor]) -> Writer {
    let mut header = Writer::new();
    shape.describe(&mut header);
    vocabulary::describe(&mut header, shape.vocabulary);
    for tensor in tensors {
        header.tensor(&tensor.name, tensor.tensor_type, &tensor.shape, tensor.bytes);
    }
    header
}

/// Writes a whole model file to `out`. Returns the size of the file in bytes.
fn write(out: &mut impl Write, shape: &Shape, tensors: &[Tensor], seed: u64) -> std::io::Result<u64> {
    let header = describe(shape, tensors);
    let bytes = header.header();
    out.write_all(&bytes)?;
    let mut chunk = Vec::new();
    for (tensor, number) in tensors.iter().zip(0..) {
        let block = tensor.tensor_type.block_bytes();
        let fill = Fill::new(tensor.tensor_type, tensor.values_like);
        // Each tensor has its own random sequence, so it does not depend on the tensors before it.
        let mut random = Random::new(seed, number);
        let mut left = tensor.bytes;
        while left > 0 {
            let size = left.min((CHUNK_BYTES / block * block) as u64);
            chunk.resize(size as usize, 0);
            fill.blocks(&mut random, &mut chunk);
            out.write_all(&chunk)?;
            left -= size;
        }
        chunk.clear();
        chunk.resize(header.padding(tensor.bytes) as usize, 0);
        out.write_all(&chunk)?;
    }
    out.flush()?;
    Ok(bytes.len() as u64 + header.data_bytes())
}
