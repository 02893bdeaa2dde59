//! Formats a plan as a line, and as a table of its stages.

use super::output::{bytes, table};
use ragtag_kernels::params::BLOCK_TOKENS;
use ragtag_planner::plan::{HostMemory, Plan, PlanStage};

/// Summarizes a plan in one line: split, context and chunk.
pub(super) fn summary(plan: &Plan) -> String {
    let chunks = plan.chunks();
    let chunk = match (chunks.least_rows(), chunks.most_rows()) {
        (shortest, longest) if shortest < longest => format!("chunks {shortest} to {longest}"),
        (_, longest) => format!("chunk {longest}"),
    };
    let pool = match plan.kv_blocks {
        blocks if blocks == plan.full_blocks() => String::new(),
        blocks => format!(" · {} cache positions", u64::from(blocks) * BLOCK_TOKENS as u64),
    };
    format!("plan: {} · context {}{pool} · {chunk}", plan.split(), plan.context)
}

/// Formats a plan as a table of its stages, followed by the plan's reasons. If memory is capped, the table
/// shows the available bytes instead of the share that the plan uses. The table fits into `width`.
pub(super) fn as_table(plan: &Plan, is_capped: bool, width: Option<u16>) -> String {
    let streams = plan.all_stages().any(|stage| !stage.streamed.is_empty());
    let columns = [
        ">stage",
        "device",
        "segments",
        if streams { "+>weights, arenas" } else { "+>weights" },
        "+>KV cache",
        "+>scratch, slots",
        "+>staging",
        ">memory",
        ">of free",
        ">decode",
        ">prefill",
    ];
    let mut table = table(&columns, width);
    for (index, stage) in plan.all_stages().enumerate() {
        let memory = &stage.memory_bytes;
        let of_free = match is_capped {
            true => format!("of {}", bytes(memory.available)),
            false => format!("{:.1} %", 100.0 * memory.total as f64 / memory.available.max(1) as f64),
        };
        table.add_row([
            if index < plan.stages.len() { index.to_string() } else { "prefill".into() },
            stage.device.clone(),
            segments(stage),
            bytes(memory.weights.saturating_add(memory.arenas)),
            bytes(memory.kv),
            bytes(memory.scratch + memory.slots),
            bytes(memory.staging),
            bytes(memory.total),
            of_free,
            format!("{:.2} ms", stage.predicted.decode_us / 1e3),
            format!("{:.2} ms", stage.predicted.prefill_us / 1e3),
        ]);
    }
    let mut text = format!("{table}\n{}", host_memory("host memory", &plan.host_memory_bytes));
    for host in &plan.other_hosts {
        text.push_str(&host_memory(&format!("host memory of {}", host.name), &host.memory_bytes));
    }
    for reason in &plan.reasons {
        text.push_str(&format!("- {reason}\n"));
    }
    text
}

/// Formats the memory of a host.
fn host_memory(of: &str, host: &HostMemory) -> String {
    let [logits, staging, parameters, devices, total] =
        [host.logits, host.staging, host.parameters, host.devices, host.total].map(bytes);
    let weights = match host.weights {
        0 => String::new(),
        weights => format!(", streamed weights {}", bytes(weights)),
    };
    let passing = match host.kv {
        0 => String::new(),
        kv => format!(", keys and values in transit {}", bytes(kv)),
    };
    format!(
        "{of}: {total} (logits {logits}, staging {staging}, parameters {parameters}, stages in host memory \
         {devices}{weights}{passing})\n"
    )
}

/// Formats the segments of a stage, and the numbers of streamed ones, of their arenas and of those that are read
/// from the model's file.
fn segments(stage: &PlanStage) -> String {
    let from_file = match stage.from_file.len() {
        0 => String::new(),
        read => format!(", {read} from the file"),
    };
    match stage.streamed.len() {
        0 => stage.segments.to_string(),
        streamed => {
            format!("{}, {streamed} streamed in {} arenas{from_file}", stage.segments, stage.arenas().count())
        }
    }
}
