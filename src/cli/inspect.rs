//! Implements `ragtag inspect`, which prints the contents of a model file.

use super::args::InspectArgs;
use super::error::Result;
use super::output::{bytes, count, out_width, print, print_json, show, table};
use crate::Model;
use ragtag_graph::{Granularity, Lowering, ModelError, Segment, Unused, WireType};
use ragtag_kernels::{Activations, KvType};
use serde_json::json;
use std::collections::BTreeMap;

pub(super) fn run(args: &InspectArgs) -> Result<()> {
    let model = super::start::model::open_metadata(args.model.path(), args.described, None)?;
    let (graph, activations) = (model.graph().with_granularity(args.granularity), args.activations);
    if args.dot {
        return print(&graph.dot(activations));
    }
    let segments = segments(&graph, activations)
        .map_err(|cause| crate::Error::Model { name: model.name().into(), cause })?;
    if args.json {
        return print_json(&as_json(&model, &segments, args.tensors)?);
    }
    let tensors = if args.tensors { tensor_table(&model, out_width()) } else { String::new() };
    show(&(summary(&model, out_width()) + &segment_table(&segments, out_width()) + &tensors))
}

pub(super) fn segments(
    graph: &ragtag_graph::Model,
    activations: Activations,
) -> std::result::Result<Vec<Segment>, ModelError> {
    let context = graph.hyperparameters().context;
    let (kv, wire_type) = (KvType::F16, WireType::F32);
    let lowering = Lowering {
        activations,
        kv,
        context,
        sequences: 1,
        kv_blocks: None,
        chunk: 1,
        logit_rows: 1,
        wire_type,
    };
    graph.segments(&lowering)
}

fn types(model: &Model) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in model.graph().weights().tensors() {
        let entry = types.entry(tensor.tensor_type.name()).or_insert((0, 0));
        *entry = (entry.0 + 1, entry.1 + tensor.bytes);
    }
    types
}

pub(super) fn summary(model: &Model, width: Option<u16>) -> String {
    let h = model.hyperparameters();
    let mut table = table(&["model", model.name()], width);
    let types: Vec<_> =
        types(model).iter().map(|(name, (n, b))| format!("{n} {name} ({})", bytes(*b))).collect();
    let described = model.graph().weights().without_data().is_some();
    let heads = format!("{} of {} dimensions, {} KV heads", h.heads, h.head_dimensions, h.kv_heads);
    let vocabulary = match model.graph().token_count() {
        Ok(Some(count)) => format!("{}, tokenizer with {count}", h.vocabulary),
        Ok(None) => h.vocabulary.to_string(),
        Err(error) => format!("{}; no tokenizer: {error}", h.vocabulary),
    };
    let context = match h.extras.indexer {
        Some(indexer) if indexer.context > h.context => {
            format!("{} of {}, because the indexer is not used", h.context, indexer.context)
        }
        _ => h.context.to_string(),
    };
    for (name, value) in [
        ("architecture", h.architecture.clone()),
        ("name", h.name.clone().unwrap_or_default()),
        ("parameters", count(model.graph().parameters())),
        ("file", bytes(model.file_bytes())),
        ("tensors", types.join(", ")),
        ("weights", if described { "metadata only, no tensor data" } else { "present" }.into()),
        ("blocks", h.layers.to_string()),
        ("width", format!("{}, feed-forward {}", h.width, h.feed_forward)),
        ("heads", heads),
        ("RoPE", h.rope.to_string()),
        ("context", context),
        ("vocabulary", vocabulary),
    ] {
        table.add_row([name.to_string(), value]);
    }
    for (name, unused) in [
        ("further-token layers", model.graph().predictors()),
        ("layers with an indexer", model.graph().indexers()),
    ] {
        let Unused { layers, tensors, bytes: size } = unused;
        if tensors > 0 {
            let value = format!("{layers}, not used ({tensors} tensors, {})", bytes(size));
            table.add_row([name.to_string(), value]);
        }
    }
    format!("{table}\n")
}

pub(super) fn segment_table(segments: &[Segment], width: Option<u16>) -> String {
    let columns =
        [">#", "segment", ">resident", "+>read / micro-batch", ">FLOP / token", ">KV / token (f16)"];
    let mut table = table(&columns, width);
    for row in rows(segments) {
        let (segment, last) = (&segments[row[0]], &segments[row[row.len() - 1]]);
        let name = match row.len() {
            1 => segment.name.clone(),
            _ => format!("{} … {}", segment.name, last.name),
        };
        table.add_row([
            numbers(&row),
            name,
            bytes(resident_bytes(segment)),
            bytes(segment.read_bytes),
            count(segment.flops_per_row),
            bytes(segment.kv_bytes_per_position),
        ]);
    }
    format!("{table}\n")
}

/// Groups neighboring segments with equal costs into rows of the table. Returns the segment indices of each
/// row. At half-block granularity, attention halves and feed-forward halves form separate rows.
fn rows(segments: &[Segment]) -> Vec<Vec<usize>> {
    let step = match Granularity::of(segments) {
        Granularity::Block => 1,
        Granularity::HalfBlock => 2,
    };
    let same = |a: &Segment, b: &Segment| {
        a.kind == b.kind
            && (a.read_bytes, a.flops_per_row, resident_bytes(a))
                == (b.read_bytes, b.flops_per_row, resident_bytes(b))
    };
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let before = rows.iter_mut().find(|row| row.last().is_some_and(|&last| last + step == index));
        match before.filter(|row| same(&segments[row[0]], segment)) {
            Some(row) => row.push(index),
            None => rows.push(vec![index]),
        }
    }
    rows
}

/// Formats the segment numbers of a row: `5`, `1-12`, or `1, 3 … 23`.
fn numbers(row: &[usize]) -> String {
    match row {
        [first, second] if second - first > 1 => format!("{first}, {second}"),
        [first, second, .., last] if second - first > 1 => format!("{first}, {second} … {last}"),
        [first, .., last] => format!("{first}-{last}"),
        few => few.iter().map(usize::to_string).collect(),
    }
}

fn resident_bytes(segment: &Segment) -> u64 {
    segment.tensors.iter().map(|t| t.resident_bytes).sum()
}

pub(super) fn tensor_table(model: &Model, width: Option<u16>) -> String {
    let mut table = table(&["tensor", "type", ">shape", ">bytes"], width);
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
    format!("{table}\n")
}

fn as_json(model: &Model, segments: &[Segment], tensors: bool) -> Result<serde_json::Value> {
    let types: BTreeMap<_, _> =
        types(model).into_iter().map(|(name, (n, b))| (name, json!({ "tensors": n, "bytes": b }))).collect();
    let mut value = json!({
        "model": model.name(),
        "fingerprint": model.fingerprint()?,
        "file_bytes": model.file_bytes(),
        "parameters": model.graph().parameters(),
        "has_weights": model.graph().weights().without_data().is_none(),
        "hyperparameters": model.hyperparameters(),
        "tensor_types": types,
        "further_token_layers": model.graph().predictors(),
        "indexers": model.graph().indexers(),
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
