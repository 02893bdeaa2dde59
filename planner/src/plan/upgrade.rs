//! Converts a plan of format version 2 to the current version.
//!
//! In version 2, each edge has one route, `boundary` is the wire type, and there are no paths.

use super::PLAN_VERSION;
use serde_json::{Value, json};

/// Format version that this module converts.
pub(super) const FROM: u32 = 2;

/// Returns the JSON of a plan in the current version. Fields that version 2 does not have stay as they are.
///
/// # Errors
/// Returns a message if `json` is not JSON.
pub(super) fn upgraded(json: &str) -> Result<String, String> {
    let mut plan: Value = crate::json::parse(json)?;
    if let Some(plan) = plan.as_object_mut() {
        plan.insert("ragtag_plan".into(), PLAN_VERSION.into());
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
    Ok(format!("{plan:#}"))
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;

    /// A plan that an earlier release wrote.
    const OLD: &str = include_str!("version-2.json");

    #[test]
    fn plans_of_version_2_are_read() {
        let plan = Plan::from_json(OLD).expect("a plan of version 2");
        assert_eq!((plan.ragtag_plan, plan.wire_type.to_string().as_str()), (3, "f16"));
        assert_eq!((plan.paths.prefill.len(), plan.edges[0].to), (2, 1));
        assert_eq!(plan.edges[0].routes, ragtag_transfer::Route::HOST_STAGED.into());
        assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan));
    }

    #[test]
    fn mistakes_in_plans_of_version_2_are_named() {
        let wrong = OLD.replacen("\"boundary\"", "\"bound\"", 1);
        let error = Plan::from_json(&wrong).expect_err("a mistake").to_string();
        assert!(error.contains("unknown field `bound`") && error.contains("of its version 3"), "{error}");
        let error = Plan::from_json(&OLD.replacen("host-staged", "carrier", 1)).expect_err("a mistake");
        assert!(error.to_string().contains("edges[0].routes[0].route"), "{error}");
    }
}
