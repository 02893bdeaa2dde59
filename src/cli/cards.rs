//! Implements `ragtag cards`, which lists the GPUs that a fleet can name. It prints their datasheet figures
//! and the figures that the planner uses.

use super::args::CardsArgs;
use super::error::Result;
use super::output::{out_width, print_json, show, table};
use ragtag_planner::fleet::{Card, Fleet, cards, reached, source};
use serde_json::{Value, json};

pub(super) fn run(args: &CardsArgs) -> Result<()> {
    if args.json {
        let cards = cards().iter().map(as_json).collect::<Result<Vec<_>>>()?;
        return print_json(&json!({ "reached": reached(), "cards": cards }));
    }
    show(&as_table(out_width()))?;
    show("- ~ marks derived or assumed figures; --json adds sources and the shares that kernels reach\n")
}

pub(super) fn as_table(width: Option<u16>) -> String {
    let columns = [
        "card",
        "name",
        ">memory, GiB",
        ">GB/s",
        "+>f32, TFLOP/s",
        ">f16 matrix",
        "+>int8, TOP/s",
        "+PCIe",
        "+through",
    ];
    let mut table = table(&columns, width);
    for card in cards() {
        let figure = |field: &str, value: Option<f64>| match value {
            Some(value) if card.assumed.iter().any(|assumed| assumed == field) => format!("~{value}"),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        table.add_row([
            card.name.clone(),
            card.title.clone(),
            figure("memory_gib", Some(card.memory_gib)),
            figure("bandwidth_gb_per_s", Some(card.bandwidth_gb_per_s)),
            figure("f32_tflop_per_s", Some(card.f32_tflop_per_s)),
            figure("f16_matrix_tflop_per_s", card.f16_matrix_tflop_per_s),
            figure("int8_top_per_s", card.int8_top_per_s),
            card.pcie.map_or_else(String::new, |pcie| format!("{}.0 x{}", pcie.generation, pcie.lanes)),
            card.through.clone(),
        ]);
    }
    format!("{table}\n")
}

/// Returns the JSON entry of a card: its datasheet figures with their complete source, and the figures that
/// the planner uses.
fn as_json(card: &Card) -> Result<Value> {
    let invalid = |cause| crate::Error::Fleet { of: card.name.clone(), cause };
    let (devices, _) = Fleet::from_line(&card.name).and_then(|fleet| fleet.facts()).map_err(invalid)?;
    let mut value = json!(card);
    value["source"] = json!(source(&card.source));
    value["planned_with"] = json!(devices.first());
    Ok(value)
}
