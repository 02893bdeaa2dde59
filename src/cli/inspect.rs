//! `ragtag inspect`: what a model file holds.

use super::args::InspectArgs;
use super::output::{bytes, count, print, print_json, table};
use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_graph::{Lowering, Segment};
use ragtag_kernels::{Activations, KvType};
use serde_json::json;
use std::collections::BTreeMap;

pub(super) fn run(args: &InspectArgs) -> Result<()> {
    let model = super::open_model(args.model.as_deref())?;
    let activations = args.activations.into();
    if args.dot {
        print(&model.graph().dot(activations));
        return Ok(());
    }
    let segments = segments(&model, activations)?;
    if args.json {
        print_json(&as_json(&model, &segments, args.tensors)?);
        return Ok(());
    }
    print_summary(&model);
    print_segments(&segments);
    if args.tensors {
        print_tensors(&model);
    }
    Ok(())
}

fn segments(model: &Model, activations: Activations) -> Result<Vec<Segment>> {
    let context = model.hyperparameters().context;
    let lowering = Lowering { activations, kv: KvType::F16, context, sequences: 1, chunk: 1, logit_rows: 1 };
    model.graph().segments(&lowering).map_err(|cause| Error::Model { name: model.name().into(), cause })
}

fn types(model: &Model) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in model.graph().weights().tensors() {
        let entry = types.entry(tensor.tensor_type.name()).or_insert((0, 0));
        *entry = (entry.0 + 1, entry.1 + tensor.bytes);
    }
    types
}

fn print_summary(model: &Model) {
    let h = model.hyperparameters();
    let mut table = table(&["model", model.name()]);
    let types: Vec<_> =
        types(model).iter().map(|(name, (n, b))| format!("{n} {name} ({})", bytes(*b))).collect();
    let heads = format!("{} of {} values, {} for keys and values", h.heads, h.head_dimensions, h.kv_heads);
    let mut rope = format!("base {}, {} of {} values", h.rope_base, h.rope_dimensions, h.head_dimensions);
    if let Some(scaling) = h.rope_llama3 {
        rope += &format!(", low frequencies by {} from {} on", scaling.factor, scaling.original_context);
    }
    let vocabulary = match model.tokenizer() {
        Ok(tokenizer) => format!("{}, tokenizer with {}", h.vocabulary, tokenizer.vocabulary_size()),
        Err(error) => format!("{}; no tokenizer: {error}", h.vocabulary),
    };
    for (name, value) in [
        ("architecture", h.architecture.clone()),
        ("name", h.name.clone().unwrap_or_default()),
        ("parameters", count(model.graph().parameters())),
        ("file", bytes(model.file_bytes())),
        ("tensors", types.join(", ")),
        ("blocks", h.layers.to_string()),
        ("width", format!("{}, feed-forward {}", h.width, h.feed_forward)),
        ("heads", heads),
        ("rotary embedding", rope),
        ("context", h.context.to_string()),
        ("vocabulary", vocabulary),
    ] {
        table.add_row([name.to_string(), value]);
    }
    print(&format!("{table}\n"));
}

fn print_segments(segments: &[Segment]) {
    let mut table =
        table(&[">#", "segment", ">resident", ">read / micro-batch", ">FLOP / token", ">KV / token (f16)"]);
    // Blocks that cost the same share a row.
    let mut first = 0;
    for (index, segment) in segments.iter().enumerate() {
        let same = |a: &Segment, b: &Segment| {
            a.kind == b.kind
                && (a.read_bytes, a.flops_per_row, resident_bytes(a))
                    == (b.read_bytes, b.flops_per_row, resident_bytes(b))
        };
        if segments.get(index + 1).is_some_and(|next| same(segment, next)) {
            continue;
        }
        let (range, name) = match first == index {
            true => (index.to_string(), segment.name.clone()),
            false => (format!("{first}-{index}"), format!("{} … {}", segments[first].name, segment.name)),
        };
        table.add_row([
            range,
            name,
            bytes(resident_bytes(segment)),
            bytes(segment.read_bytes),
            count(segment.flops_per_row),
            bytes(segment.kv_bytes_per_position),
        ]);
        first = index + 1;
    }
    print(&format!("{table}\n"));
}

fn resident_bytes(segment: &Segment) -> u64 {
    segment.tensors.iter().map(|t| t.resident_bytes).sum()
}

fn print_tensors(model: &Model) {
    let mut table = table(&["tensor", "type", ">shape", ">bytes"]);
    for tensor in model.graph().weights().tensors() {
        let shape: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
        let row = [
            tensor.name.clone(),
            tensor.tensor_type.name().into(),
            shape.join(" × "),
            tensor.bytes.to_string(),
        ];
        table.add_row(row);
    }
    print(&format!("{table}\n"));
}

fn as_json(model: &Model, segments: &[Segment], tensors: bool) -> Result<serde_json::Value> {
    let types: BTreeMap<_, _> =
        types(model).into_iter().map(|(name, (n, b))| (name, json!({ "tensors": n, "bytes": b }))).collect();
    let mut value = json!({
        "model": model.name(),
        "fingerprint": model.fingerprint()?,
        "file_bytes": model.file_bytes(),
        "parameters": model.graph().parameters(),
        "hyperparameters": model.hyperparameters(),
        "tensor_types": types,
        "segments": segments,
    });
    if tensors {
        let list: Vec<_> = model
            .graph()
            .weights()
            .tensors()
            .iter()
            .map(|t| json!({ "name": t.name, "type": t.tensor_type, "shape": t.shape, "bytes": t.bytes }))
            .collect();
        value["tensors"] = list.into();
    }
    Ok(value)
}
