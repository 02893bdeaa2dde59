//! Converts a plan of format versions 2 and 3 to the current version.
//!
//! In version 2, each edge has one route, `boundary` is the wire type, and there are no paths. In version 3, the KV
//! cache has room for all sequences at the full context, and each sequence takes its blocks before it starts.

use super::PLAN_VERSION;
use ragtag_graph::execution::{KvUse, Reserve};
use ragtag_kernels::params::BLOCK_TOKENS;
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// Format versions that this module converts.
pub(super) const FROM: RangeInclusive<u32> = 2..=3;

/// Returns the JSON of a plan in the current version. Fields that its version does not have stay as they are.
///
/// # Errors
/// Returns a message if `json` is not JSON.
pub(super) fn upgraded(json: &str) -> Result<String, String> {
    let mut plan: Value = crate::json::parse(json)?;
    if let Some(plan) = plan.as_object_mut() {
        if plan.insert("ragtag_plan".into(), PLAN_VERSION.into()) == Some(2.into()) {
            from_2_to_3(plan);
        }
        let figure = |name| plan.get(name).and_then(Value::as_u64).unwrap_or(0);
        let blocks = figure("context").div_ceil(BLOCK_TOKENS as u64).saturating_mul(figure("sequences"));
        plan.insert("kv_blocks".into(), blocks.into());
        plan.insert("kv_use".into(), json!(KvUse { reserve: Reserve::Full, prefixes: None }));
    }
    Ok(format!("{plan:#}"))
}

fn from_2_to_3(plan: &mut Map<String, Value>) {
    if let Some(wire_type) = plan.remove("boundary") {
        plan.insert("wire_type".into(), wire_type);
    }
    let stages = plan.get("stages").and_then(Value::as_array).map_or(0, Vec::len);
    let all: Vec<_> = (0..stages).collect();
    plan.insert("paths".into(), json!({ "prefill": all, "decode": all }));
    let edges = plan.get_mut("edges").and_then(Value::as_array_mut);
    for (from, edge) in edges.into_iter().flatten().enumerate() {
        let Some(edge) = edge.as_object_mut() else { continue };
        edge.insert("from".into(), from.into());
        edge.insert("to".into(), (from + 1).into());
        if let Some(route) = edge.remove("route") {
            edge.insert("routes".into(), json!([{ "route": route }]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    /// A plan that an earlier release wrote.
    const OLD: &str = include_str!("version-2.json");

    #[test]
    fn plans_of_versions_2_and_3_are_read() {
        let plan = Plan::from_json(OLD).expect("a plan of version 2");
        assert_eq!((plan.ragtag_plan, plan.wire_type.to_string().as_str()), (4, "f16"));
        assert_eq!((plan.paths.prefill.len(), plan.edges[0].to), (2, 1));
        assert_eq!(plan.edges[0].routes, ragtag_transfer::Route::HOST_STAGED.into());
        let full = KvUse { reserve: Reserve::Full, prefixes: None };
        assert_eq!((plan.kv_blocks, plan.kv_use), (512 / 16, full));
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan));

        let mut three = serde_json::to_value(&plan).expect("plain data");
        three["ragtag_plan"] = 3.into();
        three.as_object_mut().expect("a plan").retain(|name, _| !name.starts_with("kv_"));
        assert_eq!(Plan::from_json(&three.to_string()), Ok(plan));
    }

    #[test]
    fn mistakes_in_plans_of_version_2_are_named() {
        let wrong = OLD.replacen("\"boundary\"", "\"bound\"", 1);
        let error = Plan::from_json(&wrong).expect_err("a mistake").to_string();
        assert!(error.contains("unknown field `bound`") && error.contains("of its version 4"), "{error}");
        let error = Plan::from_json(&OLD.replacen("host-staged", "carrier", 1)).expect_err("a mistake");
        assert!(error.to_string().contains("edges[0].routes[0].route"), "{error}");
    }
}
