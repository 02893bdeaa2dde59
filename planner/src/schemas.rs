//! Generates the JSON Schemas of fleets, plans and requests for plans from their Rust types. `cargo xtask schemas` writes them to
//! `docs/schemas`. Knows nothing about the purpose of the formats.

use crate::fleet::Fleet;
use crate::plan::Plan;
use crate::request::{PlanAnswer, PlanRequest};
use ragtag_graph::{Granularity, WireType};
use ragtag_hal::AdapterKind;
use ragtag_kernels::{Activations, KvType};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;

/// Returns every schema as a pair of file name and JSON text.
pub fn all() -> [(&'static str, String); 3] {
    let of = |schema: Schema| {
        let mut schema = schema.to_value();
        // Other crates may enable a feature of serde_json that keeps the order of insertion.
        schema.sort_all_objects();
        lines(&schema, 2) + "\n"
    };
    let generator = || SchemaSettings::draft2020_12().into_generator();
    [
        ("fleet.schema.json", of(generator().into_root_schema_for::<Fleet>())),
        ("plan.schema.json", of(generator().into_root_schema_for::<Plan>())),
        ("plan-api.schema.json", of(api(generator()))),
    ]
}

/// Formats JSON with a line for each field of the outer `levels` objects.
fn lines(value: &Value, levels: usize) -> String {
    let Value::Object(fields) = value else { return value.to_string() };
    if levels == 0 {
        return value.to_string();
    }
    let line = |(name, field): (&String, &Value)| format!("{name:?}: {}", lines(field, levels - 1));
    format!("{{\n{}\n}}", fields.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

/// Returns the schema of a line that `ragtag plan --api` reads or writes.
fn api(mut generator: SchemaGenerator) -> Schema {
    let lines = [generator.subschema_for::<PlanRequest>(), generator.subschema_for::<PlanAnswer>()];
    json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A request or an answer of ragtag plan --api",
        "anyOf": lines,
        "$defs": generator.take_definitions(true),
    })
}

/// Returns the schema of the fleet of a request.
pub(crate) fn requested_fleet(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "$ref": "fleet.schema.json" }, { "type": ["string", "null"] }] })
}

/// Returns the schema of the plan of an answer.
pub(crate) fn plan(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "$ref": "plan.schema.json" })
}

/// Returns a schema that allows exactly the serialised forms of `values`.
fn one_of(values: &[impl Serialize]) -> Schema {
    json_schema!({ "enum": values })
}

pub(crate) fn adapter_kind(_: &mut SchemaGenerator) -> Schema {
    use AdapterKind::{Cpu, Discrete, Integrated, Software};
    one_of(&[Some(Discrete), Some(Integrated), Some(Cpu), Some(Software), None])
}

pub(crate) fn kv_type(_: &mut SchemaGenerator) -> Schema {
    one_of(&KvType::ALL)
}

pub(crate) fn granularity(_: &mut SchemaGenerator) -> Schema {
    one_of(&[Granularity::Block, Granularity::HalfBlock])
}

pub(crate) fn wire_type(_: &mut SchemaGenerator) -> Schema {
    one_of(&WireType::ALL)
}

pub(crate) fn activations(_: &mut SchemaGenerator) -> Schema {
    one_of(&Activations::ALL)
}

/// Returns the schema of a [`Profile`](crate::Profile). Only calibration writes profiles, so it names no more fields.
pub(crate) fn profile(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": { "ragtag_profile": { "const": crate::cost::PROFILE_VERSION } },
        "required": ["ragtag_profile", "identity", "kinds"],
    })
}

/// Returns the schema of [`Routes`](ragtag_transfer::Routes).
pub(crate) fn routes(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "up_to_bytes": {
                    "description": "Maximum size of a transfer over this route. Absent on the last route.",
                    "type": "integer",
                    "minimum": 0,
                },
                "route": route(generator),
            },
            "required": ["route"],
            "additionalProperties": false,
        },
    })
}

/// Returns the schema of [`Route`](ragtag_transfer::Route): a route name, or an object with the ring size.
fn route(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            { "enum": ["peer", "import"] },
            {
                "type": "object",
                "properties": {
                    "host-staged": {
                        "type": "object",
                        "properties": {
                            "chunk_bytes": { "type": "integer", "minimum": 1 },
                            "depth": { "type": "integer", "minimum": 1 },
                        },
                        "additionalProperties": false,
                    },
                },
                "required": ["host-staged"],
                "additionalProperties": false,
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_transfer::Route;

    #[test]
    fn the_committed_schemas_are_those_of_the_types() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas/");
        for (name, text) in all() {
            let committed = std::fs::read_to_string(format!("{folder}{name}")).unwrap_or_default();
            assert_eq!(committed, text, "docs/schemas/{name} is stale; run `cargo xtask schemas`");
        }
    }

    /// Checks that the schema of routes matches the type. The schema is written by hand, so it could diverge.
    #[test]
    fn the_schema_of_routes_has_their_names() {
        let schema = route(&mut SchemaGenerator::default());
        let (names, ring) =
            (&schema.as_value()["anyOf"][0]["enum"], &schema.as_value()["anyOf"][1]["properties"]);
        let written = |route: Route| serde_json::to_value(route).unwrap();
        for route in [Route::Peer, Route::Import] {
            assert!(names.as_array().unwrap().contains(&written(route)));
        }
        let staged = written(Route::HOST_STAGED);
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&staged), keys(ring));
        assert_eq!(keys(&staged["host-staged"]), keys(&ring["host-staged"]["properties"]));
    }

    #[test]
    fn a_ring_without_figures_is_the_default_ring() {
        let read = |json: &str| serde_json::from_str::<Route>(json).unwrap();
        assert_eq!(read(r#"{"host-staged": {}}"#), Route::HOST_STAGED);
        let deep = Route::HostStaged { chunk_bytes: 256 << 10, depth: 9 };
        assert_eq!(read(r#"{"host-staged": {"depth": 9}}"#), deep);
    }
}
